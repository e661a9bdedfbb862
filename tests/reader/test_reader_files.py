from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import TraceError
from commtrace.reader.files import find


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_folder_means_the_traces_in_it_in_natural_order(tmp_path: Path) -> None:
    names = ["rank10.json.gz", "rank2.json", "deep/er/rank1.pt.trace.json.gz"]
    touch(*(tmp_path / name for name in names))
    touch(*(tmp_path / name for name in ["manifest.json", "expected.json", "log.txt", "x.gz"]))
    assert find([tmp_path]) == [
        tmp_path / name
        for name in ("deep/er/rank1.pt.trace.json.gz", "rank2.json", "rank10.json.gz")
    ]


def test_a_named_file_is_meant_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path / "trace.log", tmp_path / "manifest.json")
    assert find([str(tmp_path / "trace.log")]) == [tmp_path / "trace.log"]
    assert find([tmp_path / "manifest.json"]) == [tmp_path / "manifest.json"]


def test_patterns(tmp_path: Path) -> None:
    touch(
        tmp_path / "a" / "rank0.json", tmp_path / "b" / "rank0.json", tmp_path / "a/manifest.json"
    )
    both = [tmp_path / "a" / "rank0.json", tmp_path / "b" / "rank0.json"]
    assert find([tmp_path / "*" / "*.json"]) == both
    assert find([tmp_path / "[ab]"]) == both
    assert find([tmp_path / "**" / "*.json"]) == both


def test_a_file_that_is_meant_twice_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path / "rank0.json")
    (tmp_path / "again.json").symlink_to(tmp_path / "rank0.json")
    assert len(find([tmp_path, tmp_path / "rank0.json", f"{tmp_path}/./rank0.json"])) == 1


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    touch(tmp_path / "run[1]" / "rank0.json")
    assert find([tmp_path / "run[1]"]) == [tmp_path / "run[1]" / "rank0.json"]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no"):
        find([tmp_path / "empty"])
    with pytest.raises(TraceError, match="does not exist"):
        find([tmp_path / "none.json"])
    with pytest.raises(TraceError, match="does not exist"):
        find([tmp_path / "*.json"])
    with pytest.raises(TraceError, match="does not exist"):
        find(["a\0b"])
    with pytest.raises(TraceError, match="cannot be read"):
        find(["x" * 5000])
    with pytest.raises(TraceError, match="no trace was given"):
        find([])
    with pytest.raises(TraceError, match="empty path"):
        find([""])


def test_a_pattern_that_matches_no_trace(tmp_path: Path) -> None:
    touch(tmp_path / "manifest.json")
    with pytest.raises(TraceError, match="matches no trace"):
        find([tmp_path / "*.json"])


def test_a_pipe_is_refused_and_in_a_folder_no_trace(tmp_path: Path) -> None:
    touch(tmp_path / "rank0.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert find([tmp_path]) == find([tmp_path / "*"]) == [tmp_path / "rank0.json"]
    with pytest.raises(TraceError, match="is no file but a pipe"):
        find([tmp_path / "pipe.json"])


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "rank0.json", tmp_path / "closed" / "rank1.json")
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(TraceError, match="closed: cannot be read: Permission denied"):
        find([tmp_path])
