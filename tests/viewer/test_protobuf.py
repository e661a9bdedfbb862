"""Packets are what Perfetto's own classes decode."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from commtrace.viewer.perfetto_file import PerfettoFile
from commtrace.viewer.protobuf import integer, times, varint
from commtrace.viewer.slices import Slice

LARGEST = (1 << 63) - 1


def decoded(out: io.BytesIO) -> Any:
    trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    return trace.Trace.FromString(out.getvalue()).packet


@pytest.mark.parametrize("value", [0, 1, 127, 128, 1 << 40, LARGEST])
def test_numbers(value: int) -> None:
    google = pytest.importorskip("google.protobuf.internal.encoder")
    assert varint(value) == google._VarintBytes(value)
    assert len(times(np.array([value]))) == 9


def test_what_is_negative_has_ten_bytes() -> None:
    assert integer(4, -1) == b"\x20" + b"\xff" * 9 + b"\x01"


def test_slices_begin_and_end_in_order() -> None:
    out = io.BytesIO()
    file = PerfettoFile(out)
    track = file.track("rank 0")
    inner = Slice(5, 9, "inner", {"n": -1, "x": 0.5, "s": "ü", "b": True, "none": None}, 3, (7,))
    file.slices(track, [Slice(5, 10, "outer"), inner, Slice(10, 10, "moment"), Slice(10, 11, "z")])
    events = [packet for packet in decoded(out) if packet.HasField("track_event")]
    kinds = [(packet.timestamp, packet.track_event.type) for packet in events]
    begin, end = 1, 2
    assert kinds == [
        (5, begin),
        (5, begin),
        (9, end),
        (10, end),
        (10, begin),
        (10, end),
        (10, begin),
        (11, end),
    ]
    event = events[1].track_event
    assert list(event.flow_ids) == [7]
    assert event.correlation_id == 3
    shown = event.debug_annotations
    assert [its.WhichOneof("value") for its in shown] == [
        "int_value",
        "double_value",
        "string_value_iid",
        "bool_value",
    ]
    assert (shown[0].int_value, shown[1].double_value, shown[3].bool_value) == (-1, 0.5, True)


def test_a_section_has_names_of_its_own() -> None:
    out = io.BytesIO()
    file = PerfettoFile(out)
    for _ in range(2):
        file.section()
        file.slices(file.track("t"), [Slice(1, 2, "same"), Slice(3, 4, "same")])
    packets = decoded(out)
    named = [name.name for p in packets for name in p.interned_data.event_names]
    assert named == ["same", "same"]
    by_sequence = {p.trusted_packet_sequence_id for p in packets if p.HasField("track_event")}
    assert len(by_sequence) == 2
    begun = [p.trusted_packet_sequence_id for p in packets if p.sequence_flags == 1]
    assert begun == sorted(set(begun))


def test_a_number_too_large_is_text() -> None:
    out = io.BytesIO()
    file = PerfettoFile(out)
    file.slices(file.track("t"), [Slice(1, 2, "x", {"n": 1 << 70})])
    packets = decoded(out)
    (named,) = [text for p in packets for text in p.interned_data.debug_annotation_string_values]
    (event,) = [p.track_event for p in packets if p.track_event.type == 1]
    assert event.debug_annotations[0].string_value_iid == named.iid
    assert named.str == str(1 << 70).encode()
