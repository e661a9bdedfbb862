"""An IMPALA-like agent: every rank plays against its own emulator and learns with V-trace.

The emulators are processes of their own, on the hosts of ranks 0, 1 and of ranks 2, 3.
"""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

ENVS, UNROLL, ACTIONS, PIXELS = 8, 10, 4, 48


class Emulators:
    """A corridor for each environment; the reward is for the action that the screen shows."""

    def __init__(self, seed, frame_time):
        self.rng = np.random.default_rng(seed)
        self.frame_time = frame_time
        self.target = self.rng.integers(ACTIONS, size=ENVS)
        self.codes = np.random.default_rng(0).normal(size=(ACTIONS, PIXELS)).astype(np.float32)

    def screen(self):
        return torch.from_numpy(self.codes[self.target])

    def step(self, actions):
        time.sleep(self.frame_time)
        reward = (actions.numpy() == self.target).astype(np.float32)
        self.target = self.rng.integers(ACTIONS, size=ENVS)
        return self.screen(), torch.from_numpy(reward)

    def load_map(self, seconds):
        time.sleep(seconds)
        self.target = self.rng.integers(ACTIONS, size=ENVS)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.policy, self.value = nn.Linear(256, ACTIONS), nn.Linear(256, 1)

    def forward(self, screen):
        h = self.body(screen)
        return self.policy(h).log_softmax(-1), self.value(h).squeeze(-1)


@torch.no_grad()
def unroll(agent, emulators):
    screens, actions, rewards, behaviour = [emulators.screen()], [], [], []
    for _ in range(UNROLL):
        logp, _ = agent(screens[-1])
        action = torch.multinomial(logp.exp(), 1).squeeze(1)
        screen, reward = emulators.step(action)
        screens.append(screen)
        actions.append(action)
        rewards.append(reward)
        behaviour.append(logp.gather(1, action[:, None]).squeeze(1))
    return tuple(map(torch.stack, (screens, actions, rewards, behaviour)))


def vtrace_loss(agent, screens, actions, rewards, behaviour, gamma=0.5):
    logp, value = agent(screens)
    taken = logp[:-1].gather(2, actions[..., None]).squeeze(2)
    with torch.no_grad():
        rho = (taken - behaviour).exp().clamp(max=1)
        correction, target = torch.zeros(ENVS), torch.empty(UNROLL, ENVS)
        for t in reversed(range(UNROLL)):
            delta = rho[t] * (rewards[t] + gamma * value[t + 1] - value[t])
            correction = delta + gamma * rho[t] * correction
            target[t] = value[t] + correction
        advantage = rho * (target - value[:-1])
    entropy = -(logp.exp() * logp).sum(-1).mean()
    critic = (target - value[:-1]).square().mean()
    return -(taken * advantage).mean() + 0.5 * critic - 0.01 * entropy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "map-change"], default="none")
    parser.add_argument("--updates", type=int, default=14)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    agent = Agent()
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    emulators = Emulators(10 + rank, frame_time=0.003)
    returns = []
    for update in range(args.updates):
        if update % 4 == 2:
            old_disk = args.fault == "map-change" and rank >= 2
            emulators.load_map(0.110 if old_disk else 0.010)
        batch = unroll(agent, emulators)
        optimizer.zero_grad()
        vtrace_loss(agent, *batch).backward()
        flat = nn.utils.parameters_to_vector([p.grad for p in agent.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world, [p.grad for p in agent.parameters()])
        optimizer.step()
        returns.append(batch[2].mean())
    score = torch.stack([torch.stack(returns[:4]).mean(), torch.stack(returns[-4:]).mean()])
    dist.all_reduce(score)
    assert score[1] > score[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
