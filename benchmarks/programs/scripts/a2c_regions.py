"""
Synchronous advantage actor-critic. The simulators run elsewhere.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ENVS, HORIZON, OBSERVATION, ACTIONS, GAMMA = 8, 4, 24, 4, 0.9


class RemoteSimulators:
    """Points that are to be steered to the origin; each step is a round trip to their region."""

    def __init__(self, seed, round_trip_ms):
        self.generator = torch.Generator().manual_seed(seed)
        self.round_trip_ms = round_trip_ms
        self.positions = 2 * torch.randn(ENVS, 2, generator=self.generator)
        self.moves = torch.tensor([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])
        self.lift = torch.randn(2, OBSERVATION, generator=torch.Generator().manual_seed(0))

    def observe(self):
        return torch.tanh(self.positions @ self.lift)

    def step(self, actions):
        time.sleep(self.round_trip_ms / 1e3)
        before = self.positions.norm(dim=1)
        self.positions = self.positions + self.moves[actions]
        after = self.positions.norm(dim=1)
        home = after < 0.4
        fresh = 2 * torch.randn(ENVS, 2, generator=self.generator)
        self.positions = torch.where(home[:, None], fresh, self.positions)
        return self.observe(), before - after + home


class ActorCritic(nn.Module):
    def __init__(self, hidden=480):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBSERVATION, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.policy = nn.Linear(hidden, ACTIONS)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.body(x)
        return self.policy(x), self.value(x).squeeze(-1)


@torch.no_grad()
def collect(model, simulators):
    observations, actions, rewards = [simulators.observe()], [], []
    for _ in range(HORIZON):
        logits, _ = model(observations[-1])
        action = torch.distributions.Categorical(logits=logits).sample()
        observation, reward = simulators.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
    return torch.stack(observations), torch.stack(actions), torch.stack(rewards)


def a2c_loss(model, observations, actions, rewards):
    logits, values = model(observations)
    target = values[-1].detach()
    targets = []
    for reward in rewards.flip(0):
        target = reward + GAMMA * target
        targets.append(target)
    advantages = torch.stack(targets[::-1]) - values[:-1]
    log_probs = F.log_softmax(logits[:-1], -1)
    chosen = log_probs.gather(-1, actions[..., None]).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    policy_loss = -(chosen * advantages.detach()).mean()
    return policy_loss + 0.5 * advantages.square().mean() - 0.01 * entropy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=16)
    choices = ["none", "far-regions", "sync-parameters"]
    parser.add_argument("--fault", choices=choices, default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-4)
    torch.manual_seed(100 + rank)
    far = args.fault == "far-regions" and rank in (0, 2)
    simulators = RemoteSimulators(rank, round_trip_ms=13 if far else 6)
    start = [p.detach().clone() for p in model.parameters()]
    for _ in range(args.updates):
        if args.fault == "sync-parameters":
            for p in model.parameters():
                dist.broadcast(p.data, src=0)
        rollout = collect(model, simulators)
        loss = a2c_loss(model, *rollout)
        optimizer.zero_grad()
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for g, part in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(part.view_as(g))
        optimizer.step()
    assert torch.isfinite(loss)
    assert any((p - q).abs().max() > 1e-4 for p, q in zip(start, model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
