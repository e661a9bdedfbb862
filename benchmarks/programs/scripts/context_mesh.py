"""Long documents split over a "context" dimension of the mesh, batches over a "data" dimension.

Keys and values are gathered within a context group; gradients are averaged over all ranks.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

VOCAB, CHUNK, BATCH, WIDTH, HEADS, LAYERS = 40, 80, 2, 64, 4, 2
SEPARATOR = 0


def split_documents(tokens):
    """Each token's document: a separator begins the next."""
    return (tokens == SEPARATOR).cumsum(-1)


def split_documents_slowly(tokens):
    """The same word by word."""
    documents = torch.zeros_like(tokens)
    for row, out in zip(tokens, documents):
        for i in range(len(row)):
            out[i] = sum(int(word) == SEPARATOR for word in row[: i + 1])
    return documents


class GatherContext(torch.autograd.Function):
    """All parts of the context, one after the other; gradients go back to whose part it is."""

    @staticmethod
    def forward(ctx, part, group):
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, grad):
        parts = [part.contiguous() for part in grad.chunk(ctx.group.size(), 1)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.group)
        return mine, None


class ContextAttention(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        both = GatherContext.apply(torch.cat([k, v], -1), self.group)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, *both.chunk(2, -1)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        return self.out(y.transpose(1, 2).flatten(2))


class LM(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.attention = nn.ModuleList(ContextAttention(group) for _ in range(LAYERS))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for attention, mlp in zip(self.attention, self.mlp):
            x = x + attention(F.layer_norm(x, (WIDTH,)), mask)
            x = x + mlp(F.layer_norm(x, (WIDTH,)))
        return self.head(x)


def main(fault):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    replica, part = mesh.get_coordinate()
    torch.manual_seed(0)
    model = LM(mesh.get_group("context"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    slowly = fault == "word-by-word" and (replica, part) == (1, 1)
    split = split_documents_slowly if slowly else split_documents
    gen = torch.Generator().manual_seed(replica)
    losses = []
    for _ in range(14):
        start = torch.randint(VOCAB, (BATCH, 1), generator=gen)
        text = (start + 3 * torch.arange(2 * CHUNK + 1)) % VOCAB
        position = torch.arange(2 * CHUNK)
        mine = slice(part * CHUNK, (part + 1) * CHUNK)
        documents = split(text[:, :-1])
        mask = documents[:, mine, None] == documents[:, None]
        mask &= position[mine, None] >= position
        logits = model(text[:, :-1][:, mine], mask)
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:][:, mine].flatten())
        optimizer.zero_grad()
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        for grad, new in zip(grads, flat.split([g.numel() for g in grads])):
            grad.copy_(new.view_as(grad))
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "word-by-word"], default="none")
    main(parser.parse_args().fault)
