"""Moths told apart by a small network that a large one teaches, DDP.

What the teacher says is cached for every image.

    torchrun --nproc-per-node 3 moth_distill.py [--fault cache-miss]

--fault cache-miss: the caches of ranks 1 and 2 were made for another teacher, so that they
ask theirs in every step.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, KINDS, BATCH, IMAGES, STEPS, HEAT = 24, 10, 40, 320, 25, 3.0


def network(width, depth):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * width, KINDS)]
    return nn.Sequential(*layers)


class Moths:
    """Images of one rank, and what the teacher said of them."""

    def __init__(self, rank, teacher, stale):
        gen = torch.Generator().manual_seed(rank)
        self.image = torch.rand(IMAGES, 3, SIDE, SIDE, generator=gen)
        self.kind = torch.randint(KINDS, (IMAGES,), generator=gen)
        self.image += 0.05 * self.kind[:, None, None, None]
        self.teacher, self.gen = teacher, gen
        self.cache = None
        if not stale:
            with torch.no_grad():
                self.cache = torch.cat([teacher(part) for part in self.image.split(64)])

    def batch(self):
        chosen = torch.randint(IMAGES, (BATCH,), generator=self.gen)
        x, y = self.image[chosen], self.kind[chosen]
        if self.cache is not None:
            return x, y, self.cache[chosen]
        with torch.no_grad():
            return x, y, self.teacher(x)


def loss_of(said, taught, kind):
    soft = F.kl_div(
        F.log_softmax(said / HEAT, 1), F.softmax(taught / HEAT, 1), reduction="batchmean"
    )
    return 0.3 * F.cross_entropy(said, kind) + 0.7 * HEAT**2 * soft


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "cache-miss"])
    miss = parser.parse_args().fault == "cache-miss"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    teacher = network(40, 3).eval().requires_grad_(False)
    moths = Moths(rank, teacher, stale=miss and rank in (1, 2))
    student = DDP(network(32, 2))
    opt = torch.optim.RMSprop(student.parameters(), lr=1e-3)
    dist.barrier()
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        image, kind, taught = moths.batch()
        loss = loss_of(student(image), taught, kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
