"""Variational Monte Carlo: a neural wave function of particles in a harmonic trap.

Walkers are shared out over the ranks; the energy's gradient is averaged over all of them.
"""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

PARTICLES, DIMENSIONS, WALKERS, SWEEPS = 4, 2, 96, 6
SIZE = PARTICLES * DIMENSIONS


class LogPsi(nn.Module):
    """log |psi| of positions (SIZE,): a Gaussian envelope and a symmetric network."""

    def __init__(self, width=48):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(0.3))
        self.single = nn.Sequential(nn.Linear(DIMENSIONS + 1, width), nn.Tanh())
        self.joint = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        r = x.view(PARTICLES, DIMENSIONS)
        square = r.square().sum(1, keepdim=True)
        pooled = self.single(torch.cat([r, square], 1)).mean(0)
        return -self.width.exp() * square.sum() / 2 + self.joint(pooled).squeeze()


class Hamiltonian:
    def __init__(self, model):
        self.model = model

    def log_psi(self, params, x):
        return functional_call(self.model, params, (x,))

    def laplacian(self, params, x):
        gradient = grad(self.log_psi, argnums=1)
        rows = vmap(lambda e: jvp(lambda y: gradient(params, y), (x,), (e,))[1])(torch.eye(SIZE))
        return rows.diagonal().sum()

    def local_energy(self, params, x):
        slope = grad(self.log_psi, argnums=1)(params, x)
        kinetic = -0.5 * (self.laplacian(params, x) + slope.square().sum())
        return kinetic + 0.5 * x.square().sum()


@torch.no_grad()
def metropolis(log_psi, x, generator, width=0.6):
    current = log_psi(x)
    for _ in range(SWEEPS):
        proposal = x + width * torch.randn(x.shape, generator=generator)
        other = log_psi(proposal)
        accept = torch.rand(len(x), generator=generator).log() < 2 * (other - current)
        x = torch.where(accept[:, None], proposal, x)
        current = torch.where(accept, other, current)
    return x


def average(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    pieces = flat.split([t.numel() for t in tensors])
    return [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "tiny-chunks"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LogPsi()
    system = Hamiltonian(model)
    chunk = 12 if args.fault == "tiny-chunks" else WALKERS  # somebody feared for the memory
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    walkers = torch.randn(WALKERS, SIZE, generator=generator)
    params = dict(model.named_parameters())
    energies = []
    for _ in range(14):
        frozen = {name: p.detach() for name, p in params.items()}
        batched = vmap(system.log_psi, in_dims=(None, 0))
        walkers = metropolis(lambda x: batched(frozen, x), walkers, generator)  # noqa: B023
        local = torch.cat(
            [vmap(system.local_energy, (None, 0))(frozen, c) for c in walkers.split(chunk)]
        )
        loss = (2 * (local - local.mean()) * batched(params, walkers)).mean()
        gradients = torch.autograd.grad(loss, list(params.values()))
        *gradients, energy = average([*gradients, local.mean()])
        for p, g in zip(params.values(), gradients, strict=True):
            p.grad = g.clamp(-1, 1)
        optimizer.step()
        energies.append(energy.item())
    assert all(math.isfinite(e) for e in energies)
    assert abs(energies[-1] - SIZE / 2) < abs(energies[0] - SIZE / 2) + 0.1, energies
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
