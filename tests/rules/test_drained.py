"""What compute between two waits of the host could hide."""

from __future__ import annotations

from commtrace.rules._drained import between_waits_ns
from commtrace.synthetic import Tiny


def test_what_queues_behind_an_operation_in_its_group_is_hidden_with_it() -> None:
    """1 ms of each of a group's two operations is exposed, and as much of another's."""
    run = Tiny(ranks=2)
    run.groups |= {"dp": (0, 1), "tp": (0, 1)}
    for rank in range(2):
        run.collective(rank, "all_gather", 0, 1_000, size=1 << 26, group="dp")
        run.collective(rank, "reduce_scatter", 1_000, 1_000, size=1 << 26, group="dp")
        run.collective(rank, "all_reduce", 2_000, 1_000, size=1 << 26, group="tp")
        run.kernel(rank, 3_000, 6_000)
    assert between_waits_ns(run.trace(), "all_gather") == 2_000_000
    assert between_waits_ns(run.trace(), "all_reduce") == 1_000_000
