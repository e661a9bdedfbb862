"""Tensor and sequence parallelism by DTensor: between attention and MLP each rank has some tokens."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

BATCH, TOKENS, WIDTH, HEADS, CLASSES = 16, 128, 64, 4, 10


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.ffn = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Classifier(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.patches = nn.Linear(32, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patches(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def parallelize(model, mesh, prepare):
    """With ``prepare`` a module's input is gathered once, else by each layer that takes it."""
    gathered = {"desired_input_layouts": (Replicate(),)}
    column = ColwiseParallel() if prepare else ColwiseParallel(input_layouts=Shard(1))
    row = RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {"patches": RowwiseParallel(
        input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=True)})  # fmt: skip
    for block in model.blocks:
        plan = {
            "attention_norm": SequenceParallel(use_local_output=True),
            "ffn_norm": SequenceParallel(use_local_output=True),
            **{f"attention.{name}": column for name in ("wq", "wk", "wv")},
            **{f"ffn.{name}": column for name in ("gate", "up")},
            "attention.wo": row,
            "ffn.down": row,
        }
        if prepare:
            once = PrepareModuleInput(input_layouts=(Shard(1),), **gathered)
            plan |= {"attention": once, "ffn": once}
        parallelize_module(block, mesh, plan)
    last = PrepareModuleInput(input_layouts=(Shard(1),), **gathered, use_local_output=True)
    parallelize_module(model, mesh, {"norm": last})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "each-projection-gathers"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Classifier()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    parallelize(model, mesh, prepare=args.fault == "none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prototypes = torch.randn(CLASSES, 1, 32)
    losses = []
    for _ in range(14):
        labels = torch.randint(CLASSES, (BATCH,))
        images = prototypes[labels] + 0.5 * torch.randn(BATCH, TOKENS, 32)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print("loss", *(f"{loss:.2f}" for loss in losses))
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
