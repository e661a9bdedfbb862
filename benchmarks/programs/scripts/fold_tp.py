"""Contact maps of short proteins: feed-forward towers in tensor parallel (DTensor).

    torchrun --nproc-per-node 2 fold_tp.py [--fault replicate]

--fault replicate: whoever wrote the plan wanted to see whole activations while
debugging, and left the outputs of the first halves replicated.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RESIDUES, AMINO, DIM, WIDE, DEPTH, BATCH, STEPS = 48, 20, 64, 512, 3, 8, 80


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, WIDE)
        self.down = nn.Linear(WIDE, DIM)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class ContactNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(AMINO, DIM)
        self.mix = nn.Conv1d(DIM, DIM, 9, padding=4)
        self.towers = nn.ModuleList(Tower() for _ in range(DEPTH))

    def forward(self, sequence):
        x = self.embed(sequence)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        for tower in self.towers:
            x = tower(x)
        return x @ x.transpose(1, 2) / DIM**0.5


def plan(replicate):
    if replicate:
        return {
            "up": ColwiseParallel(output_layouts=Replicate()),
            "down": RowwiseParallel(input_layouts=Replicate()),
        }
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def proteins(gen):
    seq = torch.randint(AMINO, (BATCH, RESIDUES), generator=gen)
    touch = ((seq[:, :, None] + seq[:, None, :]) % AMINO == 0).float()
    return seq, touch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "replicate"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(2)
    net = ContactNet()
    for tower in net.towers:
        parallelize_module(tower, mesh, plan(fault == "replicate"))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
    gen = torch.Generator().manual_seed(9)  # both ranks see the same proteins
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        seq, touch = proteins(gen)
        loss = F.binary_cross_entropy_with_logits(net(seq), touch)
        loss.backward()
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  bce {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
