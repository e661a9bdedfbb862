"""Child-sum Tree-LSTM (Tai et al., 2015) over arithmetic expressions: is the value high?"""

import argparse
import bdb
import random
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

LEAVES = 8


class Tree:
    def __init__(self, symbol, children=()):
        self.symbol = symbol
        self.children = children

    @classmethod
    def grow(cls, rng, leaves):
        if leaves == 1:
            return cls(rng.randrange(10))
        left = rng.randrange(1, leaves)
        return cls(rng.choice((10, 11)), (cls.grow(rng, left), cls.grow(rng, leaves - left)))

    def value(self):
        if not self.children:
            return self.symbol
        a, b = (child.value() for child in self.children)
        return a + b if self.symbol == 10 else max(a, b)


class ChildSumTreeLSTM(nn.Module):
    def __init__(self, size=96):
        super().__init__()
        self.embedding = nn.Embedding(12, size)
        self.iou = nn.Linear(2 * size, 3 * size)
        self.forget_x = nn.Linear(size, size)
        self.forget_h = nn.Linear(size, size, bias=False)
        self.out = nn.Linear(size, 2)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def node(self, tree):
        x = self.embedding.weight[tree.symbol]
        states = []
        for child in tree.children:
            states.append(self.node(child))
        h_sum = self.zero
        for h, _ in states:
            h_sum = h_sum + h
        i, o, u = self.iou(torch.cat([x, h_sum])).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        if states:
            gate_x = self.forget_x(x)
        for h, child_c in states:
            forget = torch.sigmoid(gate_x + self.forget_h(h))
            c = c + forget * child_c
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c

    def forward(self, trees):
        roots = [self.node(tree)[0] for tree in trees]
        return self.out(torch.stack(roots))


def diverged(loss):
    raise FloatingPointError(f"loss is {loss}")


def average_gradients(model, world_size):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= world_size
    for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(part.view_as(grad))


def attach_debugger():
    """Stops where the loss diverges, as an editor's debugger does with a breakpoint there."""
    debugger = bdb.Bdb()
    debugger.reset()
    debugger.set_break(__file__, diverged.__code__.co_firstlineno + 1)
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)


def train(args):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = ChildSumTreeLSTM()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    rng = random.Random(rank)
    history = []
    if args.fault == "debugger" and rank == 0:
        attach_debugger()
    for _ in range(args.steps):
        trees = [Tree.grow(rng, LEAVES) for _ in range(args.batch)]
        targets = torch.tensor([int(tree.value() > 14) for tree in trees])
        loss = F.cross_entropy(model(trees), targets)
        if not torch.isfinite(loss):
            diverged(loss)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world_size)
        optimizer.step()
        history.append(loss.item())
    sys.settrace(None)
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--fault", choices=["none", "debugger"], default="none")
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    losses = train(args)
    assert min(losses[7:]) < losses[0], losses
    dist.destroy_process_group()
