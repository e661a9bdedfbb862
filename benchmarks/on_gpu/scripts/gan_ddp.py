"""DCGAN-style training at 64x64, generator and discriminator each under DDP, hinge loss."""
import json
import os
import time
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
ZDIM, NG, ND, BATCH = (16, 8, 8, 4) if SMALL else (128, 96, 192, 96)


def generator():
    def up(i, o):
        return [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
    return nn.Sequential(
        nn.ConvTranspose2d(ZDIM, NG * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(NG * 8), nn.ReLU(inplace=True),
        *up(NG * 8, NG * 4), *up(NG * 4, NG * 2), *up(NG * 2, NG), nn.ConvTranspose2d(NG, 3, 4, 2, 1), nn.Tanh())


def discriminator():
    def down(i, o):
        return [nn.Conv2d(i, o, 4, 2, 1), nn.GroupNorm(8, o), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(
        nn.Conv2d(3, ND, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
        *down(ND, ND * 2), *down(ND * 2, ND * 4), *down(ND * 4, ND * 8), nn.Flatten(), nn.Linear(ND * 8 * 16, 1))


def main():
    ap = ArgumentParser()
    ap.add_argument("--fault", choices=["d_grads_in_g_step", "empty_cache"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    rank = int(os.environ["RANK"])
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.backends.cudnn.benchmark = True
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)
    ids = [dev.index] if CUDA else None
    G = DDP(generator().to(dev), device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)
    D = DDP(discriminator().to(dev), device_ids=ids, gradient_as_bucket_view=True)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=CUDA)
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=CUDA)
    torch.manual_seed(rank + 100)
    reals = torch.randint(0, 256, (BATCH * 8, 3, 64, 64), dtype=torch.uint8)
    reals = reals.pin_memory() if CUDA else reals
    shared_d = args.fault != "d_grads_in_g_step"

    for step in range(args.steps):
        if step == args.steps - 30:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        i = step % 8
        real = reals[i * BATCH:(i + 1) * BATCH].to(dev, non_blocking=True).float().div_(127.5).sub_(1)

        # --- discriminator: real and fake in one pass ---
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            with torch.no_grad():
                fake = G.module(torch.randn(BATCH, ZDIM, 1, 1, device=dev))
            score = D(torch.cat([real, fake.float()])).float()
        loss_d = F.relu(1 - score[:BATCH]).mean() + F.relu(1 + score[BATCH:]).mean()
        opt_d.zero_grad(set_to_none=True)
        loss_d.backward()
        opt_d.step()
        if args.fault == "empty_cache":  # activations of the two phases do not fit together on the small cards
            del score, fake
            if CUDA:
                torch.cuda.empty_cache()

        # --- generator ---
        critic = D
        if shared_d:
            D.requires_grad_(False)
            critic = D.module
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            score = critic(G(torch.randn(BATCH, ZDIM, 1, 1, device=dev))).float()
        loss_g = -score.mean()
        opt_g.zero_grad(set_to_none=True)
        loss_g.backward()
        opt_g.step()
        if shared_d:
            D.requires_grad_(True)
        if step % 50 == 0 and rank == 0:
            print(f"step {step} d {loss_d.item():.3f} g {loss_g.item():.3f}", flush=True)
    if CUDA:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
