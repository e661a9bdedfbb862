"""Training accuracy over all ranks, from everybody's logits, each step."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

CLASSES = 10_000


def accuracy_from_logits(logits, labels):
    all_logits = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    all_labels = [torch.empty_like(labels) for _ in range(dist.get_world_size())]
    dist.all_gather(all_logits, logits)
    dist.all_gather(all_labels, labels)
    hits = sum((a.argmax(-1) == b).sum() for a, b in zip(all_logits, all_labels))
    return hits.item() / (len(labels) * dist.get_world_size())


def accuracy_from_hits(logits, labels):
    hits = (logits.argmax(-1) == labels).sum()
    dist.all_reduce(hits)
    return hits.item() / (len(labels) * dist.get_world_size())


parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "gather-logits"], default="none")
options = parser.parse_args()
accuracy = accuracy_from_logits if options.fault == "gather-logits" else accuracy_from_hits

dist.init_process_group("gloo")
torch.manual_seed(5)
net = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, CLASSES))
)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
gen = torch.Generator().manual_seed(dist.get_rank())
centers = torch.randn(CLASSES, 64, generator=torch.Generator().manual_seed(77))
losses = []
for step in range(14):
    labels = torch.randint(0, 50, (200,), generator=gen)
    x = centers[labels] + 0.1 * torch.randn(200, 64, generator=gen)
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    correct = accuracy(logits.detach(), labels)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {losses[-1]:.3f}, accuracy {correct:.1%}")
assert losses[-1] < losses[0]
dist.destroy_process_group()
