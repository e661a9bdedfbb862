"""Near-duplicates of a crawl by MinHash and bands.

Each rank reads its own files. A band's key belongs to the rank ``key % world``, which knows all
documents that have it and keeps the first.
"""

import argparse

import torch
import torch.distributed as dist

PRIME = (1 << 31) - 1
BANDS, ROWS, SHINGLES, WORDS = 12, 4, 120, 5000


def read_files(rank, number, documents):
    """Word numbers of documents; every fifth is another one of the corpus with a word changed."""
    gen = torch.Generator().manual_seed(1000 * rank + number)
    words = torch.randint(WORDS, (documents, SHINGLES), generator=gen)
    famous = torch.randint(
        WORDS, (documents // 5, SHINGLES), generator=torch.Generator().manual_seed(7777 + number)
    )
    words[::5] = famous[: len(words[::5])]
    words[::5, rank] = rank
    return words


class MinHash:
    def __init__(self):
        gen = torch.Generator().manual_seed(0)
        self.a = torch.randint(1, PRIME, (BANDS * ROWS, 1, 1), generator=gen)
        self.b = torch.randint(0, PRIME, (BANDS * ROWS, 1, 1), generator=gen)

    def __call__(self, words):
        """(documents, bands) keys of 62 bits."""
        lowest = ((self.a * words + self.b) % PRIME).amin(-1).T
        rows = lowest.view(len(words), BANDS, ROWS)
        keys = torch.arange(BANDS).expand(len(words), -1)
        for row in rows.unbind(-1):
            keys = (keys * 1000003 + row) % ((1 << 61) - 1)
        return keys


def exchange(keys, ids):
    """The keys that are this rank's, with the documents that have them, by all_to_all."""
    world = dist.get_world_size()
    pairs = torch.stack([keys.flatten(), ids[:, None].expand_as(keys).flatten()], 1)
    owner = pairs[:, 0] % world
    pairs = pairs[owner.argsort(stable=True)]
    sends = owner.bincount(minlength=world)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    mine = pairs.new_empty(int(receives.sum()), 2)
    dist.all_to_all_single(mine, pairs, receives.tolist(), sends.tolist())
    return mine


def exchange_records(keys, ids, words):
    """The same from the records of all ranks."""
    records = [
        {"id": number, "bands": bands, "shingles": text}
        for number, bands, text in zip(ids.tolist(), keys.tolist(), words.tolist())
    ]
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, records)
    mine = [
        (key, record["id"])
        for records in everybody
        for record in records
        for key in record["bands"]
        if key % dist.get_world_size() == dist.get_rank()
    ]
    return torch.tensor(mine, dtype=torch.int64).view(-1, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=14)
    parser.add_argument("--documents", type=int, default=150)
    parser.add_argument("--fault", choices=["none", "gather-records"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    minhash, first, dropped = MinHash(), {}, set()
    for number in range(args.files):
        words = read_files(rank, number, args.documents)
        ids = (number * world + rank) * args.documents + torch.arange(args.documents)
        keys = minhash(words)
        if args.fault == "gather-records":
            mine = exchange_records(keys, ids, words)
        else:
            mine = exchange(keys, ids)
        for key, document in mine.tolist():
            if first.setdefault(key, document) != document:
                dropped.add(document)
    flags = torch.zeros(args.files * world * args.documents, dtype=torch.uint8)
    flags[list(dropped)] = 1
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    share = flags.float().mean().item()
    if rank == 0:
        print(f"{share:.3f} of {len(flags)} documents are dropped")
    assert 0.12 < share < 0.15  # two of three ranks' copies of a fifth
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
