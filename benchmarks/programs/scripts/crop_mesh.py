"""Crop yields from satellite series on a 2 x 2 mesh: hidden units split along one axis, fields along the other.

Everything by hand: within a "model" pair the partial outputs are summed, and
along "data" the gradients are averaged, asynchronously from the last layer on.

    torchrun --nproc-per-node 4 crop_mesh.py [--fault everybody]

--fault everybody: gradients are averaged over all four ranks instead of the
data pair; so that this gives the right numbers each rank embeds its half in a
zero tensor of full size.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

FEATURES, HIDDEN, LAYERS, FIELDS, STEPS = 160, 1024, 3, 128, 130


class PartialSum(torch.autograd.Function):
    """Sums forward over the group; the gradient goes back as it is."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SharedInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class HalfLayer(torch.nn.Module):
    def __init__(self, group, index, parts):
        super().__init__()
        self.group, self.index, self.parts = group, index, parts
        half = HIDDEN // parts
        self.up = torch.nn.Parameter(torch.randn(half, FEATURES) / FEATURES**0.5)
        self.down = torch.nn.Parameter(torch.randn(half, FEATURES) / HIDDEN**0.5)

    def forward(self, x):
        h = torch.relu(SharedInput.apply(x, self.group) @ self.up.T)
        return x + 0.3 * PartialSum.apply(h @ self.down, self.group)


def average(layers, mesh, everybody):
    pending = []
    for layer in reversed(layers):
        for p in (layer.down, layer.up):
            if everybody:
                whole = torch.zeros(layer.parts, *p.shape)
                whole[layer.index] = p.grad
                pending.append((dist.all_reduce(whole, async_op=True), p, whole, layer.index))
            else:
                group = mesh.get_group("data")
                pending.append((dist.all_reduce(p.grad, group=group, async_op=True), p, None, 0))
    rows = mesh["data"].size()
    for work, p, whole, index in pending:
        work.wait()
        if whole is not None:
            p.grad.copy_(whole[index])
        p.grad /= rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "everybody"])
    everybody = parser.parse_args().fault == "everybody"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    row, column = mesh.get_coordinate()
    rank = dist.get_rank()
    torch.manual_seed(column)
    layers = [HalfLayer(mesh.get_group("model"), column, 2) for _ in range(LAYERS)]
    params = [p for layer in layers for p in layer.parameters()]
    opt = torch.optim.SGD(params, lr=1e-2, momentum=0.9)
    weather = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1)) / FEATURES**0.5
    gen = torch.Generator().manual_seed(50 + row)
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        series = torch.randn(FIELDS, FEATURES, generator=gen)
        crop = torch.tanh(series @ weather)
        x = series
        for layer in layers:
            x = layer(x)
        loss = F.mse_loss(x.mean(1), crop)
        opt.zero_grad()
        loss.backward()
        average(layers, mesh, everybody)
        opt.step()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 30 == 0:
            print(f"step {step:3d} mse {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
