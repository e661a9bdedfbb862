"""Onset of the monsoon from sea temperatures, DDP with a communication hook.

    torchrun --nproc-per-node 2 monsoon_hook.py [--fault in-double]

--fault in-double: the hook sums the gradients in double precision, to be on the safe side;
without the fault in the single precision that they have.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CELLS, MONTHS, WIDTH, BATCH, STEPS = 256, 4, 768, 96, 26


class Ocean(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.GRU(CELLS, WIDTH, batch_first=True)
        self.say = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, seas):
        return self.say(self.read(seas)[0][:, -1]).squeeze(1)


def seas(gen):
    state = torch.randn(BATCH, 1, 4, generator=gen)
    month = torch.arange(MONTHS).view(1, -1, 1)
    cell = torch.linspace(0, 6, CELLS).view(1, 1, -1)
    wave = state[..., :1] * torch.sin(cell + 0.4 * month) + state[..., 1:2] * torch.cos(2 * cell)
    onset = state[:, 0, 0] - 0.5 * state[:, 0, 1]
    return wave + 0.1 * torch.randn(wave.shape, generator=gen), onset


def mean_of(future):
    return future.value()[0]


def in_single(world, bucket):
    grads = bucket.buffer().div_(world)
    return dist.all_reduce(grads, async_op=True).get_future().then(mean_of)


def in_double(world, bucket):
    grads = bucket.buffer()
    exact = grads.double().div_(world)
    future = dist.all_reduce(exact, async_op=True).get_future()
    return future.then(lambda done: grads.copy_(done.value()[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "in-double"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Ocean(), bucket_cap_mb=8)
    model.register_comm_hook(world, in_double if args.fault == "in-double" else in_single)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        temperatures, onset = seas(gen)
        loss = F.mse_loss(model(temperatures), onset)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        opt.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
