"""Bird songs: a small transformer on mel frames, FSDP2, gradients accumulated.

    torchrun --nproc-per-node 2 bird_fsdp.py [--fault sync-each]

--fault sync-each: the accumulation loop was taken over from a script for one
GPU, the gradients are reduced with every micro-batch.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MELS, FRAMES, DIM, SPECIES = 40, 24, 192, 30
MICRO, ACCUMULATE, STEPS = 6, 4, 70


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(MELS, DIM)
        self.blocks = nn.ModuleList(Block(DIM) for _ in range(3))
        self.head = nn.Linear(DIM, SPECIES)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def songs(seed):
    """Endless micro-batches; each species has its own chirp."""
    gen = torch.Generator().manual_seed(seed)
    ramps = torch.randn(SPECIES, MELS, generator=torch.Generator().manual_seed(5))
    t = torch.linspace(0, 3, FRAMES)[:, None]
    while True:
        y = torch.randint(SPECIES, (MICRO,), generator=gen)
        x = torch.sin(t * ramps[y][:, None] * 4) + 0.3 * torch.randn(
            MICRO, FRAMES, MELS, generator=gen
        )
        yield x, y


def build(mesh):
    torch.manual_seed(0)
    model = BirdNet()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "sync-each"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = build(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    data = songs(100 + rank)
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        total = 0.0
        for micro in range(ACCUMULATE):
            final = micro == ACCUMULATE - 1
            if fault != "sync-each":
                model.set_requires_gradient_sync(final)
                model.set_is_last_backward(final)
                model.set_reshard_after_backward(final)
            x, y = next(data)
            loss = F.cross_entropy(model(x), y) / ACCUMULATE
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 20 == 0:
            print(f"{step:3d} loss {total:.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
