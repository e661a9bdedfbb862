"""Recordings of programs, kept in a folder that is filled up with what it lacks."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.namespaces import joined, nodes, shape
from benchmarks.programs.program import Program

__all__ = ["is_complete", "recorded"]

ROOT = Path(__file__).parent.parent.parent


def is_complete(program: Program, folder: Path) -> bool:
    """Whether there is a recording that went well, on all hosts."""
    statuses = [manifest["status"] for manifest in _manifests(folder)]
    return statuses == ["complete"] * program.hosts


def recorded(program: Program, fault: str, folder: Path, timeout_s: float) -> str:
    """Record it as a user does, with no option but the number of ranks; why not, if it failed."""
    shutil.rmtree(folder, ignore_errors=True)  # what is left of one that failed
    until = time.monotonic() + timeout_s
    with _started(program, fault, folder) as children:
        try:
            statuses = [child.wait(max(until - time.monotonic(), 0)) for child in children]
        except subprocess.TimeoutExpired:
            return f"more than {timeout_s:.0f} s"
    if not any(statuses):
        return ""
    errors = [manifest["error"] for manifest in _manifests(folder) if manifest["error"]]
    return (errors or [f"exit status {max(statuses)}"])[0][:160]


@contextlib.contextmanager
def _started(program: Program, fault: str, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """``commtrace record`` on each of its hosts; what runs at the end is ended."""
    with contextlib.ExitStack() as ending:
        if program.hosts == 1:
            children = [_alone(program, fault, folder)]
        else:
            ending.enter_context(joined(program.hosts))
            for each in program.faults:
                if each.name == fault:
                    shape(*each.ranks, each.link_mbit)
            ranks = program.world_size // program.hosts
            children = nodes(folder, "--", str(program.path), hosts=program.hosts, ranks=ranks)
        for child in children:
            ending.callback(child.wait)
        for child in children:
            ending.callback(child.terminate)  # which ends its ranks, too
        yield children


def _alone(program: Program, fault: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "commtrace", "record", "-n", str(program.world_size)),
        *("-o", str(folder.resolve()), "--", str(program.path), "--fault", fault),
    ]
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdout=silent, stderr=silent)


def _manifests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in folder.rglob("manifest.json")]
