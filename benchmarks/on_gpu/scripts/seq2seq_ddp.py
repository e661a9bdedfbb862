"""Translation: transformer encoder, recurrent decoder with attention, DDP; sentences are tokenised in the main process."""
import argparse, json, os, random, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["stepwise_decoder", "per_tensor_clip", "phase_timers"])
ap.add_argument("--steps", type=int, default=60)
args = ap.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
RANK = int(os.environ["RANK"])
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
DEV = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
torch.manual_seed(0)
VOCAB, D, LAYERS, SRC, TGT, BATCH = (200, 32, 2, 12, 6, 4) if SMALL else (8192, 512, 6, 256, 32, 48)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(VOCAB, D), nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(torch.randn(SRC, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, max(1, D // 64), 4 * D, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        if args.fault == "stepwise_decoder":
            self.cells = nn.ModuleList([nn.GRUCell(D, D), nn.GRUCell(D, D)])
        else:
            self.gru = nn.GRU(D, D, num_layers=2, batch_first=True)
        self.mix = nn.Linear(2 * D, D)
        self.out = nn.Linear(D, VOCAB)

    def attend(self, h, mem):  # h (B, n, D), mem (B, S, D)
        ctx = torch.bmm(torch.softmax(torch.bmm(h, mem.transpose(1, 2)) * D ** -0.5, -1), mem)
        return torch.tanh(self.mix(torch.cat([h, ctx.to(h.dtype)], -1)))

    def forward(self, src, tgt):
        mem = self.encoder(self.src(src) + self.pos)
        emb = self.tgt(tgt)
        if args.fault == "stepwise_decoder":
            hid = [torch.zeros(len(src), D, device=src.device) for _ in self.cells]
            steps = []
            for t in range(tgt.shape[1]):
                x = emb[:, t]
                with torch.autocast(DEV.type, enabled=False):
                    for i, cell in enumerate(self.cells):
                        x = hid[i] = cell(x, hid[i])
                steps.append(self.attend(x[:, None], mem))
            y = torch.cat(steps, 1)
        else:
            with torch.autocast(DEV.type, enabled=False):
                h = self.gru(emb)[0]
            y = self.attend(h, mem)
        return self.out(y)


class Corpus:
    def __init__(self):
        self.r = random.Random(RANK)
        words = [f"word{i}" for i in range(2 * VOCAB)]
        self.index = {w: i + 3 for i, w in enumerate(words[:VOCAB - 3])}
        self.lines = [(" ".join(self.r.choices(words, k=SRC)), " ".join(self.r.choices(words, k=TGT))) for _ in range(800)]

    def encode(self, text, noise):
        return [2 if self.r.random() < noise else self.index.get(w, 1) for w in text.split()]

    def batch(self):
        pairs = self.r.choices(self.lines, k=BATCH)
        src = torch.tensor([self.encode(s, 0.1) for s, _ in pairs])
        tgt = torch.tensor([[0] + self.encode(t, 0.0) for _, t in pairs])
        if CUDA:
            src, tgt = src.pin_memory(), tgt.pin_memory()
        return src.to(DEV, non_blocking=True), tgt.to(DEV, non_blocking=True)


class PhaseTimer:
    def __init__(self):
        self.sums, self.last = {}, time.perf_counter()

    def mark(self, name):
        if args.fault != "phase_timers":
            return
        if CUDA:
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.sums[name] = self.sums.get(name, 0.0) + now - self.last
        self.last = now


def clip(params, limit):
    if args.fault == "per_tensor_clip":
        total = 0.0
        for p in params:
            total += p.grad.detach().norm(2).item() ** 2
        scale = limit / (total ** 0.5 + 1e-6)
        if scale < 1:
            for p in params:
                p.grad.mul_(scale)
    else:
        nn.utils.clip_grad_norm_(params, limit, foreach=True)


model = nn.parallel.DistributedDataParallel(Seq2Seq().to(DEV), device_ids=[DEV.index] if CUDA else None,
                                            gradient_as_bucket_view=True)
params = list(model.parameters())
opt = torch.optim.AdamW(params, lr=3e-4, fused=CUDA and args.fault != "per_tensor_clip", foreach=False if args.fault == "per_tensor_clip" else None)
corpus, timer = Corpus(), PhaseTimer()
for step in range(args.steps):
    if step == args.steps - 30:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    src, tgt = corpus.batch()
    timer.mark("data")
    with torch.autocast(DEV.type, dtype=torch.bfloat16):
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tgt[:, 1:].flatten())
    timer.mark("forward")
    loss.backward()
    timer.mark("backward")
    clip(params, 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    timer.mark("optimizer")
if CUDA:
    torch.cuda.synchronize()
if RANK == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
dist.destroy_process_group()
