"""A meter of each layer's time; to be exact, all ranks may meet before it looks."""

import argparse
import collections
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class LayerMeter:
    """Times what it is given with hooks."""

    def __init__(self, modules, synchronize):
        self.synchronize = synchronize
        self.begun = {}
        self.seconds = collections.Counter()
        for name, module in modules:
            module.register_forward_pre_hook(self.before(name))
            module.register_forward_hook(self.after(name))

    def now(self):
        if self.synchronize:
            dist.barrier()
        return time.perf_counter()

    def before(self, name):
        def hook(module, inputs):
            self.begun[name] = self.now()

        return hook

    def after(self, name):
        def hook(module, inputs, output):
            self.seconds[name] += self.now() - self.begun[name]

        return hook


class MixerBlock(nn.Module):
    def __init__(self, patches, dim):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(patches, 64), nn.GELU(), nn.Linear(64, patches))
        self.norm2 = nn.LayerNorm(dim)
        self.channels = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, dim=128, depth=4, classes=8):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.blocks = nn.ModuleList(MixerBlock(16, dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "meet-first"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mixer()
    mixers = [each for each in model.named_modules() if isinstance(each[1], nn.Sequential)]
    meter = LayerMeter(mixers, args.fault == "meet-first")
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(22):
        label = torch.randint(0, 8, (96,), generator=generator)
        x = torch.randn(96, 3, 32, 32, generator=generator)
        x += (label - 3.5).view(-1, 1, 1, 1) / 4
        loss = nn.functional.cross_entropy(ddp(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        for name, seconds in meter.seconds.most_common(5):
            print(f"{name:24} {1e3 * seconds:8.2f} ms")
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
