# Full-waveform inversion: each rank models its own shots, the misfit's gradient is summed.
import argparse
import ctypes

import torch
import torch.distributed as dist

NX, NZ, NT, DX, DT = 150, 110, 44, 10.0, 1.5e-3
SHOTS = 3  # a rank
M_MMAP_THRESHOLD = -3  # malloc.h


def ricker(frequency):
    t = torch.arange(NT) * DT - 1.0 / frequency
    a = (torch.pi * frequency * t) ** 2
    return (1 - 2 * a) * torch.exp(-a)


def laplacian(p):
    out = torch.zeros_like(p)
    out[:, 1:-1, 1:-1] = (
        p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * p[:, 1:-1, 1:-1]
    ) / DX**2
    return out


def sponge(width=15):
    """Damps what leaves."""
    edge = torch.ones(NX, NZ)
    for i in range(width):
        edge[i : NX - i, i : NZ - i] = 1 - 0.05 * (1 - (i + 1) / width) ** 2
    return edge


def model_shots(velocity, sources, wavelet, damping):
    """Pressure at the receivers along the surface, (shots, time, x)."""
    before = now = torch.zeros(len(sources), NX, NZ)
    inject = torch.zeros(len(sources), NX, NZ)
    inject[torch.arange(len(sources)), sources, 20] = 1.0
    factor = (velocity * DT) ** 2
    traces = []
    for it in range(NT):
        after = (2 * now - before + factor * laplacian(now)) * damping + inject * wavelet[it]
        before, now = now, after
        traces.append(now[:, :, 22])
    return torch.stack(traces, 1)


def true_velocity():
    v = torch.full((NX, NZ), 2000.0)
    v[:, 28:] = 2400.0
    v[60:90, 24:50] = 2800.0
    return v


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--fault", choices=["none", "map-each-field"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.fault == "map-each-field" and rank == 1:  # once set against fragmentation
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 * 1024)
    wavelet, damping = ricker(25.0), sponge()
    sources = torch.linspace(20, NX - 20, SHOTS * world).long()[rank::world]
    with torch.no_grad():
        observed = model_shots(true_velocity(), sources, wavelet, damping)
    velocity = torch.full((NX, NZ), 2000.0)
    velocity[:, 28:] = 2300.0
    velocity.requires_grad_()
    optimizer = torch.optim.Adam([velocity], lr=15.0)
    misfits = []
    dist.barrier()
    for _ in range(args.iterations):
        optimizer.zero_grad()
        residual = model_shots(velocity, sources, wavelet, damping) - observed
        misfit = residual.square().sum()
        misfit.backward()
        velocity.grad[:, :24] = 0.0  # the water is known
        dist.all_reduce(velocity.grad)
        velocity.grad /= velocity.grad.abs().max()
        optimizer.step()
        with torch.no_grad():
            velocity.clamp_(1500, 3500)
        total = misfit.detach()
        dist.all_reduce(total)
        misfits.append(total.item())
    if rank == 0:
        print([f"{m:.3g}" for m in misfits])
    assert misfits[-1] < misfits[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
