"""Market makers learn to quote in simulated order books, by policy gradient.

The book is plain Python with heaps; gradients are averaged by one all_reduce.

    torchrun --nproc-per-node 3 market_makers.py [--fault tracemalloc]

--fault tracemalloc: on rank 2 tracemalloc was left on after a hunt for a leak.
"""

import argparse
import heapq
import random
import statistics
import time
import tracemalloc

import torch
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "tracemalloc"])
FAULT = parser.parse_args().fault
BOOKS, ORDERS, STEPS = 24, 160, 60


class Book:
    def __init__(self, draw):
        self.draw = draw
        self.bids, self.asks, self.trades = [], [], []
        self.mid = 100.0

    def order(self, side, price, size, owner):
        own, other, sign = (
            (self.bids, self.asks, -1) if side == "buy" else (self.asks, self.bids, 1)
        )
        while size and other:
            best = -sign * other[0][0]
            best = abs(best)
            if (side == "buy" and best > price) or (side == "sell" and best < price):
                break
            key, rest, who = heapq.heappop(other)
            traded = min(size, rest)
            self.trades.append({"price": best, "size": traded, "maker": who, "taker": owner})
            size -= traded
            if rest > traded:
                heapq.heappush(other, (key, rest - traded, who))
        if size:
            heapq.heappush(own, (sign * price, size, owner))

    def play(self, spread, skew):
        """A day; what the market maker earned."""
        self.bids, self.asks, self.trades = [], [], []
        for i in range(ORDERS):
            self.mid += self.draw.gauss(0, 0.05)
            if i % 8 == 0:
                self.order("buy", round(self.mid - spread + skew, 2), 20, "maker")
                self.order("sell", round(self.mid + spread + skew, 2), 20, "maker")
            side = "buy" if self.draw.random() < 0.5 else "sell"
            price = round(self.mid + self.draw.gauss(0, 0.4), 2)
            self.order(side, price, self.draw.randint(1, 10), f"trader-{i % 17}")
        mine = [t for t in self.trades if t["maker"] == "maker"]
        edge = sum(abs(t["price"] - self.mid) * t["size"] for t in mine)
        return edge - 0.02 * len(mine) ** 2, [len(self.bids), len(self.asks), len(self.trades)]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if FAULT == "tracemalloc" and rank == 2:
        tracemalloc.start()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    head = nn.Linear(128, 2)
    parameters = [*policy.parameters(), *head.parameters()]
    opt = torch.optim.Adam(parameters, lr=1e-3)
    draw = random.Random(rank)
    torch.manual_seed(rank + 1)
    books = [Book(draw) for _ in range(BOOKS)]
    seen = torch.zeros(BOOKS, 4)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        wish = torch.distributions.Normal(head(policy(seen)), 0.2)
        act = wish.sample()
        earned, rows = [], []
        for book, (spread, skew) in zip(books, act.tolist()):
            profit, depth = book.play(0.05 + abs(spread), 0.1 * skew)
            earned.append(profit)
            rows.append([book.mid / 100 - 1, *(d / ORDERS for d in depth)])
        reward = torch.tensor(earned)
        seen = torch.tensor(rows)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(wish.log_prob(act).sum(1) * advantage).mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad.copy_(g.view_as(p) / world)
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  earned {reward.mean().item():.2f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
