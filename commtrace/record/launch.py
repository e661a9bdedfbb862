"""Starts one process per rank on this host and makes them one recording."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from commtrace.errors import RecordError, UsageError
from commtrace.record import manifest, workloads
from commtrace.record.job import Backend, Job
from commtrace.record.processes import Failure, Ranks
from commtrace.record.report import LAUNCHER

__all__ = ["record"]

_LOOPBACK = "127.0.0.1"
_DEFAULTS = {
    # Ranks on one host would otherwise each take all cores.
    "OMP_NUM_THREADS": "1",
    # Operations that the flight recorder keeps; gloo's is off unless this is set.
    "TORCH_FR_BUFFER_SIZE": "20000",
}


def record(
    workload: str,
    *,
    settings: Mapping[str, str] | None = None,
    world_size: int | None = None,
    backend: str | None = None,
    out: Path | None = None,
) -> Path:
    """Record a workload on this host: one process and one trace file per rank, and a manifest.

    ``workload`` is a shipped one's name or a Python file's path; ``settings`` maps names to
    texts, as ``--set`` does. Without ``backend`` it is NCCL if there is a CUDA device per
    rank, else gloo; without ``out`` the folder is ``traces/NAME/BACKEND-N``, with a number
    behind it if that exists. Returns the folder. What a rank prints is kept in ``rank{r}.log``.

    Raises UsageError before anything is started, or when the workload refuses the machine or
    its settings; RecordError, which names the rank, when one fails: what traces could be
    saved are kept.
    """
    plan = workloads.parse(workloads.find(workload))
    values = plan.values(settings or {})
    chosen, n = _where(backend, plan.world_size if world_size is None else world_size)
    folder = _new_folder(out, Path("traces", plan.name, f"{chosen}-{n}"))
    job = Job(
        workload=plan.name,
        path=str(plan.path),
        iterations=int(values.pop("iterations")),
        warmup=int(values.pop("warmup")),
        settings=values,
        backend=chosen,
        world_size=n,
        folder=str(folder.resolve()),
    )
    environment = _environment()
    facts = manifest.describe(job, plan.question, environment)
    try:
        failure = _run(job, environment, facts)
    except BaseException as stop:
        _finish(folder, facts, str(stop) or "interrupted")
        raise
    if failure and failure.usage:
        shutil.rmtree(folder)
        raise UsageError(failure.message)
    error = f"rank {failure.rank}: {failure.message}" if failure else None
    _finish(folder, facts, error)
    if error:
        raise RecordError(f"{error}; what was recorded is in {folder}")
    return folder


def _run(job: Job, environment: Mapping[str, str], facts: dict[str, Any]) -> Failure | None:
    """Start the ranks and wait for them; what they read of their clocks becomes a fact."""
    command = (sys.executable, "-u", "-m", "commtrace.record.worker", job.to_json())
    with (
        _rendezvous() as port,
        Ranks(command, _environments(job.world_size, port, environment), Path(job.folder)) as ranks,
    ):
        failure = ranks.wait()
        facts["clock_probe"] = manifest.clock_probe(ranks.readings)
        return failure


def _where(backend: str | None, world_size: int | None) -> tuple[Backend, int]:
    """The backend and the number of ranks, where not told as the machine suggests."""
    if world_size is not None and world_size < 1:
        raise UsageError(f"world size: at least 1, not {world_size}")
    if backend not in (None, "gloo", "nccl"):
        raise UsageError(f"no backend {backend!r}; there are gloo and nccl")
    devices = _cuda_devices()
    if backend == "gloo" or (backend is None and devices < (world_size or 2)):
        return "gloo", world_size or 4
    if devices < (world_size or 1):
        raise UsageError(
            f"nccl needs a CUDA device per rank: {world_size or 1} wanted, {devices} here; "
            "use --backend gloo, or fewer ranks with -n"
        )
    return "nccl", world_size or devices


def _cuda_devices() -> int:
    """How many CUDA devices NCCL could use."""
    if find_spec("torch") is None:
        raise UsageError("recording needs PyTorch: pip install 'commtrace[record]'")
    import torch

    usable = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return torch.cuda.device_count() if usable else 0


def _new_folder(out: Path | None, default: Path) -> Path:
    """An empty folder: the one that was named, or the first free one of the default's name."""
    try:
        if out is None:
            return _next_free(default)
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            return out
    except OSError as error:
        folder = out or default
        raise UsageError(f"{folder}: {error.strerror}; name another folder with -o") from None
    raise UsageError(f"{out} is not empty, and nothing is overwritten; name a new folder with -o")


def _next_free(folder: Path) -> Path:
    for number in count(1):
        free = folder.with_name(f"{folder.name}-{number}") if number > 1 else folder
        with contextlib.suppress(FileExistsError):
            free.mkdir(parents=True)
            break
    return free


@contextlib.contextmanager
def _rendezvous() -> Iterator[int]:
    """The port of a store in this process, reachable from this host alone.

    The socket is bound before anyone is told its number: no other program can take it.
    """
    from torch.distributed import TCPStore

    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        store = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=False,  # which before torch 2.8 never answers on a socket it was given
        )
    yield port
    del store


def _environment() -> dict[str, str]:
    """What every rank gets: the user's environment before our defaults."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if "lo" in dict(socket.if_nameindex()).values() else {}
    return {**_DEFAULTS, **loopback, **os.environ}


def _environments(
    world_size: int, port: int, environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """One environment per rank, as torchrun would make it."""
    for rank in range(world_size):
        yield {
            **environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            LAUNCHER: str(os.getpid()),
        }


def _finish(folder: Path, facts: Mapping[str, Any], error: str | None) -> None:
    """Write the manifest, and keep the logs that say something; Kineto's probe points do not."""
    for log in folder.glob("rank*.log"):
        lines = log.read_bytes().splitlines(keepends=True)
        said = [line for line in lines if not line.startswith(b"USDT:")]
        if said:
            log.write_bytes(b"".join(said))
        else:
            log.unlink()
    manifest.write(folder, facts, error)
