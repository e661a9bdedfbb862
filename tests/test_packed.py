"""Packed tables: what was put in comes out, whole or by rank, in fewer bytes."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.arrays import NULL
from commtrace.few_bytes import Different, Strings, fewer, packed
from commtrace.measures import Measures
from commtrace.metrics.rank import rows_of
from commtrace.metrics.rank.activity import stream_activity
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.rows_of import rows_of_device, rows_of_rank
from commtrace.metrics.run.whole import whole
from commtrace.packed import Packed, pack
from commtrace.synthetic import Tiny
from commtrace.table import Coded, Columns
from commtrace.trace_tables import KERNELS

LIMITS = st.integers(-(2**63), 2**63 - 1) | st.just(NULL) | st.integers(-3, 300)


def kernels(rank: int, launches: list[int]) -> Columns:
    """Kernels of one rank: only when they were launched matters."""
    rows = [
        {column.name: None for column in KERNELS.columns}
        | {
            "rank": rank,
            "device": "cuda:0",
            "stream": 7,
            "name": f"gemm_{n % 3}",
            "kind": "compute",
        }
        | {"start_ns": 1_700_000_000_000_000_000 + 10 * n, "duration_ns": 10}
        for n in range(len(launches))
    ]
    return {**KERNELS.arrays(rows), "launch_ns": np.asarray(launches, dtype=np.int64)}


@given(st.lists(LIMITS, max_size=5), st.lists(LIMITS, max_size=5))
def test_what_was_put_in_comes_out(first: list[int], second: list[int]) -> None:
    parts = [kernels(0, first), kernels(1, second)]
    packed = Packed(KERNELS, parts)
    pd.testing.assert_frame_equal(packed.frame(), KERNELS.rows(*parts).frame())
    for rank, launches in enumerate((first, second)):
        its = (packed.of_ranks or {}).get(rank, slice(0, 0))
        assert packed.columns(its)["launch_ns"].tolist() == launches  # type: ignore[union-attr]


def test_few_different_values_take_a_byte_each_and_one_value_none() -> None:
    count = 1 << 17
    sizes = np.resize(np.asarray([NULL, 1, 1 << 30, -(1 << 40)]), count)
    for values, itemsize, strides in ((sizes, 1, (1,)), (np.full(count, 1 << 40), 1, (0,))):
        made = fewer(packed([values]))
        kept = made.codes if isinstance(made, Different | Strings) else made.above
        assert (kept.itemsize, kept.strides) == (itemsize, strides)
        for rows in (slice(None), slice(5, 9), np.asarray([count - 1, 0])):
            np.testing.assert_array_equal(made.values(rows), values[rows])


@pytest.fixture
def run() -> Measures:
    tiny = Tiny(ranks=2)
    for start in range(0, 1000, 10):
        tiny.kernel(start // 500, start, 5, device=f"cuda:{start % 3}")
    return tiny.trace()


def as_packed(run: Measures, *parts: pd.DataFrame) -> Measures:
    def columns(frame: pd.DataFrame) -> Columns:
        alone = replace(run, kernels=frame)
        ranks = frame["rank"].unique().tolist()
        assert len(ranks) == 1
        return rows_of_rank(alone, "kernels", ranks[0]).columns

    return replace(run, kernels=Packed(KERNELS, [columns(part) for part in parts]))


def test_a_run_gives_the_same_rows_packed(run: Measures) -> None:
    parts = [its.reset_index(drop=True) for _, its in run.kernels.groupby("rank")]
    packed = as_packed(run, *parts)
    pd.testing.assert_frame_equal(packed.kernels, run.kernels)
    for rank in (0, 1, 2):
        whole = rows_of_rank(run, "kernels", rank).frame()
        pd.testing.assert_frame_equal(rows_of_rank(packed, "kernels", rank).frame(), whole)
        some = rows_of_device(packed, "kernels", rank, "cuda:1").frame()
        mine = whole[whole["device"] == "cuda:1"].reset_index(drop=True)
        pd.testing.assert_frame_equal(some, mine)


def test_large_tables_are_unpacked_in_blocks_of_ranks(
    run: Measures, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = as_packed(run, *(its for _, its in run.kernels.groupby("rank")))
    monkeypatch.setattr(rows_of, "_AT_ONCE", 50)
    monkeypatch.setattr("commtrace.packed._FEW", 0)
    parts = list(rows_of.blocks(packed, "kernels"))
    assert [np.unique(part.ints("rank")).tolist() for part in parts] == [[0], [1]]
    every = pd.concat([part.frame() for part in parts], ignore_index=True)
    pd.testing.assert_frame_equal(every, run.kernels)
    pd.testing.assert_frame_equal(devices(packed).frame(), devices(run).frame())
    assert stream_activity(packed).keys() == stream_activity(run).keys()
    assert whole(packed) == whole(run)
    assert packed.packed("kernels")._frame is None  # type: ignore[union-attr]


def test_ranks_in_turns_are_found_all_the_same(run: Measures) -> None:
    mine = run.kernels[run.kernels["rank"] == 0].reset_index(drop=True)
    others = run.kernels[run.kernels["rank"] == 1].reset_index(drop=True)
    packed = as_packed(run, mine, others, mine)
    assert packed.packed("kernels") is not None
    assert len(rows_of_rank(packed, "kernels", 0)) == 2 * len(mine)


def test_a_frame_of_few_rows_is_made_once(run: Measures) -> None:
    packed = as_packed(run, *(its for _, its in run.kernels.groupby("rank")))
    made = id(packed.kernels)
    gc.collect()
    assert id(packed.kernels) == made
    assert pickle.loads(pickle.dumps(packed)).packed("kernels")._held is None


def test_a_frame_of_many_rows_lives_as_long_as_it_is_held(
    run: Measures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.packed._FEW", len(run.kernels) - 1)
    packed = as_packed(run, *(its for _, its in run.kernels.groupby("rank")))
    held = packed.kernels
    assert packed.kernels is held
    again = pickle.loads(pickle.dumps(packed))
    pd.testing.assert_frame_equal(again.kernels, held)
    del held
    gc.collect()
    its = packed.packed("kernels")
    assert its is not None
    assert its._frame is not None
    assert its._frame() is None


def test_values_take_the_bytes_that_they_need() -> None:
    packed = Packed(KERNELS, [kernels(0, list(range(10**18, 10**18 + 200)))])
    assert packed._parts[0]["launch_ns"].above.itemsize == 1  # type: ignore[union-attr]
    assert isinstance(packed.columns()["name"], Coded)


@pytest.mark.parametrize("few", [0, 100])
def test_columns_and_rows_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr("commtrace.packed._FEW", few)
    parts = [kernels(0, [5, NULL, 7]), kernels(1, [NULL, 2**40])]
    packed, whole = Packed(KERNELS, parts), KERNELS.rows(*parts).frame()
    assert packed.ints("launch_ns").tolist() == [5, NULL, 7, NULL, 2**40]
    assert packed.coded("name").decoded() == whole["name"].tolist()
    for rows in (slice(1, 4), np.asarray([4, 0])):
        taken = whole.iloc[rows].reset_index(drop=True)
        pd.testing.assert_frame_equal(packed.some(rows).frame(), taken)


@given(st.lists(st.lists(LIMITS, max_size=4), min_size=1, max_size=4), st.data())
def test_rows_are_found_in_whichever_part_they_are(
    launches: list[list[int]], data: st.DataObject
) -> None:
    parts = [kernels(rank, its) for rank, its in enumerate(launches)]
    packed, whole = Packed(KERNELS, [pack(part) for part in parts]), KERNELS.rows(*parts).frame()
    if len(whole):
        places = st.integers(0, len(whole) - 1)
        at = np.asarray(data.draw(st.lists(places, max_size=6)), dtype=np.int64)
        first, last = data.draw(st.tuples(places, places))
        for rows in (at, slice(first, last)):
            frame = KERNELS.rows(packed.columns(rows)).frame()
            taken = whole.iloc[rows].reset_index(drop=True)
            pd.testing.assert_frame_equal(frame, taken)


def test_files_of_one_rank_are_one_span() -> None:
    parts = [kernels(0, [1, 2]), kernels(0, [3]), kernels(1, []), kernels(2, [4])]
    assert Packed(KERNELS, parts).of_ranks == {0: slice(0, 3), 2: slice(3, 4)}
    assert Packed(KERNELS, [*parts, kernels(0, [5])]).of_ranks is None
    assert Packed(KERNELS, []).of_ranks == {}
