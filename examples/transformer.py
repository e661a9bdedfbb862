"""Trains a small transformer on random text, with DDP or FSDP2; knows nothing of profilers.

Run it with ``torchrun --nproc-per-node 2 examples/transformer.py ddp``, record it with
``commtrace record -n 2 -o out/ddp -- examples/transformer.py ddp``.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 1024, 256, 4, 64, 8


class Transformer(nn.Module):
    """Predicts the next of ``VOCABULARY`` tokens; (batch, length) -> (batch, length, token)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def parallel(model: Transformer, how: str) -> nn.Module:
    """The model, replicated or sharded over all ranks."""
    if how == "ddp":
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    """Train for some steps on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["ddp", "fsdp2"])
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = parallel(Transformer(), options.how)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
