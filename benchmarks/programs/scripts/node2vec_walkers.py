"""Node embeddings from random walks; the graph is cut over the ranks.

A walker lives where its current node lives. After each hop the walkers move
by all_to_all; the owner of the node trains its embedding against the
walker's memory of where it came from.

    torchrun --nproc-per-node 3 node2vec_walkers.py [--fault by-degree]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "by-degree"])
FAULT = parser.parse_args().fault
NODES, DIM = 6000, 32
WALKERS = 800  # started on each rank
STEPS = 80


def graph():
    """Degrees follow a power law; neighbours are drawn by degree."""
    gen = torch.Generator().manual_seed(1)
    weight = torch.arange(1, NODES + 1).float().pow(-0.9)
    weight = weight[torch.randperm(NODES, generator=gen)]
    degree = (weight / weight.sum() * 40 * NODES).long().clamp(4, 64)
    table = torch.multinomial(weight, NODES * 64, replacement=True, generator=gen).view(NODES, 64)
    return weight, degree, table


def partition(weight, world):
    """Owner of every node."""
    if FAULT == "by-degree":
        order = weight.argsort(descending=True)
        owner = torch.empty(NODES, dtype=torch.long)
        for r, part in enumerate(order.chunk(world)):
            owner[part] = r
        return owner
    # deal the nodes like cards, the popular first, so that each hand weighs the same
    order = weight.argsort(descending=True)
    rank_of = torch.arange(NODES)
    lap, seat = rank_of // world, rank_of % world
    owner = torch.empty(NODES, dtype=torch.long)
    owner[order] = torch.where(lap % 2 == 0, seat, world - 1 - seat)
    return owner


def migrate(state, dest, world):
    """Send each row of state to its destination rank."""
    order = dest.argsort()
    sizes = torch.bincount(dest, minlength=world)
    incoming = torch.empty_like(sizes)
    dist.all_to_all_single(incoming, sizes)
    out = state.new_empty(int(incoming.sum()), state.shape[1])
    dist.all_to_all_single(out, state[order].contiguous(), incoming.tolist(), sizes.tolist())
    return out


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weight, degree, table = graph()
    owner = partition(weight, world)
    torch.manual_seed(5)
    emb = nn.Embedding(NODES, DIM, sparse=True)  # rows of foreign nodes stay unused
    project = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, DIM))
    local = torch.optim.SGD(emb.parameters(), lr=0.05)
    shared = torch.optim.Adam(project.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    mine = (owner == rank).nonzero().flatten()

    at = mine[torch.randint(len(mine), (WALKERS,), generator=gen)]
    # one row per walker: node, then the memory of the last visit
    state = torch.cat([at.float().unsqueeze(1), torch.zeros(WALKERS, DIM)], dim=1)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        at = state[:, 0].long()
        hop = (torch.rand(len(at), generator=gen) * degree[at]).long()
        memory = 0.5 * state[:, 1:] + emb.weight.detach()[at]
        state = torch.cat([table[at, hop].float().unsqueeze(1), memory], dim=1)
        state = migrate(state, owner[state[:, 0].long()], world)

        at, memory = state[:, 0].long(), state[:, 1:]
        # every other walker on this rank serves as a negative
        scores = project(emb(at)) @ memory.T / DIM**0.5
        loss = F.cross_entropy(scores, torch.arange(len(at)), reduction="sum") / WALKERS
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in project.parameters()])
        dist.all_reduce(flat)
        at_flat = 0
        for p in project.parameters():
            p.grad.copy_(flat[at_flat : at_flat + p.numel()].view_as(p) / world)
            at_flat += p.numel()
        shared.step()
        shared.zero_grad()
        local.step()
        local.zero_grad()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}  walkers here {len(at)}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
