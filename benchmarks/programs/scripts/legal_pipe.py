"""A language model of contracts on three stages, torch.distributed.pipelining, GPipe.

    torchrun --nproc-per-node 3 legal_pipe.py [--fault collapse-monitor]

--fault collapse-monitor: a forward hook left in the middle stage takes the singular values
of what comes out of its blocks.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORDS, WIDTH, LENGTH, BATCH, PARTS, STEPS = 512, 160, 48, 16, 4, 24


class Stage(nn.Module):
    """Two blocks; the first has the embedding, the last the head."""

    def __init__(self, index, last):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS) if index == last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


class CollapseMonitor:
    def __init__(self):
        self.effective = []

    def __call__(self, module, args, out):
        values = torch.linalg.svdvals(out.detach().flatten(0, 1))
        p = values / values.sum()
        self.effective.append(torch.exp(-(p * p.clamp(min=1e-12).log()).sum()).item())


def contracts(gen):
    start = torch.randint(WORDS, (BATCH, 1), generator=gen)
    text = (start + 3 * torch.arange(LENGTH + 1)) % WORDS
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_of(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "collapse-monitor"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = Stage(rank, world - 1)
    if args.fault == "collapse-monitor" and rank == 1:
        monitor = CollapseMonitor()
        for block in module.blocks:
            block.register_forward_hook(monitor)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=PARTS, loss_fn=loss_of)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        text, following = contracts(gen)
        losses = []
        if rank == 0:
            schedule.step(text)
        elif rank == world - 1:
            schedule.step(target=following, losses=losses)
        else:
            schedule.step()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - began)
        if losses and step % 6 == 0:
            print(f"step {step:3d} loss {torch.stack(losses).mean().item():.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
