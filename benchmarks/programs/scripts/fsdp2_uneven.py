"""FSDP2 in bfloat16 on documents that are as long as they are."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x):
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None].to(x)
        return x + self.down(torch.relu(self.up(self.norm(past))))


class Model(nn.Module):
    def __init__(self, vocab=96, dim=160, depth=3):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Mixer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def documents(rank, low, high):
    gen = torch.Generator().manual_seed(rank)
    while True:
        length = int(torch.randint(low, high, (), generator=gen))
        ids = torch.randint(0, 96, (12, 1), generator=gen).expand(12, length + 1)
        ids = (ids + torch.arange(length + 1)) % 96
        yield ids[:, :-1], ids[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--fault", choices=["none", "long-documents"], default="none")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    far = a.fault == "long-documents" and rank == 0
    losses = []
    for _, (ids, target) in zip(range(14), documents(rank, *((80, 96) if far else (24, 40)))):
        loss = nn.functional.cross_entropy(model(ids).float().transpose(1, 2), target)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
