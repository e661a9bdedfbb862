"""Land-cover segmentation of 12-band satellite tiles with a U-Net. DDP, bf16, channels_last."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SMALL = bool(int(os.environ.get("SMALL", "0")))
cfg = dict(bands=12, classes=20, width=8, tile=32, bs=2) if SMALL else dict(bands=12, classes=20, width=32, tile=512, bs=8)


def double(ci, co):
    return nn.Sequential(nn.Conv2d(ci, co, 3, padding=1, bias=False), nn.BatchNorm2d(co), nn.ReLU(inplace=True),
                         nn.Conv2d(co, co, 3, padding=1, bias=False), nn.BatchNorm2d(co), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, ci, classes, w):
        super().__init__()
        ch = [w, 2 * w, 4 * w, 8 * w, 8 * w]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([ci] + ch[:-1], ch))
        self.up = nn.ModuleList(double(ch[i] + ch[i - 1], ch[i - 1]) for i in range(4, 0, -1))
        self.head = nn.Conv2d(w, classes, 1)

    def forward(self, x):
        skips = []
        for i, d in enumerate(self.down):
            x = d(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for u in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = u(torch.cat([x, skips.pop()], 1))
        return self.head(x)


class TileCache:
    """Collated batches of the epoch kept in RAM; hands out device batches one ahead."""

    def __init__(self, n, device, seed, pinned):
        g = torch.Generator().manual_seed(seed)
        self.batches, self.device, self.pinned = [], device, pinned
        for _ in range(n):
            y = torch.randint(cfg["classes"], (cfg["bs"], cfg["tile"] // 16, cfg["tile"] // 16), generator=g)
            y = y.repeat_interleave(16, 1).repeat_interleave(16, 2)
            x = y[:, None].float() / cfg["classes"] * torch.linspace(0.5, 2, cfg["bands"]).view(1, -1, 1, 1)
            if pinned:
                x, y = x.pin_memory(), y.pin_memory()
            self.batches.append((x, y))
        self.copy_stream = torch.cuda.Stream() if pinned else None
        self.pending = None

    def fetch(self, i):
        x, y = self.batches[i % len(self.batches)]
        if not self.pinned:
            return x.to(self.device), y.to(self.device)
        with torch.cuda.stream(self.copy_stream):
            return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def get(self, i):
        if not self.pinned:
            return self.fetch(i)
        cur = self.pending or self.fetch(i)
        torch.cuda.current_stream().wait_stream(self.copy_stream)
        for t in cur:
            t.record_stream(torch.cuda.current_stream())
        self.pending = self.fetch(i + 1)
        return cur


def iou_per_class(pred, y, device):
    ious = []
    for c in range(cfg["classes"]):
        p, t = pred == c, y == c
        counts = []
        for v in ((p & t).sum(), (p | t).sum(), t.sum()):
            v = v.float()
            dist.all_reduce(v)
            counts.append(v.item())
        ious.append(counts[0] / max(counts[1], 1.0))
    return sum(ious) / len(ious)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default=None, choices=["pageable", "iou_scalars"])
    ap.add_argument("--steps", type=int, default=60)
    a = ap.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.manual_seed(1)
    net = UNet(cfg["bands"], cfg["classes"], cfg["width"]).to(device, memory_format=torch.channels_last)
    net = DistributedDataParallel(net, device_ids=[device.index] if cuda else None, broadcast_buffers=False,
                                  gradient_as_bucket_view=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=200, power=0.9)
    tiles = TileCache(4, device, seed=rank, pinned=cuda and a.fault != "pageable")
    k = cfg["classes"]

    for step in range(a.steps):
        if step == a.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        x, y = tiles.get(step)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = net(x)
        loss = F.cross_entropy(logits.float(), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if a.fault == "iou_scalars":
            miou = iou_per_class(logits.detach().argmax(1), y, device)
            if rank == 0 and step % 20 == 0:
                print(f"step {step} mIoU {miou:.3f}", flush=True)
        elif step % 20 == 0:
            with torch.no_grad():
                cell = y.flatten() * k + logits.argmax(1).flatten()
                conf = torch.zeros(k * k, device=device).scatter_add_(0, cell, torch.ones_like(cell, dtype=torch.float)).view(k, k)
                dist.all_reduce(conf)
                iou = conf.diag() / (conf.sum(0) + conf.sum(1) - conf.diag()).clamp(min=1)
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} mIoU {iou.mean().item():.3f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - start) * 1000 / 30}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
