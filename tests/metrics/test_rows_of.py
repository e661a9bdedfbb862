"""Rows of one rank or device, as a mask of the whole table would find them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.measures import Measures
from commtrace.metrics.rank.rows_of import (
    places_of_rank,
    rows_of_device,
    rows_of_rank,
)
from commtrace.metrics.rank.timelines import timelines
from commtrace.rules.host_sync import _RECOVERED_NS, _idle_after
from commtrace.synthetic import Tiny


@pytest.fixture
def run() -> Measures:
    tiny, chance = Tiny(ranks=3), np.random.default_rng(1)
    start = 0.0
    for _ in range(300):
        rank, device = int(chance.integers(3)), f"cuda:{chance.integers(2)}"
        start += chance.random() * 40
        ready = {
            "launch_ns": 1_700_000_000_000_000_000 + round(1e3 * (start - chance.random() * 60))
        }
        if chance.random() < 0.3:
            tiny.copy(rank, start, 5, kind="DtoH", size=4, source=device, **ready)
        else:
            tiny.kernel(rank, start, 5, device=device, **ready)
    return tiny.trace()


@pytest.mark.parametrize("rank", [0, 1, 2, 7])
@pytest.mark.parametrize("table", ["kernels", "copies"])
def test_rows(run: Measures, table: str, rank: int) -> None:
    frame: Any = getattr(run, table)
    of_rank, on_device = frame["rank"] == rank, frame["device"] == "cuda:1"
    for found, mine in (
        (rows_of_rank(run, table, rank), of_rank),
        (rows_of_device(run, table, rank, "cuda:1"), of_rank & on_device),
    ):
        pd.testing.assert_frame_equal(found.frame(), frame[mine].reset_index(drop=True))


def test_ranks_behind_one_another_need_no_list_of_rows(run: Measures) -> None:
    kernels = run.kernels.sort_values("rank", kind="stable", ignore_index=True)
    in_order = replace(run, kernels=kernels)
    for rank in (0, 1, 2):
        assert isinstance(places_of_rank(in_order, "kernels", rank), slice)
        mine = kernels[kernels["rank"] == rank].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows_of_rank(in_order, "kernels", rank).frame(), mine)


def test_a_table_without_rows_has_none_of_any_rank() -> None:
    assert not len(rows_of_rank(Tiny(ranks=1).trace(), "copies", 0))


def test_timelines_are_of_kernels_and_copies_in_turn(run: Measures) -> None:
    """As the two tables put together, sorted by start, hold what each device ran."""
    sizes = run.copies["size_bytes"].astype("float64")
    both = pd.concat([run.kernels.assign(size_bytes=-1.0), run.copies.assign(size_bytes=sizes)])
    both = both.sort_values("start_ns", kind="stable")
    places = [(line.rank, line.device) for line in timelines(run)]
    assert places == [(rank, f"cuda:{n}") for rank in range(3) for n in range(2)]
    for line in timelines(run):
        its = both[(both["rank"] == line.rank) & (both["device"] == line.device)]
        assert line.first_ns == its["start_ns"].iloc[0]
        assert line.start_ns.tolist() == its["start_ns"].tolist()
        assert line.launch_ns.tolist() == its["launch_ns"].tolist()
        assert line.kind.tolist() == its["kind"].tolist()
        assert line.with_host.tolist() == its["kind"].isin(["DtoH", "HtoD"]).tolist()
        assert np.nan_to_num(line.size_bytes, nan=-1).tolist() == its["size_bytes"].tolist()


def test_idle_time_after_each_moment(run: Measures) -> None:
    for line in timelines(run):
        times = np.arange(line.start_ns[0] - 5, line.end_ns[-1] + 5, 7_777)
        idle = 0
        for time in times:
            copies = 0
            for row in np.flatnonzero(line.start_ns >= time):
                copies += line.with_host[row]
                if line.ready_ns[row] > _RECOVERED_NS or copies == 2:
                    break
                idle += line.idle_ns[row]
        assert _idle_after(line, times) == idle > 0
