"""Trains a small classifier with DDP, more slowly than it should: docs/first-fix.md finds out why.

Run it with ``torchrun --nproc-per-node 2 examples/slow_ddp.py``, record it with
``commtrace record -n 2 -o out/slow -- examples/slow_ddp.py``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, CLASSES = 512, 64, 10


def main() -> None:
    """Train for some steps on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [its for _ in range(6) for its in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, options.steps + 1):
            begin = time.perf_counter()
            logits = model(torch.randn(BATCH, WIDTH))
            loss = nn.functional.cross_entropy(logits, torch.randint(CLASSES, (BATCH,)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                if step % options.save_every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, Path(folder, "checkpoint.pt"))
                print(f"step {step}: {1e3 * (time.perf_counter() - begin):.0f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
