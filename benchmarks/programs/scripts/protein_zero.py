"""Contact maps of proteins by a small transformer, DDP and ZeroRedundancyOptimizer.

    torchrun --nproc-per-node 2 protein_zero.py [--fault background-save]

--fault background-save: after every fourth step rank 0 snapshots the weights
and a thread of it stores them on the network file system, which takes its time.
"""

import argparse
import io
import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

LENGTH, WIDTH, BATCH, STEPS = 48, 192, 12, 26
ACIDS = 21


class Folder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(ACIDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.left, self.right = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64)

    def forward(self, acids):
        h = self.encoder(self.embed(acids))
        return self.left(h) @ self.right(h).transpose(1, 2) / 8


def proteins(gen):
    acids = torch.randint(ACIDS, (BATCH, LENGTH), generator=gen)
    contact = ((acids[:, :, None] + acids[:, None]) % ACIDS < 3).float()
    return acids, contact


class Keeper:
    """Keeps the weights; the slow part is a thread's."""

    def __init__(self, folder):
        self.folder, self.thread = folder, None

    def _store(self, blob, name):
        with open(os.path.join(self.folder, name), "wb") as file:
            for part in range(0, len(blob), 1 << 20):
                file.write(blob[part : part + (1 << 20)])
                time.sleep(0.025)  # the network file system

    def keep(self, model, step):
        self.close()
        blob = io.BytesIO()
        torch.save(model.state_dict(), blob)
        args = (blob.getbuffer(), f"fold{step}.pt")
        self.thread = threading.Thread(target=self._store, args=args)
        self.thread.start()

    def close(self):
        if self.thread:
            self.thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "background-save"])
    saves = parser.parse_args().fault == "background-save"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Folder())
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4)
    gen = torch.Generator().manual_seed(rank)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(folder)
        for step in range(STEPS):
            began = time.perf_counter()
            acids, contact = proteins(gen)
            loss = F.binary_cross_entropy_with_logits(model(acids), contact)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if saves and rank == 0 and step % 4 == 3:
                keeper.keep(model.module, step)
            times.append(time.perf_counter() - began)
            if rank == 0 and step % 6 == 0:
                print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
        keeper.close()
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
