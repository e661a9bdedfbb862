from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import TraceError
from commtrace.measures import Measures
from commtrace.reader import read, workers


def write(file: Path, rank: int | None, world_size: int = 2, ts: int = 1000, **top: Any) -> Path:
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{rank}",
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": 5,
    }
    told = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    file.write_text(json.dumps({**told, **top, "traceEvents": [kernel]}))
    return file


def codes(trace: Measures) -> list[str]:
    return sorted(note.code for note in trace.notes)


@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_in_order_whatever_the_files_are_called(tmp_path: Path, processes: int) -> None:
    write(tmp_path / "a.json", rank=1)
    write(tmp_path / "b.json", rank=0)
    seen: list[tuple[int, int]] = []
    trace = read([tmp_path], workers=processes, progress=lambda *done: seen.append(done))
    assert trace.ranks["rank"].tolist() == [0, 1]
    assert trace.kernels["name"].tolist() == ["k0", "k1"]
    assert trace.notes == ()
    assert trace.manifest is None
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("processes", [None, 2])
def test_bytes_are_those_of_the_files_that_are_read(tmp_path: Path, processes: int | None) -> None:
    files = [write(tmp_path / f"{rank}.json", rank, world_size=3) for rank in range(3)]
    (tmp_path / "3.json").touch()
    sizes = [file.stat().st_size for file in files]
    seen: list[tuple[int, int]] = []
    read([tmp_path], workers=processes, read_bytes=lambda *done: seen.append(done))
    assert [all_ for _, all_ in seen] == [sum(sizes)] * 5
    done = [done for done, _ in seen]
    assert (done[0], done[-1]) == (0, sum(sizes))
    assert {b - a for a, b in pairwise(done)} == {0, *sizes}


def test_what_is_no_trace_costs_itself_alone(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", rank=0, world_size=1)
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "rank1.json").touch()
    trace = read([tmp_path])
    assert trace.ranks["rank"].tolist() == [0]
    assert codes(trace) == ["not-a-trace", "unreadable"]
    assert {note.file for note in trace.notes} == {
        str(tmp_path / "package.json"),
        str(tmp_path / "rank1.json"),
    }


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    with pytest.raises(TraceError, match=r"a\.json: is empty"):
        read([tmp_path])
    (tmp_path / "b.json").touch()
    with pytest.raises(TraceError, match=r"a\.json: is empty.*\(and 1 more"):
        read([tmp_path])


def test_one_rank_in_two_files(tmp_path: Path) -> None:
    for name, rank in {"a": 0, "b": 0, "c": 1}.items():
        write(tmp_path / f"{name}.json", rank)
    trace = read([tmp_path])
    assert [Path(file).name for file in trace.ranks["file"]] == ["a.json", "c.json"]
    (note,) = trace.notes
    assert note.code == "duplicate-rank"
    assert str(tmp_path / "a.json") in note.message
    assert str(tmp_path / "b.json") in note.message


def test_ranks_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.json", rank=2, world_size=8)
    (note,) = read([tmp_path]).notes
    assert note.code == "missing-rank"
    assert "ranks 0–1, 3–7 of 8" in note.message


def test_files_that_begin_hours_apart_on_clocks_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a.json", rank=0)
    write(tmp_path / "b.json", rank=1, ts=4 * 3600 * 10**6)
    (note,) = read([tmp_path]).notes
    assert note.code == "mixed-runs"
    assert "239 minutes" in note.message


def test_notes_name_rank_and_file(tmp_path: Path) -> None:
    file = write(tmp_path / "rank7.json", rank=None, baseTimeNanoseconds="x")
    notes = read([file]).notes
    assert [note.code for note in notes] == ["bad-metadata", "rank-from-filename"]
    assert {(note.rank, note.file) for note in notes} == {(7, str(file))}


def test_the_manifest_beside_the_traces(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", rank=0, world_size=1)
    (tmp_path / "manifest.json").write_text('{"workload": "x"}')
    assert read([tmp_path]).manifest == {"workload": "x"}
    (tmp_path / "manifest.json").write_text("{")
    trace = read([tmp_path])
    assert trace.manifest is None
    assert codes(trace) == ["unreadable"]


def test_a_worker_that_is_killed_costs_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = workers._outcome

    def dying(
        file: Path, otherwise: workers.Identity, *more: int
    ) -> workers.RankTrace | workers.Failure:
        if file.name == "b.json":
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(file, otherwise, *more)

    monkeypatch.setattr(workers, "_outcome", dying)
    for rank, name in enumerate("abc"):
        write(tmp_path / f"{name}.json", rank, world_size=3)
    trace = read([tmp_path], workers=2)
    assert trace.ranks["rank"].tolist() == [0, 2]
    (unreadable,) = [note for note in trace.notes if note.code == "unreadable"]
    assert "b.json: the process that read it was killed" in unreadable.message


@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("error", [BlockingIOError, PermissionError, OSError])
def test_where_processes_cannot_be_started_the_files_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], started: int
) -> None:
    fork, tries = os.fork, []

    def forking() -> int:
        tries.append(1)
        if len(tries) > started:
            raise error(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr("os.fork", forking)
    for rank, name in enumerate("abc"):
        write(tmp_path / f"{name}.json", rank, world_size=3)
    trace = read([tmp_path], workers=2)
    assert trace.ranks["rank"].tolist() == [0, 1, 2]
    (note,) = trace.notes
    assert note.code == "no-process"
    assert "could not be started (Resource temporarily unavailable): they are" in note.message


@pytest.mark.parametrize("forks", [True, False])
def test_a_fault_without_processes_costs_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    def failing(
        file: Path, otherwise: workers.Identity, *more: int
    ) -> workers.RankTrace | workers.Failure:
        if file.name == "b.json":
            raise ZeroDivisionError
        return whole(file, otherwise, *more)

    def refused() -> int:
        raise PermissionError(1, "Operation not permitted")

    whole = workers._outcome
    monkeypatch.setattr(workers, "_outcome", failing)
    monkeypatch.setattr("os.fork", refused)
    monkeypatch.setattr("commtrace.engine.pool.can_fork", lambda: forks)
    for rank, name in enumerate("abc"):
        write(tmp_path / f"{name}.json", rank, world_size=3)
    trace = read([tmp_path], workers=2)
    assert trace.ranks["rank"].tolist() == [0, 2]
    (fault,) = [note.message for note in trace.notes if note.code == "unreadable"]
    assert fault.startswith(f"{tmp_path}/b.json: cannot be read: ZeroDivisionError in test_reader_")


def test_neither_reading_nor_importing_loads_pandas_before_it_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", rank=0)
    code = (
        "import sys; from pathlib import Path; from commtrace.reader import read, workers; "
        "from commtrace.trace import RankTrace; "
        f"outcome = workers._outcome(Path({str(tmp_path / 'rank0.json')!r}), (0, 'assumed'));"
        "assert isinstance(outcome, RankTrace), outcome;"
        "print({'pandas', 'torch', 'matplotlib'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_real_traces_of_one_run(real_traces: Path) -> None:
    trace = read([real_traces / "hta_dlrm_2_of_128"])
    assert trace.ranks["rank"].tolist() == [0, 1]
    assert trace.ranks["events"].tolist() == [4855, 4720]
    assert codes(trace) == ["missing-rank", "sampled-events", "sampled-events"]


def test_a_recording_that_failed_says_why(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", rank, commtrace={"partial": f"rank {rank} broke off"})
    notes = read([tmp_path]).notes
    assert [(note.code, note.rank) for note in notes] == [("failed-recording", n) for n in (0, 1)]
    assert notes[1].message == "the recording failed, and holds what there was: rank 1 broke off"
    manifest = {"status": "failed", "error": "rank 1: ValueError: no"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (note,) = read([tmp_path]).notes  # the one reason, and not what others made of it
    assert (note.code, note.rank) == ("failed-recording", None)
    assert note.message == "the recording failed, and holds what there was: rank 1: ValueError: no"


def test_a_recording_that_failed_before_its_first_trace_says_why(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"status": "failed", "error": "rank 1: ValueError: no"}')
    with pytest.raises(TraceError, match="no trace, as the recording failed: rank 1: ValueError"):
        read([tmp_path])
    manifest.write_text("[")
    with pytest.raises(TraceError, match=r"holds no \.json or \.json\.gz file"):
        read([tmp_path])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other heaps")
def test_what_a_whole_run_needs_at_once_goes_back_to_the_system(tmp_path: Path) -> None:
    """Once an array was freed, glibc takes in all of its size: none of them alone goes back."""
    write(tmp_path / "a.json", rank=0)
    write(tmp_path / "b.json", rank=1)
    program = (
        "import sys, numpy as np\n"
        "from commtrace.reader import read\n"
        "def held():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "np.ones(1 << 20)\n"
        "read(sys.argv[1:], workers=1)\n"
        "first, last = np.ones(1 << 20), np.ones(1 << 20)\n"
        "before = held()\n"
        "del first\n"
        "print(before - held())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(answer) > 7 << 20
