"""Reinforcement learning: actors play, a learner updates and hands the policy out."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

ACTIONS = 4


def play(policy, gen, episodes, slow):
    """A bandit with contexts: the right action is written in the observation."""
    time.sleep(0.02 + slow)  # the simulator
    observed = torch.randn(episodes, 64, generator=gen)
    action = torch.multinomial(policy(observed).softmax(1), 1, generator=gen).squeeze(1)
    reward = (action == observed[:, :ACTIONS].argmax(1)).float()
    return observed.detach(), action, reward


def learn(policy, opt, batches):
    observed, action, reward = (torch.cat(column) for column in zip(*batches))
    for _ in range(2):
        log_p = policy(observed).log_softmax(1).gather(1, action[:, None]).squeeze(1)
        loss = -(log_p * (reward - reward.mean())).mean()
        opt.zero_grad()
        loss.backward()
    opt.step()
    return reward.mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--fault", choices=["none", "slow-actor"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, ACTIONS))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    slow = 0.04 if args.fault == "slow-actor" and rank == 1 else 0.0
    rewards = []
    for _ in range(14):
        mine = play(policy, gen, args.episodes, slow)
        batches = [None] * world if rank == 0 else None
        dist.gather_object(mine, batches, dst=0)
        if rank == 0:
            rewards.append(learn(policy, opt, batches))
            print(f"reward {rewards[-1]:.3f}")
        else:
            for p in policy.parameters():  # so that every rank counts its steps
                p.grad = torch.zeros_like(p)
            opt.step()
        for p in policy.parameters():
            dist.broadcast(p.data, src=0)
    assert not rewards or sum(rewards[-4:]) > sum(rewards[:4])
    dist.destroy_process_group()
