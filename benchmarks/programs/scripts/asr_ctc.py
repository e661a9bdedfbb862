"""Train a toy CTC speech recogniser (conv front end, BiGRU) on two ranks.

Utterances are synthetic: every label emits a run of noisy filter-bank frames.
The manifest is sorted by duration, batches are made of neighbours in the
manifest so that there is little padding.

    torchrun --nproc-per-node 2 asr_ctc.py [--fault contiguous_shards]

Normally batch b goes to rank b % world.  --fault contiguous_shards splits the
sorted manifest in contiguous parts instead, so that rank 0 trains on the short
utterances and rank 1 on the long ones.
"""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.profiler import record_function

N_MEL, N_LABELS, BATCH = 40, 12, 5


class Utterances(Dataset):
    """Sorted by duration."""

    def __init__(self, n, seed=3):
        rng = random.Random(seed)
        self.durations = sorted(rng.randint(4, 56) for _ in range(n))
        self.templates = torch.randn(N_LABELS, N_MEL, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.durations)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        labels = torch.randint(1, N_LABELS, (self.durations[i],), generator=g)
        frames = self.templates[labels].repeat_interleave(9, dim=0)
        return frames + 0.3 * torch.randn(frames.shape, generator=g), labels


def collate(items):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    f_len = torch.tensor([len(f) for f, _ in items])
    return feats, f_len, torch.cat([l for _, l in items]), torch.tensor([len(l) for _, l in items])


class ShardSampler:
    """Batch sampler: yields lists of indices for one rank."""

    def __init__(self, n, rank, world, contiguous):
        batches = [list(range(i, i + BATCH)) for i in range(0, n - BATCH + 1, BATCH)]
        if contiguous:
            per = len(batches) // world
            self.mine = batches[rank * per : (rank + 1) * per]
        else:
            self.mine = batches[rank::world]
        random.Random(17).shuffle(self.mine)

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


class Recogniser(nn.Module):
    def __init__(self, hidden=80):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(N_MEL, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.rnn = nn.GRU(64, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, N_LABELS)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h).log_softmax(-1)


def run(args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = Utterances(BATCH * args.steps * world)
    sampler = ShardSampler(len(data), rank, world, args.fault == "contiguous_shards")
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=2)
    model = DistributedDataParallel(Recogniser())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    ctc = nn.CTCLoss(zero_infinity=True)

    per_label, stamps = [], []
    it = iter(loader)
    batch = next(it)
    dist.barrier()
    stamps.append(time.perf_counter())
    while batch is not None:
        x, x_len, y, y_len = batch
        with record_function("forward"):
            logp = model(x).transpose(0, 1)
            loss = ctc(logp, y, (x_len + 3) // 4, y_len)
        with record_function("backward"):
            opt.zero_grad()
            loss.backward()
        with record_function("update"):
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        per_label.append(loss.item())
        batch = next(it, None)
        stamps.append(time.perf_counter())

    if rank == 0:
        n = len(per_label)
        start, end = sum(per_label[:3]) / 3, sum(per_label[-3:]) / 3
        assert end < start, (start, end)
        print(f"{n} steps, ctc loss per label {start:.2f} -> {end:.2f}")
        print(f"mean step {(stamps[-1] - stamps[0]) / n * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--fault", default="none", choices=["none", "contiguous_shards"])
    p.add_argument("--steps", type=int, default=25)
    run(p.parse_args())
