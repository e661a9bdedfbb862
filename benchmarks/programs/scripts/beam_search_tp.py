"""Beam search with a tensor-parallel decoder; attention and MLP side by side, one sum per layer."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

DIM, HEADS, LAYERS, VOCAB = 512, 8, 4, 600


class ParallelBlock(torch.nn.Module):
    """GPT-J's: x + attention(norm(x)) + mlp(norm(x)); each rank has some heads and columns."""

    def __init__(self, world):
        super().__init__()
        self.heads, self.head_dim = HEADS // world, DIM // HEADS
        width = self.heads * self.head_dim
        self.norm = torch.nn.LayerNorm(DIM)
        self.qkv = torch.nn.Linear(DIM, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, DIM, bias=False)
        self.up = torch.nn.Linear(DIM, 4 * DIM // world, bias=False)
        self.down = torch.nn.Linear(4 * DIM // world, DIM, bias=False)

    def forward(self, x, cache, reduce):
        h = self.norm(x)
        q, k, v = self.qkv(h).view(len(x), 3, self.heads, self.head_dim).unbind(1)
        if cache:
            k = torch.cat((cache[0], k[:, :, None]), 2)
            v = torch.cat((cache[1], v[:, :, None]), 2)
        else:
            k, v = k[:, :, None], v[:, :, None]
        y = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v)
        part = self.out(y.flatten(1)) + self.down(torch.nn.functional.gelu(self.up(h)))
        return x + reduce(part), (k, v)


def reduce_all(part):
    dist.all_reduce(part)
    return part


def reduce_each_beam(part):
    """From when the beams were a list."""
    beams = list(part)
    for beam in beams:
        dist.all_reduce(beam)
    return torch.stack(beams)


class Decoder(torch.nn.Module):
    def __init__(self, world):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, DIM)
        self.blocks = torch.nn.ModuleList(ParallelBlock(world) for _ in range(LAYERS))

    def forward(self, tokens, caches, reduce):
        x, new = self.embed(tokens), []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache, reduce)
            new.append(cache)
        return torch.log_softmax(x @ self.embed.weight.T, -1), new


def beam_search(model, first, beams, length, reduce):
    logp, caches = model(torch.tensor([first]), [None] * LAYERS, reduce)
    scores, tokens = logp[0].topk(beams)
    caches = [tuple(t.expand(beams, -1, -1, -1) for t in cache) for cache in caches]
    for _ in range(length):
        logp, caches = model(tokens, caches, reduce)
        scores, best = (scores[:, None] + logp).flatten().topk(beams)
        parents, tokens = best // VOCAB, best % VOCAB
        caches = [tuple(t[parents] for t in cache) for cache in caches]
    return scores[0].item()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beams", type=int, default=2)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "beam_search_tp"))
    parser.add_argument("--fault", choices=["none", "beam-by-beam"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    reduce = reduce_each_beam if args.fault == "beam-by-beam" else reduce_all
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Decoder(dist.get_world_size())
    model.embed.weight.data.mul_(0.1)
    dist.broadcast(model.embed.weight.data, 0)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/decode-rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for prompt in range(22):
            score = beam_search(model, prompt, args.beams, args.length, reduce)
            assert score < 0
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
