"""Semi-supervised: rank 1's teacher labels what rank 0's student learns from; both go on training."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

DIM, CLASSES, ROWS = 256, 12, 384


def network(width):
    return nn.Sequential(
        nn.Linear(DIM, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def samples(generator):
    """All ranks draw the same, so only labels have to travel."""
    centers = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(7))
    label = torch.randint(0, CLASSES, (2 * ROWS,), generator=generator)
    x = centers[label] + 2 * torch.randn(2 * ROWS, DIM, generator=generator)
    return x[:ROWS], label[:ROWS], x[ROWS:]


def student_step(net, optimizer, generator):
    x, label, unlabelled = samples(generator)
    supervised = nn.functional.cross_entropy(net(x), label)
    optimizer.zero_grad()
    supervised.backward()
    soft = torch.empty(ROWS, CLASSES)
    dist.recv(soft, src=1)
    (0.5 * nn.functional.cross_entropy(net(unlabelled), soft)).backward()
    optimizer.step()
    return supervised.item()


def teacher_step(net, optimizer, generator, views):
    x, label, unlabelled = samples(generator)
    with torch.no_grad():  # dropout and noise: the mean over some views is the label
        noisy = (unlabelled + 0.1 * torch.randn_like(unlabelled) for _ in range(views))
        soft = sum(net(view).softmax(1) for view in noisy) / views
    dist.send(soft, dst=0)
    loss = nn.functional.cross_entropy(net(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--fault", choices=["none", "many-views"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = network(args.width)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    views = 10 if args.fault == "many-views" else 2
    losses = []
    for _ in range(22):
        if rank == 0:
            losses.append(student_step(net, optimizer, generator))
        else:
            losses.append(teacher_step(net, optimizer, generator, views))
    assert losses[-1] < losses[0], losses
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
