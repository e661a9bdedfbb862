"""Radiance field: rays sampled over the scene, empty samples dropped with an occupancy grid, MLP on what remains."""
import argparse, json, math, os, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["host_permute", "dense_views"], default=None)
FAULT = ap.parse_args().fault
SMALL, CUDA = os.environ.get("SMALL") == "1", torch.cuda.is_available()
if SMALL:
    RAYS, SAMPLES, WIDTH, BANK, GRID, STEPS, TIMED = 64, 16, 32, 5000, 16, 6, 3
else:
    RAYS, SAMPLES, WIDTH, BANK, GRID, STEPS, TIMED = 8192, 96, 256, 500_000, 128, 60, 30


def posenc(x, n):
    f = (2.0 ** torch.arange(n, device=x.device)) * math.pi
    a = x[..., None, :] * f[:, None]
    return torch.cat([x, a.sin().flatten(-2), a.cos().flatten(-2)], dim=-1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        cx, cd = 3 + 6 * 10, 3 + 6 * 4
        self.a = nn.Sequential(nn.Linear(cx, WIDTH), nn.ReLU(True), *[m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU(True))])
        self.b = nn.Sequential(nn.Linear(WIDTH + cx, WIDTH), nn.ReLU(True), *[m for _ in range(2) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU(True))])
        self.sigma, self.feat = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.rgb = nn.Sequential(nn.Linear(WIDTH + cd, WIDTH // 2), nn.ReLU(True), nn.Linear(WIDTH // 2, 3), nn.Sigmoid())

    def forward(self, x, d):
        e = posenc(x, 10)
        h = self.b(torch.cat([self.a(e), e], -1))
        return F.softplus(self.sigma(h)).squeeze(-1), self.rgb(torch.cat([self.feat(h), posenc(d, 4)], -1))


def render(field, grid, o, d):
    n, dev = o.size(0), o.device
    t = torch.linspace(0, 1, SAMPLES + 1, device=dev)[:-1] + torch.rand(n, SAMPLES, device=dev) / SAMPLES
    pts = o[:, None] + d[:, None] * t[..., None]
    cell = (pts.clamp(0, 0.999) * GRID).long()
    keep = grid[cell[..., 0], cell[..., 1], cell[..., 2]]
    ray, smp = keep.nonzero(as_tuple=True)
    sig, rgb = field(pts[ray, smp], d[ray])
    sigma = torch.zeros(n, SAMPLES, device=dev).index_put((ray, smp), sig.float())
    color = torch.zeros(n, SAMPLES, 3, device=dev).index_put((ray, smp), rgb.float())
    alpha = 1 - torch.exp(-sigma * 4.0 / SAMPLES)
    trans = torch.cumprod(torch.cat([torch.ones(n, 1, device=dev), 1 - alpha[:, :-1] + 1e-10], 1), 1)
    return ((alpha * trans)[..., None] * color).sum(1)


def main():
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    field = Field().to(dev)
    opt = torch.optim.Adam(field.parameters(), lr=5e-4, fused=CUDA)
    # occupancy: the lower half of the scene is cluttered, the upper half mostly empty
    z = torch.linspace(0, 1, GRID, device=dev)
    grid = torch.rand(GRID, GRID, GRID, device=dev) < torch.where(z < 0.5, 0.7, 0.3)
    torch.manual_seed(40 + rank)
    o, d = torch.rand(BANK, 3), F.normalize(torch.randn(BANK, 3), dim=-1) * 0.4
    o[:, 2] = torch.rand(BANK)
    if FAULT == "dense_views":           # cameras split by id: the last rank has the close-ups of the cluttered part
        half = o[:, 2] * 0.4
        o[:, 2] = half if rank == world - 1 else half + 0.6
        d[:, 2] *= 0.1
    bank = torch.cat([o, d, torch.rand(BANK, 3)], 1)
    bank = bank.to(dev)
    rng = np.random.RandomState(rank)
    params, psnr = list(field.parameters()), 0.0

    for step in range(STEPS):
        if step == STEPS - TIMED:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        if FAULT == "host_permute":
            pick = rng.choice(BANK, RAYS, replace=False)
            batch = bank[torch.from_numpy(pick).to(dev)]
        else:
            batch = bank[torch.randint(0, BANK, (RAYS,), device=dev)]
        with torch.autocast(dev.type, torch.bfloat16):
            out = render(field, grid, batch[:, :3], batch[:, 3:6])
        loss = F.mse_loss(out, batch[:, 6:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params] + [loss.detach()[None]])
        dist.all_reduce(flat)
        flat /= world
        pieces = flat.split([p.numel() for p in params] + [1])
        torch._foreach_copy_([p.grad for p in params], [g.view_as(p) for p, g in zip(params, pieces)])
        opt.step()
        psnr = -10 * math.log10(max(pieces[-1].item(), 1e-8))      # for the progress bar
    if CUDA:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / TIMED
    if rank == 0:
        print(json.dumps({"step_ms": ms, "psnr": psnr}))
    dist.destroy_process_group()


main()
