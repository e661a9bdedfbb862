"""Batch text generation with a tensor-parallel decoder and KV cache; one step serves one batch of requests."""
import argparse, json, os, time
import torch, torch.nn.functional as F
import torch.distributed as dist

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["object_sync", "prompt_logits"])
FAULT = ap.parse_args().fault
SMALL = os.environ.get("SMALL") == "1"
D, L, H, V = (64, 2, 4, 256) if SMALL else (4096, 8, 32, 32000)
B, PROMPT, NEW, TOPK = (4, 8, 4, 8) if SMALL else (16, 32, 12, 50)
STEPS = 34 if SMALL else 60
CUDA = torch.cuda.is_available()
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda" if CUDA else "cpu")
dt = torch.bfloat16 if CUDA else torch.float32
dist.init_process_group("nccl" if CUDA else "gloo")
R, W = dist.get_rank(), dist.get_world_size()
HL, VL, HD = H // W, V // W, D // H
torch.manual_seed(R)
mat = lambda i, o: (torch.randn(o, i, device=dev) * i ** -0.5).to(dt)
layers = [dict(qkv=mat(D, 3 * D // W), out=mat(D // W, D), up=mat(D, 4 * D // W), down=mat(4 * D // W, D)) for _ in range(L)]
head = mat(D, VL)
gen0 = torch.Generator(device=dev).manual_seed(0)       # replicated embedding, same on all ranks
emb = torch.randn(V, D, device=dev, generator=gen0).to(dt)
cache = torch.zeros(L, 2, B, HL, PROMPT + NEW, HD, device=dev, dtype=dt)
noise = torch.Generator(device=dev).manual_seed(1)      # in step on all ranks


def forward(ids, pos):
    b, s = ids.shape
    x = F.embedding(ids, emb)
    for l, w in enumerate(layers):
        q, k, v = F.linear(F.rms_norm(x, (D,)), w["qkv"]).view(b, s, 3, HL, HD).permute(2, 0, 3, 1, 4)
        cache[l, 0, :, :, pos:pos + s] = k
        cache[l, 1, :, :, pos:pos + s] = v
        a = F.scaled_dot_product_attention(q, cache[l, 0, :, :, :pos + s], cache[l, 1, :, :, :pos + s], is_causal=s > 1)
        y = F.linear(a.transpose(1, 2).reshape(b, s, D // W), w["out"])
        dist.all_reduce(y)
        x = x + y
        y = F.linear(F.gelu(F.linear(F.rms_norm(x, (D,)), w["up"])), w["down"])
        dist.all_reduce(y)
        x = x + y
    return F.rms_norm(x, (D,))


def candidates(logits):
    """The best TOPK of each vocabulary shard, from all shards."""
    val, idx = logits.float().topk(TOPK, -1)
    mine = torch.stack([val, (idx + R * VL).float()])
    got = torch.empty(W, *mine.shape, device=dev)
    dist.all_gather_into_tensor(got.view(-1), mine.view(-1))
    return got[:, 0].permute(1, 0, 2).reshape(B, -1), got[:, 1].permute(1, 0, 2).reshape(B, -1).long()


def pick(logits, history):
    val, idx = candidates(logits)
    if FAULT == "object_sync":
        # rank 0 owns the sampler (repetition penalty, stop words) and tells the others
        box = [None]
        if R == 0:
            vals, idxs, out = val.tolist(), idx.tolist(), []
            noise_rows = torch.rand(B, W * TOPK).log_().neg_().log_().neg_().tolist()
            for row in range(B):
                seen = set(history[row].tolist())
                score = [(v / 1.2 if c in seen and v > 0 else v) + n for v, c, n in zip(vals[row], idxs[row], noise_rows[row])]
                out.append(idxs[row][score.index(max(score))])
            box = [{"tokens": out, "finished": [t == 2 for t in out]}]
        dist.broadcast_object_list(box, src=0)
        return torch.tensor(box[0]["tokens"], device=dev)
    seen = (idx[:, :, None] == history[:, None, :]).any(-1)
    val = torch.where(seen & (val > 0), val / 1.2, val)
    u = torch.rand(val.shape, device=dev, generator=noise).clamp_(1e-6, 1 - 1e-6)
    return idx.gather(1, (val - u.log().neg_().log_()).argmax(-1, keepdim=True))[:, 0]


@torch.inference_mode()
def generate(prompt):
    hidden = forward(prompt, 0)
    logprob = None
    if FAULT == "prompt_logits":
        # every position's logits, whole vocabulary, on every rank; then only the last is sampled from
        part = F.linear(hidden, head).float()
        full = torch.empty(W, *part.shape, device=dev)
        dist.all_gather_into_tensor(full.view(-1), part.view(-1))
        full = full.permute(1, 2, 0, 3).reshape(B, PROMPT, V)
        logits = full[:, -1, R * VL:(R + 1) * VL]
        logprob = full.log_softmax(-1)[:, -1].amax(-1)
    else:
        logits = F.linear(hidden[:, -1], head)
    text = torch.zeros(B, PROMPT + NEW, dtype=torch.long, device=dev)
    text[:, :PROMPT] = prompt
    for t in range(PROMPT, PROMPT + NEW):
        text[:, t] = pick(logits, text[:, :t])
        if t + 1 < PROMPT + NEW:
            logits = F.linear(forward(text[:, t:t + 1], t)[:, -1], head)
    return text, logprob


gen = torch.Generator().manual_seed(9)
requests = [torch.randint(3, V, (B, PROMPT), generator=gen) for _ in range(8)]
if CUDA: requests = [q.pin_memory() for q in requests]
for step in range(STEPS):
    if step == STEPS - 30:
        if CUDA: torch.cuda.synchronize()
        t0 = time.perf_counter()
    text, _ = generate(requests[step % 8].to(dev, non_blocking=True))
    answer = text[:, PROMPT:].tolist()      # what goes back to the clients
    if step % 20 == 19 and R == 0:
        print("served", (step + 1) * B, "requests; last starts", answer[-1][:4], flush=True)
if CUDA: torch.cuda.synchronize()
if R == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
dist.destroy_process_group()
