"""Click prediction: a large embedding table, of which a batch touches little, and a deep part."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=96)
parser.add_argument("--fault", choices=["none", "dense-gradients"], default="none")

FIELDS, ROWS, WIDTH = 12, 60_000, 32


class WideDeep(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        )
        self.click = nn.Linear(128, 1)

    def forward(self, ids):
        return self.click(self.deep(self.table(ids).flatten(1))).squeeze(1)


class ClickLog:
    """Ids follow a power law; one clicks on what is popular."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, size):
        u = torch.rand(size, FIELDS, generator=self.gen)
        within = (u.pow(4) * (ROWS // FIELDS)).long()
        clicked = (within[:, :2].sum(1) < 700).float()
        return within + torch.arange(FIELDS) * (ROWS // FIELDS), clicked


def average_dense(parameters):
    world = dist.get_world_size()
    grads = [p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads]).div_(world)
    dist.all_reduce(flat)
    for grad, mean in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(mean.view_as(grad))


def average_sparse(parameter):
    """Gathers the rows that were touched; as many on each rank, a repeated one counts again."""
    world, grad = dist.get_world_size(), parameter.grad
    rows, values = grad._indices()[0], grad._values()
    all_rows = rows.new_empty(world * len(rows))
    all_values = values.new_empty(world * len(values), WIDTH)
    dist.all_gather_into_tensor(all_rows, rows)
    dist.all_gather_into_tensor(all_values, values)
    parameter.grad = torch.sparse_coo_tensor(all_rows[None], all_values / world, grad.shape)


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    sparse = args.fault != "dense-gradients"
    torch.manual_seed(0)
    model = WideDeep(sparse)
    deep = [*model.deep.parameters(), *model.click.parameters()]
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    log = ClickLog(40 + dist.get_rank())
    losses = []
    for _ in range(14):
        ids, clicked = log.batch(args.batch)
        loss = F.binary_cross_entropy_with_logits(model(ids), clicked)
        optimizer.zero_grad()
        loss.backward()
        if sparse:
            average_dense(deep)
            average_sparse(model.table.weight)
        else:
            average_dense([model.table.weight, *deep])
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
