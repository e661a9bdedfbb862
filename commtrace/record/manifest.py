"""``manifest.json``: what ran where, beside the traces."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from typing import Any

from isal import igzip

from commtrace import __version__
from commtrace.errors import RecordError
from commtrace.record import conceal
from commtrace.record.clock import Reading
from commtrace.record.folder import create

__all__ = ["NAME", "clock_probe", "describe", "partial", "traces", "write"]

NAME = "manifest.json"
SCHEMA_VERSION = 1
_HEAD_BYTES = 4096  # where `partial` and its reason stand

_RANK = re.compile(r"rank(\d+)\.json(?:\.gz)?")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def describe(
    what: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    backend: str | None,
    world_size: int,
    hosts: Sequence[str] = (),
) -> dict[str, Any]:
    """``what`` is recorded, and what is known before the ranks start. ``environment`` is theirs.

    ``backend`` is None where only the program knows it.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **what,
        "backend": backend,
        "world_size": world_size,
        "hosts": list(hosts) or [socket.gethostname()],
        "cpu": {"count": os.cpu_count(), "model": _cpu_model()},
        "devices": _devices(),
        "topology": _topology(_nvidia_smi("topo", "-m")),
        "versions": _versions(),
        "environment": conceal.environment(environment),
        "started": _now(),
    }


def clock_probe(readings: Mapping[int, Iterable[Reading]]) -> list[dict[str, int]]:
    """The readings of all ranks' clocks against rank 0's, in the order of ranks and time."""
    return [
        {"rank": rank, **reading.to_dict()}
        for rank in sorted(readings)
        for reading in readings[rank]
    ]


def write(folder: Path, facts: Mapping[str, Any], error: str | None, *, ended: bool = True) -> None:
    """Write the manifest: when and how it ended, and which ranks' traces are there.

    Without ``ended`` it is the one that tells of a recording that nobody could end properly.
    Raises RecordError where the disk refuses.
    """
    status = ("failed" if error else "complete") if ended else "running"
    manifest = {
        **facts,
        "finished": _now() if ended else None,
        "status": status,
        "error": error and error.replace(f"{folder.resolve()}/", ""),
        "files": list(_files(folder)),
    }
    path = folder / NAME
    unfinished = path.with_name(f"{NAME}.part")
    try:
        with create(unfinished) as file:
            file.write(json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
        unfinished.replace(path)  # the one that was there is better than half of a new one
    except OSError as refused:
        raise RecordError(f"{path}: {refused.strerror}; make room on that disk") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    for rank, file in traces(folder):
        why = partial(file)
        yield {"rank": rank, "file": file.name, **({"partial": why} if why else {})}


def traces(folder: Path) -> list[tuple[int, Path]]:
    """The ranks' traces that are there, in the order of ranks."""
    matches = [match for path in folder.iterdir() if (match := _RANK.fullmatch(path.name))]
    return sorted((int(match[1]), folder / match[0]) for match in matches)


def partial(trace: Path) -> str | None:
    """Why one of our traces does not hold all that it should; None if it does."""
    try:
        with igzip.open(trace) as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except (OSError, EOFError):
        return "cannot be read"
    _, mark, rest = head.partition('"partial": ')
    why = json.JSONDecoder().raw_decode(rest)[0] if mark else None
    return str(why) if why else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _versions() -> dict[str, str | None]:
    import torch

    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    return {
        "commtrace": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def _cpu_model() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or None


def _nvidia_smi(*arguments: str) -> str | None:
    try:
        command = ["nvidia-smi", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _devices() -> list[dict[str, Any]] | None:
    """The host's NVIDIA GPUs, also those that the ranks do not see; None if nobody says."""
    fields = ("index", "name", "memory.total", "driver_version", "pci.bus_id")
    text = _nvidia_smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    if text is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [dict(zip(fields, row, strict=False)) for row in rows]


def _topology(text: str | None) -> dict[str, Any] | None:
    r"""The matrix of ``nvidia-smi topo -m``: names, and ``links[i][j]`` between i and j.

    >>> _topology("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-63\nGPU1\tNV12\t X \t0-63\n")
    {'names': ['GPU0', 'GPU1'], 'links': [['X', 'NV12'], ['NV12', 'X']]}
    """
    lines = _ESCAPE.sub("", text or "").splitlines()
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
    header = next((row for row in rows if row[:2] == ["", "GPU0"]), [])
    # NICs are NIC0 or named as their devices are; behind them come columns like "CPU Affinity".
    names = list(takewhile(re.compile(r"\S+").fullmatch, header[1:]))
    links = {row[0]: row[1 : 1 + len(names)] for row in rows if row[0] in names}
    if not names or list(links) != names:
        return None
    return {"names": names, "links": list(links.values())}
