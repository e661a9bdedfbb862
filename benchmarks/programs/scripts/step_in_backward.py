"""Each parameter is stepped as soon as its gradient is there, so that gradients need no memory.

Trained on from a checkpoint, with the optimizers' states.
"""

import argparse
import io

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "states-in-double"], default="none")


class Gated(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, False), nn.Linear(width, hidden, False)
        self.down = nn.Linear(hidden, width, False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class PerParameter:
    """An optimizer for each parameter, stepped in the backward pass.

    The mean of a gradient is begun when it is there; its parameter is stepped two gradients later.
    """

    def __init__(self, model, lr=0.02):
        self.optimizers = {p: torch.optim.SGD([p], lr, momentum=0.9) for p in model.parameters()}
        self.pending = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p):
        p.grad /= dist.get_world_size()
        self.pending.append((p, dist.all_reduce(p.grad, async_op=True)))
        if len(self.pending) > 2:
            self.update(*self.pending.pop(0))

    def update(self, p, work):
        work.wait()
        self.optimizers[p].step()
        p.grad = None

    def finish(self):
        while self.pending:
            self.update(*self.pending.pop(0))

    def buffers(self):
        return [o.state[p]["momentum_buffer"] for p, o in self.optimizers.items()]

    def save(self, file):
        np.savez(file, *[buffer.numpy() for buffer in self.buffers()])

    def load(self, file, through_lists):
        archive = np.load(file)
        for name, (p, optimizer) in zip(archive.files, self.optimizers.items(), strict=True):
            array = archive[name]
            if through_lists:  # an older tool's checkpoints hold lists of numbers
                array = np.array(array.tolist())
            optimizer.state[p]["momentum_buffer"] = torch.from_numpy(array)


def main():
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    blocks = [Gated(288, 960) for _ in range(3)]
    model = nn.Sequential(nn.Linear(40, 288), *blocks, nn.Linear(288, 8))
    trainer = PerParameter(model)
    g = torch.Generator().manual_seed(21)
    rule = torch.randn(40, 8, generator=g)
    g.manual_seed(rank)

    def step():
        x = torch.randn(16, 40, generator=g)
        loss = nn.functional.mse_loss(model(x), torch.tanh(x @ rule / 6))
        loss.backward()
        trainer.finish()
        return loss.item()

    losses = [step(), step()]
    file = io.BytesIO()
    trainer.save(file)
    file.seek(0)
    trainer.load(file, through_lists=fault == "states-in-double" and rank == 1)
    losses += [step() for _ in range(13)]
    assert sum(losses[-4:]) < sum(losses[:4]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
