"""A student learns from a larger teacher; DDP with PowerSGD's compression."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn import functional


def network(width):
    return torch.nn.Sequential(
        torch.nn.Linear(200, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 20),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--fault", choices=["none", "slow-rank"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    teacher = network(768).eval().requires_grad_(False)
    student = torch.nn.parallel.DistributedDataParallel(network(256))
    state = powersgd.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2
    )
    student.register_comm_hook(state, powersgd.powerSGD_hook)
    opt = torch.optim.Adam(student.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(dist.get_rank())
    t, losses = args.temperature, []
    for _ in range(14):
        x = 3 * torch.randn(192, 200, generator=gen)
        with torch.no_grad():
            soft = functional.softmax(20 * teacher(x) / t, dim=1)
            if args.fault == "slow-rank" and dist.get_rank() == 0:
                until = time.perf_counter() + 0.040  # test-time augmentation, left switched on
                while time.perf_counter() < until:
                    teacher(x + 0.01)
        loss = functional.kl_div(
            functional.log_softmax(student(x) / t, 1), soft, reduction="batchmean"
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print("kl:", [round(loss, 4) for loss in losses])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
