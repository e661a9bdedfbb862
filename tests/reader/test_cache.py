"""What was read before is not read again, unless anything about it is another."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace import config
from commtrace.cli import main
from commtrace.packed import Integers, PackedColumns
from commtrace.reader import cache, workers
from commtrace.reader.recordings import same
from commtrace.reader.workers import read_each
from commtrace.run import load
from commtrace.trace import PACKED, RankTrace

RANK_0 = (0, "assumed")
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1000, "dur": 5}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "a.json", "k")


def written(file: Path, name: str, **more: Any) -> Path:
    file.write_text(json.dumps({"traceEvents": [{**KERNEL, "name": name}], **more}))
    return file


def read(file: Path) -> RankTrace:
    ((_, part),) = read_each({file: RANK_0}, None, cached=True)
    assert isinstance(part, RankTrace)
    return part


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read."""
    seen: list[Path] = []
    scan = workers.scan

    def watched(file: Path, **how: Any) -> Any:
        seen.append(file)
        return scan(file, **how)

    monkeypatch.setattr(workers, "scan", watched)
    return seen


def test_a_file_is_read_once(trace: Path, scans: list[Path]) -> None:
    first, second = read(trace), read(trace)
    assert scans == [trace]
    assert same(first, second)
    assert first.notes == second.notes
    assert (first.file, first.rank, first.provenance) == (trace, 0, "assumed")
    assert cache.folder().is_relative_to(trace.parent / "cache")


def test_tables_and_notes_are_those_of_the_file(
    recorded: Path, measured: Callable[..., Any]
) -> None:
    folder = recorded / "straggler" / "gloo-4"
    load(folder)
    again, plain = load(folder).measures, load(folder, cache=False).measures
    for table in ("kernels", "collectives", "ops", "steps", "groups", "ranks", "host_gaps"):
        assert getattr(again, table).equals(getattr(plain, table)), table
    assert again.notes == plain.notes


def test_what_may_have_millions_of_rows_is_packed_where_it_is_read(trace: Path) -> None:
    part = read(trace)
    again = read(trace)
    for its in (part, again, pickle.loads(pickle.dumps(part))):
        for table in PACKED:
            columns = its.columns[table]
            assert isinstance(columns, PackedColumns)
            for name, values in columns.packed.items():
                array = values.above if isinstance(values, Integers) else values.codes
                assert array.itemsize == 1, (table, name)
                assert array.base is None, "it would hold all of the entry"


def test_another_content_time_rank_or_path_is_another_entry(
    trace: Path, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read(trace)
    os.utime(trace, ns=(1, 1))
    read(trace)
    assert len(scans) == 2
    written(trace, "other")
    assert read(trace).columns["kernels"]["name"].names == ("other",)  # type: ignore[union-attr]
    assert cache.get(trace, (3, "file-name")) is None
    assert cache.get(written(trace.with_name("b.json"), "k"), RANK_0) is None
    monkeypatch.setattr(cache, "_reader", lambda: "another version")
    assert cache.get(trace, RANK_0) is None


def test_the_users_kernels_are_part_of_the_key(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(trace)
    (tmp_path / "own.toml").write_text('[tool.commtrace.communication]\nkernels = {"k" = ""}')
    monkeypatch.setenv("COMMTRACE_CONFIG", str(tmp_path / "own.toml"))
    config.kernel_patterns.cache_clear()
    cache._reader.cache_clear()
    try:
        assert cache.get(trace, RANK_0) is None
    finally:
        config.kernel_patterns.cache_clear()
        cache._reader.cache_clear()


@pytest.mark.parametrize("at", [0, 20, 60, -1])
def test_a_damaged_entry_is_read_again(trace: Path, scans: list[Path], at: int) -> None:
    first = read(trace)
    (entry,) = cache.entries()
    text = bytearray(entry.file.read_bytes())
    text[at] ^= 1
    entry.file.write_bytes(text)
    assert same(read(trace), first)
    entry.file.write_bytes(text[:at])
    assert same(read(trace), first)
    assert len(scans) == 3


def test_what_cannot_be_read_is_not_kept(trace: Path) -> None:
    trace.write_text("[]")
    ((_, failure),) = read_each({trace: RANK_0}, None, cached=True)
    assert isinstance(failure, workers.Failure)
    assert cache.entries() == []


def test_a_folder_that_cannot_be_written_costs_nothing(
    trace: Path, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(trace))  # a file
    read(trace)
    read(trace)
    assert len(scans) == 2


def test_what_was_not_asked_for_longest_leaves_first(tmp_path: Path) -> None:
    for name in "abc":
        read(written(tmp_path / f"{name}.json", name))
        for age, entry in enumerate(reversed(cache.entries())):
            os.utime(entry.file, (10**9 - age, 10**9 - age))
    read(tmp_path / "a.json")
    cache.trim(2 * max(entry.size for entry in cache.entries()))
    left = [cache.get(tmp_path / f"{name}.json", RANK_0) is not None for name in "abc"]
    assert left == [True, False, True]


def test_the_command(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace), "--no-cache"]) == 0
    assert cache.entries() == []
    assert main(["analyze", str(trace)]) == 0
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith(f"{cache.folder()}: 1 file, ")
    assert main(["cache", "--clear"]) == 0
    assert "0 files" in capsys.readouterr().out
    assert cache.entries() == []
