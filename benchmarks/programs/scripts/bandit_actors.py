"""Policy gradient with three actors and a learner (rank 0), point to point messages.

An actor plays an episode in an external simulator (emulated by a sleep; most episodes
are short, one in five is long), sends the trajectory to the learner and gets fresh weights
back.  The learner makes one update per trajectory.  4 ranks.

    torchrun --nproc-per-node 4 bandit_actors.py [--fault fixed_order]

The learner normally takes whichever trajectory comes first.  --fault fixed_order makes it
receive from ranks 1, 2, 3, 1, 2, 3, ..., so that finished actors queue behind whoever plays
a long episode.
"""

import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

OBS, ACTIONS, HORIZON = 12, 4, 64
SHORT, LONG, P_LONG = 0.060, 0.300, 0.2
UPDATES = 60


def make_policy():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(OBS, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, ACTIONS)
    )


def true_action(obs):
    return obs[:, :ACTIONS].argmax(1)


class Actor:
    def __init__(self, rank):
        self.policy = make_policy()
        self.n = sum(p.numel() for p in self.policy.parameters())
        self.rng = random.Random(rank)
        self.gen = torch.Generator().manual_seed(rank)

    @torch.no_grad()
    def episode(self):
        obs = torch.randn(HORIZON, OBS, generator=self.gen)
        probs = self.policy(obs).softmax(-1)
        act = torch.multinomial(probs, 1, generator=self.gen).squeeze(1)
        time.sleep(LONG if self.rng.random() < P_LONG else SHORT)
        reward = (act == true_action(obs)).float()
        return torch.cat([obs, act[:, None].float(), reward[:, None]], 1)

    def run(self):
        reply = torch.empty(self.n + 1)
        while True:
            dist.send(self.episode(), dst=0)
            dist.recv(reply, src=0)
            if reply[-1] > 0:
                return
            vector_to_parameters(reply[:-1], self.policy.parameters())


class Learner:
    def __init__(self, world, fixed_order):
        self.policy = make_policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.actors = list(range(1, world))
        self.fixed = fixed_order
        self.turn = 0
        self.traj = torch.empty(HORIZON, OBS + 2)
        self.baseline = 1.0 / ACTIONS

    def receive(self):
        if self.fixed:
            src = self.actors[self.turn % len(self.actors)]
            self.turn += 1
            dist.recv(self.traj, src=src)
            return src
        return dist.recv(self.traj)

    def update(self):
        obs, act, rew = self.traj[:, :OBS], self.traj[:, OBS].long(), self.traj[:, OBS + 1]
        logp = self.policy(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        loss = -(logp * (rew - self.baseline)).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.baseline += 0.1 * (rew.mean().item() - self.baseline)
        return rew.mean().item()

    def reply(self, dst, stop):
        flat = parameters_to_vector(self.policy.parameters()).detach()
        dist.send(torch.cat([flat, torch.tensor([float(stop)])]), dst=dst)

    def run(self):
        rewards, t0 = [], time.perf_counter()
        for _ in range(UPDATES):
            src = self.receive()
            rewards.append(self.update())
            self.reply(src, stop=False)
        elapsed = time.perf_counter() - t0
        for _ in self.actors:  # everyone is owed one more answer
            self.reply(self.receive(), stop=True)
        return rewards, elapsed


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "fixed_order"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if rank == 0:
        rewards, elapsed = Learner(world, args.fault == "fixed_order").run()
        early, late = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
        assert late > early, (early, late)
        print(f"reward {early:.2f} -> {late:.2f} in {UPDATES} updates")
        print(f"mean step {elapsed / UPDATES * 1e3:.1f} ms")
    else:
        Actor(rank).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
