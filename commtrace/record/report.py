"""How a rank tells the launcher that it ended well, or what went wrong."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

from commtrace.errors import UsageError
from commtrace.record.clock import Reading

__all__ = ["LAUNCHER", "REPORT_FD", "Report", "Word"]

LAUNCHER = "COMMTRACE_LAUNCHER_PID"
"""The environment variable with the process that a rank must not outlive."""
REPORT_FD = "COMMTRACE_REPORT_FD"
"""The environment variable with the file descriptor that a rank reports to."""

Outcome = Literal["done", "usage", "error"]


@dataclass(frozen=True)
class Word:
    """The one thing that a rank says, and when on the host's clock. Without a word it has died."""

    outcome: Outcome
    message: str
    time_ns: int
    readings: list[Reading] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """As it goes through the pipe."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Word:
        """From what :meth:`to_bytes` made."""
        told = json.loads(data)
        return cls(**{**told, "readings": [Reading(**one) for one in told["readings"]]})


class Report:
    """A context that reports the first exception that passes through it, and lets it pass.

    It can be entered again inside itself, so that an error is told before a long clean-up.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe = Connection(descriptor, readable=False)
        self._told = False

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, UsageError):
            self._tell("usage", str(error))
        elif error is not None:
            self._tell("error", _one_line(error))

    def done(self, readings: list[Reading]) -> None:
        """The rank has done all that it had to do, and read its clock."""
        self._tell("done", readings=readings)

    def _tell(self, outcome: Outcome, message: str = "", **more: Any) -> None:
        if not self._told:
            self._told = True
            self._pipe.send_bytes(Word(outcome, message, time.monotonic_ns(), **more).to_bytes())


def _one_line(error: BaseException) -> str:
    r"""``ValueError: the message``; where there is no message, the line that raised.

    >>> _one_line(ValueError("two\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if not message and frames:
        message = f"{frames[-1].line} (line {frames[-1].lineno})"
    if len(message) > 500:
        message = message[:500] + " …"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
