"""What streams did, and which were busy at the same time."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.measures import Measures
from commtrace.metrics.rank.streams import stream_overlap, streams


def test_streams_by_eye(make_trace: Callable[..., Measures]) -> None:
    #            0         1         2         3
    #            012345678901234567890123456789
    # stream 7   cccccccccc          kkkkk
    # stream 20       mmmmmmmmmm
    # stream 21                         kkk
    # stream 22  (a kernel of 0 ns)
    trace = make_trace(
        kernels=[
            {"kind": "compute", "start_ns": 0, "duration_ns": 8},
            {"kind": "compute", "start_ns": 4, "duration_ns": 6},
            {"kind": "communication", "start_ns": 5, "duration_ns": 10, "stream": 20},
            {"kind": "compute", "start_ns": 5, "duration_ns": 0, "stream": 22},
        ],
        copies=[
            {"kind": "HtoD", "start_ns": 20, "duration_ns": 5},
            {"kind": "HtoD", "start_ns": 23, "duration_ns": 3, "stream": 21},
        ],
    )
    table = streams(trace).frame()[["stream", "kind", "events", "busy_ns"]]
    assert table.to_numpy().tolist() == [
        [7, "mixed", 3, 15],
        [20, "communication", 1, 10],
        [21, "copy", 1, 3],
        [22, "compute", 1, 0],
    ]
    assert stream_overlap(trace).dicts() == [
        {"rank": 0, "device": "cuda:0", "stream_a": 7, "stream_b": 20, "overlap_ns": 5},
        {"rank": 0, "device": "cuda:0", "stream_a": 7, "stream_b": 21, "overlap_ns": 2},
    ]


def test_streams_of_different_devices_make_no_pair(make_trace: Callable[..., Measures]) -> None:
    kernel = {"kind": "compute", "start_ns": 0, "duration_ns": 8}
    elsewhere = ({"rank": 1, "stream": 8}, {"device": "cuda:1", "stream": 9})
    trace = make_trace(kernels=[kernel, *({**kernel, **place} for place in elsewhere)])
    assert not len(stream_overlap(trace))
