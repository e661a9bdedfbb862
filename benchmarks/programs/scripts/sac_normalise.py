"""Soft actor-critic on a swarm of pendulums; observations are normalised by running moments."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "each-moment"], default="none")

ENVS, LINKS, STEPS, UPDATES = 64, 10, 6, 14
OBS = 3 * LINKS


class Pendulums:
    def __init__(self, gen):
        self.angle = torch.randn(ENVS, LINKS, generator=gen)
        self.speed = 4 * torch.randn(ENVS, LINKS, generator=gen)

    def observe(self):
        return torch.cat([self.angle.cos(), self.angle.sin(), self.speed], -1)

    def step(self, torque):
        self.speed += 0.05 * (-9.81 * self.angle.sin() + 20 * torque)
        self.speed.clamp_(-8, 8)
        self.angle += 0.05 * self.speed
        return -self.speed.square().mean(-1) / 10


class Moments:
    """Mean and variance of each observation over all ranks' environments so far."""

    def __init__(self, each):
        self.sum, self.squares, self.count = torch.zeros(OBS), torch.zeros(OBS), 1e-4
        self.update = self.update_each if each else self.update_together

    def update_together(self, obs):
        moments = torch.cat([obs.sum(0), obs.square().sum(0), torch.tensor([float(len(obs))])])
        dist.all_reduce(moments)
        self.sum += moments[:OBS]
        self.squares += moments[OBS:-1]
        self.count += moments[-1].item()

    def update_each(self, obs):
        for i in range(OBS):
            total, squares = obs[:, i].sum(), obs[:, i].square().sum()
            dist.all_reduce(total)
            dist.all_reduce(squares)
            self.sum[i] += total
            self.squares[i] += squares
        count = torch.tensor(float(len(obs)))
        dist.all_reduce(count)
        self.count += count.item()

    def __call__(self, obs):
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=1e-4)
        return ((obs - mean) / variance.sqrt()).clamp(-5, 5)


def mlp(inputs, outputs, width=256):
    layers = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def average_gradients(modules):
    grads = [p.grad for m in modules for p in m.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, mean in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(mean.view_as(grad))


def main():
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    actor, critic = mlp(OBS, 2 * LINKS), mlp(OBS + LINKS, 1)
    target = copy.deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    torch.manual_seed(dist.get_rank())
    env, moments, errors = Pendulums(None), Moments(fault == "each-moment"), []

    def act(obs):
        mean, log_std = actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-4, 1).exp())
        raw = normal.rsample()
        return raw.tanh(), (normal.log_prob(raw) - 2 * (0.7 - raw - F.softplus(-2 * raw))).sum(-1)

    for _ in range(UPDATES):
        seen, taken, rewards = [env.observe()], [], []
        with torch.no_grad():
            for _ in range(STEPS):
                action, _ = act(moments(seen[-1]))
                rewards.append(env.step(action))
                seen.append(env.observe())
                taken.append(action)
        moments.update(torch.cat(seen[1:]))
        obs, action, reward = moments(torch.cat(seen[:-1])), torch.cat(taken), torch.cat(rewards)
        with torch.no_grad():
            after = moments(torch.cat(seen[1:]))
            ahead, logp = act(after)
            value = target(torch.cat([after, ahead], -1)).squeeze(-1) - 0.01 * logp
        critic_loss = F.mse_loss(
            critic(torch.cat([obs, action], -1)).squeeze(-1), reward + 0.8 * value
        )
        fresh, logp = act(obs)
        frozen = {k: v.detach() for k, v in critic.named_parameters()}
        q = torch.func.functional_call(critic, frozen, torch.cat([obs, fresh], -1)).squeeze(-1)
        optimizer.zero_grad()
        (critic_loss + (0.01 * logp - q).mean()).backward()
        average_gradients([actor, critic])
        optimizer.step()
        torch._foreach_lerp_([*target.parameters()], [*critic.parameters()], 0.05)
        errors.append(critic_loss.item())
    assert min(errors[-4:]) < errors[0], errors
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
