"""Two simulated harbour cranes (actors) and a learner; the actors are paced by a physics server.

The actors play with the weights of the round before, while the learner trains
on the games of the round before.

    torchrun --nproc-per-node 3 crane_rl.py [--fault replay-dump]

--fault replay-dump: the learner also saves each round's games and weights.
"""

import argparse
import gzip
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SEES, ACTS, TICKS, CRANES, STEPS = 24, 5, 20, 16, 110
TICK = 0.008  # the physics server answers at 125 Hz


def crane_policy():
    return nn.Sequential(nn.Linear(SEES, 96), nn.Tanh(), nn.Linear(96, ACTS + 1))


class PhysicsServer:
    """A client of the simulation: sends an action, gets the state at the next tick."""

    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.goal = torch.randn(SEES, ACTS, generator=torch.Generator().manual_seed(3))
        self.state = torch.randn(CRANES, SEES, generator=self.gen)
        self.next = time.perf_counter()

    def reset_clock(self):
        self.next = time.perf_counter()

    def step(self, action):
        self.next += TICK
        time.sleep(max(0.0, self.next - time.perf_counter()))
        reward = ((self.state @ self.goal).argmax(1) == action).float()
        self.state = 0.5 * self.state + torch.randn(CRANES, SEES, generator=self.gen)
        return reward


@torch.no_grad()
def rollout(net, server, games):
    server.reset_clock()
    for t in range(TICKS):
        seen = server.state
        action = torch.multinomial(net(seen)[:, :ACTS].softmax(1), 1).squeeze(1)
        games[t, :, :SEES] = seen
        games[t, :, SEES] = action.float()
        games[t, :, SEES + 1] = server.step(action)


class Learner:
    def __init__(self, net, folder):
        self.net, self.folder, self.round = net, folder, 0
        self.opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def update(self, games):
        flat = games.flatten(0, -2)
        seen, action, reward = flat[:, :SEES], flat[:, SEES].long(), flat[:, SEES + 1]
        out = self.net(seen)
        log_p = out[:, :ACTS].log_softmax(1)
        advantage = reward - out[:, ACTS]
        chosen = log_p.gather(1, action[:, None]).squeeze(1)
        loss = advantage.square().mean() - (chosen * advantage.detach()).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return reward.mean().item()

    def dump(self, games):
        self.round += 1
        path = os.path.join(self.folder, f"round{self.round % 20:02d}.pt")
        torch.save(
            {"games": games, "net": self.net.state_dict(), "opt": self.opt.state_dict()}, path
        )
        lines = [" ".join(f"{v:.3f}" for v in row) for row in games.flatten(0, 2).tolist()]
        with gzip.open(path + ".txt.gz", "wt") as f:
            f.write("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "replay-dump"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    net = crane_policy()
    torch.manual_seed(rank)
    games = torch.zeros(TICKS, CRANES, SEES + 2)
    if rank:
        server = PhysicsServer(rank)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(net, folder) if rank == 0 else None
        for step in range(STEPS):
            began = time.perf_counter()
            weights = parameters_to_vector(net.parameters()).detach()
            dist.broadcast(weights, 0)
            inbox = [torch.empty_like(games) for _ in range(world)] if rank == 0 else None
            dist.gather(games, inbox, dst=0)
            if rank == 0:
                seen = torch.stack(inbox[1:])
                won = learner.update(seen)
                if fault == "replay-dump":
                    learner.dump(seen)
                if step % 25 == 0:
                    print(f"round {step:3d} reward {won:.3f}", flush=True)
            else:
                vector_to_parameters(weights, net.parameters())
                rollout(net, server, games)
            took.append(time.perf_counter() - began)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
