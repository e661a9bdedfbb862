"""Full-batch GCN. Each rank has half of the papers, and a halo: those of the other that it cites.

What a paper says never changes, so the halo's features are fetched once; the hidden states of
the halo are fetched in each epoch.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

PAPERS, FEATURES, HIDDEN, TOPICS, BORDER = 1200, 800, 16, 6, 1100


class Exchange(torch.autograd.Function):
    """Rows of my papers for the same number of the other's; gradients go back the same way."""

    @staticmethod
    def forward(ctx, rows):
        return swap(rows)

    @staticmethod
    def backward(ctx, grad):
        return swap(grad)


def swap(rows):
    """What lies on the border goes to the other rank, nothing to myself."""
    received = torch.empty_like(rows)
    splits = [0, 0]
    splits[1 - dist.get_rank()] = len(rows)
    dist.all_to_all_single(received, rows.contiguous(), splits, splits)
    return received


def make_graph(rank):
    """Papers cite papers of their topic, with few exceptions; columns beyond mine are the halo."""
    gen = torch.Generator().manual_seed(rank)
    topic = torch.arange(PAPERS) % TOPICS
    words = torch.rand(TOPICS, FEATURES, generator=torch.Generator().manual_seed(7))
    features = (torch.rand(PAPERS, FEATURES, generator=gen) < 0.04 + 0.04 * words[topic]).float()
    rows = torch.arange(PAPERS).repeat_interleave(8)
    columns = torch.randint((PAPERS + BORDER) // TOPICS, (len(rows),), generator=gen) * TOPICS
    columns = (columns + topic[rows]).clamp(max=PAPERS + BORDER - 1)
    edges = torch.stack([rows, columns])
    adjacency = torch.sparse_coo_tensor(
        edges, torch.full((len(rows),), 1 / 8), (PAPERS, PAPERS + BORDER)
    )
    return features, topic, adjacency.coalesce()


class GCN(nn.Module):
    def __init__(self, adjacency):
        super().__init__()
        self.adjacency = adjacency
        self.conv1 = nn.Linear(FEATURES, HIDDEN)
        self.conv2 = nn.Linear(HIDDEN, TOPICS)

    def forward(self, x, x_halo):
        kept = (torch.rand(FEATURES) < 0.7).float() / 0.7  # words that are dropped everywhere
        x = self.conv1(torch.cat([x, x_halo]) * kept)
        x = torch.relu(torch.sparse.mm(self.adjacency, x))
        x = torch.cat([x, Exchange.apply(x[:BORDER])])
        return torch.sparse.mm(self.adjacency, self.conv2(x))


def sum_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    for grad, summed in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        grad.copy_(summed / dist.get_world_size())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "fetch-each-epoch"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    features, topic, adjacency = make_graph(rank)
    torch.manual_seed(0)
    model = GCN(adjacency)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    torch.manual_seed(rank)
    x_halo = swap(features[:BORDER])
    losses = []
    for _ in range(args.epochs):
        if args.fault == "fetch-each-epoch":
            x_halo = swap(features[:BORDER])
        loss = F.cross_entropy(model(features, x_halo), topic)
        optimizer.zero_grad()
        loss.backward()
        sum_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
