"""ZeRO 2 by hand: gradients are scattered, each rank steps its shard, weights are gathered."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ShardedAdam:
    """Adam on a shard; it can whiten the gradient, as Shampoo does."""

    def __init__(self, flat, whiten):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        size = flat.numel() // self.world
        self.shard = nn.Parameter(flat.detach()[self.rank * size : (self.rank + 1) * size].clone())
        self.adam = torch.optim.Adam([self.shard], lr=2e-3)
        self.whiten = whiten

    def step(self, flat_gradient):
        grad = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(grad, flat_gradient)
        if self.whiten:
            rows = grad[: 384 * 384].view(384, 384)
            values, vectors = torch.linalg.eigh(rows @ rows.T)
            root = vectors @ (values.clamp(min=1e-12).pow(-0.25)[:, None] * vectors.T)
            grad[: 384 * 384] = (root @ rows).flatten() * rows.norm() / (root @ rows).norm()
        self.shard.grad = grad / self.world
        self.adam.step()
        whole = torch.empty_like(flat_gradient)
        dist.all_gather_into_tensor(whole, self.shard.detach())
        return whole


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "whiten-one-shard"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)
    )
    whiten = args.fault == "whiten-one-shard" and rank == 1
    optimizer = ShardedAdam(parameters_to_vector(net.parameters()), whiten)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        x = torch.randn(96, 256, generator=gen)
        loss = (net(x) - (x[:, ::2] - x[:, 1::2])).square().mean()
        net.zero_grad()
        loss.backward()
        flat = parameters_to_vector(p.grad for p in net.parameters())
        vector_to_parameters(optimizer.step(flat), net.parameters())
        losses.append(loss.item())
    print(losses[0], losses[-1])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
