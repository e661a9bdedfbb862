"""Fine-tuning a small recurrent chat model on dialogues of very uneven length, DDP.

torchrun --nproc-per-node 3 chat_lengths.py [--fault shuffle]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "shuffle"])
FAULT = parser.parse_args().fault
VOCAB, DIM, BATCH, STEPS = 200, 64, 4, 64
PAD = 0


class Dialogues(Dataset):
    def __init__(self, size):
        gen = torch.Generator().manual_seed(9)
        self.lengths = (torch.randn(size, generator=gen) * 0.9 + 4.2).exp().long().clamp(12, 420)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(int(i))
        n = int(self.lengths[i])
        topic = torch.randint(1, VOCAB // 2, (n // 6 + 1,), generator=gen).repeat_interleave(6)[:n]
        return (topic + torch.arange(n) % 6 * 7) % (VOCAB - 1) + 1


class AnyOrder(Sampler):
    """Shuffled batches, every rank its own slice."""

    def __init__(self, data, rank, world):
        gen = torch.Generator().manual_seed(1)
        self.mine = torch.randperm(len(data), generator=gen)[rank::world]

    def __iter__(self):
        yield from self.mine.split(BATCH)


class ByLength(Sampler):
    """All ranks get dialogues of like length at the same step; the steps are shuffled."""

    def __init__(self, data, rank, world):
        order = data.lengths.argsort()
        steps = list(order.split(BATCH * world))
        gen = torch.Generator().manual_seed(1)
        shuffled = torch.randperm(len(steps), generator=gen)
        self.batches = [steps[int(s)][rank::world] for s in shuffled]

    def __iter__(self):
        yield from self.batches


def collate(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=PAD)


class ChatModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(self.norm(h))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Dialogues(STEPS * BATCH * world)
    sampler = (AnyOrder if FAULT == "shuffle" else ByLength)(data, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DDP(ChatModel())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    took = []
    start = time.perf_counter()
    for step, ids in enumerate(loader):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        took.append(now - start)
        start = now
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.mean(took[5:]):.1f} ms/step (mean)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
