"""Two stages, messages in batches of isend and irecv; the last stage has the vocabulary, too."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

DIM, LENGTH, ROWS, MICRO = 128, 32, 8, 4


def exchange(*ops):
    for work in dist.batch_isend_irecv(list(ops)):
        work.wait()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class First(nn.Module):
    def __init__(self, vocab, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))

    def forward(self, tokens):
        return self.blocks(self.embed(tokens))


class Last(nn.Module):
    def __init__(self, vocab, layers):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.head = nn.Linear(DIM, vocab)

    def forward(self, x, target):
        logits = self.head(self.blocks(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()) / MICRO


def run_first(stage, batch):
    sent = []
    for tokens in batch:
        y = stage(tokens[:, :-1])
        exchange(dist.P2POp(dist.isend, y.detach(), 1))
        sent.append(y)
    for y in sent:
        grad = torch.empty_like(y)
        exchange(dist.P2POp(dist.irecv, grad, 1))
        y.backward(grad)
    return None


def run_last(stage, batch):
    total, received = 0.0, []
    for tokens in batch:
        x = torch.empty(ROWS, LENGTH, DIM)
        exchange(dist.P2POp(dist.irecv, x, 0))
        loss = stage(x.requires_grad_(), tokens[:, 1:])
        received.append((x, loss))
    for x, loss in received:
        loss.backward()
        exchange(dist.P2POp(dist.isend, x.grad, 0))
        total += loss.item()
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "large-vocabulary"], default="none")
    args = parser.parse_args()
    vocab = 4000 if args.fault == "large-vocabulary" else 100
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage, run = (First(vocab, 3), run_first) if rank == 0 else (Last(vocab, 3), run_last)
    opt = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(14):
        start = torch.randint(0, 100, (MICRO, ROWS, 1), generator=gen)
        batch = (start + torch.arange(LENGTH + 1)) % 100
        losses.append(run(stage, batch))
        opt.step()
        opt.zero_grad()
    if rank == 1:
        assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
