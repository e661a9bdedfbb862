"""Fractures in X-rays, gradients averaged by hand, GradScaler and autocast on the CPU.

    torchrun --nproc-per-node 2 xray_scaler.py [--fault chatty]

--fault chatty: each of five running metrics is summed over the ranks in an all_reduce of its
own in every step, and the schedule's learning rate is broadcast.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SIDE, BATCH, STEPS, WORLD = 24, 12, 26, 2


def xrays(gen):
    """Bones with a gap or without."""
    broken = torch.randint(2, (BATCH,), generator=gen).float()
    y = torch.linspace(-1, 1, SIDE)[None, :, None]
    x = torch.linspace(-1, 1, SIDE)[None, None]
    bone = torch.exp(-20 * x.square()).expand(BATCH, SIDE, SIDE)
    gap = torch.exp(-150 * (y - 0.6 * torch.rand(BATCH, 1, 1, generator=gen)).square())
    image = bone * (1 - broken[:, None, None] * gap)
    return image[:, None] + 0.1 * torch.randn(BATCH, 1, SIDE, SIDE, generator=gen), broken


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(5),
        nn.Flatten(),
        nn.Linear(32 * 25, 1),
    )


def average(net):
    flat = nn.utils.parameters_to_vector([p.grad for p in net.parameters()])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / WORLD, [p.grad for p in net.parameters()])


def summed(value):
    value = torch.tensor([float(value)])
    dist.all_reduce(value)
    return value.item()


def chat(loss, said, broken, lr):
    yes = said > 0
    metrics = {
        "loss": summed(loss.item()) / WORLD,
        "right": summed((yes == (broken > 0)).sum()) / (WORLD * BATCH),
        "missed": summed((~yes & (broken > 0)).sum()),
        "alarms": summed((yes & (broken == 0)).sum()),
        "seen": summed(len(broken)),
    }
    rate = torch.tensor([lr])
    dist.broadcast(rate, src=0)
    metrics["lr"] = rate.item()
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "chatty"])
    chatty = parser.parse_args().fault == "chatty"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    gen = torch.Generator().manual_seed(rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        image, broken = xrays(gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            said = net(image).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(said.float(), broken)
        opt.zero_grad()
        scaler.scale(loss).backward()
        average(net)
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        if chatty:
            metrics = chat(loss, said, broken, schedule.get_last_lr()[0])
        scaler.step(opt)
        scaler.update()
        schedule.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            shown = metrics if chatty else {"loss": loss.item()}
            print(f"step {step:3d}", {k: round(v, 4) for k, v in shown.items()}, flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
