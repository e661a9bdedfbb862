"""The time that costs are a share of."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.whole import whole
from commtrace.synthetic import Tiny

MS = 1_000_000


def ahead(behind_us: float) -> Measures:
    """Three steps that a host launches in 1 ms each; the GPU is so far behind with those before."""
    run = Tiny(1)
    run.kernel(0, -100, behind_us + 100)
    for number in range(3):
        run.step(0, number + 1, 1_000 * number, 1_000)
        run.kernel(0, behind_us + 3_000 * number, 3_000, step=number + 1)
    return run.trace()


@pytest.mark.parametrize("behind_us", [500, 5_000])
def test_where_hosts_run_ahead_steps_begin_when_the_device_is_done_with_those_before(
    behind_us: float,
) -> None:
    its = whole(ahead(behind_us))
    assert (its.time_ns, its.in_steps) == (9 * MS, True)
