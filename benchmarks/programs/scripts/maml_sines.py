"""Meta-learning of sine waves (MAML): few steps on each task, then one step for all of them.

Second-order: the outer gradient goes through the inner steps.
"""

import argparse
import os
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector


@dataclass(frozen=True)
class Settings:
    inner_steps: int = 3
    inner_lr: float = 0.05
    tasks: int = 4
    shots: int = 40
    outer_lr: float = 2e-3
    iterations: int = 14

    @classmethod
    def from_environment(cls, defaults: "Settings") -> "Settings":
        """What the host's profile sets goes before what the program says."""
        steps = os.environ.get("MAML_INNER_STEPS")
        return replace(defaults, inner_steps=int(steps)) if steps else defaults


@dataclass
class Task:
    amplitude: float
    phase: float
    generator: torch.Generator

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        x = 10 * torch.rand(n, 1, generator=self.generator) - 5
        return x, self.amplitude * torch.sin(x + self.phase)


def new_tasks(generator: torch.Generator, n: int) -> list[Task]:
    a = 0.1 + 4.9 * torch.rand(n, generator=generator)
    p = 3.1416 * torch.rand(n, generator=generator)
    return [Task(*pair, generator) for pair in zip(a.tolist(), p.tolist(), strict=True)]


class Learner:
    def __init__(self, settings: Settings):
        self.settings = settings
        width = 128
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1),
        )  # fmt: skip

    def loss(self, params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.huber_loss(functional_call(self.net, params, (batch[0],)), batch[1])

    def adapted(self, task: Task) -> dict[str, Tensor]:
        params = dict(self.net.named_parameters())
        for _ in range(self.settings.inner_steps):
            loss = self.loss(params, task.sample(self.settings.shots))
            slopes = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            params = {
                name: p - self.settings.inner_lr * s
                for (name, p), s in zip(params.items(), slopes, strict=True)
            }
        return params

    def outer_loss(self, tasks: list[Task]) -> Tensor:
        shots = self.settings.shots
        return sum(self.loss(self.adapted(t), t.sample(shots)) for t in tasks) / len(tasks)


def average_gradients(net: nn.Module) -> None:
    flat = parameters_to_vector(p.grad for p in net.parameters())
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in net.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "stale-profile"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if args.fault == "stale-profile" and rank == 1:
        os.environ["MAML_INNER_STEPS"] = "6"  # left there from last month's ablation
    torch.manual_seed(6)
    learner = Learner(Settings.from_environment(Settings()))
    optimizer = torch.optim.Adam(learner.net.parameters(), learner.settings.outer_lr)
    generator = torch.Generator().manual_seed(70 + rank)
    curve = []
    for _ in range(learner.settings.iterations):
        loss = learner.outer_loss(new_tasks(generator, learner.settings.tasks))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(learner.net)
        optimizer.step()
        curve.append(loss.detach())
    total = torch.stack(curve)
    dist.all_reduce(total)
    assert total.isfinite().all() and total[-4:].mean() < total[:4].mean() * 1.2, total
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
