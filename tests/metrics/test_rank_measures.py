"""What needs one rank only merges by concatenation: of a run it is that of its ranks, in turn."""

from collections.abc import Callable
from functools import partial

import pandas as pd
import pytest

import commtrace as ct
from commtrace.metrics.rank.copies import copies
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.rank_summary import rank_summary
from commtrace.metrics.rank.streams import stream_overlap, streams
from commtrace.rules import RULES
from commtrace.table import Rows

TABLES: dict[str, Callable[[ct.Measures], Rows]] = {
    "devices": devices,
    "device_steps": partial(devices, by_step=True),
    "streams": streams,
    "stream_overlap": stream_overlap,
    "copies": copies,
}
RUNS: dict[str, Callable[[], ct.Measures]] = {
    "gloo, four ranks": lambda: ct.load("traces/ddp_training/gloo-4", workers=1).measures,
    "nccl, two ranks": RULES["straggler"].bad,
    "steps and labels": RULES["redundant"].bad,
    "copies": RULES["copy-loop"].bad,
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> ct.Measures:
    return RUNS[request.param]()


@pytest.mark.parametrize("name", TABLES)
def test_tables(run: ct.Measures, name: str) -> None:
    of_run = TABLES[name](run).frame()
    parts = [getattr(rank_summary(run, rank), name) for rank in run.ranks["rank"].tolist()]
    text = dict.fromkeys(of_run.select_dtypes("category").columns, object)
    whole, joined = (
        table.astype(text).reset_index(drop=True) for table in (of_run, pd.concat(parts))
    )
    pd.testing.assert_frame_equal(whole, joined, check_dtype=False)


def test_operations(run: ct.Measures) -> None:
    summaries = [rank_summary(run, rank) for rank in run.ranks["rank"].tolist()]
    assert sum(len(summary.operations) for summary in summaries) == len(run.collectives)


def test_a_rank_that_is_not_there() -> None:
    run = ct.Run(RULES["straggler"].bad(), "x")
    assert run.rank(1).rank == 1
    with pytest.raises(ct.UsageError, match="no trace of rank 9; there are 0, 1"):
        run.rank(9)
