from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import RecordError, UsageError
from commtrace.record import launch, processes, record

torch = pytest.importorskip("torch")

RanksOf = Callable[[Path], list[str]]
WaitUntil = Callable[[Callable[[], object]], bool]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def trace(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def steps(content: dict[str, Any]) -> list[str]:
    spans = [event["name"] for event in content["traceEvents"] if event["ph"] == "X"]
    return sorted(name for name in spans if name.startswith("ProfilerStep"))


@pytest.fixture(scope="module")
def two_at_once(faulty: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same workload recorded by two launchers at the same time, into default folders."""
    home = tmp_path_factory.mktemp("home")
    code = (
        "import sys; from commtrace.record import record;"
        "print(record(sys.argv[1], world_size=2, settings={'elements': '4', 'dtype': 'float64'}))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(faulty)]
    launchers = [
        subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    folders = sorted(home / launcher.communicate()[0].strip() for launcher in launchers)
    assert [launcher.returncode for launcher in launchers] == [0, 0]
    return folders[0], folders[1]


@pytest.mark.slow
def test_a_recording_has_a_trace_per_rank_and_a_manifest(
    two_at_once: tuple[Path, Path], ranks_of: RanksOf
) -> None:
    first, second = two_at_once
    assert first.parts[-3:] == ("traces", "faulty", "gloo-2")
    assert second.parts[-3:] == ("traces", "faulty", "gloo-2-2")
    for folder in two_at_once:
        assert names(folder) == {"manifest.json", "rank0.json.gz", "rank1.json.gz"}
        assert not ranks_of(folder)


@pytest.mark.slow
def test_the_manifest_says_what_ran_where(two_at_once: tuple[Path, Path]) -> None:
    content = manifest(two_at_once[0])
    assert content["schema_version"] == 1
    assert content["status"] == "complete"
    assert content["error"] is None
    assert content["workload"] == {
        "name": "faulty",
        "question": "Does one rank's fault end the recording?",
        "answer": [],
        "settings": {"fault": "none", "elements": 4, "dtype": "float64"},
    }
    assert (content["iterations"], content["warmup"]) == (5, 2)
    assert (content["backend"], content["world_size"]) == ("gloo", 2)
    assert content["versions"]["torch"] == torch.__version__
    assert content["environment"]["TORCH_FR_BUFFER_SIZE"]
    if not torch.cuda.is_available() and "GLIBC_TUNABLES" not in os.environ:
        assert content["environment"]["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=1"
    assert content["files"] == [
        {"rank": 0, "file": "rank0.json.gz"},
        {"rank": 1, "file": "rank1.json.gz"},
    ]
    assert content["started"] < content["finished"]
    probed = content["clock_probe"]
    assert [reading["rank"] for reading in probed] == [0, 0, 1, 1]
    assert all(abs(reading["offset_ns"]) <= reading["error_ns"] for reading in probed)


@pytest.mark.slow
def test_each_trace_knows_its_rank_and_has_the_window_alone(
    two_at_once: tuple[Path, Path],
) -> None:
    for rank in (0, 1):
        content = trace(two_at_once[0], rank)
        assert steps(content) == [f"ProfilerStep#{n}" for n in range(1, 6)]
        assert content["distributedInfo"]["rank"] == rank
        ours = content["commtrace"]
        assert (ours["rank"], ours["world_size"], ours["backend"]) == (rank, 2, "gloo")
        assert ours["workload"] == "faulty"
        assert ours["settings"]["elements"] == 4
        assert ours["settings"]["iterations"] == 5
        assert [group["ranks"] for group in ours["groups"]] == [[0, 1]]
        before, behind = (reading["at_ns"] for reading in ours["clock_probe"])
        base = content["baseTimeNanoseconds"]
        step_times = [
            base + round(1000 * (event["ts"] + more * event["dur"]))
            for event in content["traceEvents"]
            if event["name"].startswith("ProfilerStep")
            for more in (0, 1)
        ]
        assert before < min(step_times)
        assert max(step_times) < behind
        entries = ours["flight_recorder"]["entries"]
        assert [entry["profiling_name"] for entry in entries] == ["gloo:all_reduce"] * 5
        assert {str(entry["input_sizes"]) for entry in entries} == {"[[4]]"}
        assert {entry["called_at"].partition(":")[0] for entry in entries} == {"faulty.py"}
        assert not any("frames" in entry for entry in entries)
        sums = [e for e in content["traceEvents"] if e["name"] == "c10d::allreduce_"]
        assert [event["args"]["Input Dims"][0] for event in sums] == [[[4]]] * 5
        labels = [e for e in content["traceEvents"] if e["name"] == "sum"]
        assert len(labels) == 5


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_four_ranks_with_iterations_and_output(faulty: Path, tmp_path: Path) -> None:
    settings = {"iterations": "1", "warmup": "0", "fault": "hello"}
    out = tmp_path / "a" / "b"
    assert record(str(faulty), settings=settings, world_size=4, out=out) == out
    files = {f"rank{rank}{end}" for rank in range(4) for end in (".json.gz", ".log")}
    assert names(out) == files | {"manifest.json"}
    assert steps(trace(out, 3)) == ["ProfilerStep#1"]
    assert (out / "rank3.log").read_text() == "hello from 3\n"


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_world_size_one(faulty: Path, tmp_path: Path) -> None:
    folder = record(str(faulty), world_size=1, out=tmp_path)
    assert manifest(folder)["world_size"] == 1
    assert len(trace(folder, 0)["commtrace"]["flight_recorder"]["entries"]) == 5


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("fault", "message", "kept"),
    [
        ("raise", "rank 1: ValueError: two lines", {"rank0.json.gz", "rank1.json.gz"}),
        ("exit", "rank 1: ended early, with exit status 3", {"rank0.json.gz"}),
        ("kill", "rank 1: killed by SIGKILL", {"rank0.json.gz"}),
        ("check", "rank 1: AssertionError: the sum", {"rank0.json.gz", "rank1.json.gz"}),
    ],
)
def test_the_rank_that_failed_is_named_and_the_other_traces_are_kept(
    faulty: Path, tmp_path: Path, fault: str, message: str, kept: set[str], ranks_of: RanksOf
) -> None:
    with pytest.raises(RecordError) as caught:
        record(str(faulty), settings={"fault": fault}, world_size=2, out=tmp_path)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert {name for name in names(tmp_path) if name.endswith(".gz")} == kept
    # The fault is in the second step of the window; the other rank notices in the third.
    assert len(steps(trace(tmp_path, 0))) == (5 if fault == "check" else 3)
    content = manifest(tmp_path)
    assert content["status"] == "failed"
    assert content["error"].startswith(message)
    assert {file["file"] for file in content["files"]} == kept
    assert not ranks_of(tmp_path)
    if fault in ("raise", "check"):
        assert "Traceback" in (tmp_path / "rank1.log").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_a_workload_that_refuses_is_a_usage_error_and_leaves_nothing(
    faulty: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"^this machine will not do$"):
        record(str(faulty), settings={"fault": "refuse"}, world_size=2, out=out)
    assert not out.exists()


@pytest.mark.slow
def test_no_rank_outlives_its_launcher(
    faulty: Path, tmp_path: Path, ranks_of: RanksOf, wait_until: WaitUntil
) -> None:
    code = (
        "import sys; from pathlib import Path; from commtrace.record import record;"
        "record(sys.argv[1], world_size=2, settings={'fault': 'sleep'}, out=Path(sys.argv[2]))"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, str(faulty), str(out)]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    log = out / "rank1.log"
    assert wait_until(lambda: log.exists() and "asleep" in log.read_text())
    assert len(ranks_of(out)) == 2
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not ranks_of(out))


def test_a_folder_with_something_in_it_is_never_used(faulty: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        record(str(faulty), out=tmp_path)
    with pytest.raises(UsageError, match=r"mine\.txt: File exists; name another folder"):
        record(str(faulty), out=tmp_path / "mine.txt")
    assert names(tmp_path) == {"mine.txt"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0}, "world size: at least 1, not 0"),
        ({"backend": "mpi"}, "no backend 'mpi'; there are gloo and nccl"),
        ({"backend": "nccl", "world_size": 2}, "2 wanted, 1 here; use --backend gloo"),
        ({"settings": {"no": "1"}}, "faulty has no setting 'no'"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_starts(
    faulty: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "cuda_devices", lambda: 1)
    with pytest.raises(UsageError, match=message):
        record(str(faulty), **arguments)
    assert not names(tmp_path)


@pytest.mark.parametrize(
    ("devices", "backend", "world_size", "chosen"),
    [
        (0, None, None, ("gloo", 4)),
        (0, None, 2, ("gloo", 2)),
        (1, None, None, ("gloo", 4)),
        (1, None, 1, ("nccl", 1)),
        (8, None, None, ("nccl", 8)),
        (8, None, 2, ("nccl", 2)),
        (2, None, 4, ("gloo", 4)),
        (8, "gloo", None, ("gloo", 4)),
        (2, "nccl", None, ("nccl", 2)),
    ],
)
def test_backend_and_world_size_where_not_told(
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    backend: str | None,
    world_size: int | None,
    chosen: tuple[str, int],
) -> None:
    monkeypatch.setattr(launch, "cuda_devices", lambda: devices)
    assert launch._where(backend, world_size) == chosen


def test_ranks_share_a_device_where_nccl_is_told_to_let_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "cuda_devices", lambda: 1)
    with pytest.raises(
        UsageError, match=r"or NCCL 2\.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1"
    ):
        launch._where("nccl", 2)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert launch._where("nccl", 2) == ("nccl", 2)
    monkeypatch.setattr(launch, "cuda_devices", lambda: 0)
    with pytest.raises(UsageError, match="2 wanted, 0 here"):
        launch._where("nccl", 2)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nccl_records_kernels_of_the_device(tmp_path: Path) -> None:
    folder = record("all_reduce", backend="nccl", world_size=1, out=tmp_path)
    events = trace(folder, 0)["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert manifest(folder)["versions"]["nccl"]


@pytest.mark.parametrize(
    # A busy machine may halt it for longer than it pauses, and not for seconds.
    ("pause_s", "patience_s", "saved"),
    [(0.6, 3.0, True), (60, 1.0, False)],
)
def test_a_rank_that_still_saves_is_not_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
    pause_s: float,
    patience_s: float,
    saved: bool,
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_S", patience_s)
    code = f"""
import signal, sys, time
def save(*_):
    with open("rank0.json.gz.raw", "w") as trace:
        for _ in range(6):
            print("event", file=trace, flush=True)
            time.sleep({pause_s})
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", code]
    with processes.Ranks(command, [dict(os.environ)], tmp_path, grace_s=0):
        assert wait_until(lambda: "ready" in (tmp_path / "rank0.log").read_text())
    assert (tmp_path / "saved").exists() == saved


def test_a_rank_that_cannot_be_started_ends_those_that_were(
    faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(real(*arguments, **options))
        return started[0]

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    with pytest.raises(RecordError, match="rank 1 could not be started: Resource temporarily"):
        record(str(faulty), world_size=2, out=tmp_path)
    assert started[0].returncode == -signal.SIGTERM
    assert manifest(tmp_path)["status"] == "failed"


def test_who_notices_a_death_before_the_launcher_does_is_not_the_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import os, time
from multiprocessing.connection import Connection
from commtrace.record.report import REPORT_FD, Word
if os.environ["RANK"] == "1":
    open("dying", "w").close()
    time.sleep(0.1)
    os._exit(3)
while not os.path.exists("dying"):
    time.sleep(0.001)
word = Word("error", "connection reset by peer", time.time_ns())
Connection(int(os.environ[REPORT_FD])).send_bytes(word.to_bytes())
"""
    monkeypatch.chdir(tmp_path)
    environments = [{**os.environ, "RANK": str(rank)} for rank in range(2)]
    with processes.Ranks([sys.executable, "-c", code], environments, tmp_path, grace_s=0) as ranks:
        failure = ranks.wait()
    assert failure is not None
    assert (failure.rank, failure.message) == (1, "ended early, with exit status 3")
