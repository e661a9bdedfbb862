"""Rings of messages across hosts."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules._rings import detours
from commtrace.synthetic import Tiny

MB = 1_000_000


def ring(order: list[int], hosts: tuple[str | None, ...] = ("a", "b")) -> Measures:
    """Each sends to the next, five times; rank 0 also has a little for all."""
    run = Tiny(len(order), hosts=hosts)
    for time in range(5):
        for sender, receiver in zip(order, order[1:] + order[:1], strict=True):
            call = {"size": 8 * MB, "peer": receiver, "stream": 20}
            run.collective(sender, "send", 1000 * time, 500, **call)
            run.collective(receiver, "recv", 1000 * time, 500, size=8 * MB, peer=sender, stream=21)
    for rank in range(len(order)):
        run.collective(rank, "broadcast", 6000, 10, size=MB, root=0)
    return run.trace()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([0, 1, 2, 3], ""),
        ([0, 1, 3, 2], ""),
        ([0, 2, 1, 3], "order the ring by hosts: 4 of its 4 hops are between hosts, 2 would do; "),
    ],
)
def test_a_ring_leaves_each_host_once(order: list[int], said: str) -> None:
    assert detours(ring(order)) == said


def test_nothing_is_said_of_unknown_hosts() -> None:
    assert not detours(ring([0, 2, 1, 3], hosts=(None,)))
