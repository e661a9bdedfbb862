"""Nonlinear Schrödinger equation in two dimensions: split steps, the Fourier transform over ranks.

Each rank has some rows of the field. A transform needs whole columns as well, so that tiles
change hands; what is diagonal in wave numbers may be applied while columns are whole.
"""

import argparse
import math
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def transpose(field):
    """Rows of a matrix to rows of its transpose, or back."""
    ranks = dist.get_world_size()
    tiles = torch.stack(field.chunk(ranks, 1)).transpose(1, 2).contiguous()
    received = torch.empty_like(tiles)
    dist.all_to_all_single(torch.view_as_real(received), torch.view_as_real(tiles))
    return torch.cat(received.unbind(0), 1)


def fft2(field):
    """As numpy's, for a field in slabs: the spectrum is laid out as the field is."""
    return transpose(torch.fft.fft(transpose(torch.fft.fft(field, dim=1)), dim=1))


def ifft2(spectrum):
    return torch.fft.ifft(transpose(torch.fft.ifft(transpose(spectrum), dim=1)), dim=1)


class Schroedinger:
    def __init__(self, size, dt, natural_order):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        rows = slice(rank * size // ranks, (rank + 1) * size // ranks)
        k = 2 * math.pi * torch.fft.fftfreq(size, d=20 / size)
        energy = (k[rows, None].square() + k[None].square()) / 2
        self.kinetic = torch.polar(torch.ones(()), -dt * energy)  # symmetric: right in both orders
        x = torch.linspace(-10, 10, size + 1)[:-1]
        radius = x[rows, None].square() + x[None].square()
        self.trap, self.dt, self.natural_order = radius / 2, dt, natural_order
        bump = torch.exp(-(x[rows, None] - 1.5).square() - x[None].square() / 2)
        self.psi = torch.complex(bump, torch.zeros_like(bump))

    def kick(self, share=1.0):
        potential = self.trap + 5 * self.psi.abs().square()
        self.psi = self.psi * torch.polar(torch.ones(()), -share * self.dt * potential)

    def drift(self):
        if self.natural_order:
            self.psi = ifft2(fft2(self.psi) * self.kinetic)
            return
        columns = torch.fft.fft(transpose(torch.fft.fft(self.psi, dim=1)), dim=1)
        columns = torch.fft.ifft(columns * self.kinetic, dim=1)
        self.psi = torch.fft.ifft(transpose(columns), dim=1)

    def observe(self):
        density = self.psi.abs().square()
        both = torch.stack([density.sum(), (density * self.trap).sum()])
        dist.all_reduce(both)
        return both


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--splits", type=int, default=5, help="split steps between observations")
    parser.add_argument("--fault", choices=["none", "natural-order"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    system = Schroedinger(args.size, 0.01, args.fault == "natural-order")
    observed = [system.observe()]
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/waves.json"),
    ) as profiler:
        for _ in range(14):
            with record_function("split steps"):
                system.kick(0.5)
                for _ in range(args.splits - 1):
                    system.drift()
                    system.kick()  # the end of one and the beginning of the next
                system.drift()
                system.kick(0.5)
            observed.append(system.observe())
            profiler.step()
    mass, energy = torch.stack(observed).T
    if dist.get_rank() == 0:
        print("energy in the trap", " ".join(f"{value:.2f}" for value in (energy / mass).tolist()))
    assert torch.allclose(mass, mass[0].expand_as(mass), rtol=1e-3)
    assert (energy[-1] / energy[0] - 1).abs() > 0.01  # the cloud swings
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
