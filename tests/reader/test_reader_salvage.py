"""Broken files: what can be read is read, what cannot is noted, nothing raises."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commtrace.reader.json import salvage
from commtrace.reader.json.events import Scan
from commtrace.reader.json.scan import scan

KERNELS = 400


def event(n: int, **changed: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{n}",
        "pid": 0,
        "tid": 7,
        "ts": 1000 + n,
        "dur": 1,
        "args": {"device": 0, "stream": 7, "correlation": n},
        **changed,
    }


def kineto(events: list[str]) -> str:
    listed = ",\n".join(f"  {text}" for text in events)
    return (
        '{\n  "distributedInfo": {"rank": 3},\n  "traceEvents": [\n'
        + listed
        + '\n  ],\n  "baseTimeNanoseconds": 0,\n  "traceName": "x"\n}\n'
    )


def pretty(n: int, **changed: Any) -> str:
    return json.dumps(event(n, **changed), indent=2).replace("\n", "\n  ")


LAYOUTS = {
    "kineto": lambda: kineto([pretty(n) for n in range(KERNELS)]),
    "one line": lambda: json.dumps({"traceEvents": [event(n) for n in range(KERNELS)]}),
}


def read(tmp_path: Path, content: str | bytes) -> Scan:
    file = tmp_path / "a.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return scan(file)


def codes(found: Scan) -> list[str]:
    return [note.code for note in found.notes]


def kernels(found: Scan) -> list[str | None]:
    return found.gpu.name.decoded()


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_all_whole_events_before_a_cut_anywhere(tmp_path: Path, layout: str) -> None:
    text = LAYOUTS[layout]()
    first = text.index("k0")
    ends = [
        text.index("}}" if layout == "one line" else "\n  }", text.index(f'"k{n}"'))
        for n in range(KERNELS)
    ]
    for cut in range(first, len(text) - 3, 997):
        found = read(tmp_path, text[:cut])
        whole = sum(end + 4 <= cut for end in ends)
        assert whole - 1 <= len(kernels(found)) <= whole + 1
        assert kernels(found) == [f"k{n}" for n in range(len(kernels(found)))]
        assert "truncated" in codes(found) or cut > ends[-1]
        assert "damaged" not in codes(found)


def test_a_gzip_stream_that_breaks_off_gives_all_that_was_written(tmp_path: Path) -> None:
    random.seed(1)
    events = [pretty(n, note=random.randbytes(40).hex()) for n in range(3000)]
    whole = gzip.compress(kineto(events).encode())
    for cut in range(2000, len(whole), 29_989):
        text = zlib.decompressobj(31).decompress(whole[:cut]).decode()
        found = read(tmp_path, whole[:cut])
        written = text.count("\n  },\n  {")
        assert len(kernels(found)) in (written, written + 1)
        assert codes(found) == ["truncated"]
        assert "gzip" in found.notes[0].message


def test_a_damaged_gzip_block(tmp_path: Path) -> None:
    random.seed(1)
    events = [pretty(n, note=random.randbytes(40).hex()) for n in range(3000)]
    whole = bytearray(gzip.compress(kineto(events).encode()))
    whole[len(whole) // 2 : len(whole) // 2 + 64] = bytes(64)
    found = read(tmp_path, bytes(whole))
    assert len(kernels(found)) > 1300
    assert set(codes(found)) & {"truncated", "damaged"}


def test_a_wrong_checksum_costs_no_event_but_is_noted(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(LAYOUTS["kineto"]().encode()))
    whole[-6] ^= 1
    found = read(tmp_path, bytes(whole))
    assert len(kernels(found)) == KERNELS
    assert codes(found) == ["damaged"]


def test_something_appended_to_a_gzip_file(tmp_path: Path) -> None:
    found = read(tmp_path, gzip.compress(LAYOUTS["kineto"]().encode()) + b"scp: stalled")
    assert len(kernels(found)) == KERNELS
    assert codes(found) == ["damaged"]


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("", 0),  # a stray comma
        ('{"ph": "X", "cat": "kernel", "name": "cut', 1),
        ('{"ph": "X", "cat": "kernel", "na', 1),
        (pretty(1)[:-1], 1),  # no closing brace
        (pretty(1).replace('"args": {', '"args": '), 1),  # no opening brace
        (pretty(1, ts=None), 1),
        (pretty(1, ts="soon"), 1),
        (pretty(1, ts="1001"), 0),  # as Ascend writes it
        (pretty(1, dur=-5), 1),
        (pretty(1, dur=1e15), 1),
        (pretty(1, name=None), 1),
        (pretty(1, name=["k1"]), 1),
        (pretty(1, ph=None), 1),
        (pretty(1, args=[1]), 1),
        (pretty(1, args={"device": 0.5}), 1),
        (pretty(1, args={"device": 0, "stream": "7"}), 0),  # as written anew by other programs
        (pretty(1, args={"device": 0, "stream": 7.0, "correlation": 5.0}), 0),
        (pretty(1, ts=float("nan")), 1),
        (pretty(1, ts=float("inf")), 1),
        (pretty(1, pid="gpu 0", tid="stream 7"), 0),  # its arguments tell
        (pretty(1, args={"device": 0, "blocks per SM": float("inf")}), 0),
        (pretty(1, args={"device": 0, "blocks per SM": 7}).replace(": 7", ": inf"), 0),
        (pretty(1).replace("k1", "k\x01"), 0),
        (pretty(1).replace("k1", "k\\ud800"), 0),
        (pretty(1).replace("k1", 'say "k1"'), 0),  # as Kineto writes it
        (pretty(1).replace("k1", "k}, {1"), 0),
        ("[" * 100_000, 1),
        ('{"a":' * 100_000, 1),
        ("7", 1),
        ('"text"', 1),
    ],
)
def test_one_broken_event_costs_itself_alone(tmp_path: Path, broken: str, lost: int) -> None:
    found = read(tmp_path, kineto([pretty(0), broken, pretty(2), pretty(3)]))
    names = kernels(found)
    assert names[0] == "k0"
    assert names[-2:] == ["k2", "k3"]
    assert len(names) == (3 if lost or not broken else 4)
    if lost:
        assert set(codes(found)) <= {"damaged", "bad-events", "repaired"}
        assert codes(found) not in ([], ["repaired"])
    else:
        assert set(codes(found)) <= {"repaired"}
    assert found.metadata == {
        "distributedInfo": {"rank": 3},
        "baseTimeNanoseconds": 0,
        "traceName": "x",
    }


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    text = kineto([pretty(n) for n in range(3)]).encode()
    found = read(tmp_path, text.replace(b"k1", b"k\xff1"))
    assert kernels(found) == ["k0", "k�1", "k2"]
    assert codes(found) == ["repaired"]


def test_metadata_around_the_events_that_are_not_json(tmp_path: Path) -> None:
    text = kineto([pretty(n) for n in range(3)])
    for broken in (
        text.replace("{\n", "{ {\n", 1),
        text.replace('"traceName"', "traceName"),
    ):
        found = read(tmp_path, broken)
        assert kernels(found) == ["k0", "k1", "k2"]
        assert found.metadata["distributedInfo"] == {"rank": 3} or broken.count("{ {")
        assert "damaged" in codes(found)


def test_damage_in_the_middle_is_told_in_bytes_and_share(tmp_path: Path) -> None:
    text = kineto([pretty(n) for n in range(100)])
    middle = text.index('"k50"')
    found = read(tmp_path, text[:middle] + "#" * 1000 + text[middle + 1000 :])
    missing = {f"k{n}" for n in range(100)} - set(kernels(found))
    assert missing <= {f"k{n}" for n in range(50, 58)}
    (note,) = found.notes
    assert note.code == "damaged"
    assert "% of the file" in note.message
    assert note.file == str(tmp_path / "a.json")


def test_a_trimmed_trace_in_the_wild(real_traces: Path) -> None:
    found = scan(real_traces / "gpupuzzlers_malformed_json.json.gz")
    assert len(kernels(found)) == 200
    assert codes(found) == ["damaged"]


@pytest.mark.parametrize("opening", ['{"ph":', '{"ph":"X","args":', '{"ph":"X","args":[{"a":'])
def test_deep_junk_is_not_read_again_at_every_level(tmp_path: Path, opening: str) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"traceEvents": [' + opening * 5000)
    with mock.patch.object(salvage, "_value", wraps=salvage._value) as tried:
        found = scan(file)
    assert found.events == 0
    assert "damaged" in codes(found)
    assert tried.call_count < 500


def test_metadata_that_are_not_json_are_told_apart_from_events(tmp_path: Path) -> None:
    broken = json.dumps({"traceEvents": [event(1)]})[:-1] + ', "deviceProperties": [{oops}]}'
    found = read(tmp_path, broken)
    assert found.gpu.name.decoded() == ["k1"]
    told = [note.message for note in found.notes]
    said = "the file's metadata are not JSON, none of them could be read; events that were read: 1"
    assert said in told
