"""Starts the processes of a recording, finds the first that fails, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from commtrace.errors import RecordError
from commtrace.record import culprit as blame
from commtrace.record.clock import Reading
from commtrace.record.culprit import Failure
from commtrace.record.folder import create
from commtrace.record.report import REPORT_FD, Order, Word

__all__ = ["Ranks"]

GRACE_S = 5.0
"""How long the other ranks may take to save what they recorded once one has failed."""
TERMINATE_S = 10.0
"""How long ranks may write nothing after SIGTERM, before SIGKILL: a large trace takes longer."""
STATE_S = 2.0
"""How long the ranks may take to say where they are."""
POLL_S = 0.5


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    words: dict[str, Word] = field(default_factory=dict)
    closed: bool = False

    @property
    def last(self) -> Word | None:
        return next((word for word in self.words.values() if word.is_last), None)

    @property
    def is_done(self) -> bool:
        """It said so, or it has its trace and left without a word, as ``os._exit(0)`` does."""
        if self.last:
            return self.last.outcome == "done"
        return "recorded" in self.words and self.process.poll() == 0

    def hear(self) -> None:
        """All that it has said; of each kind the latest."""
        while not self.closed and self.pipe.poll():
            try:
                word = Word.from_bytes(self.pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                self.closed = True
            else:
                self.words[word.outcome] = word

    def order(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # it has gone
            self.pipe.send_bytes(order.encode())

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Ranks:
    """One process per rank, each in a process group of its own; leaving the context ends them.

    ``command`` is run once per environment, in the order of ranks from ``first`` on; what it
    prints goes to ``rank{r}.log`` in the folder. Once all have done their part they may take
    ``grace_s`` to end.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Iterable[Mapping[str, str]],
        folder: Path,
        *,
        first: int = 0,
        grace_s: float = GRACE_S,
    ) -> None:
        self._ranks: list[_Rank] = []
        self._folder = folder
        self._grace_s = grace_s
        self._ended = False
        try:
            for number, environment in enumerate(environments, first):
                log = folder / f"rank{number}.log"
                self._ranks.append(_start(number, command, environment, log))
        except OSError as error:
            self._end(grace_s=0)
            raise RecordError(
                f"rank {first + len(self._ranks)} could not be started: {error.strerror}; "
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
        self._end(grace_s=0 if kind else self._grace_s)

    @property
    def readings(self) -> dict[int, list[Reading]]:
        """What the ranks read of their clocks."""
        words = {r.number: r.words.get("recorded") or r.words.get("done") for r in self._ranks}
        return {number: word.readings for number, word in words.items() if word}

    @property
    def facts(self) -> dict[int, dict[str, Any]]:
        """What the ranks that have recorded tell of it."""
        ended = {r.number: r.words["done"].facts for r in self._ranks if "done" in r.words}
        return {
            r.number: {**r.words["recorded"].facts, **ended.get(r.number, {})}
            for r in self._ranks
            if "recorded" in r.words
        }

    def order(self, order: Order) -> None:
        """To every rank."""
        for rank in self._ranks:
            rank.order(order)

    def wait(self, meanwhile: Callable[[], Failure | None] = lambda: None) -> Failure | None:
        """Wait until every rank has done its part, or one fails: the failure that came first.

        ``meanwhile`` is called again and again, and may tell a failure elsewhere. After a
        failure the other ranks have ended, too.
        """
        failure = self._wait(meanwhile)
        if failure:
            self._end(grace_s=0 if failure.hung else GRACE_S)
            if failure.died:
                failure = self._with_witness(failure)
        return failure

    def _wait(self, meanwhile: Callable[[], Failure | None]) -> Failure | None:
        waiting = list(self._ranks)
        while waiting:
            heard = wait([rank.pipe for rank in waiting], POLL_S)
            if elsewhere := meanwhile():
                return elsewhere
            ended = []
            for rank in waiting:
                gone = rank.process.poll() is not None
                if gone or rank.pipe in heard:
                    rank.hear()
                if gone or rank.last or rank.closed:
                    ended.append(rank)
            failures = [_failure(rank) for rank in ended if not rank.is_done]
            waiting = [rank for rank in waiting if rank not in ended]
            if failures:
                if not any(failure.died or failure.usage for failure in failures):
                    failures += _deaths(waiting)
                return min(failures, key=lambda failure: failure.order)
            if stuck := next((rank for rank in waiting if "stuck" in rank.words), None):
                return self._hang(stuck)
        meanwhile()
        return None

    def _hang(self, stuck: _Rank) -> Failure:
        word = stuck.words["stuck"]
        assert word.operation is not None
        self.order("state")
        deadline = time.monotonic() + STATE_S
        alive = [rank for rank in self._ranks if rank.process.poll() is None]
        while time.monotonic() < deadline and any("state" not in rank.words for rank in alive):
            wait([rank.pipe for rank in alive], STATE_S / 20)
            for rank in alive:
                rank.hear()
        states = {r.number: r.words["state"].operation for r in alive if "state" in r.words}
        states.pop(stuck.number, None)
        waited_s = (word.time_ns - word.operation["called_ns"]) / 1e9
        return Failure(
            stuck.number, blame.hang(word.operation, waited_s, states), word.time_ns, hung=True
        )

    def _with_witness(self, failure: Failure) -> Failure:
        """What the dead rank cannot tell: the operation that another had with it."""
        for rank in self._ranks:
            rank.hear()
            if rank.number != failure.rank and rank.last and rank.last.operation:
                where = blame.whereabouts(rank.number, rank.last.operation)
                return Failure(failure.rank, f"{failure.message}; {where}", failure.time_ns)
        return failure

    def _end(self, grace_s: float) -> None:
        if self._ended:
            return
        try:
            _wait(self._ranks, grace_s)
            for rank in self._ranks:
                if rank.process.poll() is None:
                    rank.signal(signal.SIGTERM)
                    rank.order("leave")
            self._wait_while_saving()
        finally:
            for rank in self._ranks:
                # The group, always: a rank may have started processes of its own.
                rank.signal(signal.SIGKILL)
                rank.process.wait()
                with contextlib.suppress(OSError):
                    rank.hear()
                rank.pipe.close()
                rank.closed = True
            self._ended = True

    def _wait_while_saving(self) -> None:
        """Until all have ended, or none has written anything for a while."""
        written, deadline = -1, 0.0
        while any(rank.process.poll() is None for rank in self._ranks):
            now = _written(self._folder)
            if now != written:
                written, deadline = now, time.monotonic() + TERMINATE_S
            if time.monotonic() >= deadline:
                return
            _wait(self._ranks, POLL_S)


def _written(folder: Path) -> int:
    """How many bytes of traces there are, finished or not."""
    files = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return sum(_size(file) for file in files if ".json.gz" in file.name)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # what is only needed to write another file goes
        return 0


def _start(number: int, command: Sequence[str], environment: Mapping[str, str], log: Path) -> _Rank:
    ours, theirs = Pipe()
    with theirs, create(log) as output:
        process = subprocess.Popen(
            command,
            env={**environment, REPORT_FD: str(theirs.fileno())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return _Rank(number, process, ours)


def _failure(rank: _Rank) -> Failure:
    if word := rank.last:
        usage = word.outcome == "usage"
        where = f"; {blame.whereabouts(rank.number, word.operation)}" if word.operation else ""
        message = word.message if usage else word.message + where
        return Failure(rank.number, message, word.time_ns, usage=usage)
    _wait([rank], GRACE_S)
    # What it had started may hold its sockets open, and so keep the others waiting for it.
    rank.signal(signal.SIGKILL)
    status = rank.process.returncode
    if status is None:
        message = "closed the pipe to its launcher"
    elif status < 0:
        message = f"killed by {signal.Signals(-status).name}"
    else:
        message = f"ended early, with exit status {status}"
    return Failure(rank.number, message, time.time_ns(), died=True)


def _deaths(ranks: Iterable[_Rank]) -> list[Failure]:
    """Of ranks that end in a moment without a word: who waited for them may have said so first."""
    _wait(ranks, POLL_S)
    for rank in ranks:
        rank.hear()
    dead = (rank for rank in ranks if rank.process.poll() is not None and not rank.last)
    return [_failure(rank) for rank in dead if not rank.is_done]


def _wait(ranks: Iterable[_Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0, deadline - time.monotonic()))
