"""A mixture of experts: one expert on each rank, tokens travel by all_to_all."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Exchange(torch.autograd.Function):
    """all_to_all_single, and the way back."""

    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class MoE(nn.Module):
    def __init__(self, dim, favourite):
        super().__init__()
        self.world = dist.get_world_size()
        self.favourite = favourite  # the share of tokens that expert 1 is given
        self.expert = nn.Sequential(nn.Linear(dim, 6 * dim), nn.ReLU(), nn.Linear(6 * dim, dim))

    def forward(self, x):
        n = len(x)
        counts = [n - int(self.favourite * n), int(self.favourite * n)]
        send = torch.tensor(counts)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        there = Exchange.apply(x, send.tolist(), recv.tolist())
        back = Exchange.apply(self.expert(there), recv.tolist(), send.tolist())
        return x + back


parser = argparse.ArgumentParser()
parser.add_argument("--tokens", type=int, default=256)
parser.add_argument("--fault", default="none", choices=["none", "uneven-experts"])

if __name__ == "__main__":
    opts = parser.parse_args()
    dist.init_process_group("gloo")
    me = dist.get_rank()
    torch.manual_seed(me)
    moe = MoE(192, favourite=0.8 if opts.fault == "uneven-experts" else 0.5)
    torch.manual_seed(100)
    head = nn.Linear(192, 192)
    adam = torch.optim.Adam([*moe.parameters(), *head.parameters()], lr=1e-3)
    data = torch.Generator().manual_seed(me)
    curve = []
    for it in range(14):
        x = torch.randn(opts.tokens, 192, generator=data)
        loss = (head(moe(x)) - x.roll(1, 1)).square().mean()
        adam.zero_grad()
        loss.backward()
        for p in head.parameters():  # the head is shared, experts are not
            dist.all_reduce(p.grad)
            p.grad /= moe.world
        adam.step()
        curve.append(loss.item())
        if me == 0:
            print("%2d %.4f" % (it, curve[-1]))
    assert curve[-1] < curve[0]
    dist.destroy_process_group()
