"""One recording on this node: meet the others, run the ranks, end them, say how it went."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from commtrace.errors import RecordError, UsageError
from commtrace.record import manifest, nccl
from commtrace.record.clock import Reading
from commtrace.record.culprit import Failure
from commtrace.record.environment import preset
from commtrace.record.folder import Follower, NewFolder, tidy_logs
from commtrace.record.nodes import Nodes, Place, meet
from commtrace.record.processes import GRACE_S, Ranks
from commtrace.record.report import LAUNCHER

__all__ = ["Interrupted", "Session"]

_OF_ALL = ("backend", "over", "rank", "world_size", "clock_probe", "spawned")
"""What a rank tells that is not its own."""
_MEET_S = 300.0
"""How long the nodes wait for each other at first, at most."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a signal, ended a recording. Its text is one line."""

    def __init__(self, number: signal.Signals, message: str) -> None:
        super().__init__(message)
        self.status = 128 + number


@dataclass
class Session:
    """What to run, where, and how long to wait.

    ``ranks`` on this node; ``what`` is recorded; ``backend`` None where the program chooses.
    ``tell`` is given lines for the user, and shows what this node's first rank prints.
    """

    command: tuple[str, ...]
    folder: NewFolder
    ranks: int
    what: Mapping[str, Any]
    backend: str | None
    place: Place
    timeout_s: float
    grace_s: float = GRACE_S
    tell: Callable[[str], object] | None = None
    on_signal: bool = False
    facts: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Record. Raises UsageError, RecordError or Interrupted; the manifest says so, too."""
        path = self.folder.path
        # A program that is alone may have all cores; several would each take them.
        alone = self.ranks == 1 and self.backend is None
        environment = _environment(self.place, {} if alone else {"OMP_NUM_THREADS": "1"})
        self.facts = manifest.describe(
            self.what, environment, backend=self.backend, world_size=self.ranks
        )
        try:
            with _stoppable():
                manifest.write(path, self.facts, None, ended=False)
                failure = self._meet_and_run(environment)
        except UsageError:
            self.folder.discard()
            raise
        except KeyboardInterrupt as stop:
            number = stop.args[0] if stop.args else signal.SIGINT
            why = "interrupted" if number == signal.SIGINT else f"interrupted by {number.name}"
            self._finish(why)
            raise Interrupted(number, f"{why}; {_kept(path)}") from None
        except BaseException as stop:
            self._finish(str(stop) or type(stop).__name__)
            raise
        if failure and failure.usage:
            self.folder.discard()
            raise UsageError(failure.message)
        error = f"rank {failure.rank}: {failure.message}" if failure else None
        self._finish(error)
        if error:
            raise RecordError(f"{error}; {_kept(path)}")

    def _meet_and_run(self, environment: Mapping[str, str]) -> Failure | None:
        with meet(self.place, self.ranks, min(self.timeout_s, _MEET_S)) as nodes:
            self.facts |= {"world_size": nodes.world_size}
            if self.place.nodes > 1:
                self.facts |= {"hosts": nodes.hosts, "node": self.place.node}
            try:
                failure = self._run(nodes, environment)
            except BaseException as stop:
                where = f"ended on node {self.place.node}: {str(stop) or type(stop).__name__}"
                nodes.tell(Failure(nodes.first_rank, where))
                raise
            if failure:
                return nodes.tell(failure)
            return nodes.wait()

    def _run(self, nodes: Nodes, environment: Mapping[str, str]) -> Failure | None:
        """Start the ranks and wait for them; what they tell becomes facts."""
        environments = _environments(nodes, self.ranks, environment)
        with Ranks(
            self.command,
            environments,
            self.folder.path,
            first=nodes.first_rank,
            grace_s=self.grace_s,
        ) as ranks:
            try:
                with self._signals(ranks):
                    failure = ranks.wait(self._meanwhile(ranks, nodes))
                return failure or _of_different_steps(_each(ranks)[1])
            finally:
                readings, facts = _each(ranks)
                self.facts["clock_probe"] = manifest.clock_probe(readings)
                if facts:
                    first = next(iter(facts.values()))
                    self.facts["world_size"] = first.get("world_size", nodes.world_size)
                    self.facts["backend"] = first["backend"]
                    self.facts["ranks"] = [
                        {"rank": rank, **{k: v for k, v in more.items() if k not in _OF_ALL}}
                        for rank, more in facts.items()
                    ]

    def _meanwhile(self, ranks: Ranks, nodes: Nodes) -> Callable[[], Failure | None]:
        follow = Follower(self.folder.path / f"rank{nodes.first_rank}.log")
        told: list[str] = []

        def meanwhile() -> Failure | None:
            if self.tell:
                follow()
                self._tell_once(told, ranks, nodes.first_rank)
            return nodes.failure()

        return meanwhile

    def _tell_once(self, told: list[str], ranks: Ranks, first_rank: int) -> None:
        """What was recorded; again where a program begins late to count its steps itself."""
        if self.tell and len(ranks.facts) == self.ranks:
            lines = list(_recorded(ranks.facts[first_rank]))
            if lines != told:
                for line in lines:
                    self.tell(line)
                told[:] = lines

    @contextlib.contextmanager
    def _signals(self, ranks: Ranks) -> Iterator[None]:
        """Let SIGUSR1 order a window, where it is to."""
        if not self.on_signal:
            yield
            return
        before = signal.signal(signal.SIGUSR1, lambda *_: ranks.order("window"))
        if self.tell:
            self.tell(f"kill -USR1 {os.getpid()} begins the recording")
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    def _finish(self, error: str | None) -> None:
        path = self.folder.path
        tidy_logs(path)
        if said := nccl.facts(path.glob("rank*.log")):
            self.facts["nccl"] = said
        manifest.write(path, self.facts, error)


def _each(ranks: Ranks) -> tuple[dict[int, list[Reading]], dict[int, dict[str, Any]]]:
    """The readings and the facts of each rank; of those that the program started itself, too."""
    readings, facts = ranks.readings, ranks.facts
    spawned = [its for told in facts.values() for its in told.get("spawned", ())]
    if not spawned:
        return readings, facts
    probed = {its["rank"]: [Reading(**one) for one in its["clock_probe"]] for its in spawned}
    return probed, {its["rank"]: its for its in spawned}


def _of_different_steps(by_rank: Mapping[int, Mapping[str, Any]]) -> Failure | None:
    """What is wrong where some ranks' traces are those of a profiler of their own."""
    own = [rank for rank, facts in by_rank.items() if facts.get("own_profiler")]
    others = sorted(by_rank.keys() - set(own))
    if not (own and others):
        return None
    why = f"ran a profiler of its own, rank {others[0]} did not: their steps differ; switch it off"
    return Failure(own[0], why)


def _recorded(facts: Mapping[str, Any]) -> Iterator[str]:
    """What a rank has recorded, in lines for the user."""
    first, last = facts["steps"] or (None, None)
    everything = "what the program's own profiler did" if facts.get("own_profiler") else "all"
    what = everything if first is None else f"step {first}"
    if first != last:
        what = f"steps {first} to {last}"
    then = "" if facts["over"] else "; the program runs on, Ctrl-C ends it"
    yield f"recorded {what}, {facts['seconds']:.3g} s{then}"
    yield from facts["notes"]


def _kept(folder: Path) -> str:
    """What a recording that failed has left."""
    if manifest.traces(folder):
        return f"what was recorded is in {folder}"
    return f"no trace was written to {folder}"


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Have SIGTERM end a recording as Ctrl-C does: with all that is there kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number))

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _environment(place: Place, defaults: Mapping[str, str]) -> dict[str, str]:
    """What every rank gets: the user's environment before our defaults."""
    names = dict(socket.if_nameindex()).values()
    alone = place.nodes == 1 and "lo" in names
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if alone else {}
    return {**preset(), **defaults, **loopback, **os.environ}


def _environments(
    nodes: Nodes, ranks: int, environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """One environment per rank, as torchrun would make it."""
    place = nodes.place
    for local_rank in range(ranks):
        rank = str(nodes.first_rank + local_rank)
        yield {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            **environment,
            "RANK": rank,
            "ROLE_RANK": rank,
            "ROLE_NAME": "default",
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": str(place.node),
            "WORLD_SIZE": str(nodes.world_size),
            "ROLE_WORLD_SIZE": str(nodes.world_size),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_WORLD_SIZE": str(place.nodes),
            "MASTER_ADDR": place.host,
            "MASTER_PORT": str(nodes.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"{place.host}:{nodes.port}",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            LAUNCHER: str(os.getpid()),
        }
