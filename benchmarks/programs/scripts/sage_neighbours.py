"""GraphSAGE on a power-law graph: every rank has the whole graph and a half of the seed nodes."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NODES, EDGES, FEATURES, CLASSES, FANOUT = 4000, 30000, 64, 8, (6, 6)


def make_graph():
    gen = torch.Generator().manual_seed(7)
    popularity = torch.rand(NODES, generator=gen).pow(-0.6)
    src = torch.multinomial(popularity, EDGES, replacement=True, generator=gen)
    dst = torch.cat([torch.arange(NODES), torch.randint(NODES, (EDGES - NODES,), generator=gen)])
    label = torch.randint(CLASSES, (NODES,), generator=gen)
    features = torch.randn(CLASSES, FEATURES, generator=gen)[label]
    features += 0.8 * torch.randn(NODES, FEATURES, generator=gen)
    return src, dst, features, label


class CSR:
    def __init__(self, src, dst):
        order = dst.argsort(stable=True)
        self.col = src[order]
        self.degree = torch.bincount(dst, minlength=NODES)
        self.ptr = self.degree.cumsum(0) - self.degree

    def neighbours(self, nodes, k, gen):
        pick = (torch.rand(len(nodes), k, generator=gen) * self.degree[nodes, None]).long()
        return self.col[self.ptr[nodes, None] + pick]


class COO:
    """The same from the unsorted list of edges."""

    def __init__(self, src, dst):
        self.src, self.dst = src, dst

    def neighbours(self, nodes, k, gen):
        rows = []
        for node in nodes:
            candidates = self.src[self.dst == node]
            rows.append(candidates[torch.randint(len(candidates), (k,), generator=gen)])
        return torch.stack(rows)


class SAGE(nn.Module):
    def __init__(self, hidden=320):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(FEATURES, hidden), nn.Linear(hidden, hidden)])
        self.others = nn.ModuleList([nn.Linear(FEATURES, hidden), nn.Linear(hidden, hidden)])
        self.head = nn.Linear(hidden, CLASSES)

    def layer(self, i, x, neighbours):
        return torch.relu(self.own[i](x) + self.others[i](neighbours.mean(-2)))

    def forward(self, x0, x1, x2):
        near = self.layer(0, x1, x2)
        seed = self.layer(0, x0, x1)
        return self.head(self.layer(1, seed, near))


def sample(graph, features, seeds, gen):
    first = graph.neighbours(seeds, FANOUT[0], gen)
    second = graph.neighbours(first.flatten(), FANOUT[1], gen).view(*first.shape, FANOUT[1])
    return features[seeds], features[first], features[second]


def run(fault):
    rank, world = dist.get_rank(), dist.get_world_size()
    src, dst, features, label = make_graph()
    graph = (COO if fault == "unsorted-edges" and rank == 1 else CSR)(src, dst)
    torch.manual_seed(0)
    model = DDP(SAGE())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    history = []
    for seeds in torch.randperm(NODES)[: 14 * 48 * world].view(14, world, 48)[:, rank]:
        logits = model(*sample(graph, features, seeds, gen))
        loss = nn.functional.cross_entropy(logits, label[seeds])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.detach())
    assert history[-1] < history[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "unsorted-edges"], default="none")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    run(arguments.fault)
    dist.destroy_process_group()
