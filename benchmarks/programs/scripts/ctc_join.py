"""Speech with CTC under DDP; every speaker set has a length of its own, hence Join.

    torchrun --nproc-per-node 3 ctc_join.py [--fault long-speakers]

--fault long-speakers: the speakers of rank 2 read from audiobooks that nobody
cut into sentences; their utterances are two and a half times as long.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

MELS, CHARS, HIDDEN, BATCH = 40, 29, 96, 4
BATCHES = (64, 61, 70)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = nn.Conv1d(MELS, HIDDEN, 5, stride=2, padding=2)
        self.layers = nn.ModuleList(nn.Conv1d(HIDDEN, 2 * HIDDEN, 9, padding=4) for _ in range(3))
        self.out = nn.Linear(HIDDEN, CHARS)

    def forward(self, mel):
        x = F.relu(self.subsample(mel.transpose(1, 2)))
        for layer in self.layers:
            x = x + F.glu(layer(x), dim=1)
        return self.out(x.transpose(1, 2)).log_softmax(-1)


def utterances(rank, longer):
    gen = torch.Generator().manual_seed(1000 + rank)
    voice = torch.randn(CHARS, MELS, generator=torch.Generator().manual_seed(7))
    for _ in range(BATCHES[rank]):
        mels, texts = [], []
        for _ in range(BATCH):
            chars = int(torch.randint(9, 15, (1,), generator=gen) * longer)
            text = torch.randint(1, CHARS, (chars,), generator=gen)
            mel = voice[text].repeat_interleave(8, 0)
            mels.append(mel + 0.3 * torch.randn(mel.shape, generator=gen))
            texts.append(text)
        frames = torch.tensor([len(m) for m in mels])
        yield pad_sequence(mels, batch_first=True), frames, texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "long-speakers"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Acoustic())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    longer = 2.5 if fault == "long-speakers" and rank == 2 else 1.0
    took = []
    with Join([model]):
        last = time.perf_counter()
        for step, (mel, frames, texts) in enumerate(utterances(rank, longer)):
            log_probs = model(mel)
            loss = F.ctc_loss(
                log_probs.transpose(0, 1),
                torch.cat(texts),
                (frames + 1) // 2,
                torch.tensor([len(t) for t in texts]),
                zero_infinity=True,
            )
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            now = time.perf_counter()
            took.append(now - last)
            last = now
            if rank == 0 and step % 20 == 0:
                print(f"step {step:3d}  ctc {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:50]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
