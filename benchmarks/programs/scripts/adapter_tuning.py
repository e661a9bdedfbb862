"""Low-rank adapters on a frozen language model; rank 0 prints what the model would write."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, LENGTH = 128, 256, 48


class LoRA(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = LoRA(nn.Linear(DIM, 3 * DIM)), LoRA(nn.Linear(DIM, DIM))
        self.up, self.down = LoRA(nn.Linear(DIM, 4 * DIM)), LoRA(nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        n, t, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(n, t, 3, 4, DIM // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(DIM, VOCAB)
        self.embed.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


@torch.no_grad()
def sample(model, prompt, n):
    tokens = prompt[None]
    for _ in range(n):
        logits = model(tokens[:, -LENGTH:])[:, -1]
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens[0].tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "sample-text"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Model()
    ddp = DDP(model)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for it in range(args.iters):
        x = (torch.randint(0, VOCAB, (6, 1), generator=gen) + torch.arange(LENGTH + 1) * 3) % VOCAB
        loss = F.cross_entropy(ddp(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if rank == 0 and args.fault == "sample-text" and it % 2 == 0:
            print(it, losses[-1], sample(model, x[0, :16], 16))
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
