"""How long does a step of ``ddp_training`` take, as it is measured itself?

From one call to the next, so that all is in it that a profiler does in between.
"""

import importlib.util
import time
from pathlib import Path
from types import SimpleNamespace

WARMUP = 5
ITERATIONS = 40
_FILE = Path(__file__).parents[3] / "workloads" / "ddp_training.py"
_SPEC = importlib.util.spec_from_file_location("ddp_training", _FILE)
training = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(training)


def setup(ctx, width: int = 512) -> SimpleNamespace:
    """Build the model."""
    return SimpleNamespace(state=training.setup(ctx, width=width), walls=[], processors=[])


def step(state: SimpleNamespace) -> None:
    """Note both clocks and train."""
    state.walls.append(time.perf_counter_ns())
    state.processors.append(time.process_time_ns())
    training.step(state.state)


def check(state: SimpleNamespace) -> None:
    """Print when each step began, in wall and in processor time."""
    training.check(state.state)
    print("walls", *state.walls, flush=True)
    print("processors", *state.processors, flush=True)
