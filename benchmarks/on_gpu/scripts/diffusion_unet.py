"""DDPM noise-prediction U-Net on 64x64 images, DDP + bf16 autocast, EMA of the weights."""
import argparse, copy, json, math, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["ema_cpu", "preview"], default=None)
args = ap.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
STEPS, TIMED = (6, 3) if SMALL else (60, 30)
CH, RES, BATCH, T = (16, 16, 4, 1000) if SMALL else (128, 64, 32, 1000)
EMA_EVERY = 2


class TimeEmbed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.half = dim // 2
        self.net = nn.Sequential(nn.Linear(dim, dim * 4), nn.SiLU(), nn.Linear(dim * 4, dim * 4))

    def forward(self, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(self.half, device=t.device) / self.half)
        ang = t[:, None].float() * freqs[None]
        return self.net(torch.cat([ang.sin(), ang.cos()], dim=1))


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(temb, cout)
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(F.silu(e))[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, ch, mult=(1, 2, 3), blocks=2):
        super().__init__()
        temb = ch * 4
        self.time = TimeEmbed(ch)
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.pool, skips, c = nn.ModuleList(), nn.ModuleList(), [], ch
        for m in mult:
            self.down.append(nn.ModuleList([ResBlock(c if i == 0 else ch * m, ch * m, temb) for i in range(blocks)]))
            c = ch * m
            skips.append(c)
            self.pool.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
        self.mid = ResBlock(c, c, temb)
        self.up = nn.ModuleList()
        for m, s in zip(reversed(mult), reversed(skips)):
            self.up.append(nn.ModuleList([ResBlock(c + s if i == 0 else ch * m, ch * m, temb) for i in range(blocks)]))
            c = ch * m
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        e, x, hs = self.time(t), self.inp(x), []
        for stage, pool in zip(self.down, self.pool):
            for b in stage:
                x = b(x, e)
            hs.append(x)
            x = pool(x)
        x = self.mid(x, e)
        for stage in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), hs.pop()], dim=1)
            for b in stage:
                x = b(x, e)
        return self.out(x)


@torch.no_grad()
def sample(model, n, abar, dev, steps):
    """DDIM preview grid."""
    x = torch.randn(n, 3, RES, RES, device=dev)
    ts = torch.linspace(T - 1, 0, steps, device=dev).long()
    for i in range(steps):
        a = abar[ts[i]]
        with torch.autocast(dev.type, torch.bfloat16):
            eps = model(x, ts[i].expand(n)).float()
        x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
        an = abar[ts[i + 1]] if i + 1 < steps else torch.ones_like(a)
        x = an.sqrt() * x0 + (1 - an).sqrt() * eps
    return x


def main():
    local = int(os.environ["LOCAL_RANK"])
    if CUDA:
        torch.cuda.set_device(local % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = UNet(CH).to(dev)
    ema = copy.deepcopy(net).requires_grad_(False)
    if args.fault == "ema_cpu":
        ema = ema.cpu()                      # saves GPU memory
    ema_p, net_p = list(ema.parameters()), list(net.parameters())
    model = DDP(net, device_ids=[dev.index] if CUDA else None, gradient_as_bucket_view=True, static_graph=True)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=CUDA)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T, device=dev), 0)
    torch.manual_seed(100 + rank)
    data = torch.randint(0, 256, (16 * BATCH, 3, RES, RES), dtype=torch.uint8)
    if CUDA:
        data = data.pin_memory()

    for step in range(STEPS):
        if step == STEPS - TIMED:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        lo = (step % 16) * BATCH
        x0 = data[lo:lo + BATCH].to(dev, non_blocking=True).float().div_(127.5).sub_(1)
        t = torch.randint(0, T, (BATCH,), device=dev)
        noise = torch.randn_like(x0)
        a = abar[t][:, None, None, None]
        with torch.autocast(dev.type, torch.bfloat16):
            pred = model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t)
        loss = F.mse_loss(pred.float(), noise)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % EMA_EVERY:
            pass
        elif args.fault == "ema_cpu":
            with torch.no_grad():
                for e, p in zip(ema_p, net_p):
                    e.mul_(0.999).add_(p.detach().cpu(), alpha=0.001)
        else:
            torch._foreach_lerp_(ema_p, [p.detach() for p in net_p], 0.001)
        if args.fault == "preview" and rank == 0 and step % 2 == 0:
            grid = sample(ema, BATCH // 2, abar, dev, steps=6)
            grid = grid.add(1).mul(127.5).byte()
    if CUDA:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / TIMED
    if rank == 0:
        print(json.dumps({"step_ms": ms, "loss": loss.item()}))
    dist.destroy_process_group()


main()
