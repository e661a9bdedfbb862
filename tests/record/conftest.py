from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.record import Plan, record_program

FAULTY = '''
"""Does one rank's fault end
the recording?

A second paragraph.
"""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist


def setup(ctx, fault: str = "none", elements: int = 8, dtype: torch.dtype = torch.float32):
    ctx.require(fault != "refuse", "this machine will not do")
    return SimpleNamespace(ctx=ctx, fault=fault, ones=torch.ones(elements, dtype=dtype), steps=0)


def step(state):
    state.steps += 1
    state.tensor = state.ones.clone()
    with state.ctx.label("sum"):
        dist.all_reduce(state.tensor)
    if state.fault == "hello":
        print("hello from", state.ctx.rank)
    if state.ctx.rank != state.ctx.world_size - 1 or state.steps < 4:
        return
    if state.fault == "raise":
        raise ValueError("two\\nlines")
    if state.fault == "exit":
        os._exit(3)
    if state.fault == "kill":
        # With a process of its own that holds whatever a fork inherits.
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    if state.fault == "sleep":
        print("asleep", flush=True)
        time.sleep(600)


def check(state):
    assert state.fault != "check" or state.ctx.rank == 0, "the sum is wrong"
    assert torch.all(state.tensor == state.ctx.world_size)
'''


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload that fails as its setting ``fault`` says, in the fourth step of the last rank."""
    path = tmp_path_factory.mktemp("workloads") / "faulty.py"
    path.write_text(FAULTY.lstrip())
    return path


@pytest.fixture
def ranks_of() -> Callable[[Path], list[str]]:
    """Processes that still work for a folder: they have it on their command line or print there."""

    def find(folder: Path) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                output = str((process / "fd" / "1").readlink())
            except OSError:  # it has just ended
                continue
            started = str(folder).encode() in command and b"commtrace.record." in command
            if started or output.startswith(f"{folder}/"):
                found.append(process.name)
        return found

    return find


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], bool]:
    """Whether something comes true within two minutes."""

    def wait(condition: Callable[[], object]) -> bool:
        for _ in range(2400):
            if condition():
                return True
            time.sleep(0.05)
        return False

    return wait


@pytest.fixture
def five_steps(tmp_path: Path) -> Callable[[str, str], Path]:
    """Records five steps of a program, given its file's name and text, on two ranks."""

    def recorded(name: str, program: str) -> Path:
        (tmp_path / name).write_text(program)
        command, plan = [str(tmp_path / name)], Plan(first=3, steps=5)
        return record_program(command, plan=plan, world_size=2, out=tmp_path / "out")

    return recorded
