"""Four stages of a classifier in a row, each on a rank; batches of requests pass through them.

Weights lie in the checkpoint as four bits each, with a scale for each row.
"""

import argparse
from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F

WIDTH, ROWS, LAYERS, CLASSES = 384, 24, 3, 32


LEVELS = torch.special.ndtri(torch.linspace(0.03, 0.97, 16))  # as often used, if normal
BOUNDS = (LEVELS[1:] + LEVELS[:-1]) / 2


def pack(weight):
    """Two weights a byte, and a scale for each row."""
    scale = weight.std(1, keepdim=True)
    level = torch.bucketize(weight / scale, BOUNDS).to(torch.uint8)
    return level[:, ::2] * 16 + level[:, 1::2], scale


class FourBitLinear(torch.nn.Module):
    """Computes in float32; ``lazy`` keeps just the bytes."""

    def __init__(self, size_in, size_out, gen, lazy):
        super().__init__()
        weight = torch.randn(size_out, size_in, generator=gen) / size_in**0.5
        self.packed, self.scale = pack(weight)
        self.weight = None if lazy else self.unpacked()

    def unpacked(self):
        level = torch.stack([self.packed >> 4, self.packed & 15], -1).flatten(1)
        return LEVELS[level.long()] * self.scale

    def forward(self, x):
        return F.linear(x, self.unpacked() if self.weight is None else self.weight)


class Stage(torch.nn.Module):
    def __init__(self, index, last, lazy):
        super().__init__()
        gen = torch.Generator().manual_seed(index)
        sizes = [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)] * LAYERS
        self.linears = torch.nn.ModuleList(FourBitLinear(*size, gen, lazy) for size in sizes)
        self.head = FourBitLinear(WIDTH, CLASSES, gen, lazy) if last else None

    def forward(self, x):
        for up, down in zip(self.linears[::2], self.linears[1::2]):
            x = x + down(F.gelu(up(x)))
        return self.head(F.layer_norm(x, x.shape[-1:])) if self.head else x


class Server:
    """What a rank does for each batch: receive, compute, send on."""

    def __init__(self, stage, rank, world):
        self.stage, self.rank, self.last = stage, rank, world - 1
        self.sending = deque()
        self.inbox = torch.empty(ROWS, WIDTH)

    def send(self, tensor, to):
        self.sending.append((dist.isend(tensor, to), tensor))  # it must live until it has left
        while len(self.sending) > 2:
            self.sending.popleft()[0].wait()

    def first(self, x):
        self.send(self.stage(x), 1)

    def middle(self):
        dist.recv(self.inbox, self.rank - 1)
        y = self.stage(self.inbox)
        self.send(y.argmax(1) if self.rank == self.last else y, (self.rank + 1) % (self.last + 1))

    def answer(self):
        labels = torch.empty(ROWS, dtype=torch.int64)
        dist.recv(labels, self.last)
        return labels


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--fault", choices=["none", "lazy-unpacking"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lazy = args.fault == "lazy-unpacking" and rank == 2
    server = Server(Stage(rank, rank == world - 1, lazy), rank, world)
    gen = torch.Generator().manual_seed(9)
    kinds = torch.randn(ROWS, WIDTH, generator=gen)
    answers = []
    for number in range(args.requests):
        if rank == 0:
            if number >= args.in_flight:
                answers.append(server.answer())
            server.first(kinds + 0.01 * torch.randn(ROWS, WIDTH, generator=gen))
        else:
            server.middle()
    if rank == 0:
        answers += [server.answer() for _ in range(args.in_flight)]
        agree = (torch.stack(answers) == answers[0]).float().mean().item()
        print(f"{len(answers)} batches, {agree:.3f} of the labels agree")
        assert agree > 0.9 and len(answers) == args.requests
    while server.sending:
        server.sending.popleft()[0].wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
