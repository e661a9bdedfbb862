"""Kinds of tumours from the expression of genes: logistic regression by LBFGS.

Patients are spread over the ranks; loss and gradient of all of them are summed
in the closure.

    torchrun --nproc-per-node 2 tumour_lbfgs.py [--fault sum-in-double]

--fault sum-in-double: gradients are summed as float64, "so that the line
search sees no noise", although they were computed in float32 and are used so.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

GENES, KINDS, PATIENTS, STEPS = 60000, 5, 24, 40


class Cohort:
    def __init__(self, rank):
        gen = torch.Generator().manual_seed(rank)
        self.kind = torch.randint(KINDS, (PATIENTS,), generator=gen)
        marker = torch.randn(KINDS, GENES, generator=torch.Generator().manual_seed(77))
        noise = torch.randn(PATIENTS, GENES, generator=gen)
        self.expression = 0.05 * marker[self.kind] + noise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "sum-in-double"])
    parser.add_argument("--l2", type=float, default=1e-2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cohort = Cohort(rank)
    weight = torch.zeros(KINDS, GENES, requires_grad=True)
    solver = torch.optim.LBFGS([weight], lr=0.05, max_iter=2, history_size=3)

    def everyones(gradient):
        if args.fault == "sum-in-double":
            total = gradient.double()
            dist.all_reduce(total)
            gradient.copy_(total / world)
        else:
            dist.all_reduce(gradient)
            gradient /= world

    def closure():
        solver.zero_grad()
        logits = cohort.expression @ weight.T
        loss = F.cross_entropy(logits, cohort.kind) + args.l2 * weight.square().sum() / 2
        loss.backward()
        everyones(weight.grad)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / world

    seconds = []
    for step in range(STEPS):
        start = time.perf_counter()
        loss = solver.step(closure)
        seconds.append(time.perf_counter() - start)
        if rank == 0 and step % 10 == 0:
            print(f"iteration {step:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(seconds[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
