"""Generated runs, whose truth is known: everything matched or listed, nothing mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.arrays import NULL
from commtrace.matching import match
from commtrace.measures import Measures
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched, unmatched

Generate = Callable[..., Any]
BASE = {"hosts": 2, "offset_ns": 5e6, "drift_ppm": 30.0}
WORLDS = (
    {"world_size": 2, "steps": 300},
    {"world_size": 4, "steps": 200, "mesh": 2, "pipeline": True},
    {"world_size": 16, "steps": 60, "mesh": 4, "pipeline": True},
    {"world_size": 64, "steps": 12, "mesh": 8, "pipeline": True},
)
FAULTS = (
    {},
    {"alike": True},
    {"late": 1, "drop": 0.02},
    {"late": 1, "drop": 0.02, "alike": True},
    {"missing": (1,), "alike": True},
    {"own_names": True, "named_hosts": False},
)
IDENTIFIERS = (None, "sequence", "comms-id")


def mixed_and_split(truth: Any, operation: Any) -> tuple[int, int, int]:
    """Operations found that are several in truth; true ones found as several; the true ones."""
    both = truth.assign(found=operation)
    mixed = both.groupby("found")["operation"].nunique().gt(1).sum()
    split = both.groupby("operation")["found"].nunique().gt(1)
    return int(mixed), int(split.sum()), split.size


@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("identifiers", IDENTIFIERS)
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_every_operation_is_matched_or_listed_and_none_is_mixed(
    generate: Generate, faults: dict[str, Any], identifiers: str | None, turn: int
) -> None:
    # Each fault with each identifier in two of the worlds, that take turns.
    place = FAULTS.index(faults) + IDENTIFIERS.index(identifiers) + turn
    world = WORLDS[place % len(WORLDS)]
    run = generate(**BASE, **world, **faults, identifiers=identifiers)
    found = matched(run.trace)
    mixed, split, operations = mixed_and_split(run.truth, found.matches.frame()["operation"])
    assert mixed == 0
    assert split <= 0.01 * operations
    alone = found.matches.ints("present") == 1
    assert (alone == ~found.matches.coded("matched_by").known).all()
    listed = {note.rank: note for note in unmatched(run.trace)}
    # Who could have been met: those of the group that were recorded.
    recorded = set(run.trace.ranks["rank"])
    could = np.asarray([len(recorded & met) for met in _members(run.truth)]) > 1
    for rank in recorded:
        count = int((alone & could & (run.truth["rank"] == rank)).sum())
        told = listed[rank].message.split()[0] if rank in listed else "0"
        assert told == str(count)


def _members(truth: Any) -> list[set[int]]:
    return [
        {int(one) for one in members.split(",")} if members else {rank, int(peer)}
        for rank, peer, members in zip(truth["rank"], truth["peer"], truth["members"], strict=True)
    ]


@pytest.mark.parametrize("identifiers", [None, "sequence"])
@pytest.mark.parametrize("world_size", [2, 4, 16])
def test_offsets_are_within_50_us_and_within_the_published_error(
    generate: Generate, world_size: int, identifiers: str | None
) -> None:
    wrong, inside = [], []
    for seed in range(8):
        run = generate(
            world_size,
            (50, 1500 // world_size)[seed % 2],
            **BASE,
            seed=seed,
            late=seed % 3,
            drop=0.01,
            alike=seed % 2 == 0,
            identifiers=identifiers,
        )
        clocks = matched(run.trace).clock.frame()
        for row in clocks[clocks["clock"] != 0].itertuples(index=False):
            error = abs(row.offset_ns - run.clocks.true_offset(row.at_ns, row.rank, 0))
            wrong.append(error)
            inside.append(error <= row.error_ns)
    assert np.percentile(wrong, 95) < 50_000
    assert np.mean(inside) >= 0.95


def test_the_drift_is_found_in_a_long_run(generate: Generate) -> None:
    run = generate(4, 2500, **BASE, alike=True, late=3, drop=0.005)
    clocks = matched(run.trace).clock.frame()
    assert clocks["drift_ppm"].tolist()[:2] == [0, 0]
    expected = [drift * 1e6 for drift in run.clocks.drift[2:]]
    assert clocks["drift_ppm"].tolist()[2:] == pytest.approx(expected, abs=3)
    for at_ns in (run.trace.collectives["start_ns"].min(), run.trace.collectives["start_ns"].max()):
        for row in clocks.itertuples(index=False):
            told = row.offset_ns + row.drift_ppm * 1e-6 * (at_ns - row.at_ns)
            true = run.clocks.true_offset(int(at_ns), row.rank, 0)
            assert abs(told - true) <= row.error_ns


@pytest.mark.parametrize("identifiers", [None, "sequence"])
def test_bandwidth_comes_from_the_transfer(generate: Generate, identifiers: str | None) -> None:
    run = generate(8, 300, **BASE, mesh=4, identifiers=identifiers)
    found = matched(run.trace)
    told = found.operations.ints("transfer_ns")[operation_of(run.trace)].astype(float)
    large = (run.truth["size_bytes"] >= 1 << 20).to_numpy()
    ratio = told[large] / run.truth["transfer"].to_numpy()[large]
    assert np.median(ratio) == pytest.approx(1, abs=0.02)
    assert found.operations.flags("exact").all()


def test_the_waits_are_right_and_who_caused_them(generate: Generate) -> None:
    run = generate(8, 200, **BASE, skew_ns=3_000_000)
    found = matched(run.trace)
    waits = found.waits.frame()
    wait = waits["wait_ns"].sum()
    assert wait == pytest.approx(run.truth["wait"].sum(), rel=0.02)
    assert waits["caused_wait_ns"].sum() == pytest.approx(wait, rel=0.02)
    last = run.truth.loc[run.truth.groupby("operation")["arrival"].idxmax(), "rank"]
    told = found.operations.frame()["last_rank"].dropna()
    assert len(told) > 0.9 * len(last)
    assert (told.to_numpy() == last.to_numpy()[told.index]).all()


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("jitter_ns", [0, 5_000])
def test_no_wait_is_invented(generate: Generate, hosts: int, jitter_ns: int) -> None:
    run = generate(
        8, 150, **{**BASE, "hosts": hosts}, skew_ns=0, jitter_ns=jitter_ns, pipeline=False
    )
    found = matched(run.trace)
    assert (found.waits.ints("wait_ns") == 0).all()
    assert (found.operations.ints("skew_ns") == 0).all()
    assert (found.operations.ints("last_rank") == NULL).all()


def test_waits_of_a_partial_operation_are_lower_bounds(generate: Generate) -> None:
    run = generate(8, 100, skew_ns=2_000_000, missing=(2, 5), identifiers="sequence")
    found = matched(run.trace)
    assert (found.waits.ints("wait_ns") <= run.truth["wait"] + 2).all()
    assert not found.operations.flags("exact").any()
    true = run.truth.groupby("operation")["transfer"].first()
    assert (found.operations.ints("transfer_ns") >= true.to_numpy() - 50_000).all()
    assert [note.code for note in unmatched(run.trace)] == ["partial-operations"]


def test_numbers_that_only_some_rows_have(generate: Generate) -> None:
    # A flight recorder is a ring: each rank has lost the numbers of a different beginning.
    run = generate(4, 200, **BASE, mesh=2, alike=True, drop=0.01, identifiers="sequence")
    rows = run.trace.collectives
    lost = run.truth["place"] < 100 + 40 * run.truth["rank"]
    trace = replace(run.trace, collectives=rows.assign(seq=rows["seq"].mask(lost)))
    found = match(trace).matches.frame()
    mixed, split, _ = mixed_and_split(run.truth, found["operation"])
    assert (mixed, split) == (0, 0)
    assert set(found["matched_by"].dropna()) == {"sequence", "alignment"}


def test_unrelated_runs_are_not_aligned(generate: Generate) -> None:
    ours, theirs = (generate(1, 60, seed=seed, alike=True, named_hosts=False) for seed in (1, 2))
    shifted = theirs.trace.collectives.assign(
        rank=1, start_ns=theirs.trace.collectives["start_ns"] + 10**12
    )
    both = _joined(ours.trace, shifted)
    found = match(both)
    assert not found.matches.coded("matched_by").known.any()
    assert (found.clock.ints("offset_ns") == NULL).tolist() == [False, True]


def _joined(trace: Measures, rows: Any) -> Measures:
    import pandas as pd

    from commtrace import trace_tables as schema

    group = {"description": None, "backend": "nccl", "size": 2, "ranks": "0,1", "group": "world"}
    groups = schema.GROUPS.of_dicts([{**group, "rank": rank} for rank in (0, 1)])
    collectives = pd.concat([trace.collectives, rows], ignore_index=True)
    text = [c.name for c in schema.COLLECTIVES.columns if c.dtype == "category"]
    collectives = collectives.astype(dict.fromkeys(text, "category"))
    return replace(trace, groups=groups, collectives=collectives)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    order=st.integers(0, 2**32),
    shift_ns=st.integers(-(10**8), 10**8),
    identifiers=st.sampled_from([None, "sequence"]),
)
def test_names_order_and_a_clock_change_nothing_else(
    generate: Generate, seed: int, order: int, shift_ns: int, identifiers: str | None
) -> None:
    run = generate(4, 30, seed=seed, hosts=4, mesh=2, drop=0.01, identifiers=identifiers)
    rows = run.trace.collectives
    places = np.random.default_rng(order).permutation(len(rows))
    start = rows["start_ns"] + shift_ns * (rows["rank"] == 2)
    renamed = rows["group"].cat.rename_categories(lambda name: f"{name} of {seed}")
    changed = rows.assign(start_ns=start, group=renamed).iloc[places].reset_index(drop=True)
    groups = run.trace.groups
    names = groups["group"].cat.rename_categories(lambda name: f"{name} of {seed}")
    changed_run = replace(run.trace, collectives=changed, groups=groups.assign(group=names))
    before, after = matched(run.trace), matched(changed_run)
    back = np.argsort(places)
    earlier, later = (its.matches.ints("operation") for its in (before, after))
    pairs = set(zip(earlier.tolist(), later[back].tolist(), strict=True))
    assert len(pairs) == np.unique(earlier).size == len({b for _, b in pairs})
    waits, expected = after.waits.frame().iloc[back].reset_index(drop=True), before.waits.frame()
    gates = 3 * before.clock.ints("error_ns")  # a wait at one of them may be known, or not
    near = [(its["wait_ns"] - gate).abs() <= 9 for its in (waits, expected) for gate in gates]
    unsure = expected["operation"][np.any([its.fillna(False) for its in near], axis=0)]
    waits, expected = (its[~expected["operation"].isin(unsure)] for its in (waits, expected))
    for column in ("arrival_ns", "end_ns", "wait_ns", "caused_wait_ns"):
        difference = (waits[column] - expected[column]).abs()
        assert (difference.dropna() <= 2).all()
        assert difference.isna().equals(expected[column].isna())
    known = before.clock.ints("offset_ns") != NULL
    assert (known == (after.clock.ints("offset_ns") != NULL)).all()
    for column, moved in (("offset_ns", [0, 0, shift_ns, 0]), ("error_ns", [0] * 4)):
        difference = after.clock.ints(column) - before.clock.ints(column) - moved
        assert np.abs(difference[known]).max() <= 2
