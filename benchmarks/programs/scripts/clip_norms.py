"""Every layer lives on one rank, but clipping wants each parameter's global norm."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


def clip_each(params, limit):
    """As found: the norm of each parameter is summed over the ranks on its own."""
    total = 0.0
    for p in params:
        square = p.grad.pow(2).sum()
        dist.all_reduce(square)
        total += square.item()
    scale = min(1.0, limit / (total**0.5 + 1e-6))
    for p in params:
        p.grad.mul_(scale)


def clip_together(params, limit):
    squares = torch.stack([p.grad.pow(2).sum() for p in params]).sum()
    dist.all_reduce(squares)
    scale = min(1.0, limit / (squares.item() ** 0.5 + 1e-6))
    torch._foreach_mul_([p.grad for p in params], scale)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "one-by-one"])
    parser.add_argument("--max-norm", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    clip = clip_each if args.fault == "one-by-one" else clip_together
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(32, 192), *[Residual(192) for _ in range(16)], nn.Linear(192, 8))
    ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
    params = [p for p in net.parameters() if p.requires_grad]
    gen = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(14):
        x = torch.randn(160, 32, generator=gen)
        loss = (ddp(x) - x[:, :8].abs()).square().mean()
        opt.zero_grad()
        loss.backward()
        clip(params, args.max_norm)
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
