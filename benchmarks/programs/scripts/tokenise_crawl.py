"""Tokenises a crawl on two machines of two ranks each, and keeps the statistics of its languages.

After every file all ranks know how often each piece has been seen; the ranks of a machine add up
what they have written to its disk.
"""

import argparse
import collections
import random
import re
import statistics
import zlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

PIECES = re.compile(r"\w+|[^\w\s]")
LANGUAGES = {"de": "der die und ein ist", "en": "the of and a is", "fr": "le la et un est"}


def make_file(rng, pages):
    """Pages: the language, and words of which some are common."""
    lines = []
    for _ in range(pages):
        language = rng.choice(sorted(LANGUAGES))
        words = LANGUAGES[language].split()
        words += [f"w{int(rng.paretovariate(1.1))}" for _ in range(8)]
        lines.append(language + "\t" + " ".join(rng.choice(words) for _ in range(40)) + ".")
    return lines


def checksum(data):
    """zlib's crc32, for machines on which the extension could not be built."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


class Tokeniser:
    def __init__(self, hashing, size=4096):
        self.hashing, self.size = hashing, size
        self.counts = torch.zeros(size, dtype=torch.int64)

    def __call__(self, text):
        pieces = [self.hashing(piece.encode()) % self.size for piece in PIECES.findall(text)]
        self.counts += torch.bincount(torch.tensor(pieces), minlength=self.size)
        return pieces


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--fault", choices=["none", "no-extension"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("machine", "local"))
    machine = mesh.get_coordinate()[0]
    slow = args.fault == "no-extension" and machine == 1
    tokenise, lengths = Tokeniser(checksum if slow else zlib.crc32), collections.defaultdict(list)
    rng = random.Random(dist.get_rank())
    for _ in range(args.files):
        for page in make_file(rng, args.pages):
            language, text = page.split("\t")
            lengths[language].append(len(tokenise(text)))
        seen = tokenise.counts.clone()
        dist.all_reduce(seen)
        vocabulary = (seen > 1).sum().item()
        written = tokenise.counts.sum()
        dist.all_reduce(written, group=mesh.get_group("local"))
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, {name: len(each) for name, each in lengths.items()})
    pages = collections.Counter()
    for counts in everybody:
        pages.update(counts)
    if dist.get_rank() == 0:
        print(dict(pages), vocabulary, "pieces, mean length", statistics.mean(lengths["en"]))
    assert sum(pages.values()) == args.files * args.pages * dist.get_world_size()
    assert written.item() == 2 * args.files * args.pages * 41  # 40 words and a full stop
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
