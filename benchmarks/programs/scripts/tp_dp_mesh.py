"""Two replicas of two tensor-parallel ranks each."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Sharded(torch.nn.Module):
    """Each rank of the group has half of the hidden units."""

    def __init__(self, group, rank):
        super().__init__()
        self.group = group
        torch.manual_seed(rank)
        self.a = torch.nn.Linear(64, 64, bias=False)
        self.b = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return Reduce.apply(self.b(torch.tanh(self.a(x))), self.group)


def fetch(gen, ms):
    """A batch that some service prepares."""
    time.sleep(ms / 1e3)
    x = torch.randn(32, 64, generator=gen)
    return x, torch.tanh(x.sum(1, keepdim=True)).expand(32, 64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "slow-replica"])
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
    net = Sharded(mesh.get_group("tp"), tp)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    gen = torch.Generator().manual_seed(dp)  # the ranks of a replica share their data
    curve = []
    for _ in range(14):
        x, y = fetch(gen, 70 if fault == "slow-replica" and dp == 1 else 30)
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
            p.grad.mul_(0.5)
        opt.step()
        curve.append(loss.item())
    print(f"dp{dp} tp{tp}: {curve[0]:.3f} -> {curve[-1]:.3f}")
    assert curve[-1] < curve[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
