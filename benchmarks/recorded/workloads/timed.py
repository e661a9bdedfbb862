"""How long does a step of ``ddp_training`` take, as it is measured itself?

From one call to the next, so that all is in it that a profiler does in between. And with all that
a recording labels: a loader in each step, a saved checkpoint and a collection in every tenth.
"""

import gc
import importlib.util
import io
import time
from pathlib import Path
from types import SimpleNamespace

import torch

WARMUP = 5
ITERATIONS = 40
EVERY = 10
_FILE = Path(__file__).parents[3] / "workloads" / "ddp_training.py"
_SPEC = importlib.util.spec_from_file_location("ddp_training", _FILE)
training = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(training)


def setup(ctx, width: int = 512) -> SimpleNamespace:
    """Build the model, and a loader whose batches are small."""
    loader = torch.utils.data.DataLoader(torch.arange(8.0 * (WARMUP + ITERATIONS)), batch_size=8)
    return SimpleNamespace(
        state=training.setup(ctx, width=width), loader=iter(loader), walls=[], processors=[]
    )


def step(state: SimpleNamespace) -> None:
    """Note both clocks, load, train, save and clean up."""
    state.walls.append(time.perf_counter_ns())
    state.processors.append(time.process_time_ns())
    batch = next(state.loader)
    training.step(state.state)
    if len(state.walls) % EVERY == 0:
        torch.save(batch, io.BytesIO())
        gc.collect(1)


def check(state: SimpleNamespace) -> None:
    """Print when each step began, in wall and in processor time."""
    training.check(state.state)
    print("walls", *state.walls, flush=True)
    print("processors", *state.processors, flush=True)
