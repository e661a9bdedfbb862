"""Wake of a wind turbine: two-dimensional vorticity by spectral steps on slabs.

The transform of a slab is a local one along the rows, a transpose by all_to_all
and a local one along the columns. Spectra stay transposed. Nothing is trained.

    torchrun --nproc-per-node 2 turbine_fft.py [--fault natural-order]

--fault natural-order: spectra are brought back to the order of the grid after each
transform and transposed anew before the inverse one, as the textbook's formulas have it.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist

N, DT, VISCOSITY, STEPS = 768, 2e-4, 2e-4, 24


def transpose(slab):
    """From rows/world x N to the same slab of the transposed matrix."""
    world = dist.get_world_size()
    rows = slab.shape[0]
    blocks = slab.reshape(rows, world, N // world).permute(1, 2, 0).contiguous()
    got = torch.empty_like(blocks)
    dist.all_to_all_single(torch.view_as_real(got), torch.view_as_real(blocks))
    return got.permute(1, 0, 2).reshape(N // world, N)


class Transform:
    def __init__(self, natural):
        self.natural = natural

    def there(self, field):
        spectrum = torch.fft.fft(transpose(torch.fft.fft(field, dim=1)), dim=1)
        return transpose(spectrum) if self.natural else spectrum

    def back(self, spectrum):
        if self.natural:
            spectrum = transpose(spectrum)
        return torch.fft.ifft(transpose(torch.fft.ifft(spectrum, dim=1)), dim=1).real


class Wake:
    def __init__(self, natural):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.transform = Transform(natural)
        mine = slice(rank * N // world, (rank + 1) * N // world)
        k = torch.fft.fftfreq(N, 1 / N)
        if natural:
            self.ky, self.kx = k[mine, None], k[None]
        else:
            self.ky, self.kx = k[None], k[mine, None]
        square = self.kx**2 + self.ky**2
        self.inverse = 1 / square.clamp(min=1)
        self.decay = torch.exp(-VISCOSITY * square * DT)
        self.keep = (square < (N / 3) ** 2).float()
        x = torch.arange(N) * (2 * math.pi / N)
        y = x[mine, None]
        gen = torch.Generator().manual_seed(rank)
        start = torch.sin(3 * x) * torch.cos(5 * y)
        start = start + 0.1 * torch.randn(start.shape, generator=gen)
        self.vorticity = self.transform.there(start.to(torch.complex64))

    def step(self):
        w = self.vorticity
        stream = w * self.inverse
        u = self.transform.back(1j * self.ky * stream)
        v = self.transform.back(-1j * self.kx * stream)
        wx = self.transform.back(1j * self.kx * w)
        wy = self.transform.back(1j * self.ky * w)
        change = self.transform.there((-(u * wx + v * wy)).to(torch.complex64))
        self.vorticity = (w + DT * self.keep * change) * self.decay

    def enstrophy(self):
        total = self.vorticity.abs().square().sum().reshape(1) / N**4
        dist.all_reduce(total)
        return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "natural-order"])
    natural = parser.parse_args().fault == "natural-order"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wake = Wake(natural)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        wake.step()
        enstrophy = wake.enstrophy()
        if not math.isfinite(enstrophy):
            raise RuntimeError(f"blew up in step {step}")
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} enstrophy {enstrophy:.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
