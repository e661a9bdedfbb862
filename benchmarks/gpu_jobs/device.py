"""What a GPU does: its streams run in order, and communication waits for who takes part.

Times are microseconds from the job's start; those of work are None until they are known.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Collective", "Device", "Message", "Messages", "Work"]

NEXT_US = 1.0  # from the end of a kernel to the start of the next on its stream
EVENT_US = 1.8  # from the end of a kernel to that of one on another stream that waits for it


class Meeting(Protocol):
    """Communication, whose end depends on others than the rank that runs it."""

    def joined(self, work: Work) -> None:
        """Its kernel has started on a rank: gives all their ends that can now be known."""
        ...


@dataclass(eq=False)
class Work:
    """A kernel or copy. It lasts ``takes_us``, or until its meeting ends it.

    ``ready`` is when its launch has reached the device. ``args`` are for the trace.
    """

    name: str
    stream: int
    ready: float
    correlation: int
    takes_us: float = 0.0
    meeting: Meeting | None = None
    category: str = "kernel"
    annotation: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    previous: Work | None = None
    awaits: list[Work] = field(default_factory=list)
    start: float | None = None
    end: float | None = None

    def begin(self) -> bool:
        """Start it, if all that comes before it has ended."""
        start = self.ready
        if self.previous is not None:
            if self.previous.end is None:
                return False
            start = max(start, self.previous.end + NEXT_US)
        for other in self.awaits:
            if other.end is None:
                return False
            start = max(start, other.end + EVENT_US)
        self.start = start
        if self.meeting:
            self.meeting.joined(self)
        else:
            self.end = start + self.takes_us
        return True


@dataclass(eq=False)
class Collective:
    """One collective: its kernels end together, so long after the last one's start.

    ``wire_us`` is by rank's work, since an all_to_all moves more on some.
    """

    ranks: int
    here: list[tuple[Work, float]] = field(default_factory=list)
    wire_us: dict[Work, float] = field(default_factory=dict)

    def joined(self, work: Work) -> None:
        """Start one rank's part; the last one gives all their ends."""
        assert work.start is not None
        self.here.append((work, work.start))
        if len(self.here) == self.ranks:
            last = max(start for _, start in self.here)
            for member, _ in self.here:
                member.end = last + self.wire_us[member]


@dataclass(eq=False)
class Message:
    """What one rank sends another: it moves when both of their kernels have started."""

    wire_us: float
    starts: list[float] = field(default_factory=list)
    kernels: list[Messages] = field(default_factory=list)

    @property
    def done(self) -> float | None:
        """When it has arrived."""
        return max(self.starts) + self.wire_us if len(self.starts) == 2 else None


@dataclass(eq=False)
class Messages:
    """One kernel that sends and receives: it ends with its slowest message."""

    messages: list[Message]
    work: Work | None = None

    def joined(self, work: Work) -> None:
        """Start this kernel; its messages may end it or the kernels of its peers."""
        assert work.start is not None
        self.work = work
        for message in self.messages:
            message.starts.append(work.start)
            message.kernels.append(self)
        for message in self.messages:
            for kernel in message.kernels:
                kernel.settle()

    def settle(self) -> None:
        """Give its end, if all its messages have theirs."""
        times = [message.done for message in self.messages]
        known = [each for each in times if each is not None]
        if self.work is not None and len(known) == len(times):
            self.work.end = max(known)


class Device:
    """The streams of one GPU; ``work`` is all that they were given."""

    def __init__(self) -> None:
        self.work: list[Work] = []
        self._queues: dict[int, deque[Work]] = defaultdict(deque)
        self._last: dict[int, Work] = {}
        self._awaited: dict[int, list[Work]] = defaultdict(list)

    def enqueue(self, work: Work) -> None:
        """Put it behind what is on its stream, and behind what this waits for."""
        work.previous = self._last.get(work.stream)
        work.awaits = self._awaited.pop(work.stream, [])
        self._last[work.stream] = work
        self._queues[work.stream].append(work)
        self.work.append(work)

    def recorded(self, stream: int) -> list[Work]:
        """What an event that is recorded now on a stream stands for."""
        last = self._last.get(stream)
        return [*([last] if last else []), *self._awaited.get(stream, ())]

    def wait(self, stream: int, works: Iterable[Work]) -> None:
        """Let what comes next on a stream start behind these."""
        self._awaited[stream].extend(works)

    def advance(self) -> bool:
        """Start and end what can; whether anything could."""
        moved = False
        for queue in self._queues.values():
            while queue:
                if queue[0].start is None:
                    if not queue[0].begin():
                        break
                    moved = True
                if queue[0].end is None:
                    break
                queue.popleft()
                moved = True
        return moved

    @property
    def idle(self) -> bool:
        """Whether all that it was given has ended."""
        return not any(self._queues.values())

    def drained(self, stream: int | None = None) -> float | None:
        """When all that is on a stream by now, or on all, has ended; None while unknown."""
        streams = [*self._last] if stream is None else [stream]
        works = [work for each in streams for work in self.recorded(each)]
        ends = [work.end for work in works if work.end is not None]
        return None if len(ends) < len(works) else max(ends, default=0.0)
