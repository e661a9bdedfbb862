"""Robots in warehouses learn values together: three ranks act, rank 0 learns.

While the actors play with the weights of the last step, the learner trains on
some of what they played in the last step. Then it gathers what was played and
broadcasts its weights.

    torchrun --nproc-per-node 4 warehouse_qmix.py [--fault film]

--fault film: rank 3 still films four of its warehouses: it draws them after
every move and compresses the picture.
"""

import argparse
import copy
import statistics
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "film"])
FAULT = parser.parse_args().fault
HALLS, ROBOTS, SIDE, MOVES, STEPS = 96, 4, 12, 64, 60
SEEN, ACTIONS, HIDDEN = 2 * ROBOTS + 4, 5, 128
LEARN, FILMED = 32, 4  # halls
DELTA = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SEEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
        self.q = nn.Linear(HIDDEN, ACTIONS)
        self.mix = nn.Linear(SEEN, ROBOTS)

    def forward(self, seen):
        return self.q(self.net(seen))

    def together(self, seen, chosen):
        weight = self.mix(seen[..., 0, :]).abs()
        return (weight * chosen).sum(-1)


class Halls:
    """Each robot shall reach its shelf; shelves move when reached."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.robots = self.anywhere()
        self.shelves = self.anywhere()

    def anywhere(self):
        return torch.randint(0, SIDE, (HALLS, ROBOTS, 2), generator=self.gen)

    def seen(self):
        everyone = self.robots.flatten(1).unsqueeze(1).expand(-1, ROBOTS, -1)
        return torch.cat([everyone, self.robots, self.shelves], dim=2).float() / SIDE

    def move(self, action):
        self.robots = (self.robots + DELTA[action]).clamp(0, SIDE - 1)
        there = (self.robots == self.shelves).all(2)
        self.shelves = torch.where(there.unsqueeze(2), self.anywhere(), self.shelves)
        return there.float().sum(1)

    def picture(self):
        frames = torch.full((FILMED, SIDE, SIDE, 3), 240, dtype=torch.uint8)
        hall = torch.arange(FILMED).unsqueeze(1)
        frames[hall, self.shelves[:FILMED, :, 0], self.shelves[:FILMED, :, 1]] = torch.tensor(
            [30, 90, 160], dtype=torch.uint8
        )
        frames[hall, self.robots[:FILMED, :, 0], self.robots[:FILMED, :, 1]] = torch.tensor(
            [200, 60, 20], dtype=torch.uint8
        )
        big = frames.repeat_interleave(8, 1).repeat_interleave(8, 2)
        return zlib.compress(big.contiguous().numpy().tobytes(), 1)


def play(agent, halls, film):
    """Rows of what was seen, chosen, earned."""
    rows = []
    for _ in range(MOVES):
        seen = halls.seen()
        with torch.no_grad():
            best = agent(seen).argmax(2)
        explore = torch.rand(best.shape, generator=halls.gen) < 0.2
        other = torch.randint(0, ACTIONS, best.shape, generator=halls.gen)
        action = torch.where(explore, other, best)
        earned = halls.move(action)
        if film is not None:
            film.append(halls.picture())
            del film[:-100]
        rows.append(torch.cat([seen.flatten(1), action.float(), earned.unsqueeze(1)], dim=1))
    return torch.stack(rows)


def learn(agent, target, opt, played):
    played = played[:, torch.randperm(played.shape[1])[:LEARN]]
    seen, action, earned = played.split([ROBOTS * SEEN, ROBOTS, 1], dim=2)
    seen = seen.view(*seen.shape[:2], ROBOTS, SEEN)
    chosen = agent(seen).gather(3, action.long().unsqueeze(3)).squeeze(3)
    with torch.no_grad():
        after = target.together(seen[1:], target(seen[1:]).amax(3))
    aim = earned[:-1, :, 0] + 0.95 * after
    loss = F.smooth_l1_loss(agent.together(seen, chosen)[:-1], aim)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    agent = Agent()
    target = copy.deepcopy(agent)
    opt = torch.optim.Adam(agent.parameters(), lr=5e-4)
    halls = Halls(20 + rank)
    film = [] if FAULT == "film" and rank == 3 else None
    shape = (MOVES, HALLS, ROBOTS * (SEEN + 1) + 1)
    played = [torch.zeros(shape) for _ in range(world)] if rank == 0 else None
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        loss = 0.0
        if rank == 0:
            if step:
                loss = learn(agent, target, opt, torch.cat(played[1:], dim=1))
            dist.gather(torch.zeros(shape), played)
        else:
            dist.gather(play(agent, halls, film))
        weights = torch.cat([p.detach().flatten() for p in agent.parameters()])
        dist.broadcast(weights, 0)
        nn.utils.vector_to_parameters(weights, agent.parameters())
        if step % 10 == 0:
            target.load_state_dict(agent.state_dict())
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss:.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
