"""Baum-Welch for a hidden Markov model of sleep stages; nights are split over the ranks.

Each iteration is one forward-backward pass over a rank's nights and one sum
of sufficient statistics over the ranks.

    torchrun --nproc-per-node 3 hmm_baum_welch.py [--fault gather-posteriors]

--fault gather-posteriors: every rank gathers the pairwise posteriors of every
moment of every night from all ranks and adds them up by itself, where the
sums of each rank suffice.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "gather-posteriors"])
FAULT = parser.parse_args().fault
NIGHTS, MOMENTS, STATES, CHANNELS, STEPS = 48, 140, 12, 8, 60


def recordings(rank):
    """Nights from a sticky chain with a mean per state."""
    shared = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(STATES, CHANNELS, generator=shared)
    gen = torch.Generator().manual_seed(30 + rank)
    state = torch.randint(0, STATES, (NIGHTS,), generator=gen)
    out = []
    for _ in range(MOMENTS):
        jump = torch.rand(NIGHTS, generator=gen) < 0.1
        state = torch.where(jump, torch.randint(0, STATES, (NIGHTS,), generator=gen), state)
        out.append(means[state] + torch.randn(NIGHTS, CHANNELS, generator=gen))
    return torch.stack(out, dim=1)


def posteriors(x, start, move, means):
    """Of every moment, of every pair of moments, and the log-likelihood."""
    emit = -0.5 * (x.unsqueeze(2) - means).square().sum(3)
    log_move = move.log()
    alpha = [start.log() + emit[:, 0]]
    for t in range(1, MOMENTS):
        alpha.append(torch.logsumexp(alpha[-1].unsqueeze(2) + log_move, 1) + emit[:, t])
    beta = [torch.zeros(len(x), STATES)]
    for t in range(MOMENTS - 1, 0, -1):
        beta.append(torch.logsumexp(log_move + (emit[:, t] + beta[-1]).unsqueeze(1), 2))
    a, b = torch.stack(alpha, 1), torch.stack(beta[::-1], 1)
    evidence = torch.logsumexp(a[:, -1], 1)
    gamma = (a + b - evidence[:, None, None]).exp()
    later = (emit + b)[:, 1:].unsqueeze(2)
    xi = (a[:, :-1].unsqueeze(3) + log_move + later - evidence[:, None, None, None]).exp()
    return gamma, xi, evidence.sum()


def everyone(part, world):
    parts = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x = recordings(rank)
    gen = torch.Generator().manual_seed(1)
    start = torch.full((STATES,), 1 / STATES)
    move = torch.softmax(torch.randn(STATES, STATES, generator=gen) + 2 * torch.eye(STATES), 1)
    means = torch.randn(STATES, CHANNELS, generator=gen)
    took = []
    for step in range(STEPS):
        begin = time.perf_counter()
        gamma, xi, evidence = posteriors(x, start, move, means)
        weighted = torch.einsum("ntk,ntc->kc", gamma, x)
        parts = [gamma[:, 0].sum(0), gamma.sum((0, 1)), weighted, evidence.view(1)]
        if FAULT == "gather-posteriors":
            pairs = everyone(xi, world).sum((0, 1))
        else:
            parts.append(xi.sum((0, 1)))
        flat = torch.cat([p.flatten() for p in parts])
        dist.all_reduce(flat)
        sums = [s.view_as(p) for s, p in zip(flat.split([p.numel() for p in parts]), parts)]
        if FAULT != "gather-posteriors":
            pairs = sums.pop()
        first, visits, weighted, evidence = sums
        start = (first + 1e-3) / (first + 1e-3).sum()
        move = (pairs + 1e-3) / (pairs + 1e-3).sum(1, keepdim=True)
        means = weighted / visits.clamp(min=1e-3).unsqueeze(1)
        took.append(time.perf_counter() - begin)
        if rank == 0 and step % 20 == 0:
            print(f"iteration {step:3d}  log-likelihood {evidence.item():.1f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
