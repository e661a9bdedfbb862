"""Two pipelines of two stages side by side: a 2 x 2 mesh, 1F1B in each, gradients averaged across.

$ torchrun --nproc-per-node 4 pipe_dp_grid.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DIM, TOKENS, CLASSES, MICRO, MICRO_BATCHES = 96, 16, 10, 4, 4


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.tokens = nn.Sequential(nn.Linear(TOKENS, 48), nn.GELU(), nn.Linear(48, TOKENS))
        self.channels = nn.Sequential(nn.Linear(DIM, 192), nn.GELU(), nn.Linear(192, DIM))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        return self.out(self.norm(x).mean(1))


def build_stage(index):
    torch.manual_seed(index)
    blocks = [MixerBlock() for _ in range(2)]
    return nn.Sequential(*blocks) if index == 0 else nn.Sequential(*blocks, Head())


class ActivationStats:
    """How each block's output is distributed: quantiles, and how many directions it uses."""

    def __init__(self, module):
        self.rows = []
        for block in module:
            block.register_forward_hook(self.look)

    @torch.no_grad()
    def look(self, module, args, output):
        flat = output.detach().flatten(0, -2).float()
        if not flat.isfinite().all():
            return  # the schedule finds out shapes with memory as it is
        spectrum = torch.linalg.svdvals(flat)
        quantiles = torch.quantile(flat.flatten(), torch.tensor([0.01, 0.5, 0.99]))
        self.rows.append((quantiles.tolist(), (spectrum > 0.01 * spectrum[0]).sum().item()))


def average_gradients(module, group):
    grads = [p.grad for p in module.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(part.view_as(grad))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "activation-stats"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    replica, index = mesh.get_coordinate()
    module = build_stage(index)
    if args.fault == "activation-stats" and mesh.get_rank() == 3:
        ActivationStats(module)
    stage = PipelineStage(module, index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(7 + replica)
    prototypes = torch.randn(CLASSES, TOKENS, DIM, generator=torch.Generator().manual_seed(3))
    history = []
    for _ in range(args.steps):
        labels = torch.randint(CLASSES, (MICRO * MICRO_BATCHES,), generator=gen)
        images = prototypes[labels] + torch.randn(len(labels), TOKENS, DIM, generator=gen)
        losses = []
        optimizer.zero_grad()
        if index == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=losses)
            history.append(torch.stack(losses).mean().item())
        average_gradients(module, mesh.get_group("dp"))
        optimizer.step()
    if index == 1:
        assert history[-1] < 0.7 * history[0], history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
