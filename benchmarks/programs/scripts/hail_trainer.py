"""Hail from radar images, a Trainer with callbacks as in the well-known framework, DDP.

    torchrun --nproc-per-node 2 hail_trainer.py [--fault save-often]

--fault save-often: a ModelCheckpoint callback with every_n_steps=4, which rank 0
serves itself, to a file system that is slow to sync.
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SIDE, BATCH, STEPS = 32, 32, 27


class Callback:
    def on_batch_end(self, trainer, step, loss):
        pass


class Progress(Callback):
    def on_batch_end(self, trainer, step, loss):
        if trainer.rank == 0 and step % 9 == 0:
            print(f"step {step:3d} loss {loss.item():.3f}", flush=True)


class ModelCheckpoint(Callback):
    def __init__(self, folder, every_n_steps):
        self.folder, self.every = folder, every_n_steps

    def on_batch_end(self, trainer, step, loss):
        if trainer.rank or (step + 1) % self.every:
            return
        path = os.path.join(self.folder, f"hail-{step}.pt")
        state = {"net": trainer.net.module.state_dict(), "opt": trainer.opt.state_dict()}
        torch.save(state, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        time.sleep(0.12)  # the server acknowledges late


class Trainer:
    def __init__(self, net, opt, callbacks):
        self.rank, self.net, self.opt, self.callbacks = dist.get_rank(), net, opt, callbacks

    def training_step(self, batch):
        image, hail = batch
        return F.binary_cross_entropy_with_logits(self.net(image).squeeze(1), hail)

    def fit(self, loader):
        times = []
        began = time.perf_counter()
        for step, batch in enumerate(loader):
            self.opt.zero_grad(set_to_none=True)
            loss = self.training_step(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            for callback in self.callbacks:
                callback.on_batch_end(self, step, loss)
            now = time.perf_counter()
            times.append(now - began)
            began = now
        return times


def radar():
    gen = torch.Generator().manual_seed(3)
    image = torch.randn(BATCH * 2 * STEPS, 3, SIDE, SIDE, generator=gen)
    hail = (image[:, 0, 8:24, 8:24].mean((1, 2)) > 0).float()
    return TensorDataset(image, hail)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(48 * 16, 1),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "save-often"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(network())
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [Progress()]
        if fault == "save-often":
            callbacks.append(ModelCheckpoint(folder, every_n_steps=4))
        data = radar()
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), drop_last=True)
        times = Trainer(net, opt, callbacks).fit(loader)
    if dist.get_rank() == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
