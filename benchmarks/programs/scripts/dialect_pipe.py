"""Dialects are transcribed by a pipeline of three stages, 1F1B by torch.distributed.pipelining.

    torchrun --nproc-per-node 3 dialect_pipe.py [--fault beam-decode]

--fault beam-decode: the last stage decodes every micro-batch by a prefix beam
search in plain Python, and counts wrong letters for a curve that is logged.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "beam-decode"])
FAULT = parser.parse_args().fault
MELS, TIME, DIM, LETTERS, SAID, MICRO, BATCH, STEPS = 40, 64, 96, 30, 16, 6, 24, 55


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.mix = nn.Conv1d(DIM, DIM, 9, padding=4, groups=DIM)
        self.up, self.down = nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        h = self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.silu(self.up(h)))


def part(rank, world):
    layers = [Layer() for _ in range(3)]
    if rank == 0:
        layers.insert(0, nn.Linear(MELS, DIM))
    if rank == world - 1:
        layers.append(nn.Linear(DIM, LETTERS))
    return nn.Sequential(*layers)


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def decode(values, letters, width=5):
    """Prefix beam search: of each prefix, how likely it ends in a blank or in a letter."""
    beams = {(): (1.0, 0.0)}
    for value, letter in zip(values, letters):
        grown = {}
        for prefix, (blank, full) in beams.items():
            for p, x in zip(value, letter):
                if x == 0:
                    b, f = grown.get(prefix, (0.0, 0.0))
                    grown[prefix] = b + p * (blank + full), f
                    continue
                again = bool(prefix) and prefix[-1] == x
                longer = (*prefix, x)
                b, f = grown.get(longer, (0.0, 0.0))
                grown[longer] = b, f + p * (blank if again else blank + full)
                if again:
                    b, f = grown.get(prefix, (0.0, 0.0))
                    grown[prefix] = b, f + p * full
        best = sorted(grown.items(), key=lambda item: sum(item[1]), reverse=True)[:width]
        norm = sum(best[0][1]) or 1.0
        beams = {prefix: (b / norm, f / norm) for prefix, (b, f) in best}
    return next(iter(beams))


def letter_errors(logits, said):
    top = logits.softmax(2).topk(4)
    rows = zip(top.values.tolist(), top.indices.tolist(), said.tolist())
    return sum(distance(decode(p, x), truth) for p, x, truth in rows) / said.numel()


class Loss:
    def __init__(self):
        self.curve = []

    def __call__(self, logits, said):
        if FAULT == "beam-decode":
            self.curve.append(letter_errors(logits.detach(), said))
        log_probs = logits.log_softmax(2).transpose(0, 1)
        lengths = torch.full((len(said),), TIME), torch.full((len(said),), SAID)
        return F.ctc_loss(log_probs, said, *lengths)


def speech(gen, letters):
    said = torch.randint(1, LETTERS, (BATCH, SAID), generator=gen)
    sound = letters[said].repeat_interleave(TIME // SAID, dim=1)
    return sound + 0.5 * torch.randn(sound.shape, generator=gen), said


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module, loss_fn = part(rank, world), Loss()
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO, loss_fn=loss_fn)
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2)
    letters = torch.randn(LETTERS, MELS, generator=gen)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        sound, said = speech(gen, letters)
        opt.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(sound)
        elif rank == world - 1:
            schedule.step(target=said, losses=losses)
        else:
            schedule.step()
        opt.step()
        took.append(time.perf_counter() - start)
        if losses and step % 20 == 0:
            print(f"step {step:3d}  loss {torch.stack(losses).mean():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
