"""Whatever a measure returns as a table is described, column by column."""

from collections.abc import Callable
from typing import Any

import pytest

import commtrace as ct
from commtrace.metrics.rank import copies, devices, exposure, queueing, streams
from commtrace.metrics.run import (
    alike_ranks,
    bandwidth,
    calls,
    collectives,
    exposed_waits,
    joined_rows,
    link_times,
    pair_traffic,
    ranges,
    sequences,
    step_waits,
    timeline_events,
    wait_rows,
    waits,
)
from commtrace.metrics.run import ranks as of_ranks
from commtrace.table import Table

MEASURES: list[tuple[Callable[..., Any], Table]] = [
    (alike_ranks.alike_ranks, alike_ranks.ALIKE_RANKS),
    (bandwidth.served, bandwidth.SERVED),
    (calls.called, calls.CALLS),
    (collectives.collectives, collectives.COLLECTIVES),
    (copies.copies, copies.COPIES),
    (sequences.sequences, sequences.SEQUENCES),
    (devices.devices, devices.DEVICES),
    (exposure.exposure, exposure.EXPOSURE_BY_GROUP),
    (exposed_waits.exposed_waits, exposed_waits.EXPOSED_WAITS),
    (joined_rows.joined_rows, joined_rows.JOINED_ROWS),
    (link_times.between_two, link_times.BETWEEN_TWO),
    (link_times.link_times, link_times.LINK_TIMES),
    (of_ranks.arrivals, of_ranks.ARRIVALS),
    (of_ranks.ranks, of_ranks.RANKS),
    (pair_traffic.pair_traffic, pair_traffic.PAIR_TRAFFIC),
    (queueing.queueing, queueing.QUEUEING),
    (ranges.ranges, ranges.RANGES),
    (streams.stream_overlap, streams.STREAM_OVERLAP),
    (step_waits.step_waits, step_waits.STEP_WAITS),
    (streams.streams, streams.STREAMS),
    (timeline_events.timeline_events, timeline_events.TIMELINE_EVENTS),
    (wait_rows.wait_rows, wait_rows.WAIT_ROWS),
    (waits.operations, waits.OPERATIONS),
    (waits.waits, waits.WAITS),
]


@pytest.fixture(scope="module")
def run() -> ct.Measures:
    return ct.load("traces/decomposed_all_reduce/gloo-4", workers=1).measures


@pytest.mark.parametrize(
    ("measure", "table"), MEASURES, ids=lambda given: getattr(given, "name", "")
)
def test_its_columns_are_those_that_are_described(
    run: ct.Measures, measure: Callable[..., Any], table: Table
) -> None:
    assert sorted(measure(run).columns) == sorted(column.name for column in table.columns)
