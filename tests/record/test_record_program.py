"""Programs of one's own, recorded as a user does it: what they see, what is kept, how it fails."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace import cli
from commtrace.errors import RecordError, UsageError
from commtrace.record import Place, Plan, processes, record, record_program, session
from tests.ports import free_port

torch = pytest.importorskip("torch")

RanksOf = Callable[[Path], list[str]]
WaitUntil = Callable[[Callable[[], object]], bool]

TRAIN = """
import multiprocessing, os, resource, signal, sys, time
import torch
import torch.distributed as dist

def main():
    fault, steps = sys.argv[1], int(sys.argv[2])
    if fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))
    if fault == "early":
        sys.exit(3)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(__name__, sys.argv, os.path.basename(sys.path[0]), "rank", rank)
    weight = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, steps + 1):
        if step == 6 and rank == dist.get_world_size() - 1:
            if fault == "raise":
                raise ValueError("no more data")
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                dist.all_gather([torch.ones(4) for _ in range(2)], torch.ones(4))
            if fault == "sleep":
                print("asleep", flush=True)
                time.sleep(600)
        if step == 6 and fault == "hang":
            time.sleep(600)
        if fault == "slow":
            time.sleep(0.05)
        weight.grad = torch.ones(64) * (fault != "slow" or not os.path.exists(sys.argv[3]))
        dist.all_reduce(weight.grad)
        if weight.grad[0] < dist.get_world_size():
            break
        optimizer.step()
    dist.destroy_process_group()
    sys.exit(0)

if __name__ == "__main__":
    main()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A script that fails as its first argument says, in its sixth step.

    A slow one ends, on all ranks at once, when the file exists that its third argument names.
    """
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(TRAIN)
    return str(path)


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def trace(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))


def steps(content: dict[str, Any]) -> list[str]:
    return sorted(e["name"] for e in content["traceEvents"] if e["name"].startswith("ProfilerStep"))


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "commtrace", "record", *map(str, words)]


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    # A shell starts what runs in its background deaf to Ctrl-C, these tests perhaps among it.
    hear = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, text=True, preexec_fn=hear, **options
    )


def test_a_script_as_torchrun_would_start_it(train: str, tmp_path: Path, ranks_of: RanksOf) -> None:
    out = tmp_path / "out"
    words = command("-n", 2, "-o", out, "--", train, "none", 9)
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{out}\n"
    said = f"__main__ {[train, 'none', '9']} {Path(train).parent.name} rank"
    assert f"{said} 0\n" in ran.stderr  # the first rank's; the others' are in their logs
    assert f"{said} 1\n" not in ran.stderr
    assert (out / "rank1.log").read_text() == f"{said} 1\n"
    content = manifest(out)
    assert content["status"] == "complete"
    assert content["program"] == {"script": "train.py", "arguments": ["***", "***"]}
    assert content["window"] == "3 to 8 steps within 10 s from step 5 on"
    assert "recorded steps 5 to 9, 0" in ran.stderr
    assert "the program ended after step 9, before the window's last, 12\n" in ran.stderr
    assert (content["backend"], content["world_size"]) == ("gloo", 2)
    assert [one["steps"] for one in content["ranks"]] == [[5, 9]] * 2
    assert all(0 < one["seconds"] < 60 for one in content["ranks"])
    assert [one["machine"]["processes"] for one in content["ranks"]] == [2, 2]
    assert [reading["rank"] for reading in content["clock_probe"]] == [0, 0, 1, 1]
    for rank in (0, 1):
        recorded = trace(out, rank)
        assert recorded["commtrace"]["steps"] == [5, 9]
        ours = recorded["commtrace"]
        assert (ours["rank"], ours["world_size"], ours["partial"]) == (rank, 2, None)
        assert len(ours["flight_recorder"]["entries"]) == 5
        assert [group["ranks"] for group in ours["groups"]] == [[0, 1]]
    run = commtrace.load(out)
    assert set(run.collectives["op"]) == {"all_reduce"}
    assert sorted(set(run.measures.steps["step"].dropna())) == [5, 6, 7, 8, 9]
    assert not ranks_of(out)


@pytest.mark.usefixtures("preloaded")
def test_a_module_without_group_or_steps_is_recorded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "go.py").write_text(
        "import os, sys, torch\n"
        "torch.ones(8)\n"
        "print(sys.argv[1], __package__, os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'])\n"
        "print(os.environ.get('OMP_NUM_THREADS'))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    out = record_program(["-m", "mine.go", "--flag"], world_size=1, out=Path("out"))
    assert (out / "rank0.log").read_text() == "--flag mine 0 0\nNone\n"
    (told,) = manifest(out)["ranks"]
    assert told["steps"] is None
    assert 0 < told["recording_adds_ns"] < 100_000
    assert "recorded whole" in told["notes"][0]
    assert "no process group" in told["notes"][1]
    assert any(event["name"] == "aten::ones" for event in trace(out, 0)["traceEvents"])


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("fault", "message", "kept"),
    [
        (
            "raise",
            "rank 1: ValueError: no more data; rank 1 last called all_reduce (number 5 in group 0",
            {"rank0.json.gz", "rank1.json.gz"},
        ),
        (
            "kill",
            "rank 1: killed by SIGKILL; rank 0 last called all_reduce (number 6 in group 0",
            {"rank0.json.gz"},
        ),
        (
            "hang",
            "rank 1: has waited",
            {"rank0.json.gz", "rank1.json.gz"},
        ),
    ],
)
def test_a_rank_that_fails_is_named_with_its_operation(
    train: str, tmp_path: Path, fault: str, message: str, kept: set[str], ranks_of: RanksOf
) -> None:
    out = tmp_path / "out"
    # All may take long on a machine that does much else, but no rank waits so long for another.
    patience = {"timeout_s": 8.0} if fault == "hang" else {}
    with pytest.raises(RecordError) as caught:
        record_program([train, fault, "9"], world_size=2, out=out, **patience)
    error = str(caught.value)
    assert error.startswith(message)
    assert "\n" not in error
    assert re.search(r"called at train\.py:\d+ in main\)", error)
    if fault == "hang":
        assert re.search(r"s in all_gather \(number 6 in .*\); rank 0 last called all_red", error)
    content = manifest(out)
    assert content["status"] == "failed"
    assert error.startswith(content["error"])
    assert {file["file"] for file in content["files"]} == kept
    for file in content["files"]:
        assert file["partial"] == trace(out, file["rank"])["commtrace"]["partial"]
        assert "ProfilerStep#5" in steps(trace(out, file["rank"]))
    if fault == "raise":
        log = (out / "rank1.log").read_text()
        assert log.startswith("__main__")
        assert "runpy" not in log  # the traceback begins in the script
        assert "ValueError: no more data" in log
    assert not ranks_of(out)


@pytest.mark.usefixtures("preloaded")
def test_a_full_disk_keeps_what_there_was_room_for(train: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RecordError, match=r"rank 0: .*rank0\.json\.gz: cut off: no room left"):
        record_program([train, "full", "9"], world_size=1, out=out)
    (file,) = manifest(out)["files"]
    assert file["partial"] == "cut off: no room left to write it"
    assert manifest(out)["error"].startswith("rank 0: rank0.json.gz: cut off")
    assert {file.name for file in out.iterdir()} == {"manifest.json", "rank0.json.gz", "rank0.log"}
    assert commtrace.load(out).measures.ranks.shape[0] == 1  # what is there can be read


def kept(out: Path, why: str) -> str:
    """The last line of a recording that was ended; what there was of it is whole."""
    content = manifest(out)
    assert (content["status"], content["error"]) == ("failed", why)
    assert [file["file"] for file in content["files"]] == ["rank0.json.gz", "rank1.json.gz"]
    assert all("SIGTERM" in file["partial"] for file in content["files"])
    return f"commtrace: {why}; what was recorded is in {out}"


def test_an_interrupted_recording_is_kept(
    train: str, tmp_path: Path, ranks_of: RanksOf, wait_until: WaitUntil
) -> None:
    out = tmp_path / "out"
    launcher = start("-n", 2, "-o", out, "--", train, "sleep", 9)
    log = out / "rank1.log"
    assert wait_until(lambda: log.exists() and "asleep" in log.read_text())
    launcher.send_signal(signal.SIGINT)
    _, said = launcher.communicate()
    assert launcher.returncode == 130
    assert said.splitlines()[-1] == kept(out, "interrupted")
    assert wait_until(lambda: not ranks_of(out))


@pytest.mark.usefixtures("preloaded")
def test_a_terminated_recording_is_kept(
    train: str,
    tmp_path: Path,
    ranks_of: RanksOf,
    wait_until: WaitUntil,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    log = out / "rank1.log"

    def terminate() -> None:
        if wait_until(lambda: log.exists() and "asleep" in log.read_text()):
            signal.raise_signal(signal.SIGTERM)

    meanwhile = threading.Thread(target=terminate)
    meanwhile.start()
    assert cli.main(["record", "-n", "2", "-o", str(out), "--", train, "sleep", "9"]) == 143
    meanwhile.join()
    assert capfd.readouterr().err.splitlines()[-1] == kept(out, "interrupted by SIGTERM")
    assert wait_until(lambda: not ranks_of(out))


@pytest.mark.usefixtures("preloaded")
def test_a_signal_begins_the_same_steps_on_all_ranks(
    train: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    out = tmp_path / "out"
    over = tmp_path / "over"
    log = out / "rank1.log"

    def begin_and_end() -> None:
        if wait_until(lambda: log.exists() and "rank 1" in log.read_text()):
            signal.raise_signal(signal.SIGUSR1)
        wait_until(lambda: all((out / f"rank{rank}.json.gz").exists() for rank in (0, 1)))
        over.touch()

    meanwhile = threading.Thread(target=begin_and_end)
    meanwhile.start()
    said: list[str] = []
    program = [train, "slow", str(10**6), str(over)]
    record_program(program, plan=Plan(on_signal=True), world_size=2, out=out, tell=said.append)
    meanwhile.join()
    assert any(f"kill -USR1 {os.getpid()} begins the recording" in line for line in said)
    first, second = (trace(out, rank) for rank in (0, 1))
    assert len(steps(first)) == 8
    assert steps(first) == steps(second)


def test_a_signal_while_the_program_imports_what_the_profiler_needs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, torch\n"
        "def signal_in(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'torch._dynamo.utils':\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "sys.addaudithook(signal_in)\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "torch.ones(2).sum()\n"
    )
    out = record_program([str(script)], plan=Plan(on_signal=True), out=tmp_path / "out")
    assert "aten::sum" in {event["name"] for event in trace(out, 0)["traceEvents"]}


@pytest.mark.usefixtures("preloaded")
def test_a_window_in_seconds_ends_on_the_same_step(train: str, tmp_path: Path) -> None:
    out = record_program(
        [train, "slow", "25", "never"], plan=Plan(seconds=0.3), world_size=2, out=tmp_path / "out"
    )
    assert steps(trace(out, 0))
    assert steps(trace(out, 0)) == steps(trace(out, 1))
    for its in manifest(out)["ranks"]:  # each sleeps for 50 ms
        settled = 25 - its["steps"][1] - 3
        assert len([one for one in its["unrecorded_steps_ns"] if one > 50e6]) == settled


@pytest.mark.usefixtures("preloaded")
def test_a_window_that_is_never_reached(train: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"rank 0: no step reached the window .* after step 3"):
        record_program([train, "none", "3"], world_size=1, out=tmp_path / "out")
    assert "no step reached" in manifest(tmp_path / "out")["files"][0]["partial"]
    assert "no step reached" not in (tmp_path / "out" / "rank0.log").read_text()  # said once


@pytest.mark.usefixtures("preloaded")
def test_a_program_with_a_profiler_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "write = torch.profiler.tensorboard_trace_handler(sys.argv[1])\n"
        "with torch.profiler.profile(on_trace_ready=write):\n"
        "    dist.all_reduce(torch.ones(8))\n"
        "dist.destroy_process_group()\n"
    )
    told: list[str] = []
    out = tmp_path / "out"
    record_program([str(script), str(tmp_path / "log")], world_size=2, out=out, tell=told.append)
    assert manifest(out)["status"] == "complete"
    assert [rank["own_profiler"] for rank in manifest(out)["ranks"]] == [True, True]
    assert told[0].startswith("recorded what the program's own profiler did, ")
    (operation,) = commtrace.load(out).operations.to_dict("records")
    assert (operation["op"], operation["group"]) == ("all_reduce", "0")


@pytest.mark.usefixtures("preloaded")
def test_a_rank_that_alone_steps_an_optimizer_waits_for_no_other(tmp_path: Path) -> None:
    script = tmp_path / "learner.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(9):\n"
        "    weight.grad = torch.ones(64)\n"
        "    dist.reduce(weight.grad, 0)\n"
        "    if dist.get_rank() == 0:\n"
        "        optimizer.step()\n"
        "    dist.broadcast(weight.detach(), 0)\n"
        "dist.destroy_process_group()\n"
    )
    out = record_program([str(script)], world_size=2, out=tmp_path / "out")
    learner, other = manifest(out)["ranks"]
    assert (learner["steps"], other["steps"]) == ([5, 9], None)
    assert other["seconds"] < 9  # the time that a clock waits for another is ten
    unequal = "clocks were not compared: the ranks do not step equally often"
    assert any(note.startswith(unequal) for note in learner["notes"])


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("every", "rounds", "last"),
    [
        (4, 20, 4 + 7 * 4 + 1),  # as a learner's mini-batches, or local SGD: the eighth exchange
        (4, 5, 20),  # the program ends before
        (1, 20, 4 + 8),
        (0, 20, 4 + 8),  # nobody to communicate with
    ],
)
def test_steps_are_recorded_until_enough_of_them_communicate(
    every: int, rounds: int, last: int, tmp_path: Path
) -> None:
    script = tmp_path / "local.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        f"for round in range({rounds}):\n"
        f"    for batch in range({every or 1}):\n"
        "        weight.grad = torch.ones(64)\n"
        "        optimizer.step()\n"
        f"    {'dist.all_reduce(weight.detach())' if every else 'pass'}\n"
        "dist.destroy_process_group()\n"
    )
    ranks = 2 if every else 1
    out = record_program([str(script)], world_size=ranks, out=tmp_path / "out")
    assert [rank["steps"] for rank in manifest(out)["ranks"]] == [[5, last]] * ranks


@pytest.mark.usefixtures("preloaded")
def test_ranks_that_step_unequally_often_record_the_same_rounds(tmp_path: Path) -> None:
    """None waits for another that needs it; nor at the end, where one has no more steps."""
    script = tmp_path / "federated.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for round in range(20):\n"
        "    for batch in range(4 + 20 * dist.get_rank()):\n"
        "        weight.grad = torch.ones(64)\n"
        "        optimizer.step()\n"
        "    dist.all_reduce(weight.detach())\n"
        "dist.destroy_process_group()\n"
    )
    out = record_program([str(script)], world_size=2, out=tmp_path / "out")
    few, many = manifest(out)["ranks"]
    assert (few["steps"], many["steps"]) == ([5, 33], [5, 8 * 24 + 1])
    assert many["seconds"] < 9  # the time that a clock waits for another is ten
    run = commtrace.load(out)
    assert len(run.operations) == 8
    assert {note.code for note in run.notes} >= {"lone-steps"}


@pytest.mark.usefixtures("preloaded")
def test_a_rank_that_alone_warms_up_its_optimizer_steps_with_the_others_then(
    tmp_path: Path,
) -> None:
    script = tmp_path / "learner.py"
    script.write_text(
        "import commtrace, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(40 * (dist.get_rank() == 0)):\n"
        "    weight.grad = torch.ones(64)\n"
        "    optimizer.step()\n"
        "for step in range(20):\n"
        "    dist.broadcast(weight.detach(), 0)\n"
        "    time.sleep(0.01)\n"
        "    commtrace.step()\n"
        "dist.destroy_process_group()\n"
    )
    told: list[str] = []
    out = record_program([str(script)], world_size=2, out=tmp_path / "out", tell=told.append)
    learner, other = manifest(out)["ranks"]
    assert learner["steps"] == other["steps"] == [5, 12]
    assert len(learner["unrecorded_steps_ns"]) == len(other["unrecorded_steps_ns"]) == 20 - 12 - 3
    assert {one["rank"] for one in manifest(out)["clock_probe"]} == {0, 1}
    assert not any("not compared" in note for note in [*learner["notes"], *other["notes"]])
    last = max(number for number, line in enumerate(told) if line.startswith("recorded steps"))
    assert f"{learner['seconds']:.3g} s" in told[last]


@pytest.mark.usefixtures("preloaded")
def test_a_program_may_train_in_another_thread_that_lives_for_long_enough(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, threading, torch\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "def train():\n"
        "    for step in range(int(sys.argv[1])):\n"
        "        weight.grad = torch.ones(64)\n"
        "        optimizer.step()\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    out = record_program([str(script), "20"], world_size=1, out=tmp_path / "out")
    assert set(commtrace.load(out).steps.step) == set(range(5, 13))
    with pytest.raises(RecordError, match="a thread that does not live until the window's last"):
        record_program([str(script), "9"], world_size=1, out=tmp_path / "short")


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("commtrace.step()", "a thread that does not live until the window's last, or in several"),
        ("optimizer.step()", "an optimizer steps in several threads, as a server's do, of which"),
    ],
)
def test_steps_that_end_in_one_thread_and_then_in_another_are_no_window(
    tmp_path: Path, ends: str, why: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import commtrace, torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "weight = torch.nn.Parameter(torch.ones(64))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "weight.grad = torch.ones(64)\n"
        "with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:\n"
        "    for step in range(20):\n"
        f"        (one if step < 6 else other).submit(lambda: {ends}).result()\n"
    )
    with pytest.raises(RecordError, match=why):
        record_program([str(script)], world_size=1, out=tmp_path / "out")


def test_ranks_of_which_one_profiles_itself_have_no_steps_in_common() -> None:
    def said(*own: int) -> str:
        facts = {rank: {"own_profiler": True} if rank in own else {} for rank in range(3)}
        failure = session._of_different_steps(facts)
        return f"rank {failure.rank} {failure.message}" if failure else ""

    assert not said()
    assert not said(0, 1, 2)
    assert said(0, 2) == (
        "rank 0 ran a profiler of its own, rank 1 did not: their steps differ; switch it off"
    )


@pytest.mark.usefixtures("preloaded")
def test_a_script_that_exits_with_a_status(train: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="rank 0: ended with exit status 3"):
        record_program([train, "early", "3"], world_size=1, out=tmp_path / "out")


def test_under_torchrun_each_process_becomes_its_rank(train: str, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = [*torchrun, "--standalone", "--no-python", *command("-o", "out", "--", train)]
    ran = subprocess.run(
        [*words, "none", "25"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "out"
    assert steps(trace(out, 0)) == steps(trace(out, 1))
    content = manifest(out)
    assert content["status"] == "complete"
    assert (content["backend"], content["world_size"]) == ("gloo", 2)
    assert [file["rank"] for file in content["files"]] == [0, 1]
    (mine,) = content[
        "ranks"
    ]  # the first tells of steps behind the window, 5 to 12, and three more
    assert mine["rank"] == 0
    assert len([its for its in mine["unrecorded_steps_ns"] if its > 0]) == 25 - 12 - 3


def test_under_torchrun_a_rank_that_hangs_says_so_and_ends(
    train: str, tmp_path: Path, ranks_of: RanksOf
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ours = command("-o", "out", "--timeout", 8, "--", train, "hang", 9)
    ran = subprocess.run(
        [*torchrun, "--standalone", "--no-python", *ours],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "commtrace: rank 1: has waited " in ran.stderr
    where = r"s in all_gather \(number 6 in group 0, called at train\.py:\d+ in main\)\n"
    assert re.search(where, ran.stderr)
    recorded = trace(tmp_path / "out", 1)
    assert "ProfilerStep#5" in steps(recorded)
    assert "has waited" in recorded["commtrace"]["partial"]
    assert not ranks_of(tmp_path / "out")


def nodes(train: str, folder: Path, fault: str) -> list[subprocess.Popen[str]]:
    where = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    # The program's gloo would look for the address of the host's name.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    return [
        start(
            *("-n", 1, *where, "--node-rank", node, "-o", folder / f"node{node}"),
            *("--", train, fault, 9),
            env=environment,
        )
        for node in (1, 0)
    ][::-1]


def test_two_nodes_are_one_recording(train: str, tmp_path: Path) -> None:
    launchers = nodes(train, tmp_path, "none")
    said = [launcher.communicate()[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    run = commtrace.load([tmp_path / "node0", tmp_path / "node1"])
    assert sorted(set(run.collectives["rank"])) == [0, 1]
    told = [manifest(tmp_path / f"node{node}") for node in (0, 1)]
    assert [content["world_size"] for content in told] == [2, 2]
    assert [file["rank"] for content in told for file in content["files"]] == [0, 1]
    assert run.notes == ()


def test_a_failure_on_one_node_ends_the_others_and_is_named_there(
    train: str, tmp_path: Path, ranks_of: RanksOf
) -> None:
    launchers = nodes(train, tmp_path, "kill")
    said = [launcher.communicate()[1].splitlines()[-1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [2, 2], said
    for node in (0, 1):
        assert said[node].startswith("commtrace: rank 1: killed by SIGKILL")
        assert manifest(tmp_path / f"node{node}")["error"].startswith("rank 1: killed by")
    assert not ranks_of(tmp_path)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["no.py"], {}, r"no\.py: no such file; name a Python script"),
        (["env", "train.py"], {}, "env: a command, no script: -n starts the ranks"),
        (["-m", "no.such"], {}, r"-m no\.such: no such module"),
        (["-m"], {}, "name a module"),
        ([], {}, "name a script behind it"),
        ([__file__], {"plan": Plan(first=1)}, "--start-step 1: at least 2"),
        ([__file__], {"plan": Plan(steps=0)}, "--steps 0: at least 1"),
        ([__file__], {"plan": Plan(seconds=0.0)}, "--seconds 0: more than 0"),
        (
            [__file__],
            {"plan": Plan(on_signal=True), "place": Place(0, 2, "127.0.0.1", 1)},
            "--on-signal: only on one node",
        ),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        record_program(words, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("preloaded")
def test_a_package_that_cannot_be_imported_fails_in_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "__init__.py").write_text("raise ImportError('libfast is missing')\n")
    (tmp_path / "bad" / "go.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match=r"rank 0: ImportError: .*libfast is missing"):
        record_program(["-m", "bad.go"], world_size=1, out=tmp_path / "out")


def test_a_folder_with_something_in_it_is_never_used(train: str, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty, and nothing is overwritten"):
        record_program([train], out=tmp_path)


def test_a_port_that_is_taken(train: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place(0, 2, "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UsageError, match="Address already in use; name an address of node 0"):
            record_program([train], out=tmp_path / "a" / "b", place=place)
    assert not list(tmp_path.iterdir())


def test_a_node_that_never_comes(train: str, tmp_path: Path) -> None:
    place = Place(0, 2, "127.0.0.1", free_port())
    with pytest.raises(RecordError, match=r"node 1 has not come to 127\.0\.0\.1:\d+ within 1 s"):
        record_program([train], out=tmp_path / "out", place=place, timeout_s=1.0)


@pytest.mark.usefixtures("preloaded")
def test_a_workload_that_hangs_ends_in_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_S", 5.0)
    workload = tmp_path / "hangs.py"
    workload.write_text(
        '"""Why?"""\n'
        "import torch, torch.distributed as dist\n"
        "def setup(ctx): return ctx\n"
        "def step(ctx):\n"
        "    dist.all_reduce(torch.ones(2))\n"
        "    if ctx.rank: dist.barrier()\n"
        "    else: dist.all_gather([torch.ones(2)] * 2, torch.ones(2))\n"
        "def check(ctx): ...\n"
    )
    with pytest.raises(RecordError, match=r"has waited \d+ s in .*; rank . was in "):
        record(str(workload), world_size=2, out=tmp_path / "out", timeout_s=8.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a workload, or a program behind --: commtrace record -- train.py"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "arguments stand behind --"),
        (["torchrun", "train.py"], "a program and its arguments stand behind --"),
        (["overlap", "--", "train.py"], "name a workload, or a program behind --"),
        (["overlap", "--steps", "2"], "--steps is for a program behind --"),
        (["--set", "a=1", "--", "train.py"], "--set is for a workload"),
        (["--backend", "gloo", "--", "train.py"], "--backend is for a workload"),
        (["--nnodes", "2", "--", "train.py"], "give --rdzv-endpoint"),
        (["--", "no.py", "-n", "2"], "no.py: no such file"),
        ([__file__], f"a program is recorded with commtrace record -- {__file__}"),
    ],
)
def test_a_command_line_that_mixes_both(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_program_on_a_gpu_has_all_kernels_of_its_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
        "torch.cuda.set_device(device)\n"
        "dist.init_process_group('nccl', device_id=device)\n"
        "weight = torch.nn.Parameter(torch.ones(64, device=device))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(8):\n"
        "    weight.grad = torch.ones_like(weight)\n"
        "    dist.all_reduce(weight.grad)\n"
        "    optimizer.step()\n"
        "dist.destroy_process_group()\n"
    )
    out = record_program([str(script)], world_size=1, out=tmp_path / "out")
    content = trace(out, 0)
    assert content["commtrace"]["steps"] == [5, 8]
    assert any(event.get("cat") == "kernel" for event in content["traceEvents"])
    assert manifest(out)["backend"] == "nccl"


@pytest.mark.usefixtures("preloaded")
def test_forked_children_are_not_the_rank(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import multiprocessing, os, signal, sys, torch\n"
        "def work(queue):\n"
        "    torch.ones(8)\n"
        "    queue.put([torch.autograd._profiler_enabled(), signal.getsignal(signal.SIGTERM)])\n"
        "context = multiprocessing.get_context('fork')\n"
        "queue = context.Queue()\n"
        "child = context.Process(target=work, args=(queue,))\n"
        "child.start()\n"
        "enabled, handler = queue.get()\n"
        "child.join()\n"
        "print(enabled, handler == signal.SIG_DFL, child.exitcode)\n"
        "number = os.fork()\n"
        "if number == 0:\n"
        "    sys.exit(4)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))\n"
        "print(os.path.exists(os.path.join(sys.argv[1], 'rank0.json.gz')))\n"
        "torch.zeros(8)\n"
    )
    out = record_program([str(script), str(tmp_path / "out")], world_size=1, out=tmp_path / "out")
    assert (out / "rank0.log").read_text() == "False True 0\n4\nFalse\n"
    names = {event["name"] for event in trace(out, 0)["traceEvents"]}
    assert "aten::zeros" in names
    assert "aten::ones" not in names
