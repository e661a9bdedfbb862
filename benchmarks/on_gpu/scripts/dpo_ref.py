"""Direct preference optimisation: DDP policy, frozen bf16 reference model, pairs (chosen, rejected)."""
import argparse, copy, json, os, random, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["ref_offload", "empty_cache", "long_pairs"], default=None)
    ap.add_argument("--beta", type=float, default=0.1)
    return ap.parse_args()


SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
if SMALL:
    DIM, DEPTH, HEADS, VOCAB, PAIRS, MAXLEN, STEPS, TIMED = 64, 2, 4, 300, 2, 64, 6, 3
else:
    DIM, DEPTH, HEADS, VOCAB, PAIRS, MAXLEN, STEPS, TIMED = 768, 10, 12, 16384, 6, 768, 60, 30


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ffn(self.ln2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(MAXLEN, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, mask):
        """Sum of the log-probabilities of the response tokens, one number a sequence."""
        x = self.emb(ids[:, :-1]) + self.pos.weight[:ids.size(1) - 1]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.ln(x))
        nll = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return -(nll.view(ids.size(0), -1) * mask[:, 1:]).sum(-1)


def make_shard(rank, world, n):
    """Lengths of prompt+answer of this rank's samples."""
    rng = random.Random(11)
    lens = [rng.randint(MAXLEN // 3, MAXLEN * 5 // 8) for _ in range(n * world)]
    if get_args().fault == "long_pairs":
        lens = sorted(rng.randint(MAXLEN // 3, MAXLEN * 13 // 16) for _ in range(n * world))
        mine = lens[rank * n:(rank + 1) * n]
        rng.shuffle(mine)
        return mine
    return lens[rank::world]


def collate(lens, gen):
    width = -(-max(lens) // 8) * 8
    ids = torch.randint(0, VOCAB, (2 * len(lens), width), generator=gen)
    pos = torch.arange(width)[None]
    full = torch.tensor(lens * 2)[:, None]
    mask = ((pos >= full // 3) & (pos < full)).float()
    return (ids.pin_memory(), mask.pin_memory()) if CUDA else (ids, mask)


def main():
    args = get_args()
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = LM().to(dev)
    ref = copy.deepcopy(net).bfloat16().eval().requires_grad_(False)
    if args.fault == "ref_offload":
        ref = ref.cpu()
        host = {n: p.data for n, p in ref.named_parameters()}
    policy = DistributedDataParallel(net, device_ids=[dev.index] if CUDA else None,
                                     gradient_as_bucket_view=True, bucket_cap_mb=50)
    if CUDA:
        policy.register_comm_hook(None, default_hooks.bf16_compress_hook)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=CUDA)
    gen = torch.Generator().manual_seed(20 + rank)
    lens = make_shard(rank, world, 16 * PAIRS)
    batches = [collate(lens[i:i + PAIRS], gen) for i in range(0, len(lens), PAIRS)]
    shown = torch.zeros((), device=dev)

    for step in range(STEPS):
        if step == STEPS - TIMED:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids, mask = (t.to(dev, non_blocking=True) for t in batches[step % len(batches)])
        if args.fault == "ref_offload":
            for n, p in ref.named_parameters():
                p.data = host[n].to(dev)
        with torch.no_grad(), torch.autocast(dev.type, torch.bfloat16):
            ref_logp = ref(ids, mask)
        if args.fault == "ref_offload":
            for n, p in ref.named_parameters():
                p.data = host[n]
        with torch.autocast(dev.type, torch.bfloat16):
            logp = policy(ids, mask)
        margin = (logp - ref_logp)
        margin = margin[:PAIRS] - margin[PAIRS:]
        loss = -F.logsigmoid(args.beta * margin).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        shown.lerp_((margin.detach() > 0).float().mean(), 0.1)
        if args.fault == "empty_cache" and CUDA and step % 2 == 1:     # lengths vary, memory fragments
            torch.cuda.empty_cache()
    if CUDA:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / TIMED
    if rank == 0:
        print(json.dumps({"step_ms": ms, "accuracy": shown.item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
