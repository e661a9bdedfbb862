"""Perplexity of a held-out corpus under a model that is sharded with FSDP2; nothing is trained."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH = 512, 256, 4, 4, 32, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model, keep):
    """Nothing changes the weights, so that they need to be gathered just once, if there is room."""
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=not keep)
    fully_shard(model, reshard_after_forward=not keep)
    for block, following in zip(model.blocks, model.blocks[1:]):
        block.set_modules_to_forward_prefetch([following])
    return model.eval()


def batches(count):
    gen = torch.Generator().manual_seed(11)
    for number in range(count):
        tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=gen)
        if number % dist.get_world_size() == dist.get_rank():
            yield tokens


@torch.no_grad()
def score(model, count):
    """Sums of negative log-likelihoods and of tokens over all ranks."""
    sums = torch.zeros(2, dtype=torch.float64)
    for tokens in batches(count):
        logits = model(tokens[:, :-1])
        nll = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        sums += torch.tensor([nll.item(), tokens[:, 1:].numel()], dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--fault", choices=["none", "reshard"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = shard(LanguageModel(), keep=args.fault == "none")
    nll, tokens = score(model, args.batches)
    perplexity = math.exp(nll / tokens)
    if dist.get_rank() == 0:
        print(f"perplexity {perplexity:.1f} of {tokens:.0f} tokens")
    assert tokens == args.batches * BATCH * LENGTH
    assert 0.5 * VOCAB < perplexity < 2 * VOCAB  # it has learned nothing
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
