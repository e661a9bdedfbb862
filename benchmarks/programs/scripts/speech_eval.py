"""Word error rates of a recognizer: two ranks decode a test set, sums are all_reduced. Evaluation only.

Decoding is greedy CTC in torch, the edit distance is plain Python.

    torchrun --nproc-per-node 2 speech_eval.py [--fault sorted]

--fault sorted: the manifest was sorted by length, and each batch is cut into
contiguous halves: rank 1 always gets the longer utterances.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

FEATURES, LETTERS, PER_BATCH, STEPS = 48, 28, 48, 200


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(FEATURES, 96, 5, padding=2)
        self.body = nn.Sequential(nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 96), nn.ReLU())
        self.out = nn.Linear(96, LETTERS + 1)

    @torch.inference_mode()
    def forward(self, x):
        h = self.front(x.T[None])[0].T
        return self.out(self.body(h)).argmax(1)


def collapse(path):
    text, last = [], None
    for letter in path:
        if letter != last and letter != LETTERS:
            text.append(letter)
        last = letter
    return text


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def manifest(step):
    """Lengths in frames and seeds of the utterances of a batch (shuffled)."""
    gen = torch.Generator().manual_seed(step)
    lengths = torch.randint(50, 190, (PER_BATCH,), generator=gen)
    return [(int(n), step * 1000 + i) for i, n in enumerate(lengths)]


def shard(utterances, rank, world, by_length):
    if by_length:
        utterances = sorted(utterances)
        each = len(utterances) // world
        return utterances[rank * each : (rank + 1) * each]
    # long and short ones to both, in a zigzag
    ranked = sorted(utterances, reverse=True)
    return [u for i, u in enumerate(ranked) if (i + i // world) % world == rank]


def utterance(frames, seed):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(frames, FEATURES, generator=gen), torch.randint(
        LETTERS, (int(frames * 0.7),), generator=gen
    ).tolist()


def evaluate(model, by_length):
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(2, dtype=torch.float64)
    for step in range(STEPS):
        began = time.perf_counter()
        sums = torch.zeros(2, dtype=torch.float64)
        for frames, seed in shard(manifest(step), rank, world, by_length):
            sound, truth = utterance(frames, seed)
            heard = collapse(model(sound).tolist())
            sums += torch.tensor([edit_distance(heard, truth), len(truth)])
        dist.all_reduce(sums)
        whole += sums
        yield step, (whole[0] / whole[1]).item(), time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "sorted"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    took = []
    for step, rate, seconds in evaluate(Recognizer().eval(), fault == "sorted"):
        took.append(seconds)
        if dist.get_rank() == 0 and step % 40 == 0:
            print(f"batch {step:3d} letter errors {100 * rate:.1f} %", flush=True)
    if dist.get_rank() == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
