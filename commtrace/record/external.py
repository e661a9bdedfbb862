"""A rank that torchrun or Slurm has started: who it is, and where its files go."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commtrace.errors import UsageError
from commtrace.record import manifest
from commtrace.record.clock import Reading
from commtrace.record.environment import preset
from commtrace.record.folder import make_folder
from commtrace.record.job import Program

__all__ = ["finish", "folder", "rank"]

_SINCE = ("unrecorded_steps_ns", "recording_adds_ns")  # what a rank learns behind its window
_OTHERS_S = 30.0
"""How long the one that writes the manifest waits for the traces of its node's other ranks."""


def rank(world_size: int | None, *, is_node: bool = False) -> dict[str, str] | None:
    """The environment of this rank, as torchrun would make it; None where there is no launcher.

    ``world_size`` is what the user asked for, ``is_node`` that one of several nodes was named:
    either means to start ranks here, as far as Slurm goes. Raises UsageError under torchrun.
    """
    given = dict(os.environ)
    if "RANK" in given and "WORLD_SIZE" in given:
        if world_size is not None:
            raise UsageError("-n: a launcher has started the ranks (RANK is set); leave -n out")
        if is_node:
            raise UsageError(
                "--nnodes: a launcher has started the ranks (RANK is set); "
                "leave --nnodes, --node-rank and --rdzv-endpoint out"
            )
        known = {"LOCAL_RANK": given["RANK"], "LOCAL_WORLD_SIZE": given["WORLD_SIZE"]}
    elif world_size is None and not is_node and _is_task(given):
        known = _slurm(given)
    else:
        return None
    return {**preset(), **known, **given}


def folder(environment: Mapping[str, str], out: Path | None) -> Path:
    """Where this rank writes: below ``out``, for each node apart. Raises UsageError."""
    if out is None:
        raise UsageError("with torchrun or Slurm the ranks need one folder: name it with -o")
    several = environment["LOCAL_WORLD_SIZE"] != environment["WORLD_SIZE"]
    path = out / f"node{environment.get('GROUP_RANK', '0')}" if several else out
    try:
        make_folder(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name another folder with -o") from None
    # The other ranks' files may be of this very recording.
    mine = path / f"rank{environment['RANK']}.json.gz"
    if mine.exists():
        raise UsageError(f"{mine} exists, and nothing is overwritten; name a new folder with -o")
    return path


def finish(
    program: Program, known: Mapping[str, Any], readings: list[Reading], error: str | None
) -> None:
    """Write the manifest, if this is the node's first rank: failed, unless all traces are whole."""
    environment = os.environ
    if environment["LOCAL_RANK"] != "0":
        return
    path, number = Path(program.folder), int(environment["RANK"])
    expected = int(environment["LOCAL_WORLD_SIZE"])
    deadline = time.monotonic() + (_OTHERS_S if not error else 1.0)
    while len(list(path.glob("rank*.json.gz"))) < expected and time.monotonic() < deadline:
        time.sleep(0.1)
    facts = manifest.describe(
        {"program": program.described(), "window": str(program.plan)},
        environment,
        backend=known.get("backend"),
        world_size=int(environment["WORLD_SIZE"]),
    )
    if since := {name: known[name] for name in _SINCE if name in known}:
        facts["ranks"] = [{"rank": number, **since}]
    facts["clock_probe"] = manifest.clock_probe({number: readings})
    problem = f"rank {number}: {error}" if error else _incomplete(path, number, expected)
    if problem and not error:
        print(f"commtrace: {problem}", file=sys.stderr)  # noqa: T201
    manifest.write(path, facts, problem)


def _incomplete(folder: Path, first: int, expected: int) -> str | None:
    """Which of a node's ranks have no trace, or not all of it."""
    found = dict(manifest.traces(folder))
    missing = [rank for rank in range(first, first + expected) if rank not in found]
    short = expected - len(found)  # where ranks are dealt out over nodes others than those may be
    problems = [f"rank {rank}: no trace file" for rank in missing[: max(short, 0)]]
    for rank, file in found.items():
        if why := manifest.partial(file):
            problems.append(f"rank {rank}: {why}")
    return "; ".join(problems) or None


def _is_task(given: Mapping[str, str]) -> bool:
    """Whether Slurm has started this process as one of several."""
    return "SLURM_STEP_ID" in given and given.get("SLURM_NTASKS", "1") != "1"


def _slurm(given: Mapping[str, str]) -> dict[str, str]:
    per_node = given.get("SLURM_STEP_TASKS_PER_NODE", given.get("SLURM_TASKS_PER_NODE", "1"))
    job = int(given.get("SLURM_JOB_ID", "0"))
    return {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_NTASKS"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(_tasks(per_node, int(given.get("SLURM_NODEID", "0")))),
        "GROUP_RANK": given.get("SLURM_NODEID", "0"),
        "MASTER_ADDR": _first_host(given.get("SLURM_STEP_NODELIST", "127.0.0.1")),
        # Below the ports that the system gives away itself.
        "MASTER_PORT": str(15000 + job % 15000),
    }


def _tasks(per_node: str, node: int) -> int:
    """How many tasks a node has.

    >>> _tasks("4(x2),3", 2)
    3
    """
    counts = []
    for part in per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        counts += [int(match[1])] * int(match[2] or 1) if match else []
    return counts[node] if node < len(counts) else 1


def _first_host(nodes: str) -> str:
    """The first of Slurm's list.

    >>> _first_host("gpu[03-07,9],cpu1"), _first_host("a1,b2")
    ('gpu03', 'a1')
    """
    match = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return f"{match[1]}{match[2] or ''}{match[3] or ''}" if match else nodes
