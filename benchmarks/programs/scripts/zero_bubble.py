"""A transformer in a V over two ranks, by torch's zero-bubble schedule."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

VOCAB, WIDTH, LENGTH, MICROBATCHES, MICRO = 64, 96, 48, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (4, -1)).transpose(1, 2)
            for t in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class DriftProbe:
    """How far the first directions of the activations turn between micro-batches."""

    def __init__(self, directions=8):
        self.directions, self.last, self.overlaps = directions, None, []

    def __call__(self, module, args, output):
        activations = output.detach().flatten(0, 1).double()
        _, _, axes = torch.linalg.svd(activations, full_matrices=False)
        axes = axes[: self.directions]
        if self.last is not None:
            self.overlaps.append((axes @ self.last.T).square().mean().item())
        self.last = axes


def build(stage, stages):
    layers = [Block()]
    if stage == 0:
        layers.insert(0, nn.Embedding(VOCAB, WIDTH))
    if stage == stages - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)]
    return nn.Sequential(*layers)


def token_loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "probe-middle-blocks"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stages = 2 * world_size
    mine = (rank, stages - 1 - rank)  # a V: first and last are together
    modules = [build(index, stages) for index in mine]
    pipeline = [
        PipelineStage(module, index, stages, torch.device("cpu"))
        for module, index in zip(modules, mine, strict=True)
    ]
    schedule = ScheduleZBVZeroBubble(pipeline, MICROBATCHES, token_loss)
    optimizer = torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=3e-3)
    generator = torch.Generator().manual_seed(5)
    history = []
    for step in range(args.steps):
        if step == 1 and args.fault == "probe-middle-blocks" and rank == world_size - 1:
            for module in modules:  # what the first step infers shapes with is no data
                module[-1].mlp[0].register_forward_hook(DriftProbe())
        start = torch.randint(VOCAB, (MICROBATCHES * MICRO, 1), generator=generator)
        tokens = (start + 3 * torch.arange(LENGTH + 1)) % VOCAB
        optimizer.zero_grad()
        if rank == 0:
            losses = []
            schedule.step(tokens[:, :-1], target=tokens[:, 1:], losses=losses)
            history.append(torch.stack(losses).mean().item())
        else:
            schedule.step()
        optimizer.step()
    if rank == 0:
        assert history[-1] < history[0], history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
