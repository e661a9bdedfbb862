"""Cross-entropy planning in a learned model: rank 0 refits the sampler, all ranks roll out."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


class Dynamics(nn.Module):
    def __init__(self, state=24, action=6, hidden=160):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state + action, hidden), nn.SiLU(), nn.Linear(hidden, state)
        )

    def forward(self, s, a):
        return s + 0.2 * torch.tanh(self.net(torch.cat([s, a], dim=-1)))


class Planner:
    def __init__(self, model, horizon, population, keep, fault):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model, self.horizon, self.keep, self.fault = model, horizon, keep, fault
        self.local = population // self.world
        self.generator = torch.Generator().manual_seed(17 + self.rank)
        self.sampler = torch.zeros(2, horizon, 6)
        self.sampler[1] = 1.0

    @torch.inference_mode()
    def rollout(self, state, plans):
        cost = torch.zeros(len(plans))
        state = state.expand(len(plans), -1)
        for t in range(self.horizon):
            state = self.model(state, plans[:, t])
            cost += state.pow(2).sum(dim=1) + 0.01 * plans[:, t].pow(2).sum(dim=1)
        return cost

    def elites(self, costs, plans):
        if self.fault == "rank-in-python":
            rows = [(cost.item(), plan.tolist()) for cost, plan in zip(costs, plans, strict=True)]
            rows.sort(key=lambda row: row[0])
            return torch.tensor([plan for _, plan in rows[: self.keep]])
        return plans[costs.topk(self.keep, largest=False).indices]

    def iterate(self, state):
        mean, std = self.sampler
        noise = torch.randn(self.local, self.horizon, 6, generator=self.generator)
        plans = mean + std * noise
        costs = self.rollout(state, plans)
        at_root = self.rank == 0
        all_costs = [torch.empty_like(costs) for _ in range(self.world)] if at_root else None
        all_plans = [torch.empty_like(plans) for _ in range(self.world)] if at_root else None
        dist.gather(costs, all_costs, dst=0)
        dist.gather(plans, all_plans, dst=0)
        if at_root:
            best = self.elites(torch.cat(all_costs), torch.cat(all_plans))
            self.sampler = torch.stack([best.mean(dim=0), best.std(dim=0) + 0.02])
        dist.broadcast(self.sampler, src=0)
        return costs.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=22)
    parser.add_argument("--population", type=int, default=1600)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "cem_planner"))
    parser.add_argument("--fault", choices=["none", "rank-in-python"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    planner = Planner(Dynamics(), 12, args.population, keep=48, fault=args.fault)
    state, costs = torch.randn(24), []
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for _ in range(args.iterations):
            costs.append(planner.iterate(state).item())
            profiler.step()
    print(f"rank {rank}: cost {costs[0]:.2f} -> {costs[-1]:.2f}")
    assert costs[-1] < costs[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
