"""Which line of a program called an operation, by the stack that the flight recorder noted."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.record import messages
from commtrace.record.call_site import call_site
from commtrace.rules import diagnose

LIBRARIES = sysconfig.get_paths()["purelib"]
TORCH = f"{Path(torch.__file__).parent}/distributed/distributed_c10d.py"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


SEND = frame(TORCH, 3245, "all_reduce")
MAIN = frame(f"{Path.cwd()}/examples/train.py", 57, "main")
MODULE = frame(f"{Path.cwd()}/examples/train.py", 80, "<module>")
COMPREHENSION = frame(f"{Path.cwd()}/examples/train.py", 60, "<listcomp>")
METRIC = frame(f"{LIBRARIES}/torchmetrics/utilities/distributed.py", 128, "gather_all_tensors")
DEPRECATED = frame(f"{LIBRARIES}/typing_extensions.py", 3140, "wrapper")
GATHER = "torchmetrics/utilities/distributed.py:128 in gather_all_tensors"
PROGRAM = """
import time
import torch
import torch.distributed as dist

def gather_loss(loss):
    dist.all_reduce(loss)

dist.init_process_group("gloo")
gradients = torch.zeros(100_000)
for _ in range(9):
    dist.all_reduce(gradients)
    time.sleep(0.03 * dist.get_rank())
    gather_loss(torch.zeros(1))
    __import__("commtrace").step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([SEND, MAIN, MODULE], "examples/train.py:57 in main"),
        ([SEND, MODULE], "examples/train.py:80"),
        ([SEND, COMPREHENSION, MAIN, MODULE], "examples/train.py:60 in main"),
        ([SEND, COMPREHENSION, MODULE], "examples/train.py:60"),
        (
            [SEND, METRIC, SEND, MAIN, MODULE],
            f"examples/train.py:57 in main, by {GATHER}",
        ),
        ([SEND, METRIC], GATHER),
        ([SEND, DEPRECATED, MAIN, MODULE], "examples/train.py:57 in main"),
        ([SEND, DEPRECATED, METRIC, MAIN], f"examples/train.py:57 in main, by {GATHER}"),
        ([SEND, frame("/elsewhere/train.py", 3, "step")], "train.py:3 in step"),
        ([SEND, frame("<frozen runpy>", 88, "_run_code")], None),
        ([SEND, frame(threading.__file__, 1, "run")], None),
        ([], None),
    ],
)
def test_the_programs_own_line_and_the_librarys(frames: list[Any], said: str | None) -> None:
    assert call_site(frames) == said


@pytest.mark.usefixtures("preloaded")
def test_a_recording_tells_the_line_before_which_a_rank_is_late(
    five_steps: Callable[[str, str], Path],
) -> None:
    folder = five_steps("train.py", PROGRAM)
    found = diagnose(commtrace.load(folder).measures).findings
    late = next(finding for finding in found if finding.rule == "straggler")
    assert late.called_at == ("train.py:7 in gather_loss",)
    assert "called at train.py:7 in gather_loss" in str(late)


MESSAGES = """
import torch
import torch.distributed as dist

def exchange(group, other):
    given, got = torch.ones(4), torch.empty(4)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, given, other, group), dist.P2POp(dist.irecv, got, other, group)]
    )
    for work in works:
        work.wait()

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for _ in range(9):
    exchange(pair, 1 - rank)
    if rank:
        dist.send(torch.ones(2), 0)
    else:
        dist.recv(torch.empty(2))
    __import__("commtrace").step()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("preloaded")
def test_a_recording_tells_the_lines_that_call_messages_and_their_groups(
    five_steps: Callable[[str, str], Path],
) -> None:
    folder = five_steps("halo.py", MESSAGES)
    its = commtrace.load(folder).collectives
    called = its.groupby(["rank", "op", "called_at", "group"], observed=True).size()
    assert called.to_dict() == {
        (0, "recv", "halo.py:21", "0"): 5,
        (0, "recv", "halo.py:7 in exchange", "1"): 5,
        (0, "send", "halo.py:7 in exchange", "1"): 5,
        (1, "recv", "halo.py:7 in exchange", "1"): 5,
        (1, "send", "halo.py:19", "0"): 5,
        (1, "send", "halo.py:7 in exchange", "1"): 5,
    }
    from_any = its["called_at"] == "halo.py:21"
    assert set(its[from_any]["peer"]) == {1}  # as torch told when it was there


NEW_GROUPS = """
import commtrace, torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(9):
    group = dist.new_group([1, 0])
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
    commtrace.step()
dist.destroy_process_group()
"""


def test_a_recording_knows_whose_the_groups_were_that_have_ended(
    five_steps: Callable[[str, str], Path],
) -> None:
    run = commtrace.load(five_steps("groups.py", NEW_GROUPS))
    assert run.collectives["group"].nunique() == len(run.operations) == 5
    assert run.operations["present"].eq(2).all()
    assert set(run.groups["group"]) == {"0", *run.collectives["group"]}, run.groups


def test_a_message_of_a_group_without_a_name_is_not_noted() -> None:
    noted = len(messages.entries(0))
    messages.note("send", dist.ProcessGroup(0, 1), 1, 2)
    assert len(messages.entries(0)) == noted
