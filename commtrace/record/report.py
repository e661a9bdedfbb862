"""The pipe between a rank and the launcher: what the rank tells, what the launcher orders."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

from commtrace.errors import CommtraceError, UsageError
from commtrace.record import conceal
from commtrace.record.clock import Reading

__all__ = ["LAUNCHER", "REPORT_FD", "Order", "Report", "Word", "one_line"]

LAUNCHER = "COMMTRACE_LAUNCHER_PID"
"""The environment variable with the process that a rank must not outlive."""
REPORT_FD = "COMMTRACE_REPORT_FD"
"""The environment variable with the file descriptor that a rank reports to."""

Outcome = Literal["recorded", "stuck", "state", "done", "usage", "error"]
Order = Literal["state", "window", "leave"]
_LAST = ("done", "usage", "error")


@dataclass(frozen=True)
class Word:
    """Something that a rank says, and when in Unix time. Without a last word it has died.

    ``operation`` is what it communicated at that time, as ``flight.Operation.to_dict``.
    """

    outcome: Outcome
    message: str
    time_ns: int
    readings: list[Reading] = field(default_factory=list)
    operation: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether the rank says nothing after it."""
        return self.outcome in _LAST

    def to_bytes(self) -> bytes:
        """As it goes through the pipe."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Word:
        """From what :meth:`to_bytes` made."""
        fields = json.loads(data)
        return cls(**{**fields, "readings": [Reading(**one) for one in fields["readings"]]})


class Report:
    """A context that reports the first exception that passes through it, and lets it pass.

    It can be entered again inside itself, so that an error is reported before a long clean-up.
    ``operation`` finds what the rank communicates. Without a descriptor nobody listens.
    ``hung`` says what it waited for, if it has ended itself for that.
    """

    def __init__(
        self, descriptor: int | None, operation: Callable[[], dict[str, Any] | None] | None = None
    ) -> None:
        self._pipe = None if descriptor is None else Connection(descriptor)
        self._operation = operation or (lambda: None)
        self._ended = False
        self.has_recorded = False
        self.hung: str | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def is_heard(self) -> bool:
        """Whether a launcher of ours listens."""
        return self._pipe is not None

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, UsageError):
            self.failed(str(error), "usage")
        elif error is not None:
            self.failed(one_line(error))

    def failed(self, message: str, outcome: Literal["error", "usage"] = "error") -> None:
        """The rank ends, for this reason."""
        if not self._ended:
            self._tell(outcome, message, operation=self._operation())

    def fell_short(self, message: str) -> None:
        """The program has ended well, but not its recording, wherever the rank was then."""
        self._tell("error", message)

    def done(self, readings: list[Reading], facts: dict[str, Any] | None = None) -> None:
        """The rank has done all that it had to do, read its clock, and learned this since."""
        self._tell("done", readings=readings, facts=facts or {})

    def recorded(self, readings: list[Reading], facts: dict[str, Any]) -> None:
        """The rank has written its trace, and goes on."""
        self.has_recorded = True
        self._tell("recorded", readings=readings, facts=facts)

    def at(self, outcome: Literal["stuck", "state"], operation: dict[str, Any] | None) -> None:
        """Where the rank is."""
        self._tell(outcome, operation=operation)

    def order(self, patience_s: float) -> Order | None:
        """What the launcher orders, if it does so in time. Raises EOFError when it is gone."""
        if self._pipe is None:
            time.sleep(patience_s)
            return None
        try:
            if not self._pipe.poll(patience_s):
                return None
            order: Order = self._pipe.recv_bytes().decode()  # type: ignore[assignment]
        except OSError:
            raise EOFError from None
        return order

    def silence(self) -> None:
        """Tell nothing any more: this is a forked child, and the pipe its parent's."""
        self._pipe = None
        self._one_at_a_time = threading.Lock()  # another thread may have held it in the fork

    def _tell(self, outcome: Outcome, message: str = "", **more: Any) -> None:
        with self._one_at_a_time:
            word = Word(outcome, message, time.time_ns(), **more)
            if self._pipe is None or (self._ended and word.is_last):
                return
            self._ended |= word.is_last
            with contextlib.suppress(BrokenPipeError):  # the launcher has stopped listening
                self._pipe.send_bytes(word.to_bytes())


def one_line(error: BaseException, arguments: Iterable[str] = ()) -> str:
    r"""``ValueError: the message``; where there is no message, the line that raised.

    Without what is hidden of the program's ``arguments``, and other secrets.

    >>> one_line(ValueError("two\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if not message and frames:
        message = f"{frames[-1].line} (line {frames[-1].lineno})"
    message = conceal.message(message, arguments)
    if len(message) > 500:
        message = message[:500] + " …"
    if isinstance(error, CommtraceError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
