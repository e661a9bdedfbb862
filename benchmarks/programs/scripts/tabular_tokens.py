"""A transformer on the columns of a table (FT-Transformer), its blocks sharded by FSDP2."""

import argparse
import datetime
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

log = logging.getLogger("tabular")


class FeatureTokens(nn.Module):
    """One token for each numeric column, and one for the row."""

    def __init__(self, columns, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(columns, width))
        self.row = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x):
        tokens = x[..., None] * self.weight + self.bias
        return torch.cat([self.row.expand(len(x), -1, -1), tokens], 1)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, tokens, 3, self.heads, -1).unbind(2)
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        gate, value = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.relu(gate) * value)


class Tabular(nn.Module):
    def __init__(self, columns=10, width=64, depth=3):
        super().__init__()
        self.tokens = FeatureTokens(columns, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x))[:, 0])[:, 0]


def setup(fault):
    """What a launcher of this team does first; a hang of last month is not to happen again."""
    if fault == "debug-left-on":
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=2))
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--fault", choices=["none", "debug-left-on"], default="none")
    args = parser.parse_args()
    mesh = setup(args.fault)
    model = Tabular()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-5)
    generator = torch.Generator().manual_seed(77 + mesh.get_rank())
    history = []
    for step in range(16):
        x = torch.randn(args.rows, 10, generator=generator)
        target = x[:, 0] * x[:, 1] + x[:, 2].sin() + x[:, 3]
        loss = F.mse_loss(model(x), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.detach())
        if step % 5 == 0:
            log.info("step %d: loss %.3f, norm %.2f", step, loss, norm)
    assert torch.stack(history[-5:]).mean() < torch.stack(history[:5]).mean()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
