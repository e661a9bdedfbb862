"""A character model, LSTM cells unrolled by hand; somebody was looking for a NaN."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

TEXT = "it was the best of times, it was the worst of times, it was the age of wisdom. " * 40
CHARS = sorted(set(TEXT))
DATA = torch.tensor([CHARS.index(c) for c in TEXT])


class CharRNN(nn.Module):
    def __init__(self, hidden=224):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), 64)
        self.one, self.two = nn.LSTMCell(64, hidden), nn.LSTMCell(hidden, hidden)
        self.out = nn.Linear(hidden, len(CHARS))

    def forward(self, x):
        a = b = None
        ys = []
        for column in self.embed(x).unbind(1):
            a = self.one(column, a)
            b = self.two(a[0], b)
            ys.append(self.out(b[0]))
        return torch.stack(ys, 1)


def batches(rank, n=24, length=32):
    gen = torch.Generator().manual_seed(100 + rank)
    while True:
        at = torch.randint(0, len(DATA) - length - 1, (n, 1), generator=gen)
        window = DATA[at + torch.arange(length + 1)]
        yield window[:, :-1], window[:, 1:]


parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "detect-anomaly"], default="none")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(CharRNN())
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
if rank == 0 and args.fault == "detect-anomaly":
    torch.autograd.set_detect_anomaly(True)
history = []
for step, (x, y) in zip(range(14), batches(rank)):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 1.0)
    opt.step()
    history.append(loss.item())
print(history)
assert history[-1] < history[0]
dist.destroy_process_group()
