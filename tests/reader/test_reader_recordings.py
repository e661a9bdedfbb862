"""Files of one recording, of several, and of none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.errors import TraceError
from commtrace.measures import Measures
from commtrace.reader import read
from commtrace.reader.names import ranks_in_names
from commtrace.reports import content

NOW_US = 1_790_000_000_000_000
MINUTE_US = 60_000_000


def write(
    file: Path,
    rank: int | None = None,
    world_size: int | None = 4,
    *,
    ts: int = 0,
    steps: tuple[int, ...] = (),
    thread: int = 4711,
    name: str = "k",
    **top: Any,
) -> Path:
    """A kernel per step, or one; ``ts`` in microseconds from a moment in 2026."""
    told = {"rank": rank, **({"world_size": world_size} if world_size else {})}
    head = {} if rank is None else {"distributedInfo": told}
    events = []
    for n, step in enumerate(steps or (None,)):
        at = {"ph": "X", "pid": thread, "tid": thread, "ts": NOW_US + ts + 100 * n}
        if step is not None:
            label = f"ProfilerStep#{step}"
            events.append({**at, "cat": "user_annotation", "name": label, "dur": 90})
        events.append({**at, "cat": "kernel", "name": name, "dur": 50, "tid": 7, "args": {}})
        events.append({**at, "cat": "cpu_op", "name": "aten::mm", "dur": 10})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**head, **top, "traceEvents": events}))
    return file


def told(trace: Measures, code: str) -> list[str]:
    return [note.message for note in trace.notes if note.code == code]


def codes(trace: Measures) -> list[str]:
    return sorted(note.code for note in trace.notes)


@pytest.mark.parametrize(
    "stranger",
    [
        {"rank": 34, "world_size": 300},
        {"rank": None},
        {"rank": 0, "ts": -MINUTE_US, "thread": 99},
        {"rank": 2, "ts": 60 * 24 * MINUTE_US, "thread": 99},
    ],
    ids=["another size", "no rank", "its rank is there", "another day"],
)
def test_one_foreign_file_is_left_out_and_named(tmp_path: Path, stranger: dict[str, Any]) -> None:
    for rank in range(4):
        write(tmp_path / f"{rank}.json", rank, thread=rank)
    write(tmp_path / "foreign.json", **stranger)
    trace = read([tmp_path])
    assert trace.ranks["rank"].tolist() == [0, 1, 2, 3]
    (message,) = told(trace, "mixed-runs")
    assert "foreign.json" in message
    assert message.endswith(": left out")
    analysis = commtrace.load(tmp_path, workers=1).analysis(select=["straggler"])
    assert "1 file of other runs is left out." in content.headline(analysis)


def test_a_foreign_file_takes_no_matching_away(tmp_path: Path, recorded: Path) -> None:
    from commtrace.run import load

    own = recorded / "all_reduce" / "gloo-4"
    whole = load(own)
    for file in own.glob("rank*.json.gz"):
        shutil.copy(file, tmp_path)
    shutil.copy(recorded / "barrier" / "gloo-4" / "rank0.json.gz", tmp_path / "a.json.gz")
    run = load(tmp_path)
    assert len(run.operations) == len(whole.operations)
    assert run.clock["offset_ns"].tolist() == whole.clock["offset_ns"].tolist()
    assert run.overlap().equals(whole.overlap())


def test_several_recordings_are_refused_by_name(tmp_path: Path, recorded: Path) -> None:
    runs = [recorded / name / "gloo-4" for name in ("all_reduce", "barrier")]
    with pytest.raises(TraceError, match=r"2 recordings were given.*analyze one at a time") as said:
        read(runs)
    assert all(str(run) in str(said.value) for run in runs)
    assert "\n" not in str(said.value)
    for world_size in (2, 4):
        for rank in (0, 1):
            write(tmp_path / f"{world_size}-{rank}.json", rank, world_size)
    with pytest.raises(TraceError, match="analyze one at a time"):
        read([tmp_path])


def test_a_trace_in_a_subfolder_displaces_none_above(tmp_path: Path) -> None:
    write(tmp_path / "a" / "rank0.json", 0, 1, name="below")
    write(tmp_path / "rank0.json", 0, 1, name="above")
    with pytest.raises(TraceError, match=r"rank 0 is in .*analyze one recording at a time"):
        read([tmp_path])


def test_a_copy_of_a_file_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 1)
    shutil.copy(tmp_path / "rank0.json", tmp_path / "rank0 (copy).json")
    trace = read([tmp_path])
    assert len(trace.kernels) == 1
    assert codes(trace) == ["duplicate-rank"]


def cycles(folder: Path, names: Callable[[int, int], str], *, new: bool = False) -> None:
    """Three times two steps on two ranks; with ``new``, each by a profiler of its own."""
    for cycle in range(3):
        steps = (0, 1) if new else (10 * cycle, 10 * cycle + 1)
        for rank in (0, 1):
            at = {"ts": cycle * 20 * MINUTE_US, "thread": 50 + rank}
            write(folder / names(rank, cycle), rank, 2, steps=steps, **at)


@pytest.mark.parametrize(
    "names",
    [
        lambda rank, cycle: f"host_{rank}.{1700000000000 + cycle}.pt.trace.json",
        lambda rank, cycle: f"iteration_{cycle}/rank{rank}_trace.json",
    ],
    ids=["TensorBoard", "TorchTitan"],
)
def test_cycles_of_one_recording_are_one_run(tmp_path: Path, names: Any) -> None:
    cycles(tmp_path, names)
    trace = read([tmp_path])
    assert trace.ranks["rank"].tolist() == [0, 1]
    assert trace.ranks["events"].tolist() == [18, 18]
    assert trace.kernels["step"].tolist() == [0, 1, 10, 11, 20, 21] * 2
    assert trace.kernels["start_ns"].is_monotonic_increasing is False  # rank by rank
    assert trace.kernels[trace.kernels["rank"] == 1]["start_ns"].is_monotonic_increasing
    assert "2 ranks have up to 3 files" in told(trace, "cycles")[0]
    assert [len(pauses) for pauses in trace.pauses.values()] == [2, 2]


def test_cycles_that_count_anew_have_steps_of_their_own(tmp_path: Path) -> None:
    cycles(tmp_path, lambda rank, cycle: f"{cycle}-rank{rank}.json", new=True)
    trace = read([tmp_path])
    assert trace.steps["step"].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert trace.kernels["step"].tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_two_runs_that_only_share_numbers_of_processes_are_two(tmp_path: Path) -> None:
    for run, ts in (("a", 0), ("b", MINUTE_US)):
        for rank in (0, 1):
            write(tmp_path / run / f"rank{rank}.json", rank, 2, steps=(0, 1), ts=ts, thread=7)
    with pytest.raises(TraceError, match="2 recordings"):
        read([tmp_path / "a", tmp_path / "b"])


def test_nodes_with_a_manifest_each_are_one_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"node{rank}" / f"rank{rank}.json", rank, 2, host_name=f"node{rank}")
        manifest = {"node": rank, "ranks": [{"rank": rank}]}
        (tmp_path / f"node{rank}" / "manifest.json").write_text(json.dumps(manifest))
    trace = read([tmp_path / "node1", tmp_path / "node0"])
    assert trace.manifest == {"node": 0, "ranks": [{"rank": 0}, {"rank": 1}]}
    assert trace.notes == ()


def test_what_failed_on_a_later_node_failed(tmp_path: Path) -> None:
    for rank, status in ((0, "complete"), (1, "failed")):
        write(tmp_path / f"node{rank}" / f"rank{rank}.json", rank, 2, host_name=f"node{rank}")
        manifest = {"status": status, "error": "rank 1 died" if rank else None}
        (tmp_path / f"node{rank}" / "manifest.json").write_text(json.dumps(manifest))
    (note,) = read([tmp_path]).notes
    assert note.message == "the recording failed, and holds what there was: rank 1 died"


def test_a_rank_without_an_event_is_named(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 2)
    told_of = {"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": []}
    (tmp_path / "rank1.json").write_text(json.dumps(told_of))
    (note,) = read([tmp_path]).notes
    assert (note.code, note.rank) == ("no-events", 1)
    assert "rank1.json has no event" in note.message


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["1.7-TP-0.trace.json.gz", "1.7-TP-1.trace.json.gz"], [0, 1]),
        (["1.7-TP-2-EXTEND.trace.json.gz", "1.7-TP-2-DECODE.trace.json.gz"], [2, 2]),
        ([f"x-TP-{tp}-DP-{dp}.trace.json.gz" for dp in (0, 1) for tp in (0, 1)], [0, 1, 2, 3]),
        ([f"x-TP-{tp}-DP-{tp // 2}-EP-{tp}.trace.json" for tp in range(4)], [0, 1, 2, 3]),
        ([f"x-TP-{tp}-PP-{pp}.trace.json" for pp in (0, 1) for tp in (0, 1)], [0, 1, 2, 3]),
        ([f"dp0_pp0_tp{r}_dcp0_ep{r}_rank{r}.17.pt.trace.json.gz" for r in (0, 1)], [0, 1]),
        ([f"dp{d}_pp0_tp0_dcp0_ep{d}_rank0.17.pt.trace.json.gz" for d in (0, 1)], [0, 1]),
        (["trace-rank-3.json", "exp[llama]-rank[5].1.pt.trace.json.gz"], [3, 5]),
        (["profile_3.json", "rank7_trace.json.gz", "x-rank-2.17.pt.trace.json"], [3, 7, 2]),
        (["local_rank3.json", "nranks8.json", "llama_tp4_dp2.json"], [None] * 3),
    ],
)
def test_ranks_in_names(names: list[str], ranks: list[int | None]) -> None:
    files = [Path(name) for name in names]
    found = ranks_in_names(files)
    assert [found.get(file) for file in files] == ranks


def test_files_without_a_rank_are_numbered_in_their_order(tmp_path: Path) -> None:
    for n, process in enumerate((9, 10, 11)):
        write(tmp_path / f"host_{process}.17000000000{n}.pt.trace.json", thread=process)
    (tmp_path / "a.json").write_text('{"model_type": "llama"}')
    trace = read([tmp_path])
    assert [Path(file).name.split(".")[0] for file in trace.ranks["file"]] == [
        "host_9",
        "host_10",
        "host_11",
    ]
    assert trace.ranks["rank"].tolist() == [0, 1, 2]
    assert trace.kernels["rank"].tolist() == [0, 1, 2]
    assert trace.ranks["rank_provenance"].tolist() == ["assumed"] * 3
    assert codes(trace) == ["not-a-trace", *["rank-assumed"] * 3]


def test_files_without_a_rank_of_two_times_are_no_ranks(tmp_path: Path) -> None:
    write(tmp_path / "before.json", thread=1)
    write(tmp_path / "after.json", thread=2, ts=MINUTE_US)
    with pytest.raises(TraceError, match=r"2 recordings were given.*before.json.*one at a time"):
        read([tmp_path])


def test_what_else_lies_in_the_folder_is_no_fault(tmp_path: Path) -> None:
    from commtrace.run import load

    write(tmp_path / "rank0.json", 0, 1)
    for name in ("config.json", "trainer_state.json"):
        (tmp_path / name).write_text('{"hidden_size": 1, "log_history": [1]}')
    execution = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "x"}]}
    (tmp_path / "rank0_et.json").write_text(json.dumps(execution))
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "all.tar").touch()
    run = load(tmp_path)
    assert [note.code for note in run.notes] == ["not-a-trace"] * 4
    faults = [finding.evidence[0].name for finding in run.diagnose(select=["unfit-trace"]).findings]
    assert faults == ["kernels without a launch"]
    assert len(load(str(tmp_path / "*")).ranks) == 1


def test_an_archive_is_called_one(tmp_path: Path) -> None:
    trace = write(tmp_path / "run" / "rank0.json", 0, 1)
    archives = [tmp_path / "a.tar", tmp_path / "a.tar.gz", tmp_path / "a.zip", tmp_path / "a.json"]
    for archive, mode in zip(archives[:2], ("w", "w:gz"), strict=True):
        with tarfile.open(archive, mode) as tar:
            tar.add(trace)
    for archive in archives[2:]:
        with zipfile.ZipFile(archive, "w") as packed:
            packed.write(trace)
    for archive in archives:
        with pytest.raises(TraceError, match="is an archive: unpack it"):
            read([archive])
    trace.rename(tmp_path / "rank0")
    shutil.copy(archives[0], tmp_path / "run")
    with pytest.raises(TraceError, match=r"an archive: unpack a\.tar"):
        read([tmp_path / "run"])


SCHEDULE = """
import os, sys, torch
import torch.distributed as dist
from torch.profiler import profile, schedule, tensorboard_trace_handler

dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store",
                        rank=int(sys.argv[2]), world_size=2)
cycle = schedule(wait=1, warmup=1, active=2, repeat=3)
handler = tensorboard_trace_handler(sys.argv[1] + "/traces")
with profile(schedule=cycle, on_trace_ready=handler, record_shapes=True) as profiler:
    for _ in range(12):
        tensor = torch.ones(100_000)
        dist.all_reduce(tensor)
        (tensor @ tensor).item()
        profiler.step()
dist.barrier()
os._exit(0)  # PyTorch's threads may end in an abort while the process group is taken down
"""


@pytest.mark.slow
def test_a_real_schedule_with_repeats_is_one_run(tmp_path: Path) -> None:
    from commtrace.run import load

    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCHEDULE, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    files = list((tmp_path / "traces").iterdir())
    assert len(files) == 6
    run = load(tmp_path / "traces")
    assert run.ranks["rank"].tolist() == [0, 1]
    assert [note.code for note in run.notes] == ["cycles"]
    assert sorted(run.steps["step"].dropna().unique()) == [2, 3, 6, 7, 10, 11]
    reduced = run.operations[run.operations["op"] == "all_reduce"]
    assert (len(reduced), set(reduced["present"])) == (6, {2})
    # Beside the six steps nothing is recorded, so nothing of it is idle time.
    per_step = run.overlap(by="step").groupby("rank")["span_ns"].sum()
    assert (run.overlap().set_index("rank")["span_ns"] < 2 * per_step).all()
