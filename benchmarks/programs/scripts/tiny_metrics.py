"""DDP, and a dashboard that wants many numbers of every step."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def together(values):
    """One message for all of them."""
    packed = torch.stack(values)
    dist.all_reduce(packed)
    return (packed / dist.get_world_size()).tolist()


def one_by_one(values):
    """A message each."""
    means = []
    for value in values:
        value = value.clone()
        dist.all_reduce(value)
        means.append(value.item() / dist.get_world_size())
    return means


def metrics(model, loss, logits):
    yield loss.detach()
    yield logits.detach().abs().mean()
    for p in model.parameters():
        yield p.grad.norm()
        yield p.detach().norm()
        yield p.grad.abs().max()
        yield (p.grad == 0).float().mean()
        yield p.detach().std()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "many-tiny"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    body = [layer for _ in range(5) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    model = DistributedDataParallel(torch.nn.Sequential(*body, torch.nn.Linear(256, 16)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    reduce = one_by_one if args.fault == "many-tiny" else together
    gen = torch.Generator().manual_seed(dist.get_rank())
    history = []
    for step in range(14):
        x = torch.randn(160, 256, generator=gen)
        label = x[:, :16].argmax(1)
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        means = reduce(list(metrics(model, loss, logits)))
        opt.step()
        history.append(means[0])
        if dist.get_rank() == 0:
            print(step, len(means), "metrics, loss", means[0])
    assert history[-1] < history[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
