"""Whatever the bytes: a Scan with notes, or one TraceError. Never a traceback, never a hang.

``COMMTRACE_FUZZ`` sets how many inputs are tried.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from pathlib import Path
from unittest import mock

import pytest

from commtrace.errors import TraceError
from commtrace.reader import read
from commtrace.reader.scan import scan

INPUTS = int(os.environ.get("COMMTRACE_FUZZ", "2000"))

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
TOKENS += [b'"ph"', b"},\n  {", b"\x00", b"9" * 30, b'"traceEvents": [', b"\\ud800", b"\n"]


def traces() -> list[bytes]:
    events = [
        EVENT % (CATEGORIES[n % 6], NAMES[n // 2 % 4], 100 + 10 * n, n, n // 6) for n in range(40)
    ]
    text = KINETO % ",\n".join(events)
    return [text.encode(), json.dumps(json.loads(text)).encode()]


def mutated(data: bytes, dice: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 30])):
        at = dice.randrange(len(broken) + 1)
        match dice.randrange(6):
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
                del broken[at if dice.random() < 0.3 else len(broken) :]
    return bytes(broken)


@pytest.mark.timeout(0)
def test_broken_bytes(tmp_path: Path) -> None:
    plain = traces()
    sources = [*plain, *(gzip.compress(text, mtime=0) for text in plain)]
    undamaged = [scan_of(tmp_path, source) for source in sources]
    assert undamaged == [([], 14)] * 4
    refusals: list[str] = []
    for seed in range(INPUTS):
        dice = random.Random(seed)
        data = mutated(dice.choice(sources), dice)
        if data[:2] != b"\x1f\x8b" and dice.random() < 0.2:
            data = gzip.compress(data, 1, mtime=0)
        with mock.patch("commtrace.reader.source.BLOCK", dice.choice([64, 500, 1 << 18])):
            try:
                codes, kept = scan_of(tmp_path, data, fast=False)
            except TraceError as error:
                refusals.append(str(error))
                continue
            kept_by_fast = scan_of(tmp_path, data, fast=True)[1]
        assert codes or kept >= 14 or is_json(data), f"a silent loss with seed {seed}"
        assert kept_by_fast == kept, f"the paths differ with seed {seed}"
    assert all(text.startswith(f"{tmp_path}/a.json: ") for text in refusals)
    assert len(refusals) < INPUTS / 3


def is_json(data: bytes) -> bool:
    # A character that is not UTF-8, in what nobody looks at, costs nothing.
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        json.loads(text.decode("utf-8", "replace"))
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
