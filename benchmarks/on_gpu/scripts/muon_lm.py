"""GPT pre-training with Muon for the matrices (orthogonalised momentum, work shared out over the ranks) and Adam for the rest."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["fp32_update", "bcast_each"])
FAULT = parser.parse_args().fault
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
if SMALL:
    D, L, H, V, SEQ, B, STEPS, TIMED = 64, 2, 4, 256, 32, 2, 6, 3
else:
    D, L, H, V, SEQ, B, STEPS, TIMED = 1024, 6, 16, 16384, 512, 16, 60, 30


def newton_schulz(g, iters=5, dtype=torch.bfloat16):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(dtype)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.mT
    x = x / (x.norm() + 1e-7)
    for _ in range(iters):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return (x.mT if flip else x).contiguous()


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are dealt out to the ranks in turn; updates are exchanged with all_gather."""

    def __init__(self, matrices, others, lr=0.02, adam_lr=3e-4):
        by_shape = {}
        for p in matrices:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        groups = [dict(params=ps, lr=lr, muon=True) for ps in by_shape.values()]
        groups.append(dict(params=others, lr=adam_lr, muon=False))
        super().__init__(groups, {})
        self.rank, self.world, self.t = dist.get_rank(), dist.get_world_size(), 0

    def momentum(self, p):
        if "m" not in self.state[p]:
            self.state[p]["m"] = torch.zeros_like(p)
        buf = self.state[p]["m"]
        buf.lerp_(p.grad, 0.05)
        return p.grad.lerp(buf, 0.95)

    def apply(self, p, u, lr):
        p.add_(u.view_as(p).to(p.dtype), alpha=-lr * max(1, p.size(0) / p.size(1)) ** 0.5)

    @torch.no_grad()
    def step(self):
        self.t += 1
        dtype = torch.float32 if FAULT == "fp32_update" else torch.bfloat16
        pending = []
        for g in self.param_groups:
            if not g["muon"]:
                self.adam(g)
                continue
            ps = g["params"]
            if FAULT == "bcast_each":
                for i, p in enumerate(ps):
                    owner = i % self.world
                    u = newton_schulz(self.momentum(p)) if owner == self.rank else torch.empty_like(p, dtype=dtype)
                    dist.broadcast(u, src=owner)
                    self.apply(p, u, g["lr"])
                continue
            for base in range(0, len(ps), self.world):
                chunk = ps[base:base + self.world]
                mine = chunk[min(self.rank, len(chunk) - 1)]
                u = newton_schulz(self.momentum(mine), dtype=dtype)
                out = torch.empty((self.world * u.size(0), u.size(1)), dtype=dtype, device=u.device)
                work = dist.all_gather_into_tensor(out, u, async_op=True)
                pending.append((work, chunk, out, g["lr"], u))
        for work, chunk, out, lr, _ in pending:
            work.wait()
            for p, u in zip(chunk, out.chunk(self.world)):
                self.apply(p, u, lr)

    def adam(self, g):
        ps = [p for p in g["params"] if p.grad is not None]
        grads = [p.grad for p in ps]
        for p in ps:
            if "a" not in self.state[p]:
                self.state[p]["a"], self.state[p]["v"] = torch.zeros_like(p), torch.zeros_like(p)
        ms, vs = [self.state[p]["a"] for p in ps], [self.state[p]["v"] for p in ps]
        torch._foreach_lerp_(ms, grads, 0.1)
        torch._foreach_mul_(vs, 0.99)
        torch._foreach_addcmul_(vs, grads, grads, 0.01)
        den = torch._foreach_sqrt(vs)
        torch._foreach_add_(den, 1e-8)
        torch._foreach_addcdiv_(ps, ms, den, value=-g["lr"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(SEQ, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, idx, tgt):
        x = self.tok(idx) + self.pos.weight
        for blk in self.blocks:
            x = blk(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, V), tgt.reshape(-1))


if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
rank = dist.get_rank()
torch.set_float32_matmul_precision("high")
torch.manual_seed(1)
net = GPT().to(dev)
model = DDP(net, device_ids=[dev.index] if CUDA else None, gradient_as_bucket_view=True)
if CUDA:
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
mats = [p for p in net.blocks.parameters() if p.ndim == 2]
ids = {id(p) for p in mats}
opt = Muon(mats, [p for p in net.parameters() if id(p) not in ids])
gen = torch.Generator().manual_seed(10 + rank)
tokens = torch.randint(0, V, (32, B, SEQ + 1), generator=gen)
tokens = tokens.pin_memory() if CUDA else tokens
for step in range(STEPS):
    if step == STEPS - TIMED:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    batch = tokens[step % 32].to(dev, non_blocking=True)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    opt.step()
    opt.zero_grad()
if CUDA:
    torch.cuda.synchronize()
ms = (time.perf_counter() - t0) * 1e3 / TIMED
if rank == 0:
    print(json.dumps({"step_ms": ms, "loss": loss.item()}))
dist.destroy_process_group()
