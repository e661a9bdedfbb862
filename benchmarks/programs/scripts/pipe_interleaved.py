"""torch.distributed.pipelining, interleaved 1F1B: each of two ranks has two of four chunks."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

DIM, LENGTH, ROWS, MICRO, VOCAB = 128, 32, 4, 4, 90


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(
            DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x):
        return self.attention(x)


def chunks(layers):
    """All four; the embedding goes before the first, the head behind the last."""
    torch.manual_seed(0)
    parts = [nn.Sequential(*(Layer() for _ in range(n))) for n in layers]
    parts[0].insert(0, nn.Embedding(VOCAB, DIM))
    parts[-1].append(nn.Linear(DIM, VOCAB))
    return parts


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "extra-layers"], default="none")
    args = parser.parse_args()
    # seven layers do not divide by four; what was left went to the last chunk
    layers = (1, 1, 1, 3) if args.fault == "extra-layers" else (1, 1, 1, 1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = chunks(layers)
    mine = {index: parts[index] for index in range(rank, len(parts), world)}
    stages = [
        PipelineStage(part, index, len(parts), torch.device("cpu")) for index, part in mine.items()
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=MICRO, loss_fn=loss_of)
    params = [p for part in mine.values() for p in part.parameters()]
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    history = []
    for _ in range(22):
        start = torch.randint(0, VOCAB, (ROWS * MICRO, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH + 1)) % VOCAB
        losses = []
        if rank == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:], losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            history.append(torch.stack(losses).mean().item())
    if history:
        assert history[-1] < history[0], history
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
