"""What needs one rank only merges by concatenation: of a run it is that of its ranks, in turn."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pytest

import commtrace as ct
from commtrace.metrics.rank.activity import device_work, work
from commtrace.metrics.rank.copies import copies
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.rank.streams import stream_overlap, streams
from commtrace.rules import RULES
from commtrace.trace_tables import TABLES as EVERY

TABLES = [devices, partial(devices, by_step=True), streams, stream_overlap, copies]
RUNS = {
    "gloo, four ranks": lambda: ct.load("traces/ddp_training/gloo-4", workers=1).measures,
    "nccl, two ranks": RULES["straggler"].bad,
    "gloo, steps and labels": RULES["redundant"].bad,
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> ct.Measures:
    return RUNS[request.param]()


def ranks(run: ct.Measures) -> list[ct.Measures]:
    """Each rank's part of a run, as if its file alone had been read."""
    frames = {table.name: getattr(run, table.name) for table in EVERY}
    return [
        replace(run, **{name: table[table["rank"] == rank] for name, table in frames.items()})
        for rank in sorted(run.ranks["rank"].tolist())
    ]


@pytest.mark.parametrize(
    "measure", TABLES, ids=["devices", "by step", "streams", "overlap", "copies"]
)
def test_tables(run: ct.Measures, measure: Callable[[ct.Measures], pd.DataFrame]) -> None:
    parts = [measure(part) for part in ranks(run)]
    text = measure(run).select_dtypes("category").columns
    whole, joined = (
        table.astype(dict.fromkeys(text, object)).reset_index(drop=True)
        for table in (measure(run), pd.concat(parts))
    )
    pd.testing.assert_frame_equal(whole, joined, check_dtype=False)


@pytest.mark.parametrize("measure", [work, device_work])
def test_activity(run: ct.Measures, measure: Callable[[ct.Measures], dict[Any, Any]]) -> None:
    parts = [measure(part) for part in ranks(run)]
    assert list(measure(run)) == [place for part in parts for place in part]


def test_phases(run: ct.Measures) -> None:
    by_rank = run.collectives["rank"].to_numpy().argsort(kind="stable")
    of_run = phases(run)
    assert [of_run[row] for row in by_rank] == [one for part in ranks(run) for one in phases(part)]
