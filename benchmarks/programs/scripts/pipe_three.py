"""Three stages by hand: all micro-batches forward, then all backward."""

import argparse
import time

import torch
import torch.distributed as dist

WIDTH, ROWS = 96, 16


class Stage:
    def __init__(self, rank, last, pause):
        self.before, self.after = rank - 1, rank + 1
        self.last, self.pause = last, pause
        torch.manual_seed(rank)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.saved = []

    def forward(self, x):
        if self.before >= 0:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, self.before)
            x.requires_grad_()
        time.sleep(0.003 + self.pause)  # this stage's accelerator
        y = x + self.net(x)
        self.saved.append((x, y))
        if not self.last:
            dist.send(y.detach(), self.after)

    def backward(self, target):
        x, y = self.saved.pop(0)
        time.sleep(0.003)
        loss = None
        if self.last:
            loss = (y - target).square().mean()
            loss.backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, self.after)
            y.backward(grad)
        if self.before >= 0:
            dist.send(x.grad, self.before)
        return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--fault", choices=["none", "slow-stage"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    pause = 0.006 if args.fault == "slow-stage" and rank == 1 else 0.0
    stage = Stage(rank, rank == stages - 1, pause)
    opt = torch.optim.SGD(stage.net.parameters(), lr=0.5)
    gen = torch.Generator().manual_seed(0)  # the first stage's input, the last one's target
    history = []
    for _ in range(14):
        batch = torch.randn(args.micro_batches, ROWS, WIDTH, generator=gen)
        for x in batch:
            stage.forward(x)
        losses = [stage.backward(x.flip(1).tanh()) for x in batch]
        opt.step()
        opt.zero_grad()
        if stage.last:
            history.append(torch.stack(losses).mean().item())
    if stage.last:
        print(history)
        assert history[-1] < history[0]
    dist.destroy_process_group()
