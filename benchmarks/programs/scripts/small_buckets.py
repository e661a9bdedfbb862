"""A deep and narrow network; somebody read that small buckets overlap better."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Thin(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.sigmoid(self.gate(h)) * self.value(h)


class Deep(nn.Module):
    def __init__(self, width=96, depth=48):
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(Thin(width) for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "tiny-buckets"], default="none")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Deep(), bucket_cap_mb=0.001 if args.fault == "tiny-buckets" else 25)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(7 * 256 * 2, 16))
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, 256, sampler=sampler)
losses = []
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (model(x) - x.norm(dim=1, keepdim=True)).abs().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
dist.destroy_process_group()
