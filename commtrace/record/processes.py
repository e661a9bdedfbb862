"""Starts the processes of a recording, finds the first that fails, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType

from commtrace.errors import RecordError
from commtrace.record.clock import Reading
from commtrace.record.report import REPORT_FD, Word

__all__ = ["Failure", "Ranks"]

GRACE_S = 5.0
"""How long the other ranks may take to save what they recorded once one has failed."""
TERMINATE_S = 3.0
"""How long a rank may take to end after SIGTERM, before SIGKILL."""
POLL_S = 0.5


@dataclass(frozen=True)
class Failure:
    """The rank that failed first, and what it said or how it died."""

    rank: int
    message: str
    usage: bool = False


@dataclass(frozen=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection


class Ranks:
    """One process per rank, each in a process group of its own; leaving the context ends them.

    ``command`` is run once per environment, in the order of ranks; what it prints goes to
    ``rank{r}.log`` in the folder. ``readings`` are those of the clocks of ranks that are done.
    """

    def __init__(
        self, command: Sequence[str], environments: Iterable[Mapping[str, str]], folder: Path
    ) -> None:
        self._ranks: list[_Rank] = []
        self.readings: dict[int, list[Reading]] = {}
        try:
            for number, environment in enumerate(environments):
                log = folder / f"rank{number}.log"
                self._ranks.append(_start(number, command, environment, log))
        except OSError as error:
            self._end(grace_s=0)
            raise RecordError(
                f"rank {len(self._ranks)} could not be started: {error.strerror}; "
                "record fewer ranks with -n"
            ) from None
        except BaseException:
            self._end(grace_s=0)
            raise

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(grace_s=0 if kind else GRACE_S)

    def wait(self) -> Failure | None:
        """Wait until every rank has done its part, or one fails: the failure that came first."""
        waiting = list(self._ranks)
        while waiting:
            heard = wait([rank.pipe for rank in waiting], POLL_S)
            ended = [r for r in waiting if r.pipe in heard or r.process.poll() is not None]
            words = [(rank, _word(rank)) for rank in ended]
            self.readings |= {rank.number: word.readings for rank, word in words if word}
            failed = [(rank, word) for rank, word in words if not word or word.outcome != "done"]
            if failed:
                # Who died without a word comes first: the others can only have noticed it,
                # since its pipe closes before its sockets do. Else the host's clock decides.
                return _failure(*min(failed, key=lambda pair: pair[1].time_ns if pair[1] else -1))
            waiting = [rank for rank in waiting if rank not in ended]
        return None

    def _end(self, grace_s: float) -> None:
        try:
            _wait(self._ranks, grace_s)
            for rank in self._ranks:
                if rank.process.poll() is None:
                    _signal(rank, signal.SIGTERM)
            _wait(self._ranks, TERMINATE_S)
        finally:
            for rank in self._ranks:
                # The group, always: a rank may have started processes of its own.
                _signal(rank, signal.SIGKILL)
                rank.process.wait()
                rank.pipe.close()


def _start(number: int, command: Sequence[str], environment: Mapping[str, str], log: Path) -> _Rank:
    reader, writer = Pipe(duplex=False)
    with writer, log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**environment, REPORT_FD: str(writer.fileno())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writer.fileno(),),
            start_new_session=True,
        )
    return _Rank(number, process, reader)


def _word(rank: _Rank) -> Word | None:
    # After a death the pipe may still be open in a process that the rank had started.
    try:
        return Word.from_bytes(rank.pipe.recv_bytes()) if rank.pipe.poll() else None
    except EOFError:
        return None


def _failure(rank: _Rank, word: Word | None) -> Failure:
    if word:
        return Failure(rank.number, word.message, usage=word.outcome == "usage")
    _wait([rank], GRACE_S)
    # What it had started may hold its sockets open, and so keep the others waiting for it.
    _signal(rank, signal.SIGKILL)
    status = rank.process.returncode
    if status is None:
        return Failure(rank.number, "closed the pipe to its launcher")
    if status < 0:
        return Failure(rank.number, f"killed by {signal.Signals(-status).name}")
    return Failure(rank.number, f"ended early, with exit status {status}")


def _wait(ranks: Iterable[_Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0, deadline - time.monotonic()))


def _signal(rank: _Rank, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process.pid, number)
