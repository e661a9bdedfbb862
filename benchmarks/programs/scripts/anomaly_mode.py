# A recurrent tagger under DDP; somebody was looking for a NaN last week.
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

args = argparse.ArgumentParser()
args.add_argument("--fault", choices=["none", "detect-anomaly"], default="none")
args.add_argument("--length", type=int, default=24)
args = args.parse_args()


class Cell(nn.Module):
    """A minimal gated unit, written out."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.gate = nn.Linear(inputs + hidden, hidden)
        self.candidate = nn.Linear(inputs + hidden, hidden)

    def forward(self, x, h):
        f = torch.sigmoid(self.gate(torch.cat([x, h], dim=1)))
        c = torch.tanh(self.candidate(torch.cat([x, f * h], dim=1)))
        return (1 - f) * h + f * c


class Tagger(nn.Module):
    def __init__(self, vocabulary=200, tags=8, hidden=128):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 64)
        self.cell, self.out = Cell(64, hidden), nn.Linear(hidden, tags)
        self.hidden = hidden

    def forward(self, tokens):
        h = torch.zeros(len(tokens), self.hidden)
        states = []
        for x in self.embed(tokens).unbind(1):
            h = self.cell(x, h)
            states.append(h)
        return self.out(torch.stack(states, dim=1))


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(args.fault == "detect-anomaly", check_nan=True)
model = DistributedDataParallel(Tagger())
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for step in range(16):
    tokens = torch.randint(200, (64, args.length), generator=generator)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), (tokens % 8).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
losses = torch.stack(losses)
if dist.get_rank() == 0:
    print("loss", losses.tolist())
assert losses[-1] < losses[0]
dist.destroy_process_group()
