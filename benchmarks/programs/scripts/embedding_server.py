"""Click-through training: the last rank serves the embeddings, the others train on them."""

import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

ROWS, DIM, FIELDS, BATCH, STEPS = 5000, 32, 6, 128, 14


class EmbeddingServer:
    def __init__(self, trainers, journal=None):
        self.trainers = trainers
        self.table = nn.Embedding(ROWS, DIM, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)
        self.optimizer = torch.optim.SparseAdam(self.table.parameters(), lr=0.02)
        self.journal = journal

    def lookups(self):
        """Answers each trainer; what they asked for, in their order."""
        asked = []
        for trainer in self.trainers:
            ids = torch.empty(BATCH, FIELDS, dtype=torch.long)
            dist.recv(ids, src=trainer)
            dist.send(self.table.weight.detach()[ids], dst=trainer)
            asked.append(ids)
        return asked

    def update(self, asked):
        self.optimizer.zero_grad()
        for trainer, ids in zip(self.trainers, asked, strict=True):
            gradient = torch.empty(BATCH, FIELDS, DIM)
            dist.recv(gradient, src=trainer)
            self.table(ids).backward(gradient / len(self.trainers))
        self.optimizer.step()
        if self.journal:
            for row in torch.cat(asked).unique().tolist():
                vector = self.table.weight[row].tolist()
                self.journal.write(json.dumps({"row": row, "vector": vector}) + "\n")
            self.journal.flush()
            os.fsync(self.journal.fileno())


class Tower(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FIELDS * DIM, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.click = nn.Linear(width, 1)

    def forward(self, vectors):
        return self.click(self.layers(vectors.flatten(1))).squeeze(1)


def train(rank, server, group):
    model = nn.parallel.DistributedDataParallel(Tower(), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    taste = torch.randn(ROWS, generator=torch.Generator().manual_seed(9))
    losses = []
    for _ in range(STEPS):
        # few of the rows are popular
        ids = (torch.rand(BATCH, FIELDS, generator=generator).pow(2) * ROWS).long()
        clicked = (taste[ids].sum(1) > 0).float()
        dist.send(ids, dst=server)
        vectors = torch.empty(BATCH, FIELDS, DIM)
        dist.recv(vectors, src=server)
        vectors.requires_grad_()
        loss = F.binary_cross_entropy_with_logits(model(vectors), clicked)
        optimizer.zero_grad()
        loss.backward()
        dist.send(vectors.grad, dst=server)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "journal-rows"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank, server = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    trainers = list(range(server))
    group = dist.new_group(trainers)
    if rank == server:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            serve = EmbeddingServer(trainers, file if fault == "journal-rows" else None)
            for _ in range(STEPS):
                serve.update(serve.lookups())
    else:
        train(rank, server, group)
    dist.destroy_process_group()
