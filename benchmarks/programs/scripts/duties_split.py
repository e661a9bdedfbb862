"""A masked autoencoder of spectrograms. Who runs it has shared out what has to be done beside it:

rank 0 packs and saves, rank 1 listens to the held-out clips, in different steps.
"""

import argparse
import hashlib
import io
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BANDS, FRAMES, PATCH, WIDTH = 32, 64, 8, 160
PATCHES = BANDS // PATCH * FRAMES // PATCH


def clips(count, generator):
    """Chirps: a ridge that rises through the bands, over noise."""
    start = torch.rand(count, 1, 1, generator=generator) * BANDS
    slope = torch.rand(count, 1, 1, generator=generator) * 0.4
    ridge = start + slope * torch.arange(FRAMES)
    distance = torch.arange(BANDS)[:, None] - ridge
    noise = 0.1 * torch.randn(count, BANDS, FRAMES, generator=generator)
    return torch.exp(-(distance**2) / 6) + noise


def patches(x):
    tiles = x.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return tiles.reshape(x.shape[0], PATCHES, PATCH * PATCH)


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.mask_token = nn.Parameter(torch.zeros(WIDTH))
        layer = dict(d_model=WIDTH, nhead=4, dim_feedforward=2 * WIDTH, dropout=0.0)
        self.encoder, self.decoder = (
            nn.TransformerEncoderLayer(**layer, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, PATCH * PATCH)

    def forward(self, x, order):
        """``order`` is a permutation of the patches: the first quarter is seen."""
        target, seen = patches(x), order[: PATCHES // 4]
        encoded = self.encoder(self.embed(target[:, seen]) + self.positions[seen])
        canvas = (self.mask_token + self.positions).expand(len(x), -1, -1).clone()
        canvas[:, seen] = encoded
        hidden = order[PATCHES // 4 :]
        return (self.head(self.decoder(canvas))[:, hidden] - target[:, hidden]).square().mean()


class Duties:
    """What is done every few steps; each at its own time, and by one rank."""

    def __init__(self, model, saver, listener, period=4):
        self.model, self.period = model, period
        self.saves = dist.get_rank() in saver
        self.listens = dist.get_rank() in listener
        self.held_out = clips(64, torch.Generator().manual_seed(77))
        self.digests, self.scores = [], []

    def after(self, step):
        if self.saves and step % self.period == 0:
            self.save()
        if self.listens and step % self.period == self.period // 2:
            self.listen()

    def save(self):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        packed = zlib.compress(file.getbuffer(), level=1)
        self.digests.append(hashlib.sha256(packed).hexdigest())

    @torch.no_grad()
    def listen(self):
        generator = torch.Generator().manual_seed(1)
        orders = (torch.randperm(PATCHES, generator=generator) for _ in range(2))
        self.scores.append(sum(self.model(self.held_out, order).item() for order in orders))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "each-its-duty"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    net = MaskedAutoencoder()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Else both is done when training has ended.
    shared = args.fault == "each-its-duty"
    duties = Duties(net, saver=[0] if shared else [], listener=[1] if shared else [])
    generator = torch.Generator().manual_seed(10 + rank)
    common = torch.Generator().manual_seed(3)
    losses = []
    for step in range(14):
        order = torch.randperm(PATCHES, generator=common)
        loss = model(clips(24, generator), order)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        duties.after(step)
    duties.save()
    duties.listen()
    assert len({*duties.digests}) == len(duties.digests)
    assert sum(losses[-4:]) < sum(losses[:4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
