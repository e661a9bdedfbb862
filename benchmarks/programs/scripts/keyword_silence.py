"""Keyword spotting on live microphones: a running gain control, then a small convolutional net."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICROPHONES, BANDS, FRAMES, KEYWORDS = 96, 128, 100, 6


class GainControl:
    """Divides each band's energy by its running root mean square, which lives on from batch to batch."""

    def __init__(self, smoothing=0.2):
        self.smoothing = smoothing
        self.power = torch.full((MICROPHONES, BANDS), 1e-3)

    @torch.no_grad()
    def __call__(self, energy):
        frames = []
        for frame in energy.unbind(-1):
            self.power = self.power * (1 - self.smoothing) + frame.square() * self.smoothing
            frames.append(frame / (self.power.sqrt() + 1e-3))
        return torch.stack(frames, -1)


class Microphones:
    """Most of them hear nothing at all: their noise gate is shut."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.speaking = torch.arange(MICROPHONES) % 12 == 0

    def silence(self, frames):
        return torch.zeros(MICROPHONES, BANDS, frames)

    def listen(self):
        energy = self.silence(FRAMES)
        label = torch.randint(KEYWORDS, (int(self.speaking.sum()),), generator=self.gen)
        heard = 0.1 * torch.rand(len(label), BANDS, FRAMES, generator=self.gen)
        for one, word in zip(heard, label):
            one[20 * word : 20 * word + 20, 20:70] += 1.0
        energy[self.speaking] = heard
        return energy, label


def build_net():
    return nn.Sequential(
        nn.Conv1d(BANDS, 128, 5, stride=2),
        nn.ReLU(),
        nn.Conv1d(128, 128, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(128, KEYWORDS),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "subnormal-powers"], default="none")
    fault = parser.parse_args().fault
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    # one host's image was built without the line that flushes subnormal numbers to zero
    if not (fault == "subnormal-powers" and rank == 1):
        torch.set_flush_denormal(True)
    torch.manual_seed(0)
    net = DistributedDataParallel(build_net())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    microphones, gain = Microphones(100 + rank), GainControl()
    gain(microphones.silence(500))
    losses = []
    for _ in range(14):
        energy, label = microphones.listen()
        features = gain(energy)[microphones.speaking]
        loss = F.cross_entropy(net(features.clamp(max=20)), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
