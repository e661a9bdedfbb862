# Learns the merges of a byte pair encoding; every rank holds a part of the corpus' words.
#
# usage: torchrun --nproc-per-node 3 bpe_merges.py
import argparse
import random
import tempfile
import time
from collections import Counter, defaultdict

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

SYLLABLES = [c + v + e for c in "bdfgklmnprst" for v in "aeiou" for e in ("", "n", "r", "st")]
ROUNDS, MERGES_PER_ROUND = 14, 5


def read_words(seed, how_many=2600):
    draw = random.Random(seed)
    words = Counter()
    for _ in range(how_many):
        count = draw.choice((2, 3, 3, 4))
        word = "".join(draw.choices(SYLLABLES, weights=range(len(SYLLABLES), 0, -1), k=count))
        words[word] += draw.randint(1, 9)
    return [list(word) for word in words], list(words.values())


def count_pairs(words, frequencies):
    pairs, where = Counter(), defaultdict(set)
    for number, (word, frequency) in enumerate(zip(words, frequencies)):
        for pair in zip(word, word[1:]):
            pairs[pair] += frequency
            where[pair].add(number)
    return pairs, where


def merged(word, pair):
    out, i = [], 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def apply_merge(words, frequencies, pairs, where, pair):
    """Only words that have the pair are counted anew."""
    for number in sorted(where.pop(pair, ())):
        word, frequency = words[number], frequencies[number]
        for old in zip(word, word[1:]):
            pairs[old] -= frequency
        words[number] = word = merged(word, pair)
        for new in zip(word, word[1:]):
            pairs[new] += frequency
            where[new].add(number)
    return pairs, where


def agree(pairs):
    """The most frequent pair of the whole corpus; those that are rare here hardly matter."""
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, pairs.most_common(60))
    total = Counter()
    for part in everybody:
        total.update(dict(part))
    return max(total, key=lambda pair: (total[pair], pair))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "recount-and-journal"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    old_code = args.fault == "recount-and-journal" and rank == 1  # one host was not updated
    journal = args.fault == "recount-and-journal" and rank == 2  # and one still keeps a journal
    words, frequencies = read_words(rank)
    length_before = sum(map(len, words))
    pairs, where = count_pairs(words, frequencies)
    vocabulary = []
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/bpe.json"),
    ) as profiler:
        for _ in range(ROUNDS):
            for _ in range(MERGES_PER_ROUND):
                with record_function("agree"):
                    pair = agree(pairs)
                vocabulary.append("".join(pair))
                with record_function("merge"):
                    pairs, where = apply_merge(words, frequencies, pairs, where, pair)
                    if old_code:
                        pairs, where = count_pairs(words, frequencies)
                if journal:
                    time.sleep(0.01)  # fsync on a network disk
            profiler.step()
    if rank == 0:
        print(*vocabulary)
    assert len({*vocabulary}) > 0.9 * len(vocabulary)
    assert sum(map(len, words)) < 0.8 * length_before
    dist.destroy_process_group()
