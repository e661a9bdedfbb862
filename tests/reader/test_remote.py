"""Traces in a store are read as those in a folder, and copied once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from commtrace.cli import main
from commtrace.errors import TraceError
from commtrace.reader import cache
from commtrace.reader.remote import local
from commtrace.run import load

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def store() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def trace(rank: int, name: str = "k") -> bytes:
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000, "dur": 5}
    info = {"rank": rank, "world_size": 2}
    return json.dumps({"distributedInfo": info, "traceEvents": [kernel]}).encode()


@pytest.fixture
def run(store: Any) -> Any:
    store.pipe({f"/runs/a/node{rank}/rank{rank}.json": trace(rank) for rank in (0, 1)})
    store.pipe({"/runs/a/manifest.json": b'{"workload": "mine"}', "/runs/a/log.txt": b"no"})
    return store


@pytest.mark.parametrize("url", ["memory://runs/a", "memory://runs/a/", "memory:///runs/*"])
def test_a_folder_and_a_pattern_mean_the_traces_in_it(run: Any, url: str) -> None:
    read = load(url)
    assert read.ranks["rank"].tolist() == [0, 1]
    assert read.manifest == {"workload": "mine"}
    assert read.name == url
    assert all(Path(file).is_relative_to(cache.copies()) for file in read.ranks["file"])
    assert [note.code for note in read.notes] == []


@pytest.mark.parametrize("name", ["rank*.json", "rank0.json"])
def test_traces_that_are_named_have_the_manifest_beside_them(store: Any, name: str) -> None:
    store.pipe({"/b/rank0.json": trace(0), "/b/manifest.json": b'{"workload": "mine"}'})
    assert load(f"memory://b/{name}").manifest == {"workload": "mine"}


def test_a_file_is_meant_whatever_its_name(run: Any) -> None:
    run.pipe("/runs/trace.log", trace(1))
    (copy,) = local(["memory://runs/trace.log"])
    assert isinstance(copy, Path)
    assert copy.read_bytes() == trace(1)
    assert load(["memory://runs/trace.log", "memory://runs/a/node0/rank0.json"]).ranks[
        "rank"
    ].tolist() == [0, 1]


def test_local_paths_stay_as_they_are(tmp_path: Path) -> None:
    assert local(["a/b*.json", tmp_path]) == ["a/b*.json", tmp_path]


def test_what_is_the_same_there_is_copied_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    get_file = type(run).get_file

    def counted(self: Any, source: str, *rest: Any, **more: Any) -> Any:
        copied.append(source)
        return get_file(self, source, *rest, **more)

    monkeypatch.setattr(type(run), "get_file", counted)
    first = local(["memory://runs/a"])
    assert local(["memory://runs/a"]) == first
    assert len(copied) == 3
    run.pipe("/runs/a/node1/rank1.json", trace(1, "another"))
    assert load("memory://runs/a").kernels["name"].tolist() == ["k", "another"]
    assert local(["memory://runs/a"]) != first


def test_copies_are_part_of_the_cache(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load("memory://runs/a")
    (entry,) = [entry for entry in cache.entries() if entry.file.parent == cache.copies()]
    assert entry.size == sum(file["size"] for file in run.find("/runs/a", detail=True).values()) - 2
    cache.trim(1)
    assert cache.entries() == [entry]  # it may be in use
    os.utime(entry.file, (0, 0))
    cache.trim(1)
    assert cache.entries() == []
    load("memory://runs/a")
    assert main(["cache", "--clear"]) == 0
    assert cache.entries() == []
    assert "0 files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory://nothing", "holds no trace: name a trace file"),
        ("memory://nothing/*.json", "holds no trace: name a trace file"),
        ("nowhere://a", "nowhere.*: pip install its driver for fsspec"),
        ("s3://bucket/run", "s3fs.*: pip install its driver for fsspec"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    store: Any, monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(TraceError, match=f"^{url.replace('*', '.')}: .*{why}") as raised:
        load(url)
    assert "\n" not in str(raised.value)


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(TraceError, match=r"needs fsspec: pip install 'commtrace\[remote\]'"):
        load("s3://bucket/run")


def test_without_a_home_nothing_is_copied(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(TraceError, match="set XDG_CACHE_HOME"):
        load("memory://runs/a")


def test_a_store_that_fails_leaves_nothing_behind(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise PermissionError("Forbidden\nby policy")

    monkeypatch.setattr(type(run), "get_file", failing)
    with pytest.raises(TraceError, match=r"^memory://runs/a: cannot be read: Forbidden by policy$"):
        load("memory://runs/a")
    assert cache.entries() == []


def test_a_drivers_own_error_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ModuleType("botocore.exceptions")
    driver.BotoCoreError = type("BotoCoreError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, driver.__name__, driver)

    def failing(*_: Any, **__: Any) -> None:
        raise driver.BotoCoreError("Unable to locate credentials")

    with monkeypatch.context() as patched:
        patched.setattr(type(run), "isfile", failing)
        with pytest.raises(TraceError, match=r"cannot be read: Unable to locate credentials$"):
            load("memory://runs/a")


def test_a_name_that_leads_out_of_the_folder_is_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["/runs/a/../../../evil.json"]
    with monkeypatch.context() as patched:
        patched.setattr(type(run), "find", lambda *_, **__: names)
        patched.setattr(type(run), "ukey", lambda *_: "1")
        with pytest.raises(TraceError, match="is no file of a folder"):
            load("memory://runs/a")
