"""GraphSAGE node classifier; every rank samples its own subgraph.

    torchrun --nproc-per-node 2 deep_gcn.py [--fault per_tensor]

There is no DDP here, gradients are averaged by a helper.  Normally the helper
packs everything in one buffer.  --fault per_tensor makes one blocking all-reduce
for every parameter tensor, and there are dozens of them, all small.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

NODES, EDGES, FEATS, HIDDEN, CLASSES, DEPTH = 1500, 8000, 24, 64, 5, 4


class SageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.own = nn.Linear(dim, dim)
        self.nei = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, 1)
        self.scale = nn.Parameter(torch.full((dim,), 0.2))

    def forward(self, h, src, dst, inv_deg):
        z = self.norm(h)
        agg = torch.zeros_like(z).index_add(0, dst, z[src]) * inv_deg
        out = F.relu(self.own(z) + self.nei(agg))
        return h + self.scale * torch.sigmoid(self.gate(z)) * out


class DeepGCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATS, HIDDEN)
        self.layers = nn.ModuleList(SageLayer(HIDDEN) for _ in range(DEPTH))
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, src, dst):
        deg = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        inv = (1.0 / deg.clamp(min=1.0))[:, None]
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, src, dst, inv)
        return self.out(h)


def sample_graph(gen, centers):
    y = torch.randint(0, CLASSES, (NODES,), generator=gen)
    x = centers[y] + 1.5 * torch.randn(NODES, FEATS, generator=gen)
    order = torch.argsort(y)
    src = torch.randint(0, NODES, (EDGES,), generator=gen)
    # homophily: most edges end near the source in label order
    pos = torch.empty_like(order)
    pos[order] = torch.arange(NODES)
    hop = torch.randint(-30, 31, (EDGES,), generator=gen)
    dst = order[(pos[src] + hop) % NODES]
    return x, src, dst, y


def average_packed(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def average_each(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train(steps, average):
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = DeepGCN()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=True)
    centers = torch.randn(CLASSES, FEATS, generator=torch.Generator().manual_seed(2))
    gen = torch.Generator().manual_seed(500 + rank)
    losses, laps = [], []
    for _ in range(steps):
        x, src, dst, y = sample_graph(gen, centers)
        t0 = time.perf_counter()
        loss = F.cross_entropy(model(x, src, dst), y)
        model.zero_grad()
        loss.backward()
        average(params)
        opt.step()
        losses.append(loss.item())
        laps.append(time.perf_counter() - t0)
    return losses, laps, len(params)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "per_tensor"])
    ap.add_argument("--steps", type=int, default=28)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    losses, laps, n = train(a.steps, average_each if a.fault == "per_tensor" else average_packed)
    if dist.get_rank() == 0:
        assert losses[-1] < 0.8 * losses[0], losses
        print(f"{n} parameter tensors, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"mean step {sum(laps[3:]) / len(laps[3:]) * 1e3:.1f} ms")
    dist.destroy_process_group()
