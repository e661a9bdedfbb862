"""All-reduce as a ring of isend and irecv, on three ranks: first scatter the sum, then gather it."""

import argparse
import time

import torch
import torch.distributed as dist


def ring_all_reduce(flat):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(flat.chunk(n))
    right, left = (rank + 1) % n, (rank - 1) % n
    for hop in range(2 * (n - 1)):
        outgoing = chunks[(rank - hop) % n]
        incoming = torch.empty_like(chunks[(rank - hop - 1) % n])
        sending = dist.isend(outgoing, right)
        dist.irecv(incoming, left).wait()
        sending.wait()
        if hop < n - 1:
            chunks[(rank - hop - 1) % n].add_(incoming)
        else:
            chunks[(rank - hop - 1) % n].copy_(incoming)


class Data:
    def __init__(self, rank, extra):
        self.gen, self.extra = torch.Generator().manual_seed(rank), extra

    def __iter__(self):
        for _ in range(14):
            time.sleep(0.010 + self.extra)
            x = torch.randn(32, 30, generator=self.gen)
            yield x, x[:, :3].sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=300)
    parser.add_argument("--fault", choices=["none", "slow-host"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(30, args.hidden), torch.nn.ReLU(), torch.nn.Linear(args.hidden, 1)
    )
    params = list(net.parameters())
    size = sum(p.numel() for p in params)
    flat = torch.zeros(size + -size % n)
    opt = torch.optim.Adam(params, lr=3e-3)
    losses = []
    for x, y in Data(rank, 0.025 if args.fault == "slow-host" and rank == 2 else 0.0):
        loss = torch.nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        flat[:size] = torch.cat([p.grad.flatten() for p in params])
        ring_all_reduce(flat)
        for p, g in zip(params, flat[:size].split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p) / n)
        opt.step()
        losses.append(loss.item())
    mine = torch.cat([p.detach().flatten() for p in params])
    theirs = mine.clone()
    dist.broadcast(theirs, 0)
    assert torch.equal(mine, theirs)
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
