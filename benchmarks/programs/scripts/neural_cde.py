"""A neural controlled differential equation classifies irregular sensor traces."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

CHANNELS, HIDDEN, KNOTS, BATCH = 4, 32, 17, 32


class Path:
    """Piecewise linear through the measurements; knots at 0, 1, 2 ..."""

    def __init__(self, values):
        self.slopes = values.diff(dim=1)

    def slope(self, t):
        return self.slopes[:, min(int(t), self.slopes.size(1) - 1)]


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(HIDDEN, 128), nn.SiLU(), nn.Linear(128, HIDDEN * CHANNELS), nn.Tanh()
        )

    def forward(self, path, t, z):
        matrix = self.net(z).view(-1, HIDDEN, CHANNELS)
        return (matrix @ path.slope(t)[..., None])[..., 0]


def heun_fixed(field, path, z):
    for knot in range(KNOTS - 1):
        k1 = field(path, knot, z)
        k2 = field(path, knot + 0.999, z + k1)
        z = z + (k1 + k2) / 2
    return z


def heun_adaptive(field, path, z, tolerance=0.02, least=0.05):
    """Halves or doubles its steps by the difference to Euler's."""
    t, h = 0.0, 1.0
    while t < KNOTS - 1 - 1e-6:
        h = min(h, int(t + 1e-6) + 1 - t)  # stops at each knot
        k1 = field(path, t + 1e-6, z)
        k2 = field(path, t + h * 0.999, z + h * k1)
        error = (h * (k2 - k1) / 2).square().mean().sqrt().item()
        if error > tolerance and h > least:
            h /= 2
            continue
        z, t = z + h * (k1 + k2) / 2, t + h
        h = min(2 * h, 1.0) if error < tolerance / 4 else h
    return z


class NeuralCDE(nn.Module):
    def __init__(self, solver):
        super().__init__()
        self.start, self.field, self.end = (
            nn.Linear(CHANNELS, HIDDEN),
            Field(),
            nn.Linear(HIDDEN, 2),
        )
        self.solver = solver

    def forward(self, values):
        z = self.solver(self.field, Path(values), self.start(values[:, 0]))
        return self.end(z)


def sensor_traces(gen):
    """A machine's, all of one regime: calm or agitated; the label is the drift's sign."""
    agitation = 0.5 if torch.rand((), generator=gen) < 0.4 else 0.03
    label = torch.randint(2, (BATCH,), generator=gen)
    drift = (label * 2.0 - 1)[:, None, None] * 0.06 * torch.arange(KNOTS)[None, :, None]
    noise = agitation * torch.randn(BATCH, KNOTS, CHANNELS, generator=gen)
    return drift + noise, label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "adaptive"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    model = DistributedDataParallel(NeuralCDE(heun_adaptive if fault == "adaptive" else heun_fixed))
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    gen = torch.Generator().manual_seed(17 + dist.get_rank())
    history = []
    for _ in range(14):
        values, label = sensor_traces(gen)
        loss = F.cross_entropy(model(values), label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
    assert sum(history[-3:]) < sum(history[:3]), history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
