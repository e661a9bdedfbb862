"""PPO: rank 0 learns; the others play with its weights and send what they saw."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

HORIZON = 16


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Env:
    """One is paid for choosing the largest of the first three numbers."""

    def __init__(self, seed, tick):
        self.gen, self.tick = torch.Generator().manual_seed(seed), tick

    def reset(self):
        self.obs = torch.randn(8, 6, generator=self.gen)
        return self.obs

    def step(self, action):
        time.sleep(self.tick)
        reward = (action == self.obs[:, :3].argmax(1)).float()
        return self.reset(), reward


@torch.no_grad()
def rollout(policy, env):
    rows, obs = [], env.reset()
    for _ in range(HORIZON):
        dist_, value = policy(obs)
        action = dist_.sample()
        nxt, reward = env.step(action)
        extra = torch.stack([action.float(), dist_.log_prob(action), reward - value, reward], 1)
        rows.append(torch.cat([obs, extra], 1))
        obs = nxt
    return torch.cat(rows)


def update(policy, opt, data, epochs=4, clip=0.2):
    obs, action, old, adv, reward = data[:, :6], data[:, 6], data[:, 7], data[:, 8], data[:, 9]
    adv = (adv - adv.mean()) / adv.std()
    for epoch in range(epochs):
        pi, value = policy(obs)
        ratio = (pi.log_prob(action) - old).exp()
        gain = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)
        loss = -gain.mean() + 0.5 * (value - reward).square().mean() - 0.01 * pi.entropy().mean()
        loss.backward()
        if epoch == epochs - 1:
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            opt.step()
            opt.zero_grad()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "slow-env"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=0.02)
    env = Env(rank, 0.003 if args.fault == "slow-env" and rank == 2 else 0.001)
    rewards = []
    for _ in range(args.iterations):
        for p in policy.parameters():
            dist.broadcast(p.data, src=0)
        mine = torch.zeros(8 * HORIZON, 10) if rank == 0 else rollout(policy, env)
        everything = [torch.empty_like(mine) for _ in range(world)] if rank == 0 else None
        dist.gather(mine, everything, dst=0)
        if rank == 0:
            data = torch.cat(everything[1:])
            rewards.append(data[:, 9].mean().item())
            update(policy, opt, data)
    if rank == 0:
        print([round(r, 3) for r in rewards])
        assert rewards[-1] > rewards[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
