"""What is said about failures, read from logs, from launchers' environments and endpoints."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commtrace.errors import UsageError
from commtrace.record import culprit as blame
from commtrace.record import external, nccl, nodes
from commtrace.record.job import Plan, Program
from commtrace.record.nodes import Nodes, Place

AT = {"name": "all_gather", "number": 3, "group": "0", "done": False, "ranks": [0, 1, 2]}
SUM = {"name": "all_reduce", "number": 2, "group": "0", "done": True, "ranks": [0, 1, 2]}


def test_who_hangs_where_and_who_never_came() -> None:
    assert blame.hang(AT, 12.3, {0: SUM, 2: AT}) == (
        "has waited 12 s in all_gather (number 3 in group 0); "
        "rank 0 last called all_reduce (number 2 in group 0)"
    )
    assert blame.hang(AT, 5, {0: None}).endswith("; rank 0 is in no operation")
    # Who is not of the group need not come.
    assert blame.hang({**AT, "ranks": [1, 2]}, 5, {0: None, 2: AT}).endswith("in group 0)")
    many = blame.hang({**AT, "ranks": []}, 5, dict.fromkeys(range(9)))
    assert many.endswith("rank 2 is in no operation; 6 more never came")


def test_a_hang_names_the_lines() -> None:
    waits, last = ({**its, "called_at": f"train.py:{n} in main"} for its, n in ((AT, 8), (SUM, 5)))
    assert blame.hang(waits, 12.3, {0: last}) == (
        "has waited 12 s in all_gather (number 3 in group 0, called at train.py:8 in main); "
        "rank 0 last called all_reduce (number 2 in group 0, called at train.py:5 in main)"
    )


def test_a_death_comes_first_then_what_was_earlier() -> None:
    failures = [
        blame.Failure(0, "noticed", 5),
        blame.Failure(1, "killed", 9, died=True),
        blame.Failure(2, "raised", 4),
    ]
    assert [failure.rank for failure in sorted(failures, key=lambda f: f.order)] == [1, 2, 0]


def test_what_nccl_says(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(
        "host:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n"
        "host:1:1 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{0..1}\n"
        "host:1:1 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{0..1}\n"
        "host:1:1 [0] NCCL INFO 1024 Bytes -> Algo 0 proto 1 time 12.5\n"
        "loss 0.3\n"
    )
    assert nccl.facts(tmp_path.glob("*.log")) == {
        "version": "2.27.3+cuda12.9",
        "choices": [
            {
                "operation": "AllReduce",
                "bytes": 4194304,
                "algorithm": "RING",
                "protocol": "SIMPLE",
                "count": 2,
            },
            {
                "operation": None,
                "bytes": 1024,
                "algorithm": "TREE",
                "protocol": "LL128",
                "count": 1,
            },
        ],
    }
    (tmp_path / "rank0.log").write_text("loss 0.3\n")
    assert nccl.facts(tmp_path.glob("*.log")) is None


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_nobody_has_started_us(bare: pytest.MonkeyPatch) -> None:
    assert external.rank(None) is None
    bare.setenv("SLURM_NTASKS", "4")  # of a batch script, which is no task
    bare.setenv("SLURM_PROCID", "0")
    assert external.rank(None) is None


def test_torchrun_has_started_us(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        bare.setenv(name, value)
    bare.setenv("LOCAL_WORLD_SIZE", "4")
    bare.setenv("GROUP_RANK", "1")
    environment = external.rank(None)
    assert environment is not None
    assert environment["LOCAL_RANK"] == "1"
    assert environment["TORCH_FR_BUFFER_SIZE"]
    assert external.folder(environment, tmp_path) == tmp_path / "node1"
    (tmp_path / "node1" / "rank5.json.gz").touch()
    with pytest.raises(UsageError, match=r"rank5\.json\.gz exists, and nothing is overwritten"):
        external.folder(environment, tmp_path)
    with pytest.raises(UsageError, match="name it with -o"):
        external.folder(environment, None)
    with pytest.raises(UsageError, match="leave -n out"):
        external.rank(2)
    with pytest.raises(UsageError, match="leave --nnodes, --node-rank and --rdzv-endpoint out"):
        external.rank(None, is_node=True)


def test_a_rank_without_all_of_its_trace_is_named(
    bare: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare.setattr(external, "_OTHERS_S", 0.0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}.items():
        bare.setenv(name, value)
    bare.setenv("LOCAL_WORLD_SIZE", "3")
    for rank, why in enumerate((None, "no step")):
        head = json.dumps({"commtrace": {"partial": why}}).encode()
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(head))
    program = Program("mine.py", False, [], Plan(), str(tmp_path), 1.0, launched=False)
    external.finish(program, {}, [], None)
    content = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert content["status"] == "failed"
    assert content["error"] == "rank 2: no trace file; rank 1: no step"
    assert capsys.readouterr().err == f"commtrace: {content['error']}\n"


def test_slurm_has_started_us(bare: pytest.MonkeyPatch) -> None:
    slurm = {
        "STEP_ID": "0",
        "NTASKS": "6",
        "PROCID": "5",
        "LOCALID": "1",
        "NODEID": "1",
        "STEP_TASKS_PER_NODE": "4,2",
        "STEP_NODELIST": "gpu[07-08]",
        "JOB_ID": "123456",
    }
    for name, value in slurm.items():
        bare.setenv(f"SLURM_{name}", value)
    environment = external.rank(None)
    assert environment is not None
    told = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")}
    assert told == {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    assert environment["LOCAL_WORLD_SIZE"] == "2"
    assert environment["MASTER_ADDR"] == "gpu07"
    assert external.rank(4) is None  # the user wants ranks of his own here
    assert external.rank(None, is_node=True) is None


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> list[Nodes]:
    """Two launchers, with one and two ranks, that meet in one process."""
    store = pytest.importorskip("torch").distributed.HashStore()
    monkeypatch.setattr(nodes, "_BEAT_S", 0.05)
    monkeypatch.setattr(nodes, "_SILENCE_S", 1.0)
    with ThreadPoolExecutor(2) as pool:
        places = (Place(node, 2, "127.0.0.1", 1) for node in (0, 1))
        return list(pool.map(lambda place: Nodes(place, 1, store, 1 + place.node, 30.0), places))


def test_the_first_node_stays_for_one_that_lives_and_hears_of_its_failure(
    two_nodes: list[Nodes],
) -> None:
    first, second = two_nodes
    assert (first.world_size, second.first_rank) == (3, 1)
    failure = blame.Failure(2, "ValueError: no", 5)

    def fail_late() -> None:
        time.sleep(2.0)  # longer than silence would be believed
        second.tell(failure)
        second.wait()

    late = threading.Thread(target=fail_late)
    late.start()
    assert first.wait() == failure
    late.join()
    for node in two_nodes:
        node.close()


def test_the_first_node_does_not_wait_for_one_that_is_gone(two_nodes: list[Nodes]) -> None:
    first, second = two_nodes
    second.close()
    gone = first.wait()
    first.close()
    assert gone is not None
    assert (gone.rank, gone.died) == (1, True)
    assert gone.message.endswith("is gone")


def test_places() -> None:
    assert Place.of(1, 0, None) == Place()
    assert Place.of(2, 1, "[::1]:29500") == Place(1, 2, "::1", 29500)
    assert Place.of(2, 1, "a:1").subfolder("gloo-4") == "gloo-4/node1"
    for count, node, endpoint, message in [
        (2, 0, None, "give --rdzv-endpoint"),
        (2, 2, "a:1", "from 0 to 1"),
        (2, 0, "a", "write it as HOST:PORT"),
        (2, 0, "a:99999", "write it as HOST:PORT"),
    ]:
        with pytest.raises(UsageError, match=message):
            Place.of(count, node, endpoint)
