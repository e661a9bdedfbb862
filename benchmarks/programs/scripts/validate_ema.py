"""Rank 0 keeps averaged weights and validates them; the others wait at a barrier."""

import argparse
import copy

import torch
import torch.distributed as dist
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.Mish(), torch.nn.Linear(512, 512), torch.nn.Mish(),
        torch.nn.Linear(512, 64),
    )  # fmt: skip


@torch.inference_mode()
def validate(ema, held_out):
    total = 0.0
    for noisy, clean in held_out:
        total += (ema(noisy) - clean).abs().mean().item()
    return total / len(held_out)


def batch(gen, n=192):
    clean = torch.rand(n, 1, generator=gen) * torch.linspace(0, 6, 64)
    clean = clean.sin()
    return clean + 0.3 * torch.randn(n, 64, generator=gen), clean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--val-every", type=int, default=100)
    parser.add_argument("--fault", choices=["none", "long-validation"], default="none")
    args = parser.parse_args()
    every = 3 if args.fault == "long-validation" else args.val_every
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(network())
    ema = None
    if rank == 0:
        ema = AveragedModel(copy.deepcopy(net.module), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    held_out = [batch(torch.Generator().manual_seed(1000 + i), 256) for i in range(40)]
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(1, 15):
        noisy, clean = batch(gen)
        loss = (net(noisy) - clean).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if ema is not None:
            ema.update_parameters(net.module)
        if step % every == 0:
            if rank == 0:
                print(f"step {step}: validation error {validate(ema, held_out):.4f}")
            dist.barrier()
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
