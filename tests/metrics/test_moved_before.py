"""The bandwidth of what reaches a root, of which a part may have moved before all are there."""

from __future__ import annotations

import pytest

from commtrace.metrics.run.collectives import collectives
from commtrace.metrics.run.ranges import ranges
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


@pytest.mark.parametrize(
    ("root_us", "others_us", "known"),
    [
        (0, (500, 500, 505), True),  # it waits for all of them
        (500, (0, 100, 300), True),  # they wait for it
        (0, (100, 110, 500), False),  # two thirds have moved when the last comes
    ],
)
def test_a_gather_has_a_bandwidth_if_all_of_it_moves_at_once(
    root_us: float, others_us: tuple[float, ...], known: bool
) -> None:
    run = Tiny(4)
    for step in range(3):
        at = 1000 * step
        for rank, came in enumerate((root_us, *others_us)):
            run.collective(rank, "gather", at + came, 600 - came, size=4_000_000, root=0)
    (row,) = collectives(run.trace()).dicts()
    assert (row["busbw_gb_s"] is not None, row["bound"]) == (known, "exact" if known else None)


def test_neither_a_label_nor_a_rule_takes_what_remains_for_all() -> None:
    run = Tiny(4)
    for step in range(12):
        for rank, came in enumerate((0, 100, 110, 500)):
            at = 1000 * step + came
            run.step(rank, step, at - 10, 590 - came, "collect")
            run.collective(rank, "gather", at, 571 - came, size=256_000_000, root=0)
    trace = run.trace()
    assert [row["busbw_gb_s"] for row in ranges(trace).dicts()] == [None]
    assert not diagnose(trace, select=["impossible-number"]).findings
