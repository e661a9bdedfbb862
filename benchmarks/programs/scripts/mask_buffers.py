"""Attention with precomputed masks and angles as buffers, which DDP keeps in step."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

DIM, HEADS, LENGTH, VOCAB = 128, 4, 64, 97


class Attention(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.register_buffer("mask", torch.full((context, context), -1e9).triu(1))
        angles = torch.outer(torch.arange(context), 10_000 ** -torch.linspace(0, 1, DIM // HEADS))
        self.register_buffer("cos", angles.cos())

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = q * self.cos[:t], k * self.cos[:t]
        y = scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:t, :t])
        return x + self.out(y.transpose(1, 2).reshape(n, t, DIM))


class Net(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.layers = nn.ModuleList(Attention(context) for _ in range(4))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(),
                          nn.Linear(4 * DIM, DIM))
            for _ in range(4)
        )  # fmt: skip

    def forward(self, tokens):
        x = self.embed(tokens)
        for attention, mlp in zip(self.layers, self.mlps):
            x = attention(x)
            x = x + mlp(x)
        return self.head(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "long-context"], default="none")
    args = parser.parse_args()
    context = 1536 if args.fault == "long-context" else LENGTH
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Net(context))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        start = torch.randint(0, VOCAB, (8, 1), generator=gen)
        tokens = (start + 5 * torch.arange(LENGTH + 1)) % VOCAB
        loss = cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
