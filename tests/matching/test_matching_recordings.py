"""Real recordings: those that the project ships, and others' where this machine has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.waits import matched, unmatched
from commtrace.run import Run

SHIPPED = Path(__file__).parents[2] / "traces"
FOLDERS = sorted(path.parent for path in SHIPPED.glob("*/gloo-*/manifest.json"))


def without_numbers(trace: Measures) -> Measures:
    """What an older torch, or one without flight recorder, would have left."""
    none = pd.array([None] * len(trace.collectives), dtype="Int64")
    return replace(trace, collectives=trace.collectives.assign(seq=none))


@pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)
def test_every_operation_of_a_recording_is_matched_on_all_members(
    measured: Callable[[Path], Run], folder: Path
) -> None:
    trace = measured(folder).measures
    found = matched(trace)
    assert (found.matches.ints("present") == found.matches.ints("expected")).all()
    assert unmatched(trace) == ()
    assert (found.clock.ints("offset_ns") == 0).all()  # one host
    bare = matched(without_numbers(trace)).matches.ints("operation")
    pairs = set(zip(bare.tolist(), found.matches.ints("operation").tolist(), strict=True))
    assert len(pairs) == np.unique(bare).size


def test_the_straggler_is_named(measured: Callable[[Path], Run], recorded: Path) -> None:
    folder = recorded / "straggler" / "gloo-4"
    slow = json.loads((folder / "manifest.json").read_text())["workload"]["settings"]["slow_rank"]
    found = matched(measured(folder).measures)
    assert found.operations.frame()["last_rank"].mode().tolist() == [slow]
    assert found.waits.frame().groupby("rank")["caused_wait_ns"].sum().idxmax() == slow
    assert found.waits.frame().groupby("rank")["wait_ns"].sum().idxmin() == slow


def test_two_ranks_of_128(measured: Callable[[Path], Run], real_traces: Path) -> None:
    trace = measured(real_traces / "hta_dlrm_2_of_128").measures
    operations = matched(trace).operations.frame()
    pairs = operations[operations["present"] == 2]
    assert pairs["op"].astype(str).tolist() == [
        "all_to_all",
        "all_reduce",
        "all_gather",
        "all_reduce",
        "all_gather",
    ]
    assert (pairs["matched_by"] == "alignment").all()
    assert not operations["exact"].any()
    # Rank 1 came 22 ms later to the second all_reduce; most of the first rank's time was that.
    assert pairs["skew_ns"].max() == pytest.approx(22.3e6, rel=0.01)
    codes = [note.code for note in unmatched(trace)]
    assert codes == ["unmatched-operations"] * 2 + ["partial-operations"]
