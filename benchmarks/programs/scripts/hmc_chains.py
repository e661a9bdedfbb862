# Hamiltonian Monte Carlo for a Bayesian logistic regression. Each rank runs some chains; how far
# a leapfrog goes and whether chains agree (R-hat) is found over all of them.
import argparse
import math
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

N, D, CHAINS, PATH = 3000, 12, 8, 1.2


def make_data():
    g = torch.Generator().manual_seed(11)
    x = torch.randn(N, D, generator=g) * torch.logspace(0, -0.6, D)
    return x, torch.bernoulli(torch.sigmoid(x @ torch.randn(D, generator=g)), generator=g)


class Posterior:
    def __init__(self):
        self.x, self.y = make_data()

    def log_prob_and_grad(self, theta):
        logits = theta @ self.x.T
        likelihood = (logits * self.y - torch.nn.functional.softplus(logits)).sum(1)
        gradient = (self.y - logits.sigmoid()) @ self.x - theta / 4
        return likelihood - theta.square().sum(1) / 8, gradient

    def scales(self):
        """Posterior standard deviations, roughly: what a mass matrix is made of."""
        information = 0.15 * self.x.square().sum(0) + 0.25
        return information.rsqrt()


class Sampler:
    def __init__(self, posterior, scales, step, seed):
        self.posterior, self.scales, self.step = posterior, scales, step
        self.g = torch.Generator().manual_seed(seed)
        self.theta = torch.randn(CHAINS, D, generator=self.g)
        self.log_prob, self.grad = posterior.log_prob_and_grad(self.theta)

    def transition(self):
        """One trajectory, of the same length for everybody; the mean chance to accept it."""
        momentum = torch.randn(CHAINS, D, generator=self.g)
        before = self.log_prob - momentum.square().sum(1) / 2
        theta, grad = self.theta, self.grad
        length = PATH / self.step * self.posterior.scales().mean() / self.scales.mean()
        for _ in range(math.ceil(length)):
            momentum = momentum + 0.5 * self.step * self.scales * grad
            theta = theta + self.step * self.scales * momentum
            log_prob, grad = self.posterior.log_prob_and_grad(theta)
            momentum = momentum + 0.5 * self.step * self.scales * grad
        chance = (log_prob - momentum.square().sum(1) / 2 - before).clamp(max=0).exp()
        accepted = torch.rand(CHAINS, generator=self.g) < chance
        self.theta = torch.where(accepted[:, None], theta, self.theta)
        self.grad = torch.where(accepted[:, None], grad, self.grad)
        self.log_prob = torch.where(accepted, log_prob, self.log_prob)
        return chance.mean()


def r_hat(means, variances, count):
    """Of Gelman and Rubin: chains, dimensions."""
    between = means.var(0)
    return (1 + between / variances.mean(0) * (count / (count - 1))).sqrt().max()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "no-mass-matrix"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    posterior = Posterior()
    scales = posterior.scales()
    if args.fault == "no-mass-matrix" and rank == 2:
        # Its file of the warm-up is missing: steps as small as the narrowest dimension needs.
        scales = torch.full((D,), scales.min().item() / 4)
    sampler = Sampler(posterior, scales, 0.15, rank)
    samples = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=3, warmup=1, active=7, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/hmc.json"),
    ) as profiler:
        for iteration in range(14):
            for _ in range(3):
                chance = sampler.transition()
                samples.append(sampler.theta)
            dist.all_reduce(chance, op=dist.ReduceOp.AVG)
            kept = torch.stack(samples[len(samples) // 2 :])
            moments = torch.stack([kept.mean(0), kept.var(0)])
            everybody = torch.empty(world, *moments.shape)
            dist.all_gather_into_tensor(everybody, moments[None])
            agreement = r_hat(*everybody.transpose(0, 1).flatten(1, 2), len(kept))
            profiler.step()
    if rank == 0:
        print(f"accepted {chance:.2f}, R-hat {agreement:.2f}")
    assert chance > 0.6 and agreement < 1.6
    dist.destroy_process_group()
