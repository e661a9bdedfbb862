"""Gradients are reduced by hooks while backward still runs, without DDP."""

import argparse
import time

import torch
import torch.distributed as dist


class Overlapped:
    """Starts an all_reduce as soon as a layer's gradients are there."""

    def __init__(self, module, early):
        self.early, self.pending = early, []
        self.world = dist.get_world_size()
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p):
        p.grad.div_(self.world)
        work = dist.all_reduce(p.grad, async_op=True)
        if self.early:
            work.wait()
        else:
            self.pending.append(work)

    def finish(self):
        for work in self.pending:
            work.wait()
        self.pending.clear()


def train(steps, fault):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    body = [m for _ in range(6) for m in (torch.nn.Linear(640, 640, bias=False), torch.nn.ReLU())]
    model = torch.nn.Sequential(*body, torch.nn.Linear(640, 10))
    sync = Overlapped(model, early=fault == "early-wait")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(1000 + rank)
    losses = []
    for i in range(steps):
        tic = time.perf_counter()
        label = torch.randint(0, 10, (192,), generator=generator)
        x = torch.randn(192, 640, generator=generator) + 0.5 * label[:, None]
        loss = torch.nn.functional.cross_entropy(model(x), label)
        loss.backward()
        sync.finish()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0:
            print(f"{i}: {losses[-1]:.3f} in {time.perf_counter() - tic:.3f} s")
    assert min(losses[-4:]) < losses[0]
    mine = next(model.parameters()).detach()
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    assert torch.equal(mine, theirs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "early-wait"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.steps, args.fault)
    dist.destroy_process_group()
