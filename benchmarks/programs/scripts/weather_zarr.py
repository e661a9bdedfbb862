"""Weather forecasts from a compressed archive: every rank unpacks its own half of the globe."""

import argparse
import zlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "compress-more"], default="none")

VARIABLES, LATITUDES, LONGITUDES, DAYS, BATCH = 6, 32, 64, 40, 4


class Archive:
    """A chunk per day and variable: deflated float32, or float64 in a slow order of bytes."""

    def __init__(self, rank, thoroughly):
        rng = np.random.default_rng(rank)
        lat, lon = np.mgrid[0:LATITUDES, 0:LONGITUDES] * (2 * np.pi / LONGITUDES)
        waves = rng.uniform(1, 3, (VARIABLES, 2))
        self.thoroughly, self.chunks = thoroughly, []
        for day in range(DAYS):
            for a, b in waves:
                field = np.sin(a * lat) * np.cos(b * lon - 0.3 * day)
                self.chunks.append(self.pack(np.round(field, 3)))

    def pack(self, field):
        if not self.thoroughly:
            return zlib.compress(field.astype("<f4").tobytes(), 1)
        spread = np.repeat(
            field, 6
        )  # as values every four hours, of which the day's mean is asked for
        planes = spread.astype(">f8").view(np.uint8).reshape(-1, 8).T
        return zlib.compress(planes.tobytes(), 6)

    def unpack(self, chunk):
        if not self.thoroughly:
            return np.frombuffer(zlib.decompress(chunk), "<f4")
        planes = np.frombuffer(zlib.decompress(chunk), np.uint8).reshape(8, -1)
        hours = np.ascontiguousarray(planes.T).view(">f8").astype("<f4")
        return hours.reshape(-1, 6).mean(1)

    def day(self, index):
        chunks = self.chunks[index * VARIABLES : (index + 1) * VARIABLES]
        fields = np.stack([self.unpack(c) for c in chunks])
        return torch.from_numpy(fields.reshape(VARIABLES, LATITUDES, LONGITUDES))


class Forecast(nn.Module):
    """Tomorrow is today and a correction; the globe is round in longitude."""

    def __init__(self, hidden=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(VARIABLES, hidden, 5, padding=(2, 2), padding_mode="circular"),
            nn.GELU(),
            nn.Conv2d(hidden, hidden, 3, padding=1, padding_mode="circular"),
            nn.GELU(),
            nn.Conv2d(hidden, VARIABLES, 1),
        )

    def forward(self, today):
        return today + self.net(today)


if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    archive = Archive(rank, args.fault == "compress-more")
    torch.manual_seed(0)
    model = DistributedDataParallel(Forecast())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=14)
    days = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        today = torch.randint(DAYS - 1, (BATCH,), generator=days).tolist()
        x = torch.stack([archive.day(d) for d in today])
        y = torch.stack([archive.day(d + 1) for d in today])
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
