"""DistMult on a knowledge graph whose entities are sharded over the ranks.

A step asks the owners for the embeddings of all the entities of its batch at
once, and sends their gradients back at once.

    torchrun --nproc-per-node 3 kg_relations.py [--fault by-relation]

--fault by-relation: the batch is worked through relation by relation, and each
of these asks for its own entities and sends its own gradients back.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "by-relation"])
FAULT = parser.parse_args().fault
ENTITIES, RELATIONS, DIM, TRIPLES, STEPS, RATE = 30_000, 16, 64, 72, 60, 0.1


class Shard:
    """Rows of the entities e with e % world == rank."""

    def __init__(self, rank, world):
        self.world = world
        gen = torch.Generator().manual_seed(rank)
        self.rows = 0.1 * torch.randn(ENTITIES // world, DIM, generator=gen)

    def fetch(self, ids):
        """Embeddings of these entities, and what is needed to send gradients back."""
        owner = ids % self.world
        order = owner.argsort()
        ask = torch.bincount(owner, minlength=self.world)
        asked = torch.empty_like(ask)
        dist.all_to_all_single(asked, ask)
        out_sizes, in_sizes = ask.tolist(), asked.tolist()
        wanted = ids.new_empty(sum(in_sizes))
        dist.all_to_all_single(wanted, ids[order], in_sizes, out_sizes)
        local = wanted // self.world
        rows = self.rows.new_empty(len(ids), DIM)
        dist.all_to_all_single(rows, self.rows[local], out_sizes, in_sizes)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return rows[back].requires_grad_(), (order, local, out_sizes, in_sizes)

    def update(self, grad, route):
        order, local, out_sizes, in_sizes = route
        got = grad.new_empty(len(local), DIM)
        dist.all_to_all_single(got, grad[order], in_sizes, out_sizes)
        self.rows.index_add_(0, local, got, alpha=-RATE)


def score(rows, head, tail, relation):
    """Cross entropy of the tail among all entities that were fetched."""
    logits = (rows[head] * relation) @ rows.T
    return F.cross_entropy(logits, tail, reduction="sum")


def draw(gen):
    """Triples of each relation: head, tail."""
    return torch.randint(0, ENTITIES, (RELATIONS, 2, TRIPLES), generator=gen)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = Shard(rank, world)
    torch.manual_seed(3)
    relations = torch.nn.Parameter(torch.randn(RELATIONS, DIM))
    opt = torch.optim.Adagrad([relations], lr=0.05)
    gen = torch.Generator().manual_seed(100 + rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        triples = draw(gen)
        opt.zero_grad()
        total = 0.0
        batches = triples.unbind() if FAULT == "by-relation" else [triples]
        for first, batch in enumerate(batches):
            ids, at = batch.unique(return_inverse=True)
            rows, route = shard.fetch(ids)
            at = at.view(-1, 2, TRIPLES)
            loss = sum(
                score(rows, head, tail, relations[first + i])
                for i, (head, tail) in enumerate(at.unbind())
            )
            loss = loss / (RELATIONS * TRIPLES)
            loss.backward()
            shard.update(rows.grad, route)
            total += loss.item()
        dist.all_reduce(relations.grad)
        relations.grad /= world
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {total:.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
