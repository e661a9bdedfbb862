"""Four cheap machines; one or the other may be taken away for a moment."""

import argparse
import random
import time

import torch
import torch.distributed as dist


def step_of_accelerator(rank, step, fault):
    time.sleep(0.020)
    if fault == "hiccups" and step % 4 == (rank * 3) % 4:
        time.sleep(0.030)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=["none", "hiccups"], default="none")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weight = torch.zeros(64, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([weight, bias], lr=0.1)
    secret = torch.tensor([random.gauss(0, 1) for _ in range(64)])
    gen = torch.Generator().manual_seed(args.seed + rank)
    history = []
    for step in range(14):
        x = torch.randn(128, 64, generator=gen)
        loss = (x @ weight + bias - x @ secret).square().mean()
        opt.zero_grad()
        loss.backward()
        step_of_accelerator(rank, step, args.fault)
        packed = torch.cat([weight.grad, bias.grad, loss.detach()[None]])
        dist.all_reduce(packed)
        packed /= world
        weight.grad.copy_(packed[:64])
        bias.grad.copy_(packed[64:65])
        opt.step()
        history.append(packed[65].item())
    if rank == 0:
        print(" ".join(f"{value:.3f}" for value in history))
    assert history[-1] < history[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
