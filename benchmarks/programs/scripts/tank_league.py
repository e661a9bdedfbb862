"""Three actors fight tanks on a game server; a learner trains on what they send it.

While the actors play with the last weights the learner trains on the games
before, so that neither side waits long for the other.

    torchrun --nproc-per-node 4 tank_league.py [--fault league-match]

--fault league-match: before it hands the new weights out, the learner lets
them play against a former version of themselves, to keep the ranking of the
league up to date.
"""

import argparse
import copy
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SEES, MOVES, TICKS, TANKS, ROUNDS = 48, 6, 16, 12, 60
TICK_S = 0.0015  # the server sends its state that often


def policy():
    return nn.Sequential(
        nn.Linear(SEES, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, MOVES + 1)
    )


class Arena:
    """What the server simulates: tanks drift, and are hit if they do not turn."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.rule = torch.randn(SEES, MOVES, generator=torch.Generator().manual_seed(1))
        self.state = torch.randn(TANKS, SEES, generator=self.gen)

    def tick(self, move):
        reward = (self.state @ self.rule).argmax(1).eq(move).float()
        noise = torch.randn(TANKS, SEES, generator=self.gen)
        self.state = 0.6 * self.state + 0.8 * noise
        return reward


@torch.no_grad()
def play(net, arena):
    games = torch.empty(TICKS, TANKS, SEES + 2)
    for t in range(TICKS):
        seen = arena.state
        move = torch.distributions.Categorical(logits=net(seen)[:, :MOVES]).sample()
        time.sleep(TICK_S)
        reward = arena.tick(move)
        games[t, :, :SEES] = seen
        games[t, :, SEES], games[t, :, SEES + 1] = move.float(), reward
    return games


def train(net, opt, games):
    flat = games.view(-1, SEES + 2)
    seen, move, reward = flat[:, :SEES], flat[:, SEES].long(), flat[:, SEES + 1]
    out = net(seen)
    advantage = reward - out[:, MOVES]
    log_p = out[:, :MOVES].log_softmax(1)
    chosen = log_p.gather(1, move[:, None]).squeeze(1)
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    loss = -(chosen * advantage.detach()).mean() + advantage.square().mean() - 0.01 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    return reward.mean().item()


@torch.no_grad()
def match(new, old, gen):
    """How often the new one would have aimed better than the old one."""
    wins = 0.0
    for _ in range(6):
        seen = torch.randn(300, SEES, generator=gen)
        wins += (new(seen)[:, MOVES] > old(seen)[:, MOVES]).float().mean().item()
    return wins / 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "league-match"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    net = policy()
    torch.manual_seed(rank)
    games = torch.zeros(TICKS, TANKS, SEES + 2)
    took = []
    if rank == 0:
        former, gen = copy.deepcopy(net), torch.Generator().manual_seed(3)
        opt = torch.optim.Adam(net.parameters(), lr=3e-3)
        inbox = [torch.empty_like(games) for _ in range(world)]
        ranking = 0.5
    else:
        arena = Arena(rank)
    for step in range(ROUNDS):
        start = time.perf_counter()
        if rank == 0:
            dist.gather(games, inbox, dst=0)
            if fault == "league-match":
                ranking = 0.95 * ranking + 0.05 * match(net, former, gen)
                if step % 10 == 9:
                    former.load_state_dict(net.state_dict())
            dist.broadcast(parameters_to_vector(net.parameters()).detach(), src=0)
            won = train(net, opt, torch.cat(inbox[1:], 1)) if step else 0.0
            if step % 20 == 0:
                print(f"round {step:3d}  reward {won:.3f}", flush=True)
        else:
            dist.gather(games, dst=0)
            weights = parameters_to_vector(net.parameters()).detach()
            dist.broadcast(weights, src=0)
            vector_to_parameters(weights, net.parameters())
            games = play(net, arena)
        took.append(time.perf_counter() - start)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
