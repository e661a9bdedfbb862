"""Megatron-style tensor-parallel transformer written by hand (column/row parallel, vocab-parallel loss)."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

p = argparse.ArgumentParser()
p.add_argument("--fault", choices=["fp32_reduce", "full_logits", "clip_per_param"])
FAULT = p.parse_args().fault
SMALL = os.environ.get("SMALL") == "1"
D, L, H, V = (64, 2, 4, 256) if SMALL else (2048, 6, 16, 32000)
B, S = (2, 16) if SMALL else (4, 512)
STEPS = 34 if SMALL else 60

CUDA = torch.cuda.is_available()
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda" if CUDA else "cpu")
torch.set_float32_matmul_precision("high")
dist.init_process_group("nccl" if CUDA else "gloo")
R, W = dist.get_rank(), dist.get_world_size()


def reduce_activation(x):
    if FAULT == "fp32_reduce":          # sum partial results in full precision
        y = x.float().contiguous()
        dist.all_reduce(y)
        return y.to(x.dtype)
    y = x.contiguous().clone()
    dist.all_reduce(y)
    return y


class Copy(torch.autograd.Function):    # f in the Megatron paper
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g): return reduce_activation(g)


class Reduce(torch.autograd.Function):  # g in the Megatron paper
    @staticmethod
    def forward(ctx, x): return reduce_activation(x)
    @staticmethod
    def backward(ctx, g): return g


class GatherLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(W)]
        dist.all_gather(out, x.contiguous())
        return torch.cat(out, -1)
    @staticmethod
    def backward(ctx, g): return g.chunk(W, -1)[R].contiguous()


class VocabParallelCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        z = logits.float()
        m = z.amax(-1)
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        z = (z - m[:, None]).exp_()
        local = target - R * z.shape[-1]
        mine = (local >= 0) & (local < z.shape[-1])
        idx = local.clamp(0, z.shape[-1] - 1)
        t = torch.where(mine, logits.gather(-1, idx[:, None])[:, 0].float() - m, torch.zeros_like(m))
        both = torch.stack([z.sum(-1), t])
        dist.all_reduce(both)
        ctx.save_for_backward(z.div_(both[0][:, None]), idx, mine)
        ctx.dtype = logits.dtype
        return (both[0].log() - both[1]).mean()
    @staticmethod
    def backward(ctx, g):
        prob, idx, mine = ctx.saved_tensors
        grad = prob.clone()
        grad.scatter_add_(-1, idx[:, None], -mine.float()[:, None])
        return (grad * (g / len(idx))).to(ctx.dtype), None


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D // W, bias=False)
        self.out = nn.Linear(D // W, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D // W, bias=False), nn.Linear(4 * D // W, D, bias=False)

    def forward(self, x):
        h = Copy.apply(self.ln1(x).to(x.dtype))
        q, k, v = self.qkv(h).view(B, S, 3, H // W, D // H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, S, D // W)
        x = x + Reduce.apply(self.out(a))
        h = Copy.apply(self.ln2(x).to(x.dtype))
        return x + Reduce.apply(self.down(F.gelu(self.up(h))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V // W, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, V // W, bias=False)

    def forward(self, ids, target):
        loc = ids - R * (V // W)
        mine = (loc >= 0) & (loc < V // W)
        e = self.emb(loc.clamp(0, V // W - 1)) * mine[..., None]
        x = Reduce.apply(e.to(torch.bfloat16))
        for l in self.layers:
            x = l(x)
        logits = self.head(Copy.apply(self.ln(x).to(x.dtype))).flatten(0, 1)
        if FAULT == "full_logits":
            return F.cross_entropy(GatherLast.apply(logits).float(), target.flatten())
        return VocabParallelCE.apply(logits, target.flatten())


def clip(params, max_norm=1.0):
    grads = [q.grad for q in params if q.grad is not None]
    if FAULT == "clip_per_param":
        total = 0.0
        for g in grads:
            n = g.norm() ** 2
            dist.all_reduce(n)
            total += n.item()
        scale = min(1.0, max_norm / (total ** 0.5 + 1e-6))
    else:
        sq = torch.stack(torch._foreach_norm(grads)).square().sum()
        dist.all_reduce(sq)
        scale = (max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(grads, scale)


torch.manual_seed(1 + R)
model = Model().to(dev)
params = list(model.parameters())
opt = torch.optim.AdamW(params, lr=1e-4, fused=CUDA)
gen = torch.Generator().manual_seed(7)      # the same data on every tensor-parallel rank
data = [torch.randint(0, V, (B, S + 1), generator=gen) for _ in range(8)]
if CUDA: data = [d.pin_memory() for d in data]
for step in range(STEPS):
    if step == STEPS - 30:
        if CUDA: torch.cuda.synchronize()
        t0 = time.perf_counter()
    ids = data[step % 8].to(dev, non_blocking=True)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    clip(params)
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 20 == 19 and R == 0:
        print("step", step + 1, "loss", round(loss.item(), 4), flush=True)
if CUDA: torch.cuda.synchronize()
if R == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
dist.destroy_process_group()
