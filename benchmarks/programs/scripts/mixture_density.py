"""A mixture density network: where a robot's gripper is, given what its joints feel."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import MultivariateNormal

JOINTS, DIM, MIXTURES, BATCH = 12, 3, 8, 24


class MixtureDensity(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(JOINTS, width), nn.ELU(), nn.Linear(width, width), nn.ELU()
        )
        self.weights = nn.Linear(width, MIXTURES)
        self.means = nn.Linear(width, MIXTURES * DIM)
        self.factors = nn.Linear(width, MIXTURES * DIM * DIM)

    def forward(self, x):
        h = self.body(x)
        factor = self.factors(h).view(-1, MIXTURES, DIM, DIM)
        diagonal = nn.functional.softplus(factor.diagonal(dim1=-2, dim2=-1)) + 0.05
        tril = factor.tril(-1) + diagonal.diag_embed()
        return self.weights(h).log_softmax(-1), self.means(h).view(-1, MIXTURES, DIM), tril


def log_likelihood(weights, means, tril, target):
    """All components of all examples at once."""
    z = torch.linalg.solve_triangular(tril, (target[:, None] - means)[..., None], upper=False)
    log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    normal = -0.5 * z.square().sum((-1, -2)) - log_det - 0.5 * DIM * math.log(2 * math.pi)
    return (weights + normal).logsumexp(-1)


def log_likelihood_loop(weights, means, tril, target):
    """As the paper has it."""
    values = []
    for i in range(len(target)):
        terms = [
            weights[i, k]
            + MultivariateNormal(means[i, k], scale_tril=tril[i, k]).log_prob(target[i])
            for k in range(MIXTURES)
        ]
        values.append(torch.stack(terms).logsumexp(0))
    return torch.stack(values)


def grasps(gen):
    angles = torch.rand(BATCH, JOINTS, generator=gen) * 2 - 1
    reach = torch.stack([angles[:, i::3].cumsum(1).sin().sum(1) for i in range(3)], 1)
    mirrored = torch.randint(0, 2, (BATCH, 1), generator=gen) * 2 - 1
    return angles, reach * mirrored + 0.05 * torch.randn(BATCH, DIM, generator=gen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "as-the-paper"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    likelihood = log_likelihood if fault == "none" else log_likelihood_loop
    model = nn.parallel.DistributedDataParallel(MixtureDensity())
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(14):
        angles, gripper = grasps(gen)
        loss = -likelihood(*model(angles), gripper).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()
