"""DDP with a static graph and activation checkpointing."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Residual(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.a = torch.nn.Linear(width, 2 * width)
        self.b = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.b(functional.silu(self.a(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self, width=320, depth=5):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Residual(width) for _ in range(depth)])
        self.head = torch.nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--fault", default="none", choices=["none", "sleeping-rank"])
    return parser.parse_args()


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(Net(), static_graph=True, gradient_as_bucket_view=True)
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    rng = torch.Generator().manual_seed(dist.get_rank())
    log = []
    for _ in range(args.iterations):
        x = torch.randn(args.batch, 320, generator=rng)
        loss = functional.smooth_l1_loss(model(x), x[:, :3].sum(1, keepdim=True))
        loss.backward()
        if args.fault == "sleeping-rank" and dist.get_rank() == 0:
            time.sleep(
                0.035
            )  # between backward and the optimizer: nobody can see it but the next step
        opt.step()
        opt.zero_grad()
        log.append(loss.detach())
    print("rank", dist.get_rank(), "losses", [f"{x:.3f}" for x in log])
    assert sum(log[-4:]) < sum(log[:4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
