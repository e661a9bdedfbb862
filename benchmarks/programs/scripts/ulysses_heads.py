"""Long sequences in the manner of DeepSpeed-Ulysses.

Every rank has a part of the sequence. For the attention it needs all of the sequence, but only
some heads: one all-to-all before and one behind it.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCAB, DIM, HEADS, SEQUENCE, CHUNK = 64, 96, 6, 288, 32


def all_to_all(x):
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x.contiguous())
    return received


class SwapShards(torch.autograd.Function):
    """[ranks, ...] where the i-th is for rank i, to the same where the i-th is rank i's."""

    @staticmethod
    def forward(ctx, x):
        return all_to_all(x)

    @staticmethod
    def backward(ctx, grad):
        return all_to_all(grad)


class SwapTokens(torch.autograd.Function):
    """The same, in many small pieces: some tokens of one head at a time."""

    @staticmethod
    def forward(ctx, x):
        return by_tokens(x)

    @staticmethod
    def backward(ctx, grad):
        return by_tokens(grad)


def by_tokens(x):
    heads = x.flatten(1, -3).split(1, 1)
    swapped = [torch.cat([all_to_all(t) for t in head.split(CHUNK, 2)], 2) for head in heads]
    return torch.cat(swapped, 1).view(x.shape)


class Attention(nn.Module):
    def __init__(self, exchange, world_size):
        super().__init__()
        self.exchange, self.n = exchange, world_size
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):  # [part of the sequence, DIM]
        t = len(x)
        qkv = self.qkv(x).view(t, 3, self.n, HEADS // self.n, -1)
        qkv = self.exchange.apply(qkv.permute(2, 1, 3, 0, 4))  # [rank, 3, heads, t, d]
        qkv = qkv.permute(1, 2, 0, 3, 4).flatten(2, 3)
        y = scaled_dot_product_attention(*qkv[:, None].unbind(0), is_causal=True)[0]
        y = y.unflatten(1, (self.n, t)).permute(1, 0, 2, 3)  # [rank, heads, t, d]
        y = self.exchange.apply(y)
        return self.out(y.permute(2, 0, 1, 3).flatten(1))


class Block(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(DIM), Attention(*args)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--fault", choices=["none", "swap-tokens"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    exchange = SwapShards if args.fault == "none" else SwapTokens
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCAB, DIM),
        *(Block(exchange, n) for _ in range(args.layers)),
        nn.Linear(DIM, VOCAB),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)  # all ranks draw the same sequence
    first = last = None
    for _ in range(14):
        start = torch.randint(VOCAB, (), generator=generator)
        tokens = (start + 3 * torch.arange(SEQUENCE + 1)) % VOCAB
        part = slice(rank * SEQUENCE // n, (rank + 1) * SEQUENCE // n)
        loss = cross_entropy(model(tokens[:-1][part]), tokens[1:][part])
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        offset = 0
        for p in model.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p) / n)
            offset += p.numel()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < first, (first, last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
