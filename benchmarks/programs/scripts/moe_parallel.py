"""Mixture of experts with expert parallelism, two experts on each of two ranks.

Tokens travel to the ranks of their experts with all_to_all_single (uneven splits), and back.
Everything but the experts is replicated and averaged over a separate process group.

    torchrun --nproc-per-node 2 moe_parallel.py [--fault router_collapse]

Normally a selection bias keeps the load of the experts even.  --fault router_collapse starts
from a checkpoint whose router sends most tokens to the two experts of rank 1, and drops the
balancing bias.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM, FF, EXPERTS, TOKENS = 96, 640, 4, 448


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.splits = (send, recv)
        out = x.new_empty(sum(recv), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        send, recv = ctx.splits
        out = g.new_empty(sum(send), *g.shape[1:])
        dist.all_to_all_single(out, g.contiguous(), send, recv)
        return out, None, None


class Router(nn.Module):
    def __init__(self, collapse):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS)
        self.balance = not collapse
        self.register_buffer("bias", torch.zeros(EXPERTS))
        if collapse:
            with torch.no_grad():
                self.gate.bias[2:4] += 2.5

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        choice = (p + self.bias).argmax(-1)
        if self.balance:
            load = torch.bincount(choice, minlength=EXPERTS).float() / len(x)
            self.bias += 0.2 * (1.0 / EXPERTS - load)
        return choice, p.gather(1, choice[:, None])


class ExpertLayer(nn.Module):
    def __init__(self, rank, world, collapse):
        super().__init__()
        self.world, self.per = world, EXPERTS // world
        self.norm = nn.LayerNorm(DIM)
        self.router = Router(collapse)
        torch.manual_seed(100 + rank)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, FF), nn.GELU(), nn.Linear(FF, DIM))
            for _ in range(self.per)
        )
        torch.manual_seed(1)

    def forward(self, x):
        choice, weight = self.router(self.norm(x))
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=EXPERTS)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)  # what each rank sends my experts
        send = counts.view(self.world, self.per).sum(1).tolist()
        grid = theirs.view(self.world, self.per)
        recv = grid.sum(1).tolist()
        got = AllToAll.apply(self.norm(x)[order], send, recv)
        local = torch.arange(self.per).repeat(self.world).repeat_interleave(grid.reshape(-1))
        out = torch.zeros_like(got)
        for e, net in enumerate(self.experts):
            idx = (local == e).nonzero().squeeze(1)
            out = out.index_copy(0, idx, net(got[idx]))
        back = AllToAll.apply(out, recv, send)
        return x + weight * torch.zeros_like(back).index_copy(0, order, back)


class Net(nn.Module):
    def __init__(self, rank, world, collapse):
        super().__init__()
        torch.manual_seed(1)
        self.inp = nn.Linear(24, DIM)
        self.moe = nn.ModuleList(ExpertLayer(rank, world, collapse) for _ in range(2))
        self.out = nn.Linear(DIM, 4)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.moe:
            h = layer(h)
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "router_collapse"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    replicas = dist.new_group(list(range(world)))
    net = Net(rank, world, args.fault == "router_collapse")
    shared = [p for n, p in net.named_parameters() if ".experts." not in n]
    expert = [p for n, p in net.named_parameters() if ".experts." in n]
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(rank)
    w = torch.randn(24, 4, generator=torch.Generator().manual_seed(8)) / 5
    log, times = [], []
    for step in range(28):
        x = torch.randn(TOKENS, 24, generator=g)
        y = torch.sin(2 * x @ w)
        t0 = time.perf_counter()
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat, group=replicas)
        for p, chunk in zip(shared, (flat / world).split([p.numel() for p in shared])):
            p.grad = chunk.view_as(p).clone()
        for p in expert:
            if p.grad is not None:
                p.grad /= world
        opt.step()
        log.append(loss.item())
        times.append(time.perf_counter() - t0)
    if rank == 0:
        assert sum(log[-4:]) < sum(log[:4])
        print(f"mse {log[0]:.3f} -> {log[-1]:.3f}")
        print(f"mean step {sum(times[3:]) / len(times[3:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
