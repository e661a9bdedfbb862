"""A continuous normalizing flow on two moons among other columns: dx/dt is a network, by RK4."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn


class Field(nn.Module):
    def __init__(self, dim, width=128):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim + 1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, dim),
        )  # fmt: skip

    def forward(self, t, x):
        return self.layers(torch.cat([x, x.new_full((len(x), 1), t)], 1))


def hutchinson(dx, x, probe):
    """An estimate of the trace of the Jacobian, by one product with it."""
    (product,) = torch.autograd.grad(dx, x, probe, create_graph=True)
    return (product * probe).sum(1)


def exact(dx, x, _):
    """The trace itself, a column at a time."""
    columns = range(x.shape[1])
    return sum(torch.autograd.grad(dx[:, i].sum(), x, create_graph=True)[0][:, i] for i in columns)


class Flow(nn.Module):
    def __init__(self, dim, trace, steps=2):
        super().__init__()
        self.field, self.trace, self.steps = Field(dim), trace, steps

    def forward(self, x, probe):
        """Log-likelihood of x."""
        total, h = x.new_zeros(len(x)), 1 / self.steps

        def slope(t, state):
            state = state if state.requires_grad else state.requires_grad_()
            dx = self.field(t, state)
            return dx, self.trace(dx, state, probe)

        for i in range(self.steps):
            t = i * h
            k1, d1 = slope(t, x)
            k2, d2 = slope(t + h / 2, x + h / 2 * k1)
            k3, d3 = slope(t + h / 2, x + h / 2 * k2)
            k4, d4 = slope(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            total = total + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
        return total - (x.square() + math.log(2 * math.pi)).sum(1) / 2


def moons(count, dim, generator):
    angle = math.pi * torch.rand(count, generator=generator)
    upper = torch.rand(count, generator=generator) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    rest = 0.3 * torch.randn(count, dim - 2, generator=generator)
    return torch.cat([torch.stack([x, y], 1), rest], 1)


def average_gradients(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(g.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--fault", choices=["none", "exact-trace"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    flow = Flow(args.dim, exact if args.fault == "exact-trace" else hutchinson)
    parameters = [*flow.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    losses = []
    for _ in range(14):
        x = moons(args.batch, args.dim, generator)
        probe = torch.randint(0, 2, x.shape, generator=generator) * 2.0 - 1
        loss = -flow(x, probe).mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(parameters)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5, losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
