"""Somebody once had a race, and put a barrier everywhere."""

import argparse
import time

import torch
import torch.distributed as dist

STEPS = 14


def sync(tag, verbose=False):
    dist.barrier()
    if verbose:
        print(tag, flush=True)


def load(step, rank, stall):
    if stall and rank == 1 and step in (3, 6, 9):
        time.sleep(0.2)
    g = torch.Generator().manual_seed(step * 10 + rank)
    x = torch.randn(128, 300, generator=g)
    return x, x.sort(1).values


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--verbose", action="store_true")
    p.add_argument("--fault", default="none", choices=["none", "periodic-stall"])
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    w = [torch.nn.Linear(300, 600), torch.nn.Linear(600, 300)]
    opt = torch.optim.Adam([q for m in w for q in m.parameters()], lr=2e-3)
    out = []
    for step in range(STEPS):
        x, y = load(step, rank, a.fault == "periodic-stall")
        sync("loaded", a.verbose)
        loss = torch.nn.functional.l1_loss(w[1](torch.relu(w[0](x))), y)
        sync("forward", a.verbose)
        opt.zero_grad()
        loss.backward()
        sync("backward", a.verbose)
        for m in w:
            for q in m.parameters():
                dist.all_reduce(q.grad, op=dist.ReduceOp.SUM)
                q.grad.mul_(1 / dist.get_world_size())
        sync("reduced", a.verbose)
        opt.step()
        out.append(loss.item())
    if rank == 0:
        print("first %.4f last %.4f" % (out[0], out[-1]))
    assert out[-1] < out[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
