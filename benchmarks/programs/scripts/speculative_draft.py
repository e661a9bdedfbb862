"""Speculative decoding: rank 0 drafts some tokens, a tensor-parallel model checks them all at once."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

VOCAB, DRAFT = 300, 4


class Drafter(nn.Module):
    """A GRU; it keeps its state, or reads everything again."""

    def __init__(self, width=384):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(VOCAB, width), nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def propose(self, tokens, window):
        y, state = self.rnn(self.embed(tokens[-window:])[None])
        drafted = []
        for _ in range(DRAFT):
            drafted.append(self.out(y[0, -1]).argmax())
            y, state = self.rnn(self.embed(drafted[-1])[None, None], state)
        return torch.stack(drafted)


class ParallelLayer(nn.Module):
    def __init__(self, dim, world):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim // world)
        self.up, self.down = nn.Linear(dim, 4 * dim // world), nn.Linear(4 * dim // world, dim)

    def forward(self, x):
        h = self.norm(x)
        h = h + h.cumsum(0) / torch.arange(1, len(h) + 1)[:, None]
        part = self.down(torch.relu(self.up(h)))
        dist.all_reduce(part)
        return x + part


class Target(nn.Module):
    def __init__(self, dim=384, depth=4):
        super().__init__()
        self.embed, self.out = nn.Embedding(VOCAB, dim), nn.Linear(dim, VOCAB)
        for weight in (self.embed.weight.data, self.out.weight.data):
            dist.broadcast(weight, 0)
        self.layers = nn.Sequential(
            *(ParallelLayer(dim, dist.get_world_size()) for _ in range(depth))
        )

    def choose(self, tokens):
        """What it would say behind each of the last tokens."""
        return self.out(self.layers(self.embed(tokens[-160:])))[-DRAFT - 1 :].argmax(1)


def generate(drafter, target, prompt, rounds, window):
    tokens = prompt
    for _ in range(rounds):
        draft = torch.empty(DRAFT, dtype=torch.int64)
        if dist.get_rank() == 0:
            draft = drafter.propose(tokens, window)
        dist.broadcast(draft, 0)
        chosen = target.choose(torch.cat((tokens, draft)))
        dist.broadcast(chosen, 0)  # sums may differ in their last bits
        right = int((chosen[:-1] == draft).cumprod(0).sum())
        tokens = torch.cat((tokens, draft[:right], chosen[right : right + 1]))
    return tokens


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--traces", default=os.path.join(tempfile.gettempdir(), "speculative_draft")
    )
    parser.add_argument("--fault", choices=["none", "reread"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    window = 100 if args.fault == "reread" else 4
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    drafter, target = Drafter(), Target()
    generator = torch.Generator().manual_seed(0)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for _ in range(22):
            prompt = torch.randint(0, VOCAB, (120,), generator=generator)
            tokens = generate(drafter, target, prompt, args.rounds, window)
            assert len(tokens) >= len(prompt) + args.rounds
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
