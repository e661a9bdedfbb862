"""Whatever the bytes: a Scan with notes, or one TraceError. Never a traceback, never a hang.

``COMMTRACE_FUZZ`` sets how many inputs are tried, ``COMMTRACE_FUZZ_FROM`` the first seed; each
500 are a test, so that a long run shows how far it is, and a fault at once. No input may take
ten seconds of CPU time, which only a hang does.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commtrace.engine import each
from commtrace.errors import TraceError
from commtrace.reader import read
from commtrace.reader.json import shares
from commtrace.reader.json.scan import scan

INPUTS = int(os.environ.get("COMMTRACE_FUZZ", "200"))
FIRST = int(os.environ.get("COMMTRACE_FUZZ_FROM", "0"))
SEEDS = range(FIRST, FIRST + INPUTS)
PARTS = [SEEDS[at : at + 500] for at in range(0, INPUTS, 500)]
PARTS += [range(304617, 304618)]  # what showed a fault

KINETO = """{
  "schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"rank": 0, "world_size": 1},
  "traceEvents": [
%s
  ],
  "traceName": "a.json", "baseTimeNanoseconds": 1000
}"""
EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": 9, "tid": 9,
    "ts": %d.125, "dur": %d.000,
    "args": {
      "device": 0, "stream": 9, "correlation": %d, "Collective name": "allreduce",
      "In msg nelems": 9, "Out msg nelems": 9, "Group size": 1, "dtype": "Float",
      "Process Group Name": "0", "Input Dims": [[9], []], "Input type": ["float", ""]
    }
  }"""
CATEGORIES = [
    "kernel",
    "gpu_memcpy",
    "cuda_runtime",
    "cpu_op",
    "user_annotation",
    "python_function",
]
NAMES = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "record_param_comms", "nccl:all_reduce", "f"]
TOKENS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"NaN", b"-", b"1e999", b"null", b"\xff"]
TOKENS += [b"9" * 5000, b"0x" + b"f" * 20_000, b"[" * 2000, b'{"ph":' * 2000, b"0," * 2000]
TOKENS += [b"a" * 100_000, b'"ph":"X",' * 2000, b'"host_name": ' * 500, b"'a': (0, None), " * 99]
TOKENS += [b'"distributedInfo": "(1,"', b'"a":[' * 900, b" " * 5000, b"1." + b"3" * 5000]
TOKENS += [b'"ph"', b"},\n  {", b"\x00", b"9" * 30, b'"traceEvents": [', b"\\ud800", b"\n"]


KEYS = [
    b'"%s"' % key for key in (b"rank", b"ts", b"tid", b"args", b"correlation", b"distributedInfo")
]
KEYS += [
    b'"name"',
    b'"pid"',
    b'"Task Type"',
    b'"Process Group Name"',
    b'"Input Dims"',
    b'"traceEvents"',
    b'"baseTimeNanoseconds"',
]


def headed(packed: bytes, dice: random.Random) -> bytes:
    """A gzip file whose header also has a field of some length."""
    length = dice.choice([1, 100, 70_000, 600_000])
    return (
        packed[:3]
        + bytes([dice.choice([8, 16, 2, 4, 224])])
        + packed[4:10]
        + b"a" * length
        + b"\0"
        + packed[10:]
    )


def traces() -> list[bytes]:
    events = [
        EVENT % (CATEGORIES[n % 6], NAMES[n // 2 % 4], 100 + 10 * n, n, n // 6) for n in range(40)
    ]
    text = KINETO % ",\n".join(events)
    return [text.encode(), json.dumps(json.loads(text)).encode(), json.dumps(ascend()).encode()]


def ascend() -> list[dict[str, Any]]:
    """As many events on a device, which processes tell that are named behind them."""
    names = ["Ascend Hardware", "HCCL", "CANN", "Python"]
    tasks = ["AI_CORE", "SDMA_SQE", "COMMUNICATION", "EVENT_WAIT"]
    events = [
        {"ph": "X", "name": "hcom_allReduce__1_0_1", "pid": n % 4, "tid": n % 3}
        | ({"cat": "cpu_op"} if n % 4 == 3 else {})
        | {"ts": f"{100 + 10 * n}.125", "dur": n, "args": {"Task Type": tasks[n // 4 % 4]}}
        for n in range(36)
    ]
    return events + [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate(names)
    ]


def mutated(data: bytes, dice: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 30])):
        at = dice.randrange(len(broken) + 1)
        match dice.randrange(7):
            case 0:
                broken[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                broken[at:at] = dice.choice(TOKENS)
            case 2:
                del broken[at : at + dice.randrange(1, 300)]
            case 3:
                broken[at : at + 1] = bytes(
                    b ^ (1 << dice.randrange(8)) for b in broken[at : at + 1]
                )
            case 4:
                other = dice.randrange(len(broken) + 1)
                broken[at:at] = broken[other : other + dice.randrange(300)]
            case 5:
                key = dice.choice(KEYS)
                broken = broken.replace(
                    key + b": ", key + b": " + dice.choice(TOKENS) + b", " + key + b": ", 1
                )
            case 6:
                del broken[at if dice.random() < 0.3 else len(broken) :]
    return bytes(broken)


@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_broken_bytes(tmp_path: Path, seeds: range) -> None:
    plain = traces()
    sources = [*plain, *(gzip.compress(text, mtime=0) for text in plain)]
    undamaged = [scan_of(tmp_path, source) for source in sources]
    assert undamaged == [([], 14)] * 6
    refusals = []
    for seed in seeds:
        try:
            refusals += refused(tmp_path, sources, random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert all(text.startswith(f"{tmp_path}/a.json: ") for text in refusals)
    assert len(refusals) < 5 + len(seeds) / 3  # few seeds prove nothing


def refused(tmp_path: Path, sources: list[bytes], dice: random.Random) -> list[str]:
    """Read a mutated file in both ways; why it cannot be, if so."""
    data = mutated(dice.choice(sources), dice)
    if data[:2] != b"\x1f\x8b" and dice.random() < 0.2:
        data = gzip.compress(data, 1, mtime=0)
    if data[:2] == b"\x1f\x8b" and dice.random() < 0.02:
        data = headed(data, dice)
    started = time.process_time()
    refusal = []
    with mock.patch("commtrace.reader.json.source.BLOCK", dice.choice([64, 500, 1 << 18])):
        try:
            codes, kept = scan_of(tmp_path, data, fast=False)
        except TraceError as error:
            refusal = [str(error)]
        else:
            assert scan_of(tmp_path, data, fast=True)[1] == kept, "the paths differ"
            assert codes or kept >= 14 or is_json(data), "a silent loss"
            if dice.random() < 0.3:
                shared_as_whole(tmp_path / "a.json", dice.choice([2, 3]))
    assert time.process_time() - started < 10, "slow"
    return refusal


def shared_as_whole(file: Path, processes: int) -> None:
    """Read a file in shares, one after another."""
    with (
        mock.patch.object(shares, "SHARE_BYTES", 1),
        mock.patch.object(shares, "each", in_turn),
        mock.patch("commtrace.reader.json.document._RUN", 1),
    ):
        found = shares.scan_shared(file, None, True, processes)
    if found is not None:
        whole = scan(file)
        assert (found.calls, found.notes, found.events) == (whole.calls, whole.notes, whole.events)
        for part in ("gpu", "launches", "operators", "annotations"):
            one, other = getattr(found, part), getattr(whole, part)
            assert one.start_ns.tolist() == other.start_ns.tolist(), "the shares differ"
            assert one.name.decoded() == other.name.decoded(), "the shares differ"


def in_turn(function: Any, items: Any, _: int, meanwhile: Any) -> Iterator[Any]:
    meanwhile()
    yield from each(function, items)


def is_json(data: bytes) -> bool:
    # A character that is not UTF-8, in what nobody looks at, costs nothing; nor does a comma
    # too many, though an event may have stood behind it.
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        json.loads(re.sub(r",(\s*,)+", ",", text.decode("utf-8", "replace")))
    except (ValueError, OSError, EOFError, zlib.error):
        return False
    return True


def scan_of(tmp_path: Path, data: bytes, fast: bool = True) -> tuple[list[str], int]:
    file = tmp_path / "a.json"
    file.write_bytes(data)
    found = scan(file, fast=fast)
    if found.events % 3 == 0:
        read([file])
    return [note.code for note in found.notes], found.gpu.start_ns.size
