"""Long-sequence transformer, the sequence split over the ranks; attention by exchanging heads for tokens (all_to_all)."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["gather_qkv", "dense_mask"], default=None)
FAULT = ap.parse_args().fault
SMALL, CUDA = os.environ.get("SMALL") == "1", torch.cuda.is_available()
D, L, H, V, SEQ, STEPS, TIMED = (64, 2, 4, 256, 64, 6, 3) if SMALL else (1024, 6, 16, 8192, 8192, 60, 30)
HD = D // H


def a2a(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


class TokensToHeads(torch.autograd.Function):
    """[t/P, 3, H, hd] -> [t, 3, H/P, hd]"""

    @staticmethod
    def forward(ctx, x):
        P = dist.get_world_size()
        t, n, h, d = x.shape
        ctx.dims = (t, n, h, d)
        y = a2a(x.view(t, n, P, h // P, d).permute(2, 0, 1, 3, 4).contiguous())
        return y.view(P * t, n, h // P, d)

    @staticmethod
    def backward(ctx, g):
        P = dist.get_world_size()
        t, n, h, d = ctx.dims
        y = a2a(g.contiguous().view(P, t, n, h // P, d))
        return y.permute(1, 2, 0, 3, 4).reshape(t, n, h, d)


class HeadsToTokens(torch.autograd.Function):
    """[t, H/P, hd] -> [t/P, H, hd]"""

    @staticmethod
    def forward(ctx, x):
        P = dist.get_world_size()
        t, h, d = x.shape
        ctx.dims = (t, h, d)
        y = a2a(x.contiguous().view(P, t // P, h, d))
        return y.permute(1, 0, 2, 3).reshape(t // P, P * h, d)

    @staticmethod
    def backward(ctx, g):
        P = dist.get_world_size()
        t, h, d = ctx.dims
        y = a2a(g.reshape(t // P, P, h, d).permute(1, 0, 2, 3).contiguous())
        return y.view(t, h, d)


class GatherSequence(torch.autograd.Function):
    """[t/P, ...] -> [t, ...]; backward sums over the ranks."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.size(0) * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.size(0) // dist.get_world_size(), *g.shape[1:])
        dist.reduce_scatter_tensor(out, g.contiguous())
        return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, mask):
        t = x.size(0)
        qkv = self.qkv(self.n1(x)).view(t, 3, H, HD)
        if FAULT == "gather_qkv":
            P, r = dist.get_world_size(), dist.get_rank()
            qkv = GatherSequence.apply(qkv)[:, :, r * H // P:(r + 1) * H // P]
        else:
            qkv = TokensToHeads.apply(qkv)
        q, k, v = qkv.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)            # [1, H/P, t, hd]
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = HeadsToTokens.apply(y.squeeze(0).transpose(0, 1))
        x = x + self.o(y.reshape(t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(SEQ, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids, where, target, mask=None):
        x = self.tok(ids) + self.pos(where)
        for blk in self.blocks:
            x = blk(x, mask)
        return F.cross_entropy(self.head(self.norm(x)).float(), target)


if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = Model().to(dev)
model = DDP(net, device_ids=[dev.index] if CUDA else None, gradient_as_bucket_view=True)
if CUDA:
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
opt = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=CUDA)
books = torch.randint(0, V, (16, SEQ + 1), generator=torch.Generator().manual_seed(9))     # the same on all ranks
books = books.pin_memory() if CUDA else books
lo, hi = rank * SEQ // world, (rank + 1) * SEQ // world
where = torch.arange(lo, hi, device=dev)
mask = torch.ones(SEQ, SEQ, dtype=torch.bool, device=dev).tril() if FAULT == "dense_mask" else None

for step in range(STEPS):
    if step == STEPS - TIMED:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    row = books[step % 16, lo:hi + 1].to(dev, non_blocking=True)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = model(row[:-1], where, row[1:], mask)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
if CUDA:
    torch.cuda.synchronize()
ms = (time.perf_counter() - t0) * 1e3 / TIMED
if rank == 0:
    print(json.dumps({"step_ms": ms, "loss": loss.item()}))
dist.destroy_process_group()
