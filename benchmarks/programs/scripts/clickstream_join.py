"""Clicks are joined with the profiles of their users, hour by hour, on two ranks.

A user's profile is on the rank that the id's hash names, and the clicks go there. Clicks of
nobody (not logged in) need no profile and are dealt out; or they are all hashed, to one rank.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

USERS, NOBODY, SEGMENTS, LINKS, DIM = 60000, 0, 16, 500, 96


def hashed(user, world):
    return (user >> 3 ^ user) % world  # ids are random anyway


def make_hour(gen, clicks):
    """User, link and seconds of each click; three in five are of nobody."""
    user = torch.randint(1, USERS, (clicks,), generator=gen)
    user[torch.rand(clicks, generator=gen) < 0.6] = NOBODY
    link = torch.randint(LINKS, (clicks,), generator=gen)
    return torch.stack([user, link, torch.randint(3600, (clicks,), generator=gen)], 1)


def send(rows, to, world):
    """Rows go to where they belong; what has come for me."""
    rows = rows[to.argsort(stable=True)]
    sizes = torch.bincount(to, minlength=world)
    coming = torch.empty_like(sizes)
    dist.all_to_all_single(coming, sizes)
    mine = torch.empty(int(coming.sum()), rows.shape[1], dtype=rows.dtype)
    dist.all_to_all_single(mine, rows, coming.tolist(), sizes.tolist())
    return mine


def sessions(rows):
    """How many there are: half an hour without a click ends one, another user or link, too."""
    key = (rows[:, 0] * LINKS + rows[:, 1]) * 3600 + rows[:, 2]
    key = key.sort().values
    same = key[1:] // 3600 == key[:-1] // 3600
    return len(key) - int((same & (key.diff() < 1800)).sum())


def join(rows, segments, profiles, links):
    """Clicks by the segment of the user and by the link, how many sessions, how fitting."""
    fit = (profiles[rows[:, 0]] * links[rows[:, 1]]).sum(1).sigmoid().sum()
    segment = segments[rows[:, 0]]
    table = torch.bincount(segment * LINKS + rows[:, 1], minlength=SEGMENTS * LINKS)
    return torch.cat([table, torch.tensor([sessions(rows), int(fit)])])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=16)
    parser.add_argument("--clicks", type=int, default=60000, help="of each rank in an hour")
    parser.add_argument("--fault", choices=["none", "hash-nobody"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    gen = torch.Generator().manual_seed(80 + rank)
    segments = torch.randint(1, SEGMENTS, (USERS,), generator=torch.Generator().manual_seed(1))
    segments[NOBODY] = 0
    profiles, links = (torch.randn(n, DIM, generator=gen) for n in (USERS, LINKS))
    total, most, times = torch.zeros(SEGMENTS * LINKS, dtype=torch.int64), 0, []
    hours = [make_hour(gen, args.clicks) for _ in range(args.hours)]
    for rows in hours:
        before = time.perf_counter()
        to = hashed(rows[:, 0], world)
        if args.fault != "hash-nobody":
            nobody = rows[:, 0] == NOBODY
            to = torch.where(nobody, torch.arange(len(rows)) % world, to)
        result = join(send(rows, to, world), segments, profiles, links)
        dist.all_reduce(result)
        total += result[:-2]
        most = max(most, int(result[-2]))
        times.append(time.perf_counter() - before)
    clicks = args.hours * args.clicks * world
    assert total.sum() == clicks and 0 < most <= args.clicks * world, (total.sum(), most)
    assert abs(total[:LINKS].sum() / clicks - 0.6) < 0.01
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
