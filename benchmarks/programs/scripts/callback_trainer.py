"""A small Trainer with callbacks, on two nodes of two ranks each."""

import argparse
import queue
import threading
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

RANKS_PER_NODE = 2


class Readings(IterableDataset):
    """Sensor windows from a store over the network, and what comes next in each."""

    def __init__(self, seed, batch_size):
        self.seed, self.batch_size = seed, batch_size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            time.sleep(0.015)
            phase = torch.rand(self.batch_size, 1, generator=generator) * 6.3
            wave = torch.sin(phase + torch.arange(49) / 4)
            yield wave[:, :48], wave[:, 48:]


@dataclass
class State:
    step: int = 0
    losses: list = field(default_factory=list)


class Callback:
    def on_train_begin(self, state): ...
    def on_step_end(self, state): ...
    def on_train_end(self, state): ...


class StopAt(Callback):
    def __init__(self, limit=50.0):
        self.limit = limit

    def on_step_end(self, state):
        assert state.losses[-1] < self.limit, "diverged"


def post(metrics):
    """One request to the tracking server."""
    time.sleep(0.030)


class Tracking(Callback):
    """Posts the metrics in the background."""

    def on_train_begin(self, state):
        self.queue = queue.Queue()
        self.thread = threading.Thread(target=self.drain)
        self.thread.start()

    def drain(self):
        while (metrics := self.queue.get()) is not None:
            post(metrics)

    def on_step_end(self, state):
        self.queue.put({"step": state.step, "loss": state.losses[-1]})

    def on_train_end(self, state):
        self.queue.put(None)
        self.thread.join()


class BlockingTracking(Callback):
    def on_step_end(self, state):
        post({"step": state.step, "loss": state.losses[-1]})


class Trainer:
    def __init__(self, model, loader, callbacks, max_steps=16):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 3e-3, max_steps)
        self.loader, self.callbacks, self.max_steps = loader, callbacks, max_steps
        self.state = State()

    def call(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self.state)

    def train(self):
        self.call("on_train_begin")
        for _, (inputs, targets) in zip(range(self.max_steps), self.loader, strict=False):
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.state.step += 1
            self.state.losses.append(loss.item())
            self.call("on_step_end")
        self.call("on_train_end")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "post-from-each-node"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU())
    model.append(nn.Linear(128, 1))
    callbacks = [StopAt()]
    if args.fault == "none" and rank == 0:
        callbacks.append(Tracking())
    elif args.fault != "none" and rank % RANKS_PER_NODE == 0:
        callbacks.append(BlockingTracking())
    trainer = Trainer(model, DataLoader(Readings(rank, 32), batch_size=None), callbacks)
    trainer.train()
    assert trainer.state.losses[-1] < trainer.state.losses[0]
    dist.destroy_process_group()
