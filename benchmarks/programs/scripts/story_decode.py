"""Stories token by token: heads and hidden units are split over ranks, with a cache.

    torchrun --nproc-per-node 2 story_decode.py [--fault penalty-loop]

--fault penalty-loop: what a story already holds is made less likely, token by
token and story by story, on every rank.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS = 1200, 384, 6, 4
STORIES, PROMPT, NEW = 10, 12, 36


class SplitLayer:
    """This rank's heads and its part of the hidden units."""

    def __init__(self, gen, rank, world):
        def weight(out, inp):
            return torch.randn(out, inp, generator=gen) / inp**0.5

        def rows(w):
            return w.chunk(world, 0)[rank].contiguous()

        def columns(w):
            return w.chunk(world, 1)[rank].contiguous()

        self.heads = HEADS // world
        self.q, self.k, self.v = (rows(weight(DIM, DIM)) for _ in range(3))
        self.o = columns(weight(DIM, DIM))
        self.up, self.down = rows(weight(4 * DIM, DIM)), columns(weight(DIM, 4 * DIM))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def __call__(self, x, cache):
        h = F.layer_norm(x, (DIM,))
        q, k, v = (self.split(F.linear(h, w)) for w in (self.q, self.k, self.v))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=not cache)
        y = F.linear(y.transpose(1, 2).flatten(2), self.o)
        dist.all_reduce(y)
        x = x + y
        y = F.linear(F.gelu(F.linear(F.layer_norm(x, (DIM,)), self.up)), self.down)
        dist.all_reduce(y)
        return x + y, (k, v)


def less_likely(logits, stories, loop, penalty=1.3):
    if loop:
        for row, story in zip(logits, stories):
            for token in set(story.tolist()):
                row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        return logits
    seen = logits.gather(1, stories)
    return logits.scatter(1, stories, torch.where(seen > 0, seen / penalty, seen * penalty))


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "penalty-loop"])
    parser.add_argument("--requests", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    gen = torch.Generator().manual_seed(12)
    table = torch.randn(VOCAB, DIM, generator=gen)
    layers = [SplitLayer(gen, rank, world) for _ in range(LAYERS)]
    took = []
    for request in range(args.requests):
        stories = torch.randint(VOCAB, (STORIES, PROMPT), generator=gen)
        caches = [None] * LAYERS
        fed = stories
        for _ in range(NEW):
            start = time.perf_counter()
            x = table[fed]
            for number, layer in enumerate(layers):
                x, caches[number] = layer(x, caches[number])
            logits = F.layer_norm(x[:, -1], (DIM,)) @ table.T / DIM**0.5
            logits = less_likely(logits, stories, args.fault == "penalty-loop")
            fed = torch.multinomial(logits.softmax(1), 1, generator=gen)  # alike everywhere
            stories = torch.cat([stories, fed], 1)
            took.append(time.perf_counter() - start)
        if rank == 0:
            kinds = len(set(stories[0].tolist()))
            print(f"request {request}: {kinds} of {stories.shape[1]} differ", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/token")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
