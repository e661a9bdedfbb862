"""A small vision transformer tells healthy corals from bleached ones, under DDP.

    torchrun --nproc-per-node 2 coral_vit.py [--fault watch]

--fault watch: every rank watches the model: it makes a histogram of each weight
and of each gradient in each step, which nobody looks at.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "watch"])
FAULT = parser.parse_args().fault
SIDE, PATCH, DIM, HEADS, DEPTH, BATCH, STEPS = 32, 4, 64, 4, 10, 6, 70


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.scale1 = nn.Parameter(torch.full((DIM,), 0.1))
        self.scale2 = nn.Parameter(torch.full((DIM,), 0.1))

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(*qkv)
        x = x + self.scale1 * self.proj(a.transpose(1, 2).reshape(b, n, DIM))
        return x + self.scale2 * self.down(F.gelu(self.up(self.ln2(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.place = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, DIM))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(x)).mean(1))


def corals(gen):
    label = torch.randint(0, 3, (BATCH,), generator=gen)
    tone = torch.tensor([[0.2, 0.5, 0.4], [0.8, 0.8, 0.75], [0.4, 0.35, 0.2]])[label]
    noise = 0.4 * torch.randn(BATCH, 3, SIDE, SIDE, generator=gen)
    return tone[:, :, None, None] + noise, label


def histogram(values):
    low, high = values.aminmax()
    return low.item(), high.item(), torch.histc(values, bins=32).tolist()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    parameters = list(model.parameters())
    opt = torch.optim.NAdam(parameters, lr=5e-4)
    gen = torch.Generator().manual_seed(rank)
    took, seen = [], {}
    for step in range(STEPS):
        start = time.perf_counter()
        image, label = corals(gen)
        loss = F.cross_entropy(model(image), label)
        opt.zero_grad()
        loss.backward()
        if FAULT == "watch":
            for name, p in model.named_parameters():
                seen[name] = histogram(p.detach()), histogram(p.grad)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
