"""Colours of stars sorted by k-means, with functional collectives.

Every rank assigns its stars, sums are reduced, rank 0 reseeds what is empty and
broadcasts the centres.

    torchrun --nproc-per-node 3 stars_kmeans.py [--fault silhouette]

--fault silhouette: rank 0 works out the silhouette of a sample in every iteration, for
the plot in the paper, before it gives the centres away.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

STARS, BANDS, K, CHUNK, ITERATIONS, SAMPLE = 60_000, 12, 96, 6000, 26, 900


def stars(rank):
    gen = torch.Generator().manual_seed(40)
    middles = 4 * torch.randn(K, BANDS, generator=gen)
    gen.manual_seed(rank)
    kind = torch.randint(K, (STARS,), generator=gen)
    return middles[kind] + torch.randn(STARS, BANDS, generator=gen)


def assign(x, centres):
    """The nearest centre of each star, and the sum of the squared distances."""
    nearest, inertia = [], torch.zeros(())
    for chunk in x.split(CHUNK):
        distance, which = torch.cdist(chunk, centres).min(1)
        nearest.append(which)
        inertia += distance.square().sum()
    return torch.cat(nearest), inertia


def totals(x, nearest, inertia, group):
    sums = torch.zeros(K, BANDS + 1)
    sums.index_add_(0, nearest, torch.cat([x, torch.ones(len(x), 1)], 1))
    packed = torch.cat([sums.flatten(), inertia.reshape(1)])
    packed = funcol.wait_tensor(funcol.all_reduce(packed, "sum", group))
    return packed[:-1].view(K, BANDS + 1), packed[-1].item()


def recentre(sums, x):
    count = sums[:, BANDS:]
    centres = sums[:, :BANDS] / count.clamp(min=1)
    empty = count.squeeze(1) < 1
    centres[empty] = x[: int(empty.sum())]
    return centres


def silhouette(x, nearest):
    """Of a sample: how much nearer one's own cluster is than the next."""
    some, own = x[:SAMPLE], nearest[:SAMPLE]
    distance = torch.cdist(some, some)
    member = torch.nn.functional.one_hot(own, K).float()
    mean = distance @ member / member.sum(0).clamp(min=1)
    for _ in range(3):  # with three bootstrap samples of itself
        draw = torch.randint(SAMPLE, (SAMPLE,))
        mean = (mean + distance[:, draw] @ member[draw] / member[draw].sum(0).clamp(min=1)) / 2
    inside = mean.gather(1, own[:, None])
    outside = mean.scatter(1, own[:, None], torch.inf).min(1, keepdim=True).values
    return ((outside - inside) / torch.maximum(inside, outside)).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "silhouette"])
    curious = parser.parse_args().fault == "silhouette"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    x = stars(rank)
    centres = funcol.wait_tensor(funcol.broadcast(x[:K].clone(), 0, group))
    times = []
    for turn in range(ITERATIONS):
        began = time.perf_counter()
        nearest, inertia = assign(x, centres)
        sums, inertia = totals(x, nearest, inertia, group)
        quality = 0.0
        if rank == 0:
            centres = recentre(sums, x)
            if curious:
                quality = silhouette(x, nearest)
        centres = funcol.wait_tensor(funcol.broadcast(centres, 0, group))
        times.append(time.perf_counter() - began)
        if rank == 0 and turn % 6 == 0:
            print(f"iteration {turn:3d} inertia {inertia:.0f} {quality:.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
