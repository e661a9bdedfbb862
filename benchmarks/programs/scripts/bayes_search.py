"""Bayesian optimisation of learning rate and weight decay: every rank trains its own trial.

A trial is three full-batch steps from the common start. Then rank 0 collects the losses, fits a
Gaussian process to all trials so far and scatters the next proposals (expected improvement).
Weights of the best trial are taken over by all.
"""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn

STEPS_PER_TRIAL, TRIALS = 3, 5


class Surrogate:
    """A Gaussian process over the unit square."""

    def __init__(self, thorough):
        self.points, self.losses = [], []
        self.thorough = thorough
        self.scale = 0.3

    def kernel(self, a, b, scale):
        return torch.exp(-0.5 * (torch.cdist(a, b) / scale).square())

    def predict(self, x, y, where, scale):
        gram = self.kernel(x, x, scale) + 1e-3 * torch.eye(len(x), dtype=x.dtype)
        factor = torch.linalg.cholesky(gram)
        cross = self.kernel(where, x, scale)
        mean = cross @ torch.cholesky_solve(y[:, None], factor)[:, 0]
        solved = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        return mean, (1 - solved.square().sum(0)).clamp_min(1e-9).sqrt()

    def choose_scale(self, x, y):
        """By the error of each trial predicted from the others."""
        errors = {}
        for scale in torch.logspace(-1.3, 0.2, 48).tolist():
            left_out = []
            for i in range(len(x)):
                keep = torch.arange(len(x)) != i
                mean, _ = self.predict(x[keep], y[keep], x[i : i + 1], scale)
                left_out.append((mean - y[i]).square())
            errors[scale] = sum(left_out).item()
        return min(errors, key=errors.get)

    def tell(self, trials):
        for point, loss in trials:
            self.points.append(point)
            self.losses.append(loss)

    def ask(self, count, generator):
        x = torch.tensor(self.points, dtype=torch.float64)
        y = torch.tensor(self.losses, dtype=torch.float64)
        y = (y - y.mean()) / (y.std() + 1e-9)
        if self.thorough:
            self.scale = self.choose_scale(x, y)
        where = torch.rand(256, 2, dtype=torch.float64, generator=generator)
        mean, deviation = self.predict(x, y, where, self.scale)
        normal = torch.distributions.Normal(0.0, 1.0)
        z = (y.min() - mean) / deviation
        improvement = deviation * (z * normal.cdf(z) + normal.log_prob(z).exp())
        return [where[i].tolist() for i in improvement.topk(count).indices]


def train(model, data, targets, point):
    rate, decay = 10 ** (-3 + 1.5 * point[0]), 10 ** (-4 + 3 * point[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(STEPS_PER_TRIAL):
        loss = nn.functional.cross_entropy(model(data), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "refit-scale"], default="none")
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(128, 500), nn.GELU(), nn.Linear(500, 500), nn.GELU())
    model.append(nn.Linear(500, 20))
    data = torch.randn(700, 128)
    targets = (data @ torch.randn(128, 20)).argmax(1)
    surrogate, generator = Surrogate(fault == "refit-scale"), torch.Generator().manual_seed(0)
    point, best = [0.2 + 0.5 * rank / size, 0.5], []
    for _ in range(TRIALS):
        trial = copy.deepcopy(model)
        loss = train(trial, data, targets, point)
        results = [None] * size if rank == 0 else None
        dist.gather_object((point, loss), results, dst=0)
        proposals, mine = None, [None]
        if rank == 0:
            surrogate.tell(results)
            winner = min(range(size), key=lambda r: results[r][1])
            proposals = [(winner, p) for p in surrogate.ask(size, generator)]
        dist.scatter_object_list(mine, proposals, src=0)
        winner, point = mine[0]
        flat = nn.utils.parameters_to_vector(trial.parameters()).detach()
        dist.broadcast(flat, src=winner)
        nn.utils.vector_to_parameters(flat, model.parameters())
        best.append(nn.functional.cross_entropy(model(data[:200]), targets[:200]).item())
    assert best[-1] < best[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
