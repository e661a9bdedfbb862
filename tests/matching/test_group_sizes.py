"""Group sizes that no trace tells: deduced where that is sure, and never wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace import load
from commtrace import trace_tables as schema
from commtrace.measures import Measures
from commtrace.metrics.run.bandwidth import served
from commtrace.metrics.run.collectives import collectives
from commtrace.metrics.run.group_sizes import group_sizes
from commtrace.metrics.run.waits import matched

Generate = Callable[..., Any]
Make = Callable[..., Measures]
Row = dict[str, Any]


SIZES = {"row": 1_000_000, "column": 2_000_000, "world": 4_000_000}


def bare(run: Any, **ranks: object) -> Measures:
    """The run as traces without metadata leave it; ``ranks`` replaces columns of that table."""
    table = run.trace.collectives
    unknown = pd.Series(pd.NA, index=table.index)
    # Each step's last operation is that of all ranks.
    last = run.truth["group"].eq("world") & run.truth["peer"].isna()
    place = run.truth["operation"].where(last).bfill()
    return replace(
        run.trace,
        collectives=table.assign(
            step=pd.array(place.rank(method="dense").astype("int64"), dtype="Int64"),
            group=unknown.astype("category"),
            group_provenance=unknown.astype("category"),
            group_size=unknown.astype("Int64"),
            seq=unknown.astype("Int64"),
        ),
        groups=schema.GROUPS.rows(),
        ranks=run.trace.ranks.assign(**ranks),
    )


def size_of_rows(trace: Measures) -> Any:
    """The group size of each row of ``collectives``."""
    sizes = group_sizes(trace).frame().set_index("operation")["group_size"]
    return sizes.loc[matched(trace).waits.ints("operation")].array


def right_wrong_open(run: Any, trace: Measures) -> tuple[int, int, int]:
    """Collectives whose size was deduced rightly, wrongly, and not at all."""
    size = size_of_rows(trace)
    collective = run.truth["peer"].isna().to_numpy()
    size, truth = size[collective], run.truth["group_size"].to_numpy()[collective]
    unknown = size.isna()
    right = (size == truth).fillna(value=False)
    return int(right.sum()), int((~right & ~unknown).sum()), int(unknown.sum())


def by_group(run: Any) -> Any:
    """The same run, with one size for each group's operations."""
    size = run.truth["group"].map(SIZES).astype("Int64").array
    table = run.trace.collectives.assign(size_bytes=size, in_bytes=size, out_bytes=size)
    return replace(run, trace=replace(run.trace, collectives=table))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ({}, {1.0}),
        ({"hosts": 2}, {0.0, 1.0}),
        ({"hosts": 4}, {0.0, 1.0}),
        ({"world_size": 8}, {1.0}),
        ({"mesh": 2}, {0.0}),  # all that came late was waited for in the groups before
        ({"mesh": 2, "skew_ns": 1e6}, {0.0}),
        ({"mesh": 2, "skew_ns": 0}, {0.0}),
        ({"mesh": 4, "world_size": 8, "skew_ns": 1e6}, {0.0}),
        ({"pipeline": True}, {0.0}),  # a receiver comes as late as its sender
        ({"drop": 0.02}, {0.0}),
        ({"late": 3}, {0.0}),
        ({"missing": (1,)}, {0.0}),
        ({"jitter_ns": 100_000}, {0.0}),
    ],
)
def test_a_deduced_size_is_right(
    generate: Generate, kind: dict[str, object], share: set[float], seed: int
) -> None:
    """Whether a group's operations are distinguished by their size, or not."""
    run = generate(**{"world_size": 4, "steps": 40, "seed": seed, "alike": True, **kind})
    for some in (run, by_group(run)):
        right, wrong, unknown = right_wrong_open(some, bare(some))
        assert not wrong
        assert right / (right + unknown) in share


WORLD = [(0, 1, 2, 3)]
UNKNOWN = (None, None)
HALVES = [(0, 1), (2, 3)]
US, MS = 1_000, 1_000_000
Called = tuple[list[tuple[int, ...]], float, float]
"""The groups that call at once, how late their ranks can come, and the first's extra time."""


def program(
    make: Make,
    *called: Called,
    in_step: Mapping[int, tuple[Called, ...]] | None = None,
    straggler_ns: float = 0,
    transfer_ns: float = 100 * US,
    slow_to_end_ns: float = 0,
    steps: int = 20,
    size: Callable[[int], int] = lambda place: 4_000_000,
    **tables: list[Row],
) -> Measures:
    """Each step calls these in order, or its own; ranks come late by chance, the last always."""
    rng = np.random.default_rng(1)
    now = np.full(4, 1_700_000_000 * 1e9)
    found: list[Row] = []
    for step in range(steps):
        for place, (groups, skew_ns, extra_ns) in enumerate((in_step or {}).get(step, called)):
            if skew_ns:
                now = now.max() + MS + rng.exponential(skew_ns, 4)
                now[3] += straggler_ns
            for number, members in enumerate(groups):
                at = list(members)
                over = now[at].max() + transfer_ns + (0 if number else extra_ns)
                end = over + np.abs(rng.normal(0, 2 * US, len(at)))
                end[-1] += slow_to_end_ns
                for rank, start, last in zip(at, now[at], end, strict=True):
                    row = {"rank": rank, "start_ns": int(start), "duration_ns": int(last - start)}
                    row |= {"step": step, "stream": 20, "size_bytes": size(place)}
                    found.append({**row, "op": "all_reduce", "dtype": "float32"})
                now[at] = end
    ranks = [{"rank": r, "file": f"{r}", "host": "a", "world_size": 4} for r in range(4)]
    return make(**{"collectives": found, "ranks": ranks, **tables})


def sizes(trace: Measures) -> dict[tuple[int | None, str | None], int]:
    """How many operations have which size, and how that is known."""
    found = group_sizes(trace).dicts()
    return dict(Counter((row["group_size"], row["group_size_deduced"]) for row in found))


TOGETHER = (WORLD, 200 * US, 0)


def test_all_that_wait_for_the_last_are_one_group(make_trace: Make) -> None:
    trace = program(make_trace, TOGETHER)
    assert sizes(trace) == {(4, "ranks"): 20}
    (row,) = collectives(trace).dicts()
    assert (row["group"], row["group_size"], row["group_size_deduced"]) == (None, 4, "ranks")
    assert row["busbw_gb_s"] == pytest.approx(1.5 * row["algbw_gb_s"])
    # Deduced is not known: time is the shortest kernel's, and no operation counts as complete.
    assert (row["bound"], row["complete"]) == ("lower", None)
    assert not np.isnan(served(trace).floats("busbw_gb_s")).any()
    assert not served(trace).flags("exact").any()


APART, IN_STEP = (HALVES, 200 * US, 0), (HALVES, 0, 0)


@pytest.mark.parametrize(
    ("called", "more"),
    [
        ([APART], {}),
        ([APART], {"transfer_ns": 10 * MS}),  # no half is done before the other has come
        ([(HALVES, 1, 0)], {}),
        ([TOGETHER, IN_STEP], {}),  # right after one of all: nothing tells
        ([TOGETHER] * 5 + [IN_STEP], {}),
        ([IN_STEP, TOGETHER, TOGETHER], {}),
        ([TOGETHER], {"in_step": {7: (APART,)}}),
        ([TOGETHER], {"in_step": {7: ((HALVES, 40 * US, 0),)}, "transfer_ns": 5 * US}),
        ([TOGETHER], {"in_step": {7: (TOGETHER, TOGETHER)}}),  # once is by chance
        (
            [TOGETHER, TOGETHER],
            {"in_step": dict.fromkeys(range(0, 20, 3), (TOGETHER, IN_STEP))},
        ),
    ],
)
def test_groups_in_step_are_not_taken_for_one(
    make_trace: Make, called: list[Called], more: dict[str, Any]
) -> None:
    trace = program(make_trace, *called, **more)
    assert sizes(trace).keys() == {UNKNOWN}
    assert {row["busbw_gb_s"] for row in collectives(trace).dicts()} == {None}


def test_kinds_are_judged_each_for_itself(make_trace: Make) -> None:
    trace = program(make_trace, TOGETHER, (HALVES, 0, 0), size=lambda place: 8 + place)
    found = sizes(trace)
    assert found.keys() == {(4, "ranks"), UNKNOWN}
    assert found[4, "ranks"] == 20


def test_a_slower_half_that_ends_with_the_other_is_not_taken_for_one(make_trace: Make) -> None:
    """Rank 3 is late by as much as the operations of ranks 0 and 1 take longer."""
    trace = program(make_trace, (HALVES, 30 * US, 10.3 * MS), straggler_ns=10 * MS)
    assert sizes(trace).keys() == {UNKNOWN}


def test_ends_that_always_differ_show_nothing(make_trace: Make) -> None:
    trace = program(make_trace, TOGETHER, slow_to_end_ns=MS)
    assert sizes(trace) == {UNKNOWN: 20}


def test_one_straggler_is_enough(make_trace: Make) -> None:
    assert sizes(program(make_trace, TOGETHER, straggler_ns=10 * MS)) == {(4, "ranks"): 20}


def test_too_few_operations_show_nothing(make_trace: Make) -> None:
    assert sizes(program(make_trace, TOGETHER, steps=9)) == {UNKNOWN: 9}


def _ranks(**of_last: object) -> list[Row]:
    ranks = [{"rank": r, "file": f"{r}", "host": "a", "world_size": 4} for r in range(4)]
    return [*ranks[:-1], {**ranks[-1], **of_last}]


@pytest.mark.parametrize(
    "tables",
    [
        {"ranks": _ranks(world_size=None)},
        {"ranks": [{**row, "world_size": None} for row in _ranks()]},
        {"ranks": _ranks(world_size=8)},
        {"ranks": [{**row, "world_size": 8} for row in _ranks()]},
        {"groups": [{"rank": 2, "group": "1", "size": 2, "ranks": "2,3"}]},
    ],
)
def test_without_all_ranks_or_a_group_of_all_nothing_is_deduced(
    make_trace: Make, tables: dict[str, list[Row]]
) -> None:
    assert sizes(program(make_trace, TOGETHER, **tables)) == {UNKNOWN: 20}


def test_groups_of_all_do_not_stand_against_it(make_trace: Make) -> None:
    groups = [
        {"rank": rank, "group": name, "size": size, "ranks": ranks}
        for rank in range(4)
        for name, size, ranks in (("0", 4, "0,1,2,3"), ("1", 1, f"{rank}"))
    ]
    assert sizes(program(make_trace, TOGETHER, groups=groups)) == {(4, "ranks"): 20}


def test_operations_outside_steps_show_nothing(make_trace: Make) -> None:
    trace = program(make_trace, TOGETHER)
    table = trace.collectives.assign(step=pd.array([pd.NA] * 80, dtype="Int64"))
    assert sizes(replace(trace, collectives=table)) == {UNKNOWN: 20}


def test_what_a_rank_knows_outranks_what_another_deduced(make_trace: Make) -> None:
    """The operation has one size for all; ranks that deduce different ones know none."""
    listed = {"op": "all_reduce", "size_bytes": 8, "group_provenance": "deduced"}
    trace = make_trace(
        collectives=[
            {"rank": 0, "start_ns": 0, "duration_ns": 9, "comms_id": "a", "group_size": 4} | listed,
            {"rank": 1, "start_ns": 0, "duration_ns": 9, "comms_id": "a", "group_size": 2}
            | {**listed, "group_provenance": "metadata"},
            *(
                {"rank": r, "start_ns": 20, "duration_ns": 9, "comms_id": "b", "group_size": 4 + r}
                | listed
                for r in range(2)
            ),
            {"rank": 0, "start_ns": 40, "duration_ns": 9, "comms_id": "c", "group_size": 4}
            | listed,
        ],
        ranks=_ranks()[:2],
    )
    assert sizes(trace) == {(2, None): 1, UNKNOWN: 1, (4, "groups"): 1}


@pytest.mark.parametrize("name", ["all_reduce", "ddp_training"])
def test_recordings_without_metadata_are_given_no_wrong_size(recorded: Path, name: str) -> None:
    """Their ranks shared a processor and ended far apart: too far to be sure of anything."""
    trace = load(recorded / name / "gloo-4", workers=1).measures
    known = trace.collectives
    names = ("group", "group_provenance", "seq", "comms_id", "group_size")
    unknown = {
        column: pd.array([None] * len(known), dtype=known[column].dtype)
        if known[column].dtype == "Int64"
        else pd.Categorical([None] * len(known))
        for column in names
    }
    bare = replace(trace, collectives=known.assign(**unknown), groups=schema.GROUPS.rows())
    size = size_of_rows(bare)
    assert (size.isna() | (size == known["group_size"].array)).all()
