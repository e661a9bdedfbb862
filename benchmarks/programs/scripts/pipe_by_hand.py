"""Two halves of a network on two ranks; activations and gradients go by send and recv."""

import argparse

import torch
import torch.distributed as dist
from torch import nn, optim

D, MB = 384, 64


def half(deep):
    layers = []
    for _ in range(deep):
        layers += [nn.Linear(D, D), nn.Tanh()]
    return nn.Sequential(*layers)


def first_stage(net, opt, batches, micro):
    for x, _ in batches:
        sent = []
        for part in x.chunk(micro):
            out = net(part)
            dist.send(out.detach(), dst=1)
            sent.append(out)
        for out in sent:
            grad = torch.empty_like(out)
            dist.recv(grad, src=1)
            out.backward(grad)
        opt.step()
        opt.zero_grad()


def last_stage(net, opt, batches, micro):
    head = nn.Linear(D, 1)
    opt.add_param_group({"params": head.parameters()})
    losses = []
    for _, y in batches:
        grads, total = [], 0.0
        for target in y.chunk(micro):
            inp = torch.empty(len(target), D)
            dist.recv(inp, src=0)
            inp.requires_grad_()
            loss = nn.functional.mse_loss(head(net(inp)), target) / micro
            loss.backward()
            grads.append(inp.grad)
            total += loss.item()
        for grad in grads:
            dist.send(grad, dst=0)
        opt.step()
        opt.zero_grad()
        losses.append(total)
        print("loss", round(total, 4))
    assert losses[-1] < losses[0], losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batches", type=int, default=14)
    parser.add_argument("--fault", default="none", choices=["none", "uneven-stages"])
    a = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gen = torch.Generator().manual_seed(7)
    x = torch.randn(a.batches, MB * a.micro_batches, D, generator=gen)
    y = x[..., :4].sum(-1, keepdim=True)
    torch.manual_seed(rank)
    net = half(8 if rank == 1 and a.fault == "uneven-stages" else 3)
    opt = optim.SGD(net.parameters(), lr=0.02)
    (first_stage, last_stage)[rank](net, opt, list(zip(x, y)), a.micro_batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
