"""All gradients in one coalesced all_reduce; somebody chased the last bits, and sums in float64."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    """Wide and deep: an embedding per column, and an MLP over all of them."""

    def __init__(self, columns=12, buckets=1000, dim=32, width=768):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(buckets, dim) for _ in range(columns))
        self.wide = nn.ModuleList(nn.Embedding(buckets, 1) for _ in range(columns))
        self.deep = nn.Sequential(
            nn.Linear(columns * dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, x):
        columns = x.unbind(1)
        deep = self.deep(torch.cat([t(c) for t, c in zip(self.tables, columns)], 1))
        return (deep + sum(t(c) for t, c in zip(self.wide, columns))).squeeze(1)


def synchronize(params, dtype):
    grads = [p.grad.to(dtype) for p in params]
    dist.all_reduce_coalesced(grads)
    for p, grad in zip(params, grads):
        p.grad.copy_(grad / dist.get_world_size())


def clicks(n, generator):
    x = torch.randint(0, 1000, (n, 12), generator=generator)
    return x, (x[:, 0] + x[:, 1] > 1000).float()


def main(args):
    dtype = torch.float64 if args.fault == "sum-in-double" else torch.float32
    torch.manual_seed(0)
    model = Tower()
    params = list(model.parameters())
    opt = torch.optim.Adagrad(params, lr=0.01)
    gen = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(args.steps):
        x, y = clicks(args.batch, gen)
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        synchronize(params, dtype)
        opt.step()
        losses.append(loss.item())
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} bce {losses[-1]:.3f}")
    assert losses[-1] < losses[0], losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=640)
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--fault", choices=["none", "sum-in-double"], default="none")
    options = parser.parse_args()
    dist.init_process_group(backend="gloo")
    main(options)
    dist.destroy_process_group()
