"""Phase picking on three-component seismograms, DDP, in the manner of Lightning.

A day of records per rank lies on disk as one .npy per event; P arrivals are
labelled by a synthetic catalogue.

    torchrun --nproc-per-node 2 seismic_picks.py [--fault raw-archive]

--fault raw-archive: nobody unpacked the station archive on the second node,
its records are read as they came from the data centre (xz).
"""

import argparse
import io
import lzma
import os
import shutil
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RECORD, SAMPLES, WINDOWS, BATCH, STEPS = 9000, 2000, 96, 12, 130


def synthesize(folder, rank, packed):
    rng = np.random.default_rng(rank)
    for i in range(WINDOWS):
        trace = np.cumsum(rng.integers(-40, 41, (3, RECORD)), axis=1).astype(np.int32)
        onset = int(rng.integers(2000, RECORD - 2000))
        trace[:, onset : onset + 200] += (900 * np.sin(np.arange(200) / 3)).astype(np.int32)
        buffer = io.BytesIO()
        np.save(buffer, trace)
        blob = buffer.getvalue()
        if packed:
            blob = lzma.compress(blob, preset=6)
        with open(f"{folder}/{i:04d}_{onset}.npy" + (".xz" if packed else ""), "wb") as f:
            f.write(blob)


class Windows(Dataset):
    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path = self.files[i]
        opener = lzma.open if path.endswith(".xz") else open
        with opener(path, "rb") as f:
            trace = np.load(io.BytesIO(f.read()))
        onset = int(os.path.basename(path).split("_")[1].split(".")[0])
        start = onset - int(torch.randint(200, SAMPLES - 300, ()))
        x = torch.from_numpy(trace[:, start : start + SAMPLES]).float()
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        target = torch.exp(-(((torch.arange(SAMPLES) - (onset - start)) / 20.0) ** 2))
        return x, target


class Picker(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, width, 7, padding=3, stride=2),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 7, padding=3),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv1d(2 * width, 1, 7, padding=3),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class PickerTask:
    def configure(self, rank):
        self.model = DistributedDataParallel(Picker())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def training_step(self, batch, step):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self.model(x), y)
        self.last_loss = loss.detach()
        return loss

    def on_train_batch_end(self, rank, step):
        if rank == 0 and step % 40 == 0:
            print(f"step {step:4d}  bce {self.last_loss.item():.4f}", flush=True)


class Trainer:
    def __init__(self, max_steps):
        self.max_steps, self.step, self.times = max_steps, 0, []

    def fit(self, task, loader):
        rank = dist.get_rank()
        task.configure(rank)
        while self.step < self.max_steps:
            batches = iter(loader)
            while self.step < self.max_steps:
                began = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    break
                loss = task.training_step(batch, self.step)
                task.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                task.optimizer.step()
                task.on_train_batch_end(rank, self.step)
                self.step += 1
                self.times.append(time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "raw-archive"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    folder = tempfile.mkdtemp(prefix="seismic")
    try:
        synthesize(folder, rank, packed=args.fault == "raw-archive" and rank == 1)
        loader = DataLoader(Windows(folder), batch_size=BATCH, shuffle=True, drop_last=True)
        trainer = Trainer(STEPS)
        dist.barrier()
        trainer.fit(PickerTask(), loader)
        if rank == 0:
            print(f"mean step {1e3 * np.mean(trainer.times[5:]):.1f} ms")
    finally:
        shutil.rmtree(folder)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
