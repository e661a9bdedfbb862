"""A sparse mixture of experts, its dispatch written out over all_to_all_single."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    """Rows to other ranks and, backward, their gradients the same way back."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.sent, ctx.received = sent, received
        out = rows.new_empty(sum(received), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.sent), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), ctx.sent, ctx.received)
        return back, None, None


class MoE(nn.Module):
    def __init__(self, dim, pad_to_all):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.experts, self.pad_to_all = 2 * self.world, pad_to_all
        centres = torch.randn(dim, self.experts, generator=torch.Generator().manual_seed(8))
        self.register_buffer("router", centres)  # a hash, as it were: balanced, and not learnt
        self.local = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(2)
        )

    def forward(self, x):
        choice = (x.detach() @ self.router).argmax(dim=1)
        order = choice.argsort()
        counts = torch.bincount(choice, minlength=self.experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        rows = x[order]
        if self.pad_to_all:  # static shapes: an expert may be sent every token there is
            rows = nn.utils.rnn.pad_sequence(rows.split(counts.tolist()), batch_first=True)
            rows = F.pad(rows, (0, 0, 0, len(x) - rows.size(1))).flatten(0, 1)
            sent = received = [2 * len(x)] * self.world
            sizes = [[len(x)] * 2] * self.world
        else:
            sent, received = (n.view(-1, 2).sum(dim=1).tolist() for n in (counts, arriving))
            sizes = arriving.view(-1, 2).tolist()
        parts = Exchange.apply(rows, sent, received).split([n for pair in sizes for n in pair])
        out = [
            F.pad(self.local[i % 2](part[:real]), (0, 0, 0, len(part) - real))
            for i, (part, real) in enumerate(zip(parts, arriving.tolist(), strict=True))
        ]
        rows = Exchange.apply(torch.cat(out), received, sent)
        if self.pad_to_all:
            kept = zip(rows.split(len(x)), counts.tolist(), strict=True)
            rows = torch.cat([block[:n] for block, n in kept])
        return x + rows[order.argsort()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=224)
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--fault", choices=["none", "pad-to-all"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(40 + dist.get_rank())
    moe = MoE(args.dim, args.fault == "pad-to-all")
    optimizer = torch.optim.SGD(moe.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(14):
        x = torch.randn(args.tokens, args.dim)
        loss = (moe(x) - x.abs()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"rank {dist.get_rank()}: {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
