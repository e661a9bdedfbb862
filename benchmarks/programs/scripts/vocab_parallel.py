"""A vocabulary that is split over the ranks: the softmax's maximum and sum travel, not the logits."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

VOCAB, DIM = 8192, 128


class ParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, first):
        top = logits.max(-1).values
        dist.all_reduce(top, dist.ReduceOp.MAX)
        e = (logits - top[:, None]).exp()
        total = e.sum(-1)
        dist.all_reduce(total)
        local = target - first
        here = (local >= 0) & (local < logits.size(1))
        picked = logits.gather(1, local.clamp(0, logits.size(1) - 1)[:, None])[:, 0] - top
        picked = torch.where(here, picked, 0.0)
        dist.all_reduce(picked)
        ctx.save_for_backward(e / total[:, None], local, here)
        return (total.log() - picked).mean()

    @staticmethod
    def backward(ctx, grad):
        p, local, here = ctx.saved_tensors
        p[here, local[here]] -= 1
        return p * grad / len(p), None, None


class SumGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Net(nn.Module):
    def __init__(self, shard):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, DIM)
        self.body = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.head = nn.Parameter(torch.randn(VOCAB, DIM)[shard] / DIM**0.5)

    def forward(self, tokens):
        return SumGrad.apply(self.body(self.embed(tokens))) @ self.head.T


def show(logits, n=100):
    """The likeliest words, with their probabilities, of every position."""
    p, words = logits.softmax(-1).sort(descending=True)
    return [(int(w[0]), float(q[0])) for w, q in zip(words[:n], p[:n])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "print-samples"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    size = VOCAB // world
    net = Net(slice(rank * size, (rank + 1) * size))
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    gen = torch.Generator().manual_seed(0)  # all ranks have the same tokens
    losses = []
    for _ in range(14):
        tokens = torch.randint(0, VOCAB // 64, (280,), generator=gen) * 64
        logits = net(tokens)
        if rank == 0 and args.fault == "print-samples":
            print(show(logits.detach())[:3])
        loss = ParallelCrossEntropy.apply(logits, tokens, rank * size)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
