"""A retrieval model; rank 0 gets everybody's logits to watch the recall."""

import argparse
import time

import torch
import torch.distributed as dist


def recall(logits, truth, seconds):
    """At 1, 5 and 10; and a bootstrap of its error for as long as there is time."""
    order = logits.argsort(1, descending=True)
    where = (order == truth[:, None]).float().argmax(1)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pick = torch.randint(len(where), (2000,))
        (where[pick] < 5).float().mean()
    return [(where < k).float().mean().item() for k in (1, 5, 10)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--fault", choices=["none", "bootstrap"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    items = torch.randn(args.items, 96)
    tower = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Linear(96, 768), torch.nn.ReLU(), torch.nn.Linear(768, args.items)
        )
    )
    opt = torch.optim.Adam(tower.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(5 + rank)
    history = []
    for step in range(14):
        truth = torch.randint(args.items, (192,), generator=gen)
        query = items[truth] + 0.2 * torch.randn(192, 96, generator=gen)
        logits = tower(query)
        loss = torch.nn.functional.cross_entropy(logits, truth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        parts = [torch.empty_like(logits) for _ in range(world)] if rank == 0 else None
        answers = [torch.empty_like(truth) for _ in range(world)] if rank == 0 else None
        dist.gather(logits.detach(), parts, dst=0)
        dist.gather(truth, answers, dst=0)
        if rank == 0:
            seconds = 0.020 if args.fault == "bootstrap" else 0.0
            print(step, recall(torch.cat(parts), torch.cat(answers), seconds))
    assert history[-1] < history[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
