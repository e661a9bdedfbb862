"""A pair potential is learned while a droplet falls together; ranks hold slabs of space.

Each step: particles go to the rank whose slab they are in now, those near a border are lent to the
neighbour, the network's forces are fitted to the true ones, and the particles move on.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

CUTOFF, WIDTH = 0.09, 2.0


def swap(mine, peer):
    """Rows of another number each way: first how many, then these."""
    count, other = torch.tensor([len(mine)]), torch.empty(1, dtype=torch.long)
    for outgoing, incoming in ((count, other), (mine.contiguous(), None)):
        if incoming is None:
            incoming = mine.new_empty(int(other), mine.shape[1])
        ops = [
            dist.P2POp(dist.isend, outgoing, peer),
            dist.P2POp(dist.irecv, incoming, peer),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return incoming


class Slabs:
    """Where space is cut in two."""

    def __init__(self, fixed):
        self.fixed, self.cut = fixed, WIDTH / 2

    def balance(self, x, bins=400):
        if self.fixed:
            return
        counts = torch.histc(x, bins, 0, WIDTH)
        dist.all_reduce(counts)
        # Pairs go with the square of the density: so does the work.
        work = counts.square().cumsum(0)
        self.cut = (int(torch.searchsorted(work, work[-1] / 2)) + 1) * WIDTH / bins

    def mine(self, x, rank):
        return x < self.cut if rank == 0 else x >= self.cut


def pairs(own, lent):
    everybody = torch.cat([own, lent])
    distance = torch.cdist(own, everybody)
    i, j = ((distance < CUTOFF) & (distance > 1e-6)).nonzero(as_tuple=True)
    return i, distance[i, j, None], (everybody[j] - own[i]) / distance[i, j, None]


def true_force(r):
    return 4 * (CUTOFF - r) * torch.cos(30 * r)


def particles(rank, count=450):
    """A droplet on the left, vapour elsewhere."""
    generator = torch.Generator().manual_seed(5 + rank)
    droplet = torch.randn(count * 3 // 4, 2, generator=generator) * 0.12 + 0.5
    vapour = torch.rand(count - len(droplet), 2, generator=generator) * WIDTH
    position = torch.cat([droplet, vapour]).clamp(0.001, WIDTH - 0.001)
    return torch.cat([position, torch.zeros_like(position)], 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "equal-slabs"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
    net.append(nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    slabs, state, history = Slabs(args.fault == "equal-slabs"), particles(rank), []
    for _ in range(args.steps):
        slabs.balance(state[:, 0])
        stays = slabs.mine(state[:, 0], rank)
        state = torch.cat([state[stays], swap(state[~stays], 1 - rank)])
        own = state[:, :2]
        lent = swap(own[(own[:, 0] - slabs.cut).abs() < CUTOFF], 1 - rank)
        i, r, direction = pairs(own, lent)
        error = (net(r / CUTOFF) - true_force(r) * 10).square().sum()
        optimizer.zero_grad()
        error.backward()
        sums = torch.cat([p.grad.flatten() for p in net.parameters()])
        sums = torch.cat([sums, torch.stack([error.detach(), torch.tensor(float(len(r)))])])
        dist.all_reduce(sums)
        gradient = sums[:-2] / sums[-1]
        for p, g in zip(net.parameters(), gradient.split([p.numel() for p in net.parameters()])):
            p.grad.copy_(g.view_as(p))
        optimizer.step()
        history.append((sums[-2] / sums[-1]).item())
        force = torch.zeros_like(own).index_add_(0, i, true_force(r) * direction)
        velocity = state[:, 2:] + 0.001 * force
        position = (own + 0.004 * velocity).clamp(0.001, WIDTH - 0.001)
        state = torch.cat([position, velocity], 1)
    assert history[-1] < history[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
