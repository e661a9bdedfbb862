"""GraphSAGE on a partitioned graph; boundary features come from the neighbours."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

DIM, HALO, CLASSES, DEGREE = 64, 120, 5, 10


def sizes(total, world, balanced):
    """How many nodes each part has; METIS may leave them uneven if nobody asks it not to."""
    share = total // world
    if balanced:
        return [share] * world
    extra = int(0.22 * share)
    return [share - extra // (world - 1)] * (world - 1) + [share + extra]


class Part:
    def __init__(self, nodes, rank, world):
        gen = torch.Generator().manual_seed(rank)
        self.left, self.right = (rank - 1) % world, (rank + 1) % world
        self.label = torch.randint(0, CLASSES, (nodes,), generator=gen)
        noise = torch.randn(nodes, DIM, generator=gen)
        self.x = noise + nn.functional.one_hot(self.label, DIM)
        # the last 2 * HALO sources are the neighbours' nodes
        self.source = torch.randint(0, nodes + 2 * HALO, (DEGREE * nodes,), generator=gen)
        self.target = torch.arange(nodes).repeat_interleave(DEGREE)

    def exchange(self, h):
        from_left, from_right = torch.empty(HALO, h.size(1)), torch.empty(HALO, h.size(1))
        ops = [
            dist.P2POp(dist.isend, h[:HALO].detach().contiguous(), self.left),
            dist.P2POp(dist.isend, h[-HALO:].detach().contiguous(), self.right),
            dist.P2POp(dist.irecv, from_right, self.right),
            dist.P2POp(dist.irecv, from_left, self.left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return torch.cat((h, from_left, from_right))


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (DIM, 128, 128, CLASSES)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.near = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, part):
        h = part.x
        for number, (own, near) in enumerate(zip(self.own, self.near)):
            messages = part.exchange(h)[part.source]
            mean = torch.zeros_like(h).index_add(0, part.target, messages) / DEGREE
            h = own(h) + near(mean)
            h = torch.relu(h) if number < 2 else h
        return h


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=7000)
    parser.add_argument("--fault", choices=["none", "unbalanced"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    nodes = sizes(args.nodes, world, args.fault == "none")[rank]
    part = Part(nodes, rank, world)
    torch.manual_seed(0)
    model = Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(22):
        loss = nn.functional.cross_entropy(model(part), part.label, reduction="sum") / args.nodes
        optimizer.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        dist.all_reduce(flat)
        for p, grad in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad = grad.view_as(p)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
