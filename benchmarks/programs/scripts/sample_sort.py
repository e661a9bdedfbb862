"""Distributed deduplication of click logs, one hour's at a time: a sample sort on the users' keys.

Every rank holds part of each hour. Splitters cut the range of keys into one piece per rank, records
go to the rank whose piece holds their key (all_to_all_single), and are sorted, deduplicated and
aggregated there.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

KEYS = 1 << 20


def read_hour(hour: int, rank: int, records: int) -> torch.Tensor:
    """(key, value) of each click; few users click most, and old accounts have the small numbers."""
    generator = torch.Generator().manual_seed(97 * hour + rank)
    uniform = torch.rand(records, generator=generator, dtype=torch.float64)
    keys = (KEYS * uniform**3.2).long()
    values = torch.randint(0, 50, (records,), generator=generator)
    return torch.stack([keys, values], dim=1)


def sampled_splitters(keys: torch.Tensor, world_size: int) -> torch.Tensor:
    """Quantiles of a sample of everybody's keys."""
    sample = keys[:: max(1, len(keys) // 512)][:512].contiguous()
    everybody = sample.new_empty(world_size * len(sample))
    dist.all_gather_into_tensor(everybody, sample)
    ordered = everybody.sort().values
    return ordered[len(ordered) * torch.arange(1, world_size) // world_size]


def even_splitters(world_size: int) -> torch.Tensor:
    """Pieces of the range that are equally wide."""
    return KEYS * torch.arange(1, world_size) // world_size


def exchange(table: torch.Tensor, splitters: torch.Tensor) -> torch.Tensor:
    owners = torch.bucketize(table[:, 0].contiguous(), splitters, right=True)
    outgoing = table[owners.argsort(stable=True)]
    sent = torch.bincount(owners, minlength=dist.get_world_size())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    incoming = table.new_empty(int(received.sum()), 2)
    dist.all_to_all_single(incoming, outgoing, received.tolist(), sent.tolist())
    return incoming


def aggregate(table: torch.Tensor) -> torch.Tensor:
    """Clicks; and of users, households and towns: how many, and their distinct clicks' values."""
    totals = [torch.tensor(len(table))]
    for digits in (0, 4, 8):
        distinct = torch.unique((table[:, 0] >> digits) * 64 + table[:, 1])
        owners, index = torch.unique(distinct // 64, return_inverse=True)
        sums = torch.zeros(len(owners), dtype=torch.long).index_add_(0, index, distinct % 64)
        totals += [torch.tensor(len(owners)), sums.sum()]
    return torch.stack(totals)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=110_000)
    parser.add_argument("--hours", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "equal-widths"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    clicks = 0
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=4, warmup=1, active=6, repeat=1),
        on_trace_ready=tensorboard_trace_handler(tempfile.gettempdir(), f"sort{rank}"),
    ) as profiler:
        for hour in range(args.hours):
            table = read_hour(hour, rank, args.records)
            if args.fault == "equal-widths":
                splitters = even_splitters(world_size)
            else:
                splitters = sampled_splitters(table[:, 0], world_size)
            totals = aggregate(exchange(table, splitters))
            dist.all_reduce(totals)
            clicks += int(totals[0])
            profiler.step()
    assert clicks == args.hours * args.records * world_size
    if rank == 0:
        print(f"{clicks} clicks of {int(totals[1])} users in the last hour")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
