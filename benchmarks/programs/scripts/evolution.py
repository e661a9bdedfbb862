"""OpenAI-style evolution strategies: only the rewards travel, everybody makes the same update."""

import argparse
import time

import torch
import torch.distributed as dist

PARAMS, PAIRS = 2000, 6


class Simulator:
    """Somebody else's binary; its time is not ours."""

    def __init__(self, seconds):
        self.goal = torch.linspace(-1, 1, PARAMS)
        self.seconds = seconds

    def rollout(self, theta):
        time.sleep(self.seconds)
        return -(theta - self.goal).square().mean()


def ranks_of(rewards):
    order = rewards.argsort().argsort().float()
    return order / (len(rewards) - 1) - 0.5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--sigma", type=float, default=0.05)
    p.add_argument("--fault", choices=["none", "slow-simulator"], default="none")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    slow = args.fault == "slow-simulator" and rank == 2
    simulator = Simulator(0.009 if slow else 0.005)
    theta = torch.nn.Parameter(torch.zeros(PARAMS))
    optimizer = torch.optim.Adam([theta], lr=0.05)
    rewards = []
    for generation in range(14):
        noise = [
            torch.randn(
                PAIRS, PARAMS, generator=torch.Generator().manual_seed(1000 * generation + r)
            )
            for r in range(world)
        ]
        mine = torch.stack(
            [
                simulator.rollout(theta.detach() + sign * args.sigma * direction)
                for direction in noise[rank]
                for sign in (1, -1)
            ]
        )
        everybodys = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(everybodys, mine)
        weights = ranks_of(torch.cat(everybodys)).view(-1, 2)
        theta.grad = -((weights[:, 0] - weights[:, 1]) @ torch.cat(noise)) / args.sigma
        optimizer.step()
        rewards.append(torch.cat(everybodys).mean().item())
    assert rewards[-1] > rewards[0], rewards
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
