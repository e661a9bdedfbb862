"""Tagging of field recordings: log spectrograms, a small CNN, DDP over sites.

Each rank reads the recordings of one monitoring site.

    torchrun --nproc-per-node 2 soundscape_tags.py [--fault stretch]
"""

import argparse
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "stretch"])
FAULT = parser.parse_args().fault
CLIP = 12000
BATCH = 12
STEPS = 80
TAGS = 10
SITES = {
    0: {"name": "meadow", "stretch": None},
    1: {"name": "marsh", "stretch": (0.85, 1.2) if FAULT == "stretch" else None},
}


def phase_vocoder(wave, rate, n_fft=512, hop=128):
    """Change the tempo of a wave and keep its pitch."""
    window = np.hanning(n_fft)
    frames = 1 + (len(wave) - n_fft) // hop
    spec = np.stack([np.fft.rfft(window * wave[i * hop : i * hop + n_fft]) for i in range(frames)])
    advance = 2 * np.pi * hop * np.arange(spec.shape[1]) / n_fft
    phase = np.angle(spec[0])
    out = np.zeros(int(frames / rate) * hop + n_fft)
    for j, t in enumerate(np.arange(0, frames - 1, rate)):
        i = int(t)
        mix = t - i
        mag = (1 - mix) * np.abs(spec[i]) + mix * np.abs(spec[i + 1])
        piece = np.fft.irfft(mag * np.exp(1j * phase))
        at = min(j * hop, len(out) - n_fft)
        out[at : at + n_fft] += window * piece
        delta = np.angle(spec[i + 1]) - np.angle(spec[i]) - advance
        delta -= 2 * np.pi * np.round(delta / (2 * np.pi))
        phase = phase + advance + delta
    return out


class Recordings(Dataset):
    def __init__(self, site, size):
        rng = np.random.default_rng(site)
        self.options = SITES[site]
        self.seeds = rng.integers(1 << 30, size=size)
        self.noise = rng.standard_normal(4 * CLIP)

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seeds[i])
        tag = int(rng.integers(TAGS))
        t = np.arange(CLIP) / 8000
        at = int(rng.integers(3 * CLIP))
        wave = np.sin(2 * np.pi * (200 + 130 * tag) * t) + 0.4 * self.noise[at : at + CLIP]
        if self.options["stretch"]:
            wave = phase_vocoder(wave, rng.uniform(*self.options["stretch"]))
        wave = np.resize(wave, CLIP)
        return torch.from_numpy(wave).float(), tag


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((4, 1)),
            nn.Flatten(),
            nn.Linear(192, TAGS),
        )

    def forward(self, wave):
        spec = torch.stft(wave, 256, 128, window=self.window, return_complex=True)
        return self.net(torch.log1p(spec.abs()).unsqueeze(1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger(), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Recordings(rank, BATCH * STEPS), batch_size=BATCH, shuffle=True)
    took = []
    start = time.perf_counter()
    for step, (wave, tag) in enumerate(loader):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(wave), tag)
        loss.backward()
        opt.step()
        now = time.perf_counter()
        took.append(now - start)
        start = now
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
