"""DDP that sends only the largest gradients, by a communication hook with error feedback."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Compression:
    def __init__(self, ratio, by_sorting):
        self.ratio, self.by_sorting, self.residue = ratio, by_sorting, {}


def top_k(state, bucket):
    flat = bucket.buffer()
    flat.add_(state.residue.get(bucket.index(), torch.zeros_like(flat)))
    count = max(int(state.ratio * flat.numel()), 1)
    if state.by_sorting:
        index = flat.abs().argsort(descending=True)[:count]
    else:
        index = flat.abs().topk(count, sorted=False).indices
    values = flat[index]
    rest = flat.clone()
    rest[index] = 0
    state.residue[bucket.index()] = rest
    world = dist.get_world_size()
    everybodys = [torch.empty_like(index) for _ in range(world)]
    theirs = [torch.empty_like(values) for _ in range(world)]
    dist.all_gather(everybodys, index)
    future = dist.all_gather(theirs, values, async_op=True).get_future()

    def scatter(_):
        flat.zero_()
        for i, v in zip(everybodys, theirs):
            flat.index_add_(0, i, v / world)
        return flat

    return future.then(scatter)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratio", type=float, default=0.05)
    parser.add_argument("--fault", choices=["none", "sorting-rank"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(128, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 8)
        )
    )
    sorts = args.fault == "sorting-rank" and rank == 0
    model.register_comm_hook(Compression(args.ratio, sorts), top_k)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for i in range(14):
        x = torch.randn(256, 128, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if rank == 0:
            print(i, losses[-1])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
