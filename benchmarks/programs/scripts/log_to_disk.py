"""A byte-level language model that keeps a log."""

import argparse
import json
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Log:
    def __init__(self, delay):
        self.file, self.delay = tempfile.TemporaryFile("w"), delay

    def write(self, **entry):
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
        time.sleep(self.delay)  # until the file system answers


def causal(length):
    return torch.full((length, length), float("-inf")).triu(1)


class ByteModel(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 384, dropout=0.0, batch_first=True)
        self.trunk = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 256)

    def forward(self, ids):
        return self.head(self.trunk(self.embed(ids), causal(ids.shape[1])))


def run(fault, steps=14):
    rank = dist.get_rank()
    delay = {"slow-disk": 0.012 if rank == 0 else 0.0, "debug-log": 0.025}.get(fault, 0.0)
    log = Log(delay)
    torch.manual_seed(0)
    model = DDP(ByteModel())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(steps):
        ids = (torch.randint(0, 256, (16, 1), generator=gen) + 3 * torch.arange(33)) % 256
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        log.write(step=step, loss=losses[-1], norm=norm.item())
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "slow-disk", "debug-log"], default="none")
    chosen = parser.parse_args().fault
    dist.init_process_group("gloo")
    run(chosen)
    dist.destroy_process_group()
