# A word-level language model with DDP; on slow networks PowerSGD can compress its gradients.
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP


class WindowLM(nn.Module):
    """Bengio's: the next word from those before it."""

    def __init__(self, words=400, window=6, width=192, hidden=1024):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.net = nn.Sequential(
            nn.Linear(window * width, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, words),
        )

    def forward(self, context):
        return self.net(self.embed(context).flatten(1))


def corpus(words, length, seed):
    """Each word has three likely successors."""
    after = torch.randint(words, (words, 3), generator=torch.Generator().manual_seed(0))
    picks = torch.randint(3, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    after, text = after.tolist(), [seed]
    for pick in picks:
        text.append(after[text[-1]][pick])
    return torch.tensor(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--approximation-rank", type=int, default=8)
    parser.add_argument("--fault", choices=["none", "compress-on-fast-link"], default="none")
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(WindowLM(), bucket_cap_mb=50, gradient_as_bucket_view=True)
    if args.fault == "compress-on-fast-link":
        state = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=args.approximation_rank,
            start_powerSGD_iter=2,
        )
        model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    text = corpus(400, 20_000, seed=rank)
    windows = text.unfold(0, 7, 1)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(16):
        batch = windows[torch.randint(len(windows), (48,), generator=gen)]
        loss = nn.functional.cross_entropy(model(batch[:, :6]), batch[:, 6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3])
    del model  # and the handles that its hook has kept
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
