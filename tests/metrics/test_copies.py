"""What was copied, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commtrace.measures import Measures
from commtrace.metrics.rank.copies import copies

Make = Callable[..., Measures]

PEER = {"kind": "PtoP", "source": "cuda:0", "destination": "cuda:1", "size_bytes": 100}


def test_copies_by_eye(make_trace: Make) -> None:
    table = copies(
        make_trace(
            copies=[
                {**PEER, "start_ns": 0, "duration_ns": 10},
                {**PEER, "start_ns": 5, "duration_ns": 10},
                {**PEER, "start_ns": 50, "duration_ns": 5},
                {**PEER, "destination": "cuda:2", "start_ns": 0, "duration_ns": 50},
                {"kind": "Memset", "size_bytes": 100, "start_ns": 0, "duration_ns": 1},
            ]
        )
    )
    assert table.dicts() == [
        {
            "rank": 0,
            "kind": "PtoP",
            "source": "cuda:0",
            "destination": destination,
            "memory": None,
            "count": count,
            "bytes": 100 * count,
            "duration_ns_total": total,
            "gb_s_p50": median,
            "gb_s_busy": busy,
        }
        for destination, count, total, median, busy in (
            ("cuda:1", 3, 25, 10.0, 15.0),
            ("cuda:2", 1, 50, 2.0, 2.0),
        )
    ]


def test_rates_are_null_where_sizes_are_unknown(make_trace: Make) -> None:
    def measured(*sizes: int | None) -> list[Any]:
        called = [{**PEER, "size_bytes": s, "start_ns": 0, "duration_ns": 10} for s in sizes]
        (row,) = copies(make_trace(copies=called)).dicts()
        return [row["count"], row["bytes"], row["gb_s_p50"], row["gb_s_busy"]]

    assert measured(None) == [1, None, None, None]
    assert measured(None, 200) == [2, None, 20.0, None]
