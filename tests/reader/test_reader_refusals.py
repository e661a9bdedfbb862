"""What is not a trace is refused in one line that names the file and tells what to do."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

from commtrace.errors import TraceError
from commtrace.reader.json import document
from commtrace.reader.json.scan import scan


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "JSON"),
        (b"\x00" * 5000, "JSON"),
        (b"{}", "no list of traceEvents"),
        (b'{"traceEvents": null}', "no list of traceEvents"),
        (b'{"a": [{"traceEvents": 1}]}', "no list of traceEvents"),
        (b"[1, 2, 3]", "not of trace events"),
        (b'[{"name": "x"}]', "not of trace events"),
        (b"[" * 200_000, "not of trace events"),
        (b'{"a":' * 200_000, "no list of traceEvents"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"hello", mtime=0), "JSON"),
        (b"\x1f\x8b", "breaks off.*copy or record it again"),
        (b"\x1f\x8b" + b"garbage" * 100, "damaged at byte"),
    ],
)
def test_not_a_trace(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=says) as caught:
        scan(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        scan(tmp_path / "none.json")
    with pytest.raises(TraceError, match="cannot be read"):
        scan(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.json").chmod(0)
    with pytest.raises(TraceError, match="cannot be read"):
        scan(tmp_path / "a.json")


def bomb(mebibytes: int) -> bytes:
    """Gzip of a trace whose one name is very long."""
    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [engine.compress(b'{"traceEvents": [{"ph": "X", "name": "')]
    parts += [engine.compress(b"a" * (1 << 20)) for _ in range(mebibytes)]
    return b"".join([*parts, engine.flush()])


def test_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json.gz"
    file.write_bytes(bomb(5))
    with pytest.raises(TraceError, match="set COMMTRACE_MAX_BYTES to allow more"):
        scan(file, max_bytes=1 << 22)
    monkeypatch.setenv("COMMTRACE_MAX_BYTES", str(1 << 22))
    with pytest.raises(TraceError, match="4,194,304 bytes"):
        scan(file)
    monkeypatch.setenv("COMMTRACE_MAX_BYTES", "much")
    with pytest.raises(TraceError, match="COMMTRACE_MAX_BYTES: 'much'"):
        scan(file)


def test_one_event_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "_LONGEST_EVENT", 1 << 20)
    file = tmp_path / "a.json.gz"
    file.write_bytes(bomb(5))
    assert [note.code for note in scan(file).notes] == ["truncated", "damaged"]


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"traceEvents": [], "padding": " " * 10_000})
    (tmp_path / "a.json").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("COMMTRACE_MAX_BYTES", "100")
    with pytest.raises(TraceError):
        scan(tmp_path / "a.json")
    assert scan(tmp_path / "a.json", max_bytes=20_000).events == 0
