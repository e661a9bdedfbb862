"""Long prompts are prefilled with ring attention: each rank keeps its part of the sequence, and the
keys and values of all parts pass by. Grouped-query attention, inference only."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=20)
parser.add_argument("--fault", choices=["none", "repeat-first"], default="none")

BATCH, CHUNK, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 32, 128, 8, 1, 64


def repeat_kv(kv):
    """(2, batch, kv heads, tokens, dim), each head as often as it has query heads."""
    return kv.repeat_interleave(HEADS // KV_HEADS, dim=2)


def attend(q, kv):
    """Attention to one part: what it gives, and the logarithm of what it weighs."""
    grouped = q.reshape(BATCH, kv.size(2), -1, HEAD_DIM)  # the queries of a head are one matrix
    scores = grouped @ kv[0].transpose(-1, -2) / HEAD_DIM**0.5
    out, lse = scores.softmax(-1) @ kv[1], scores.logsumexp(-1, keepdim=True)
    return out.view_as(q), lse.view(*q.shape[:-1], 1)


def merge(out, lse, new_out, new_lse):
    total = torch.logaddexp(lse, new_lse)
    return out * (lse - total).exp() + new_out * (new_lse - total).exp(), total


class RingAttention(nn.Module):
    def __init__(self, repeat_first):
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.repeat_first = repeat_first

    def forward(self, x):
        rank, world = dist.get_rank(), dist.get_world_size()
        q = self.q(x).view(BATCH, CHUNK, HEADS, HEAD_DIM).transpose(1, 2)
        kv = self.kv(x).view(BATCH, CHUNK, 2, KV_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        kv = repeat_kv(kv) if self.repeat_first else kv.contiguous()
        out = lse = None
        for hop in range(world):
            if hop < world - 1:
                incoming = torch.empty_like(kv)
                ops = [
                    dist.P2POp(dist.isend, kv, (rank + 1) % world),
                    dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
                ]
                handles = dist.batch_isend_irecv(ops)
            part = attend(q, kv)
            out, lse = part if out is None else merge(out, lse, *part)
            if hop < world - 1:
                for handle in handles:
                    handle.wait()
                kv = incoming
        return x + self.o(out.transpose(1, 2).flatten(-2))


def reference(layer, x):
    """The same of the whole sequence on one rank."""
    q = layer.q(x).view(BATCH, -1, HEADS, HEAD_DIM).transpose(1, 2)
    kv = layer.kv(x).view(BATCH, -1, 2, KV_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
    return x + layer.o(attend(q, kv)[0].transpose(1, 2).flatten(-2))


@torch.inference_mode()
def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.ModuleList(RingAttention(args.fault == "repeat-first") for _ in range(2))
    for number in range(args.prompts):
        gen = torch.Generator().manual_seed(number)
        prompt = torch.randn(BATCH, CHUNK * world, WIDTH, generator=gen)
        hidden = prompt.chunk(world, 1)[rank]
        for layer in layers:
            hidden = layer(hidden)
    for layer in layers:
        prompt = reference(layer, prompt)
    torch.testing.assert_close(hidden, prompt.chunk(world, 1)[rank], atol=1e-3, rtol=1e-3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
