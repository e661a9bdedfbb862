"""Causal ring attention: each rank has one piece of the sequence, or its share from both ends."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

DIM, HEADS, LENGTH, ROWS = 128, 4, 512, 2


def positions(rank, world, zigzag):
    if not zigzag:
        return [torch.arange(LENGTH).chunk(world)[rank]]
    pieces = torch.arange(LENGTH).chunk(2 * world)
    return [pieces[rank], pieces[2 * world - 1 - rank]]


class Rotate(torch.autograd.Function):
    """To the next rank; the gradient comes back from it."""

    @staticmethod
    def forward(ctx, x):
        return Rotate.shift(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return Rotate.shift(grad, -1)

    @staticmethod
    def shift(x, by):
        rank, world = dist.get_rank(), dist.get_world_size()
        out = torch.empty_like(x)
        ops = [
            dist.P2POp(dist.isend, x.contiguous(), (rank + by) % world),
            dist.P2POp(dist.irecv, out, (rank - by) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return out


class RingAttention(nn.Module):
    def __init__(self, mine, theirs):
        super().__init__()
        self.mine, self.theirs = mine, theirs  # whose pieces arrive in which turn
        self.norm = nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        size = t // len(self.mine)
        queries, kv = q.split(size, 2), torch.stack((k, v))
        above, below = [0.0] * len(queries), [0.0] * len(queries)
        for turn, theirs in enumerate(self.theirs):
            if turn:
                kv = Rotate.apply(kv)
            for i, (here, query) in enumerate(zip(self.mine, queries)):
                for there, part in zip(theirs, kv.split(size, 3)):
                    if there[0] > here[-1]:
                        continue  # all of it is in the future
                    score = (query @ part[0].transpose(-1, -2)) * (DIM // HEADS) ** -0.5
                    weight = score.exp() * (there <= here[:, None])
                    above[i] = above[i] + weight @ part[1]
                    below[i] = below[i] + weight.sum(-1, keepdim=True)
        y = torch.cat([a / b for a, b in zip(above, below)], 2)
        y = y + 0 * kv.sum()  # all take part in the way back
        return x + self.out(y.transpose(1, 2).reshape(b, t, DIM))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "contiguous"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [positions(r, world, args.fault == "none") for r in range(world)]
    order = [parts[(rank - turn) % world] for turn in range(world)]
    torch.manual_seed(0)
    layers = nn.Sequential(*(RingAttention(parts[rank], order) for _ in range(2)))
    net = nn.Sequential(nn.Linear(8, DIM), layers, nn.Linear(DIM, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(22):
        whole = torch.randn(ROWS, LENGTH, 8, generator=generator)
        goal = whole.cumsum(1) / torch.arange(1, LENGTH + 1)[:, None]
        mine = torch.cat(parts[rank])
        loss = (net(whole[:, mine]) - goal[:, mine]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector(p.grad for p in net.parameters())
        dist.all_reduce(flat)
        for p, g in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
            p.grad.copy_(g.view_as(p) / world)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
