"""A recommender: tables are split between ranks, dense layers are replicated."""

import argparse
import time

import torch
import torch.distributed as dist


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Clicks:
    """Users, items and whether they clicked."""

    def __init__(self, rank, read_s):
        self.gen, self.read_s = torch.Generator().manual_seed(rank), read_s

    def batch(self, n):
        time.sleep(self.read_s)
        ids = torch.randint(0, 500, (n, 2), generator=self.gen)
        return ids, ((ids[:, 0] % 7) < (ids[:, 1] % 7)).float()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--fault", choices=["none", "slow-loader"], default="none")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    table = torch.nn.Embedding(500, a.dim)  # rank 0 has the users', rank 1 the items'
    torch.manual_seed(7)
    top = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Linear(2 * a.dim, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)
        )
    )
    opt = torch.optim.Adam([*table.parameters(), *top.parameters()], lr=5e-3)
    clicks = Clicks(rank, 0.045 if a.fault == "slow-loader" and rank == 0 else 0.0)
    losses = []
    for _ in range(14):
        ids, y = clicks.batch(a.batch)
        asked = torch.empty_like(ids.T.contiguous())
        dist.all_to_all_single(asked, ids.T.contiguous())  # each gets the ids of its own table
        vectors = AllToAll.apply(table(asked))
        logits = top(vectors.transpose(0, 1).flatten(1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"rank {rank}: first {losses[0]:.4f}, last {losses[-1]:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
