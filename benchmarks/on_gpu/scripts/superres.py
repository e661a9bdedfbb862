"""x2 super-resolution (EDSR-like residual network) on synthetic textures; DDP, bf16, channels_last."""
import argparse, json, os, tempfile, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["empty_cache", "val_rank0", "save_best"], default=None)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()
SMALL = os.environ.get("SMALL") == "1"
FEAT, BLOCKS, CROP, BATCH = (16, 2, 24, 2) if SMALL else (128, 16, 96, 16)
VAL_H, VAL_W = (32, 48) if SMALL else (256, 384)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + 0.1 * self.c2(F.relu(self.c1(x)))


class EDSR(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, FEAT, 3, padding=1)
        self.body = nn.Sequential(*[Res(FEAT) for _ in range(BLOCKS)])
        self.tail = nn.Sequential(nn.Conv2d(FEAT, 4 * FEAT, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(FEAT, 3, 3, padding=1))

    def forward(self, x):
        h = self.head(x)
        return self.tail(h + self.body(h))


def texture(n, h, w, gen):
    coarse = torch.rand(n, 3, h // 4, w // 4, generator=gen)
    return F.interpolate(coarse, (h, w), mode="bicubic").clamp(0, 1)


def degrade(hr):
    return F.avg_pool2d(hr, 2)


@torch.no_grad()
def psnr(net, images, device):
    net.eval()
    values = []
    for hr in images:
        hr = hr[None].to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            sr = net(degrade(hr).contiguous(memory_format=torch.channels_last))
        values.append(-10 * torch.log10(F.mse_loss(sr.float(), hr)))
    net.train()
    return torch.stack(values).mean()


def main():
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank = dist.get_rank()
    if use_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", torch.cuda.current_device()) if use_cuda else torch.device("cpu")
    torch.manual_seed(0)
    net = EDSR().to(device, memory_format=torch.channels_last)
    ddp = DistributedDataParallel(net, device_ids=[device.index] if use_cuda else None, gradient_as_bucket_view=True)
    opt = torch.optim.Adam(net.parameters(), lr=2e-4, fused=use_cuda)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [40], 0.5)
    gen = torch.Generator().manual_seed(10 + rank)
    pool = texture(4 * BATCH, 2 * CROP, 2 * CROP, gen)
    val = texture(2, 2 * VAL_H, 2 * VAL_W, gen)
    if use_cuda:
        pool, val = pool.pin_memory(), val.pin_memory()
    ckpt = os.path.join(tempfile.gettempdir(), f"edsr_{os.getpid()}.pt")
    best, smooth, started = float("inf"), None, 0.0

    for step in range(args.steps):
        if step == args.steps - 30:
            if use_cuda:
                torch.cuda.synchronize()
            started = time.perf_counter()
        lo = step % 4 * BATCH
        hr = pool[lo:lo + BATCH].to(device, non_blocking=True)
        lr = degrade(hr).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            sr = ddp(lr)
        loss = F.l1_loss(sr.float(), hr)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if args.fault == "empty_cache":
            del sr, lr, hr
            if use_cuda:
                torch.cuda.empty_cache()
        if args.fault == "val_rank0" and rank == 0 and step % 2 == 1:
            quality = psnr(net, val, device).item()
            if step % 10 == 1:
                print(f"step {step} val psnr {quality:.2f}", flush=True)
        if args.fault == "save_best" and rank == 0:
            smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
            if smooth < best:
                best = smooth
                torch.save({"model": net.state_dict(), "step": step}, ckpt)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} l1 {loss.item():.4f}", flush=True)
    if use_cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - started) / 30 * 1e3}))
        if os.path.exists(ckpt):
            os.remove(ckpt)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
