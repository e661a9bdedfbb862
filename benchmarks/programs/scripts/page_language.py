"""Which language is a web page in? A small convolution over its first characters."""

import argparse
import random
import re

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

TRAILING = re.compile(r"[\s\u200c]+$")
SPACES = re.compile(r"\s+")
LANGUAGES = (
    ("ka", "to", "mi", "ren", "shi", "no"),
    ("der", "und", "sch", "ein", "gen", "ig"),
    ("que", "los", "cion", "ar", "el", "ado"),
    ("och", "att", "ska", "het", "ning", "ar"),
)
LENGTH = 96


class Crawl(Dataset):
    """The pages of one crawl, cleaned when they are read."""

    def __init__(self, number, pages, tables):
        rng = random.Random(number)
        self.labels = [rng.randrange(len(LANGUAGES)) for _ in range(pages)]
        self.pages = []
        for index, label in enumerate(self.labels):
            words = ["".join(rng.choices(LANGUAGES[label], k=3)) for _ in range(30)]
            if tables and index % 8 == 0:  # <pre>, padded to the width of somebody's report
                words.insert(4, "|" + " " * 900 + "|")
            self.pages.append(" ".join(words) + "\n\n")

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, index):
        text = SPACES.sub(" ", TRAILING.sub("", self.pages[index]))
        codes = list(text.encode("ascii")[:LENGTH].ljust(LENGTH))
        return torch.tensor(codes), self.labels[index]


class Reader(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.conv1 = nn.Conv1d(width, 2 * width, 5, padding=2)
        self.conv2 = nn.Conv1d(2 * width, 2 * width, 5, padding=2, stride=2)
        self.head = nn.Linear(2 * width, len(LANGUAGES))

    def forward(self, codes):
        x = self.characters(codes).transpose(1, 2)
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return self.head(x.amax(2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--fault", choices=["none", "padded-tables"], default="none")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tables = args.fault == "padded-tables" and rank == 1
    loader = DataLoader(Crawl(rank, 14 * args.batch_size, tables), batch_size=args.batch_size)

    torch.manual_seed(0)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for codes, labels in loader:
        loss = F.cross_entropy(model(codes), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    if rank == 0:
        print("loss", *(f"{loss:.3f}" for loss in losses))
    dist.destroy_process_group()
