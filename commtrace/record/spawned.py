"""Ranks that a program starts itself, with ``torch.multiprocessing.spawn`` or ``Process``.

Any process that the program starts may become one: it does when it joins a process group. Until
then it is as without commtrace, its environment too, in which a launcher's variables would mislead.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from commtrace.errors import RecordError
from commtrace.record.clock import Reading
from commtrace.record.job import Program
from commtrace.record.rank_recording import RankRecording, replace_everywhere
from commtrace.record.report import Report, Word, one_line

__all__ = ["SpawnedRanks", "refuse_to_spawn"]

_LAST_WORDS_S = 1.0
"""How long to wait for what a process said before it ended."""
_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""What torchrun sets, and a program that starts its ranks itself does not expect."""


class SpawnedRanks:
    """What those tell of themselves that this process starts. ``report`` hears of all at once."""

    def __init__(self, program: Program, report: Report) -> None:
        self._program, self._report = program, report
        self._launched = {name: os.environ[name] for name in _TORCHRUN if name in os.environ}
        self._listeners: list[threading.Thread] = []
        self._words: dict[int, Word] = {}
        self._since: dict[int, dict[str, Any]] = {}
        self._short: dict[int, str] = {}
        self._told = False
        self._one_at_a_time = threading.Lock()

    def watch(self) -> None:
        """Hear of all that this process starts from now on, unless it is a rank itself."""
        original = BaseProcess.start

        def start(process: Any) -> None:
            if dist.is_initialized() or process._target is None:
                original(process)
                return
            ours, theirs = Pipe(duplex=False)
            process._target = _Target(process._target, self._program.to_json(), theirs)
            with theirs, _without(self._launched):
                original(process)
            listener = threading.Thread(target=self._listen, args=(ours,), daemon=True)
            self._listeners.append(listener)
            listener.start()

        BaseProcess.start = start  # type: ignore[method-assign,assignment]

    def hear_out(self) -> bool:
        """The program is over: whether it had such ranks."""
        for listener in self._listeners:
            listener.join(_LAST_WORDS_S)
        return bool(self._words or self._short)

    def close(self) -> None:
        """Raises RecordError where one of them has not recorded what it should."""
        with self._one_at_a_time:
            self._tell()
            short = dict.fromkeys(self._missing, "it wrote no trace") | self._short
        if short:
            first = min(short)
            raise RecordError(f"{short[first]} (rank {first} of those that it starts itself)")

    def facts(self) -> dict[str, Any]:
        """What is known of them by now; nothing where none has recorded."""
        ranks = [self._words[rank] for rank in sorted(self._words)]
        each = [
            {
                **word.facts,
                **self._since.get(word.facts["rank"], {}),
                "clock_probe": [one.to_dict() for one in word.readings],
            }
            for word in ranks
        ]
        return {**ranks[0].facts, "spawned": each} if ranks else {}

    @property
    def _missing(self) -> set[int]:
        sizes = [word.facts["world_size"] for word in self._words.values()]
        return set(range(max(sizes, default=0))) - self._words.keys()

    def _listen(self, pipe: Connection) -> None:
        with pipe, suppress(EOFError, OSError):
            while True:
                self._hear(Word.from_bytes(pipe.recv_bytes()))

    def _hear(self, word: Word) -> None:
        rank = word.facts["rank"]
        with self._one_at_a_time:
            if word.outcome == "recorded":
                self._words[rank] = word
            elif word.outcome == "done":
                self._since[rank] = word.facts
            else:
                self._short[rank] = word.message
            if not self._missing:
                self._tell()

    def _tell(self) -> None:
        if self._words and not self._told:
            self._told = True
            self._report.recorded([], self.facts())


class _Target:
    """What such a process runs: the program's own target, and the recording of a rank."""

    def __init__(self, target: Callable[..., object], program: str, pipe: Connection) -> None:
        self._target, self._program, self._pipe = target, program, pipe

    def __call__(self, *arguments: Any, **more: Any) -> object:
        if "torch.distributed" not in sys.modules:
            return self._target(*arguments, **more)
        program = Program.from_json(self._program)
        rank = _Rank(program, self._pipe)
        rank.await_group()
        error = None
        try:
            return self._target(*arguments, **more)
        except BaseException as raised:
            stops = isinstance(raised, SystemExit) and not raised.code
            error = None if stops else one_line(raised, program.arguments)
            raise
        finally:
            rank.close(error)


class _Rank:
    """This process, which may become a rank."""

    def __init__(self, program: Program, pipe: Connection) -> None:
        self._program, self._pipe = program, pipe
        self._recording: RankRecording | None = None
        self._report: Report | None = None
        self._process = os.getpid()

    def await_group(self) -> None:
        """Begin to record when the process has a default group."""
        original = dist.init_process_group

        @functools.wraps(original)
        def init_process_group(*arguments: Any, **more: Any) -> None:
            original(*arguments, **more)
            if self._recording is None and os.getpid() == self._process:
                self._begin()

        replace_everywhere(original, init_process_group)

    def close(self, error: str | None) -> None:
        """The target has ended."""
        if self._recording and self._report and os.getpid() == self._process:
            window = self._recording.window
            try:
                window.close(error or self._report.hung)
            except RecordError as short:
                self._report.fell_short(str(short))
            self._report.done([], window.learned_since())

    def _begin(self) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        # Where clocks are compared, and how many share this machine.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(world_size))
        self._report = _ToParent(self._pipe, rank, world_size)
        path = Path(self._program.folder, f"rank{rank}.json.gz")
        self._recording = RankRecording(self._program, path, self._report)
        self._recording.prepare()


class _ToParent(Report):
    """Tells who started this rank what it recorded. A hang nobody hears: the rank ends itself."""

    def __init__(self, pipe: Connection, rank: int, world_size: int) -> None:
        super().__init__(None)
        self._parent = pipe
        self._who = {"rank": rank, "world_size": world_size}

    def recorded(self, readings: list[Reading], facts: dict[str, Any]) -> None:
        super().recorded(readings, facts)
        self._send(Word("recorded", "", time.time_ns(), readings, facts={**facts, **self._who}))

    def done(self, readings: list[Reading], facts: dict[str, Any] | None = None) -> None:
        self._send(Word("done", "", time.time_ns(), readings, facts={**(facts or {}), **self._who}))

    def fell_short(self, message: str) -> None:
        self._send(Word("error", message, time.time_ns(), facts=self._who))

    def _send(self, word: Word) -> None:
        with suppress(OSError):  # the parent has gone
            self._parent.send_bytes(word.to_bytes())


def refuse_to_spawn() -> None:
    """Have ``torch.multiprocessing.spawn`` say that ranks have been started already."""
    module = sys.modules["torch.multiprocessing.spawn"]  # its name is the function's, too
    original = module.start_processes

    def start_processes(*arguments: Any, **more: Any) -> Any:
        if not dist.is_initialized():
            raise RecordError(
                "the program starts its ranks itself, with torch.multiprocessing: "
                "record it with -n 1"
            )
        return original(*arguments, **more)

    module.start_processes = torch.multiprocessing.start_processes = start_processes  # type: ignore[attr-defined]


@contextmanager
def _without(variables: Mapping[str, str]) -> Iterator[None]:
    """Take variables out of the environment meanwhile, but what the program has changed."""
    gone = {name: its for name, its in variables.items() if os.environ.get(name) == its}
    for name in gone:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(gone)
