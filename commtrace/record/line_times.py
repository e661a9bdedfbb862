"""Where in the program a thread is, looked at now and then: what time its lines take."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from traceback import walk_stack
from types import FrameType
from typing import Any

from commtrace.record.call_site import call_site

__all__ = ["LineTimes"]

_EVERY_S = 0.01
_SWITCH_S = 0.001  # not 5 ms, Python's own: what is over sooner would be seen behind its end
_MOST = 10_000  # looks: of 100 s
_LONGEST = 300  # characters of a line's name


class LineTimes:
    """Of the last 10,000 looks between ``start`` and ``stop``, by another thread.

    It sees a line when the one it looks at lets go of the interpreter, as operators do, and Python
    when it is asked to for ``_SWITCH_S``; the time since the look before is that line's.
    """

    def __init__(self) -> None:
        self._looks: deque[list[int]] = deque(maxlen=_MOST)
        self._names: dict[str, int] = {}
        self._over = threading.Event()
        self._usual_s = sys.getswitchinterval()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """This thread is looked at from here on."""
        self._looks.clear()
        self._names = {}
        self._over = threading.Event()
        self._usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        its = threading.get_ident()
        self._thread = threading.Thread(
            target=self._look, args=(its, _clock_of(its), self._over), daemon=True
        )
        self._thread.start()

    def stop(self) -> dict[str, Any] | None:
        """The ``names`` of lines, and ``looks``; None if it was not started.

        Of each when it was, in Unix ns, the number of a name, and what has passed since the one
        before, and what the thread ran of that, in µs.
        """
        if self._thread is None:
            return None
        self._over.set()
        self._thread.join(_EVERY_S)
        self._thread = None
        if self._usual_s != _SWITCH_S:  # else another that looks has set it
            sys.setswitchinterval(self._usual_s)
        return {"names": [*self._names], "looks": [*self._looks]}

    def _look(self, thread: int, clock: int | None, over: threading.Event) -> None:
        last, last_ran = time.monotonic_ns(), _ran_ns(clock)
        while not over.wait(_EVERY_S) and (frame := sys._current_frames().get(thread)):
            name = call_site(_frames(frame))
            now, ran = time.monotonic_ns(), _ran_ns(clock)
            if name:
                code = self._names.setdefault(name[:_LONGEST], len(self._names))
                passed = ((now - last) // 1000, (ran - last_ran) // 1000)
                self._looks.append([time.time_ns(), code, *passed])
            last, last_ran = now, ran


def _clock_of(thread: int) -> int | None:
    """The clock of the processor time that a thread took, where there is one."""
    clock = getattr(time, "pthread_getcpuclockid", None)
    return clock and clock(thread)


def _ran_ns(clock: int | None) -> int:
    return 0 if clock is None else time.clock_gettime_ns(clock)


def _frames(frame: FrameType) -> list[dict[str, Any]]:
    """As the flight recorder has them, innermost first."""
    return [
        {"filename": its.f_code.co_filename, "line": line, "name": its.f_code.co_name}
        for its, line in walk_stack(frame)
    ]
