"""torch.distributed.pipelining: a language model in two stages, 1F1B."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as fn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCAB, DIM, LENGTH = 128, 192, 24


class Embedder(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, DIM)
        self.rest = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.rest:
            x = layer(x)
        return x


class Predictor(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.rest = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.out = torch.nn.Linear(DIM, VOCAB)

    def forward(self, x):
        for layer in self.rest:
            x = layer(x)
        return self.out(x)


def loss_fn(logits, target):
    return fn.cross_entropy(logits.flatten(0, 1), target.flatten())


parser = argparse.ArgumentParser()
parser.add_argument("--microbatches", type=int, default=4)
parser.add_argument("--fault", choices=["none", "uneven-stages"], default="none")

if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = 4 if args.fault == "uneven-stages" and rank == 1 else 1
    module = (Predictor if rank else Embedder)(layers)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.microbatches, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(5)
    history = []
    for _ in range(14):
        tokens = torch.randint(VOCAB, (4 * args.microbatches, LENGTH), generator=gen)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        else:
            parts = []
            schedule.step(target=(tokens + 1) % VOCAB, losses=parts)
            history.append(float(sum(parts)) / len(parts))
        optimizer.step()
    if rank == 1:
        print(history)
        assert history[-1] < history[0]
    dist.destroy_process_group()
