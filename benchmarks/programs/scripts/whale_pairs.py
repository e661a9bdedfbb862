"""Whale songs on a 2 x 2 mesh: tensor parallel in pairs, FSDP2 over the pairs.

Both ranks of a pair read the same songs by a DataLoader.

    torchrun --nproc-per-node 4 whale_pairs.py [--fault old-archive]

--fault old-archive: the songs of the second pair (ranks 2 and 3) come from an
older archive, compressed and sampled four times as often, and are unpacked and
resampled when they are read.
"""

import argparse
import bz2
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "old-archive"])
FAULT = parser.parse_args().fault
SAMPLES, FRAME, DIM, HEADS, DEPTH, BATCH, STEPS = 8192, 128, 96, 4, 3, 6, 50


class Songs(Dataset):
    """Two calls in turn, and the noise of the sea."""

    def __init__(self, pair):
        gen = torch.Generator().manual_seed(pair)
        self.packed = FAULT == "old-archive" and pair == 1
        length = 4 * SAMPLES if self.packed else SAMPLES
        t = torch.arange(length) / length
        self.label = torch.randint(0, 4, (48,), generator=gen)
        songs = []
        for label in self.label.tolist():
            tone = torch.sin(2 * torch.pi * (40 + 60 * label) * t * (1 + 0.3 * t))
            noise = torch.randn(length, generator=gen)
            songs.append((6000 * tone + 1500 * noise).to(torch.int16))
        self.songs = [bz2.compress(s.numpy().tobytes()) for s in songs] if self.packed else songs

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        song = self.songs[index % 48]
        if self.packed:
            song = torch.frombuffer(bytearray(bz2.decompress(song)), dtype=torch.int16)
            song = song.view(-1, 4).float().mean(1)
        return song.float() / 8192, self.label[index % 48]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v, self.proj = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, n, _ = x.shape
        h = self.ln1(x)
        q, k, v = (
            f(h).view(b, n, -1, DIM // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Linear(FRAME, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(DIM, 4)

    def forward(self, x):
        x = self.frames(x.unflatten(1, (-1, FRAME)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Listener()
    for block in model.blocks:
        parallelize_module(
            block,
            mesh["tp"],
            {
                "q": ColwiseParallel(),
                "k": ColwiseParallel(),
                "v": ColwiseParallel(),
                "proj": RowwiseParallel(),
                "up": ColwiseParallel(),
                "down": RowwiseParallel(),
            },
        )
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    took = []
    songs = iter(DataLoader(Songs(mesh.get_local_rank("dp")), batch_size=BATCH))
    for step in range(STEPS):
        start = time.perf_counter()
        song, label = next(songs)
        loss = F.cross_entropy(model(song), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
