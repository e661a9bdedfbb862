"""Delays that really happened: each rank notes when it calls, on the clock that all share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commtrace import load
from commtrace.metrics.run.waits import matched
from commtrace.record import record

SLOW = 1
DELAY_MS = 10
LATE = '''
"""Does the last to come keep the others waiting?"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist


def setup(ctx, delay_ms: float = 10.0, slow_rank: int = 1):
    delay_s = delay_ms / 1e3 if ctx.rank == slow_rank else 0.0
    return SimpleNamespace(delay_s=delay_s, tensor=torch.ones(8))


def step(state):
    dist.barrier()
    # Asleep, not at work: the others need the processor.
    time.sleep(state.delay_s)
    print("calls", time.monotonic_ns(), flush=True)
    dist.all_reduce(state.tensor)


def check(state):
    assert state.tensor.numel() == 8
'''


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_the_late_rank_is_named_and_what_it_caused_is_right(tmp_path: Path) -> None:
    workload = tmp_path / "late.py"
    workload.write_text(LATE.lstrip())
    folder = record(
        str(workload),
        settings={"delay_ms": str(DELAY_MS), "slow_rank": str(SLOW), "iterations": "30"},
        world_size=2,
        backend="gloo",
        out=tmp_path / "run",
    )
    found = matched(load(folder, workers=1).measures)
    of = found.operations.frame().set_index("operation")
    sums = of.index[of["op"] == "all_reduce"]
    every = found.waits.frame()
    waits = every[every["operation"].isin(sums)].pivot(
        index="operation", columns="rank", values=["wait_ns", "caused_wait_ns"]
    )
    called = np.stack([_calls(folder / f"rank{rank}.log")[-len(sums) :] for rank in range(2)])
    true = (called.max(axis=0) - called).sum(axis=0)
    # The machine's own noise delays others too, so that not each but the usual step is judged,
    # against what the ranks' own notes say of it.
    named = of.loc[sums, "last_rank"].to_numpy(dtype=float, na_value=-1)
    clear = np.sort(called, axis=0)[-1] - np.sort(called, axis=0)[-2] > 2_000_000
    assert clear.sum() >= 10
    assert np.mean(named[clear] == called.argmax(axis=0)[clear]) >= 0.7
    assert of.loc[sums, "last_rank"].mode().tolist() == [SLOW]
    error = waits["wait_ns"].sum(axis=1).to_numpy(dtype=float) - true
    assert np.median(np.abs(error)) < 2 * 1_000_000
    caused = waits["caused_wait_ns"].sum()
    assert caused.idxmax() == SLOW
    assert waits["caused_wait_ns"][SLOW].median() > 0.7 * DELAY_MS * 1_000_000


def _calls(log: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return np.asarray([int(line[1]) for line in lines if line[:1] == ["calls"]], dtype=np.int64)
