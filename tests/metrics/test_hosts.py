"""Which ranks share a host."""

from __future__ import annotations

import pytest

from commtrace.metrics.rank.hosts import on_hosts_of_their_own
from commtrace.synthetic import Tiny


@pytest.mark.parametrize(("ranks", "own"), [((0,), False), ((0, 1), True), ((1, 2), False)])
def test_ranks_have_hosts_of_their_own_where_no_other_is(ranks: tuple[int, ...], own: bool) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on the other."""
    run = Tiny(4, hosts=("a", "b")).trace()
    assert on_hosts_of_their_own(run, ranks) == own
