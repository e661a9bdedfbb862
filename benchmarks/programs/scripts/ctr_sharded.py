"""Click-through model: table-sharded embeddings, data-parallel dense layers.

Six embedding tables, two on each of three ranks.  The ranks send the looked-up ids to
the owners with all_to_all, the owners pool and send vectors back.  Gradients of the dense
layers are averaged by asynchronous all-reduces started from autograd hooks.

    torchrun --nproc-per-node 3 ctr_sharded.py [--fault rebroadcast]

--fault rebroadcast: "to be on the safe side" all dense parameters and their Adam moments are
broadcast from rank 0 at the start of every step, although all ranks have the same already.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TABLES, ROWS, EDIM, BAG, BATCH, DENSE = 6, 4000, 16, 4, 96, 13


class Exchange(torch.autograd.Function):
    """Equal-split all-to-all of the first dimension; its own transpose."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        dist.all_to_all_single(out, g.contiguous())
        return out


class ShardedTables(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.world, self.per = world, TABLES // world
        g = torch.Generator().manual_seed(200 + rank)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, EDIM, mode="mean") for _ in range(self.per)
        )
        for t in self.tables:
            with torch.no_grad():
                t.weight.copy_(0.1 * torch.randn(ROWS, EDIM, generator=g))

    def forward(self, ids):  # ids: [TABLES, BATCH, BAG]
        got = torch.empty_like(ids)
        dist.all_to_all_single(got, ids)  # [world * per, BATCH, BAG], mine from everybody
        got = got.view(self.world, self.per, BATCH, BAG)
        pooled = torch.stack(
            [
                torch.stack([t(got[src, i]) for i, t in enumerate(self.tables)])
                for src in range(self.world)
            ]
        )
        back = Exchange.apply(pooled.view(TABLES, BATCH, EDIM))
        return back.permute(1, 0, 2).reshape(BATCH, TABLES * EDIM)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, EDIM))
        self.top = nn.Sequential(
            nn.Linear(EDIM * (TABLES + 1), 1024),
            nn.ReLU(),
            nn.Linear(1024, 768),
            nn.ReLU(),
            nn.Linear(768, 512),
            nn.ReLU(),
            nn.Linear(512, 1),
        )

    def forward(self, dense, emb):
        return self.top(torch.cat([self.bottom(dense), emb], 1)).squeeze(1)


class GradientAverager:
    def __init__(self, params):
        self.pending = []
        for p in params:
            p.register_post_accumulate_grad_hook(self.launch)

    def launch(self, p):
        p.grad /= dist.get_world_size()
        self.pending.append(dist.all_reduce(p.grad, async_op=True))

    def finish(self):
        for w in self.pending:
            w.wait()
        self.pending.clear()


def clicks(g):
    dense = torch.randn(BATCH, DENSE, generator=g)
    ids = torch.randint(0, ROWS, (TABLES, BATCH, BAG), generator=g)
    score = dense[:, 0] + dense[:, 1] * dense[:, 2] + (ids.float().mean((0, 2)) / ROWS - 0.5) * 6
    return dense, ids, (score > 0).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "rebroadcast"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tables = ShardedTables(rank, world)
    torch.manual_seed(0)
    net = DenseNet()
    averager = GradientAverager(list(net.parameters()))
    opt_dense = torch.optim.Adam(net.parameters(), lr=1e-3)
    opt_tables = torch.optim.Adagrad(tables.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    losses, times = [], []
    for step in range(28):
        dense, ids, label = clicks(g)
        t0 = time.perf_counter()
        if args.fault == "rebroadcast":
            for p in net.parameters():
                dist.broadcast(p.data, src=0)
                for s in ("exp_avg", "exp_avg_sq"):
                    if s in opt_dense.state[p]:
                        dist.broadcast(opt_dense.state[p][s], src=0)
        loss = F.binary_cross_entropy_with_logits(net(dense, tables(ids)), label)
        opt_dense.zero_grad()
        opt_tables.zero_grad()
        loss.backward()
        averager.finish()
        opt_dense.step()
        opt_tables.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - t0)
    if rank == 0:
        assert sum(losses[-5:]) < sum(losses[:5])
        print(f"log loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"mean step {sum(times[3:]) / len(times[3:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
