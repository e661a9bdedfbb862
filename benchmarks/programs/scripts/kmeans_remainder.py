"""Mini-batch k-means; points are divided among ranks, and someone has to take what remains."""

import argparse

import torch
import torch.distributed as dist

CLUSTERS, DIM = 128, 96


def counts(total, world, chunk, evenly):
    """Whole chunks for each rank; the last one takes the remainder, or all take a bit."""
    if evenly:
        return [total // world] * world
    each = total // chunk // world * chunk
    return [each] * (world - 1) + [total - each * (world - 1)]


def assign(points, centers):
    distance = torch.cdist(points, centers)
    nearest = distance.argmin(1)
    sums = torch.zeros_like(centers).index_add(0, nearest, points)
    sizes = torch.bincount(nearest, minlength=len(centers)).float()
    return sums, sizes, distance.gather(1, nearest[:, None]).square().sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=62400)
    parser.add_argument("--chunk", type=int, default=12000)
    parser.add_argument("--fault", choices=["none", "remainder"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = counts(args.points, world, args.chunk, args.fault == "none")[rank]
    truth = 3 * torch.randn(CLUSTERS, DIM, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(100 + rank)

    def sample(n):
        which = torch.randint(0, CLUSTERS, (n,), generator=gen)
        return truth[which] + torch.randn(n, DIM, generator=gen)

    centers = torch.nn.Parameter(sample(CLUSTERS))
    dist.broadcast(centers.data, 0)
    optimizer = torch.optim.SGD([centers], lr=0.7)  # each center goes most of the way to its mean
    inertia = []
    for _ in range(22):
        sums, sizes, loss = assign(sample(mine), centers.detach())
        packed = torch.cat((sums.flatten(), sizes, loss[None]))
        dist.all_reduce(packed)
        sums, sizes, loss = packed.split((CLUSTERS * DIM, CLUSTERS, 1))
        mean = sums.view(CLUSTERS, DIM) / sizes.clamp(min=1)[:, None]
        centers.grad = torch.where(sizes[:, None] > 0, centers.detach() - mean, 0.0)
        optimizer.step()
        inertia.append(loss.item() / args.points)
    if rank == 0:
        print(f"inertia {inertia[0]:.1f} to {inertia[-1]:.1f} with {mine} points here")
    assert inertia[-1] < inertia[0], inertia
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
