"""Whale calls and their spectrograms embedded jointly, token-wise contrastive loss, DDP.

    torchrun --nproc-per-node 2 whale_contrast.py [--fault gather-again]

--fault gather-again: each direction of the loss and the accuracy gather the
embeddings of all ranks for themselves, instead of using those gathered once.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH, TOKENS, WIDTH, STEPS = 128, 16, 256, 26


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.wave = nn.Sequential(nn.Linear(256, 160), nn.GELU(), nn.Linear(160, WIDTH))
        self.spec = nn.Sequential(nn.Linear(128, 160), nn.GELU(), nn.Linear(160, WIDTH))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, wave, spec):
        a = F.normalize(self.wave(wave).flatten(1), dim=1)
        b = F.normalize(self.spec(spec).flatten(1), dim=1)
        return a, b, self.temperature.exp()


def calls(gen):
    """The same whale, heard and seen."""
    who = torch.randn(BATCH, TOKENS, 64, generator=gen)
    wave = who.repeat(1, 1, 4) + 0.3 * torch.randn(BATCH, TOKENS, 256, generator=gen)
    return wave, who.repeat(1, 1, 2)


def of_all(z):
    """Everybody's embeddings; the gradient flows through one's own."""
    everyone = torch.empty(dist.get_world_size() * len(z), z.shape[1])
    dist.all_gather_single(everyone, z.detach().contiguous())
    rows = list(everyone.split(len(z)))
    rows[dist.get_rank()] = z
    return torch.cat(rows)


def target():
    return torch.arange(BATCH) + dist.get_rank() * BATCH


def one_way(a, all_b, scale):
    return F.cross_entropy(scale * a @ all_b.T, target())


def accuracy(a, all_b):
    with torch.no_grad():
        return ((a[:48] @ all_b.T).argmax(1) == target()[:48]).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "gather-again"])
    again = parser.parse_args().fault == "gather-again"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Towers())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(7 + rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        a, b, scale = model(*calls(gen))
        if again:
            loss = (one_way(a, of_all(b), scale) + one_way(b, of_all(a), scale)) / 2
            found = (accuracy(a, of_all(b)) + accuracy(b, of_all(a))) / 2
        else:
            all_a, all_b = of_all(a), of_all(b)
            loss = (one_way(a, all_b, scale) + one_way(b, all_a, scale)) / 2
            found = (accuracy(a, all_b) + accuracy(b, all_a)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 9 == 0:
            print(f"step {step:3d} loss {loss.item():.3f} found {found:.2f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
