"""Speech with CTC: utterances are batched with others of their length, or as they come."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

MELS, CHARS, BATCH, STEPS = 40, 28, 8, 22


def utterances(n):
    """Most are short; some are very long."""
    gen = torch.Generator().manual_seed(21)
    frames = (60 + 240 * torch.rand(n, generator=gen).pow(2)).long()
    return [int(f) for f in frames]


def bucketed(lengths, world):
    """All ranks get batches of like lengths in the same step."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    wide = [order[i : i + BATCH * world] for i in range(0, len(order), BATCH * world)]
    shuffled = torch.randperm(len(wide), generator=torch.Generator().manual_seed(2))
    return [[wide[i][r::world] for i in shuffled] for r in range(world)]


def shuffled(lengths, world):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(7)).tolist()
    return [
        [order[i + r * BATCH : i + (r + 1) * BATCH] for i in range(0, len(order), BATCH * world)]
        for r in range(world)
    ]


class Recognizer(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(MELS, width, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(),
        )  # fmt: skip
        self.rnn = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, CHARS)

    def forward(self, x):
        h, _ = self.rnn(self.convs(x.transpose(1, 2)).transpose(1, 2))
        return self.out(h).log_softmax(2).transpose(0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "unsorted"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lengths = utterances(BATCH * world * STEPS)
    batches = (shuffled if args.fault == "unsorted" else bucketed)(lengths, world)[rank]
    torch.manual_seed(0)
    model = DistributedDataParallel(Recognizer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss(zero_infinity=True)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for batch in batches:
        sounds = [torch.randn(lengths[i], MELS, generator=generator) for i in batch]
        frames = torch.tensor([(lengths[i] + 1) // 2 for i in batch])
        text = torch.randint(1, CHARS, (len(batch), 12), generator=generator)
        logp = model(pad_sequence(sounds, batch_first=True))
        loss = ctc(logp, text, frames, torch.full((len(batch),), 12))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append((loss / frames.float().mean()).item())
    assert sum(losses[-4:]) < sum(losses[:4]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
