"""Ensemble Kalman filter for an ozone column field.

Every rank advances its own share of the ensemble; at each analysis time a few
ground stations report, and all members are pulled towards the observations.

    torchrun --nproc-per-node 3 enkf_ozone.py [--fault gather-members]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "gather-members"])
FAULT = parser.parse_args().fault
SIDE = 192
MEMBERS = 16  # on each rank
STATIONS = 2
CYCLES = 70
OBS_STD = 0.05


def spread(side):
    """Transfer function of one step of advection and diffusion."""
    ky = 2 * torch.pi * torch.fft.fftfreq(side).view(-1, 1)
    kx = 2 * torch.pi * torch.fft.rfftfreq(side).view(1, -1)
    return torch.exp(-0.8 * (kx**2 + ky**2)) * torch.exp(-1j * (1.5 * kx + 0.5 * ky))


def forecast(x, transfer, gen):
    """Advection and diffusion with a little model noise, periodic domain."""
    field = torch.fft.irfft2(torch.fft.rfft2(x.view(-1, SIDE, SIDE)) * transfer, s=(SIDE, SIDE))
    coarse = torch.randn(field.shape[0], 1, 12, 12, generator=gen) * 0.02
    field = field + F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")[:, 0]
    return field.reshape(x.shape)


def statistics_by_sums(x, where, total):
    """Mean and P H^T from sums over the members of all ranks."""
    mean = x.sum(0)
    dist.all_reduce(mean)
    mean /= total
    anomalies = x - mean
    pht = anomalies[:, where].T @ anomalies
    dist.all_reduce(pht)
    return mean, pht.T / (total - 1)


def statistics_by_members(x, where, total):
    """Mean and P H^T from the full ensemble."""
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    ensemble = torch.cat(everyone)
    mean = ensemble.mean(0)
    anomalies = ensemble - mean
    pht = anomalies[:, where].T @ anomalies
    return mean, pht.T / (total - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(100 + rank)
    shared = torch.Generator().manual_seed(7)
    transfer = spread(SIDE)
    total = MEMBERS * world
    estimate = statistics_by_members if FAULT == "gather-members" else statistics_by_sums

    truth = F.interpolate(
        torch.randn(1, 1, 12, 12, generator=shared), size=(SIDE, SIDE), mode="bicubic"
    ).view(1, -1)
    x = truth + 0.3 * F.interpolate(
        torch.randn(MEMBERS, 1, 12, 12, generator=gen), size=(SIDE, SIDE), mode="bicubic"
    ).view(MEMBERS, -1)
    took = []
    for cycle in range(CYCLES):
        start = time.perf_counter()
        truth = forecast(truth, transfer, shared)
        x = forecast(x, transfer, gen)
        where = torch.randperm(SIDE * SIDE, generator=shared)[:STATIONS]
        observed = truth[0, where] + OBS_STD * torch.randn(STATIONS, generator=shared)

        mean, pht = estimate(x, where, total)
        s = pht[where] + OBS_STD**2 * torch.eye(STATIONS)
        gain = torch.linalg.solve(s, pht.T).T
        noise = OBS_STD * torch.randn(MEMBERS, STATIONS, generator=gen)
        x = x + (observed + noise - x[:, where]) @ gain.T
        took.append(time.perf_counter() - start)
        if rank == 0 and cycle % 20 == 0:
            rmse = (mean - truth[0]).pow(2).mean().sqrt()
            print(f"cycle {cycle:3d}  rmse {rmse:.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
