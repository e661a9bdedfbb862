"""Masked autoencoder (ViT-B encoder, small decoder) with FSDP2."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default=None, choices=["wrap_linears", "fp32_wire"])
fault = parser.parse_args().fault
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
if SMALL:
    ENC, DEC, GRID, BATCH, STEPS, TIMED = (32, 2, 2), (16, 1, 2), 4, 4, 6, 3
else:
    ENC, DEC, GRID, BATCH, STEPS, TIMED = (768, 12, 12), (512, 4, 8), 14, 96, 60, 30
PATCH = 16 * 16 * 3
TOKENS = GRID * GRID
KEEP = TOKENS // 4


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.n2, self.fc1, self.fc2 = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        (ed, el, eh), (dd, dl, dh) = ENC, DEC
        self.embed, self.pos = nn.Linear(PATCH, ed), nn.Parameter(torch.randn(TOKENS, ed) * 0.02)
        self.encoder = nn.ModuleList(Block(ed, eh) for _ in range(el))
        self.bridge, self.mask_token = nn.Linear(ed, dd), nn.Parameter(torch.zeros(dd))
        self.dpos = nn.Parameter(torch.randn(TOKENS, dd) * 0.02)
        self.decoder = nn.ModuleList(Block(dd, dh) for _ in range(dl))
        self.enorm, self.dnorm, self.head = nn.LayerNorm(ed), nn.LayerNorm(dd), nn.Linear(dd, PATCH)

    def forward(self, patches):
        b, n, _ = patches.shape
        order = torch.rand(b, n, device=patches.device).argsort(1)
        back = order.argsort(1)
        x = self.embed(patches) + self.pos
        x = x.gather(1, order[:, :KEEP, None].expand(-1, -1, x.size(2)))
        for blk in self.encoder:
            x = blk(x)
        x = self.bridge(self.enorm(x))
        x = torch.cat([x, self.mask_token.to(x.dtype).expand(b, n - KEEP, -1)], 1)
        x = x.gather(1, back[:, :, None].expand(-1, -1, x.size(2))) + self.dpos
        for blk in self.decoder:
            x = blk(x)
        pred = self.head(self.dnorm(x))
        hidden = (back >= KEEP).float()
        err = (pred.float() - patches.float()).square().mean(-1)
        return (err * hidden).sum() / hidden.sum()


if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
model = MAE().to(dev)
mesh = init_device_mesh(dev.type, (world,))

if fault == "fp32_wire":
    mp = MixedPrecisionPolicy()             # parameters and gradients travel in fp32, autocast does the rest
else:
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for blk in [*model.encoder, *model.decoder]:
    if fault == "wrap_linears":
        for mod in blk.modules():
            if isinstance(mod, nn.Linear):
                fully_shard(mod, mesh=mesh, mp_policy=mp)
    fully_shard(blk, mesh=mesh, mp_policy=mp)
fully_shard(model, mesh=mesh, mp_policy=mp)
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-4, weight_decay=0.05)

torch.manual_seed(rank)
images = torch.randint(0, 256, (8, BATCH, TOKENS, PATCH), dtype=torch.uint8)
if CUDA:
    images = images.pin_memory()
copy_stream = torch.cuda.Stream() if CUDA else None


def fetch(i):
    if not CUDA:
        return images[i % 8].float().div_(127.5).sub_(1)
    with torch.cuda.stream(copy_stream):
        return images[i % 8].to(dev, non_blocking=True).float().div_(127.5).sub_(1)


following = fetch(0)
for step in range(STEPS):
    if step == STEPS - TIMED:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    if CUDA:
        torch.cuda.current_stream().wait_stream(copy_stream)
        following.record_stream(torch.cuda.current_stream())
    batch, following = following, fetch(step + 1)
    if fault == "fp32_wire":
        with torch.autocast(dev.type, torch.bfloat16):
            loss = model(batch)
    else:
        loss = model(batch)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
if CUDA:
    torch.cuda.synchronize()
ms = (time.perf_counter() - t0) * 1e3 / TIMED
if rank == 0:
    print(json.dumps({"step_ms": ms, "loss": loss.item()}))
dist.destroy_process_group()
