"""Tensor parallelism by DTensor: column-wise, then row-wise."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class FeedForward(torch.nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = torch.nn.Linear(dim, hidden, bias=False)
        self.w2 = torch.nn.Linear(hidden, dim, bias=False)
        self.nap = 0.0

    def forward(self, x):
        h = torch.nn.functional.silu(self.w1(x))
        if self.nap:
            time.sleep(self.nap)
        return x + self.w2(h)


class Model(torch.nn.Module):
    def __init__(self, dim=256, hidden=1024, n=3):
        super().__init__()
        self.layers = torch.nn.ModuleList(FeedForward(dim, hidden) for _ in range(n))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "sleeping-rank"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)  # all ranks of the group see the same batch
    model = Model()
    for layer in model.layers:
        parallelize_module(layer, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
        if args.fault == "sleeping-rank" and dist.get_rank() == 0:
            layer.nap = 0.010
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    losses = []
    for _ in range(args.steps):
        x = torch.randn(128, 256)
        loss = (model(x) - x.roll(3, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print("\n".join(f"{i:2} {loss:.4f}" for i, loss in enumerate(losses)))
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
