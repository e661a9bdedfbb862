"""Cell segmentation on a 2 x 2 grid of ranks: data parallel by tensor parallel.

Channels of the inner layer are split over the tensor-parallel pair, the
images over the data-parallel pair.

    torchrun --nproc-per-node 4 cell_segment_grid.py [--fault probe]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "probe"])
FAULT = parser.parse_args().fault
SIDE, WIDTH, DEPTH, BATCH, STEPS = 36, 16, 3, 4, 70


class Enter(torch.autograd.Function):
    """Identity forward, sum over the pair backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    """Sum over the pair forward, identity backward."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SplitBlock(nn.Module):
    def __init__(self, group, parts):
        super().__init__()
        self.group = group
        self.inner = nn.Conv2d(WIDTH, 2 * WIDTH // parts, 3, padding=1)
        self.outer = nn.Conv2d(2 * WIDTH // parts, WIDTH, 3, padding=1, bias=False)

    def forward(self, x):
        h = F.relu(self.inner(Enter.apply(x, self.group)))
        return x + Leave.apply(self.outer(h), self.group)


class Segmenter(nn.Module):
    def __init__(self, group, parts):
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(SplitBlock(group, parts) for _ in range(DEPTH))
        self.head = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def attach_probes(model, book):
    """Activation quantiles of every conv layer, for a look at dead channels."""
    points = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99])

    def hook(name):
        def record(module, args, out):
            per_channel = out.detach().transpose(0, 1).flatten(1)
            book[name] = torch.quantile(per_channel, points, dim=1).tolist()

        return record

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(hook(name))


def cells(gen):
    grid = torch.arange(SIDE).float()
    centre = torch.rand(BATCH, 5, 2, generator=gen) * SIDE
    dist2 = (grid.view(1, 1, -1, 1) - centre[..., 0, None, None]) ** 2 + (
        grid.view(1, 1, 1, -1) - centre[..., 1, None, None]
    ) ** 2
    mask = (dist2.amin(1, keepdim=True) < 25).float()
    return mask + 0.6 * torch.randn(mask.shape, generator=gen), mask


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    torch.manual_seed(0)
    model = Segmenter(tp, 2)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    book = {}
    if FAULT == "probe" and rank == 3:
        attach_probes(model, book)
    gen = torch.Generator().manual_seed(40 + mesh.get_local_rank("dp"))
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        image, mask = cells(gen)
        loss = F.binary_cross_entropy_with_logits(model(image), mask)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat, group=dp)
        for p, g in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(g.view_as(p) / (world // 2))
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
