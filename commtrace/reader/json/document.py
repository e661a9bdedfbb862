"""A stream of bytes, cut into a file's metadata and its events.

Whatever is cut is decoded, and only what decodes as a list of whole events is believed:
where a piece of text is valid JSON between ``[`` and ``]``, it ends outside of every event.
So a separator that turns up within a string costs time, but nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from commtrace.errors import TraceError
from commtrace.reader.json.decoded_event import Event, by_category
from commtrace.reader.json.layout import Layout, learn
from commtrace.reader.json.metadata import known, whole
from commtrace.reader.json.salvage import BROKEN, Salvaged, salvage

__all__ = [
    "WHOLE",
    "Document",
    "NotATraceError",
    "NotSharedError",
    "Share",
]

_LONGEST_EVENT = 1 << 23
_LONGEST_METADATA = 1 << 26  # on one side of the events
_LONGEST_BARREN = 1 << 26  # damage without any event
_PATIENCE = 10_000  # places without an event, beside ten for each that there is
_TRIES = 16  # places where the list of events might begin; pieces of text decoded in vain
_RUN = 16  # pieces of text in a row that one process decodes

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')  # of an execution trace, however long
_BLANK = b" \t\r\n,"


class NotATraceError(TraceError):
    """A file of another kind, and nothing is wrong with it."""


class NotSharedError(Exception):
    """Where one event ends hangs on what stands before it: one process has to read all."""


class Share(Struct, frozen=True):
    """What one of several processes decodes of a file: of its runs every ``of``-th."""

    number: int
    of: int


WHOLE = Share(0, 1)


E = TypeVar("E", bound=Event)


class Document(Generic[E]):
    """Feed it a file's blocks, then ``finish``; it hands events of a ``kind`` to ``take``.

    Of a ``share``, it hands on and counts the events of its own runs only: all shares of a file
    are cut alike, which raises NotSharedError where that is impossible.

    ``metadata``
        the file's top level, of which only what is read is decoded: before the first event as
        far as it stands there.
    ``events``
        how many there are, the dropped and the ``unfit`` ones included.
    ``unfit``, ``reason``
        events without an event's types, and what is wrong with the first.
    ``repaired``
        events that were all but valid.
    ``damaged``, ``lost``
        places that are not JSON, and their bytes.
    ``complete``, ``unfinished``
        whether the end of the list was seen; if not, the bytes of an event begun.
    ``bare``, ``partly_read``, ``phased``
        whether the file is nothing but a list; whether some metadata could not be read; whether
        any event has a phase.

    It looks at no fields of events beside those of the ``wanted`` categories; at all of them where
    that is None.
    """

    def __init__(
        self,
        path: Path,
        kind: type[E],
        take: Callable[[list[E]], None],
        *,
        wanted: frozenset[str | None] | None,
        share: Share = WHOLE,
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.events = self.unfit = self.repaired = self.damaged = self.lost = self.unfinished = 0
        self.reason: str | None = None
        self.complete = self.bare = self.partly_read = self.phased = False
        self._path = path
        self._event = msgspec.json.Decoder(kind)
        self._list: Any = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._by_category = None if wanted is None else by_category(kind, wanted)
        self._take = take
        self._share = share
        self._pieces = 0  # of the events' text
        self._in_vain = 0  # of these, decoded twice
        self._layout: Layout | None = None
        self._blocks: list[bytes] = []  # read
        self._waiting = 0  # bytes of them
        self._text = b""  # and looked at, but not yet understood
        self._tries = 0
        self._seen = 0  # of it, already searched
        self._go = self._head

    def feed(self, block: bytes) -> None:
        """Take the next block. Raises TraceError where the file is not a trace."""
        self._blocks.append(block)
        self._waiting += len(block)
        # Look again only at twice as much text as did not suffice: linear in the end.
        if self._waiting >= len(self._text):
            self._look()

    def finish(self) -> None:
        """The file is at its end. Raises TraceError where it was not a trace."""
        self._look()
        if self._go == self._head:
            self._damaged_head()
        if self._go != self._tail:
            self._salvage(b"", final=True)
            self.unfinished = 0 if self.complete else len(self._text)
        if self._go == self._tail:
            self._read_tail()

    @property
    def run(self) -> int:
        """Which run of its text is looked at; a file that is not shared is a single one."""
        return self._pieces // _RUN if self._share.of > 1 else 0

    @property
    def _is_ours(self) -> bool:
        return self.run % self._share.of == self._share.number

    def _look(self) -> None:
        self._text = b"".join((self._text, *self._blocks))
        self._blocks.clear()
        self._waiting = 0
        self._go()

    def _head(self) -> None:
        start = self._start()[:1]
        if start == b"[":
            self.bare = True
            self._begin(self._text.index(b"[") + 1)
            return
        for match in _LIST.finditer(self._text, self._seen):
            self._tries += 1
            if start not in (b"", b"{") or self._tries > _TRIES:
                self._damaged_head()
                return
            head = whole(self._text[: match.end()].removeprefix(b"\xef\xbb\xbf") + b"]}")
            if head is not None and head.pop("traceEvents", None) == []:
                self.metadata = head
                self._begin(match.end())
                return
        self._seen = max(0, len(self._text) - 256)
        if len(self._text) > _LONGEST_METADATA:
            self._damaged_head()

    def _damaged_head(self) -> None:
        match = _LIST.search(self._text)
        if match is None:
            kind = NotATraceError if self._is_other_json() else TraceError
            raise kind(f"{self._path}: {self._complaint()}")
        self.metadata = known(self._text[: match.start()])
        self.partly_read = True
        self._begin(match.end())

    def _start(self) -> bytes:
        return self._text[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()

    def _is_other_json(self) -> bool:
        if self._start()[:1] != b"{":
            return False
        if _NODES.search(self._text[:4096]):
            return True
        found = whole(self._text.removeprefix(b"\xef\xbb\xbf"))
        return found is not None and "traceEvents" not in found

    def _complaint(self) -> str:
        start = self._start()
        if not start:
            return "is empty: the profiler wrote nothing; record it again"
        if start[:1] not in b"{[":
            return "is no JSON object or list: give a trace that torch.profiler exported"
        return "has no list of traceEvents: give a trace that torch.profiler exported"

    def _begin(self, at: int) -> None:
        self._text = self._text[at:]
        self._seen = 0
        self._go = self._between
        self._between()

    def _between(self) -> None:
        """At a place where an event, or the end of the list, should be."""
        text = self._text = self._text.lstrip(_BLANK)
        if text[:1] == b"{":
            if self._layout is None and not self._learn(text):
                return
            self._text = text[1:]
            self._go = self._body
            self._body()
        elif text:
            self._salvage(b"", final=False)

    def _learn(self, text: bytes) -> bool:
        self._layout = learn(text)
        if self._layout is None:
            self._check_length()
            return False
        return True

    def _body(self) -> None:
        """Just after an event's opening brace."""
        assert self._layout is not None
        separator = self._layout.separator
        cut = self._text.rfind(separator, max(0, self._seen - len(separator)))
        if cut < 0:
            self._seen = len(self._text)
            self._check_length()
            return
        text, self._text = self._text, self._text[cut + len(separator) :]
        self._seen = 0
        if self._is_ours and not self._decode(memoryview(text)[:cut]):
            if self._share != WHOLE:
                raise NotSharedError
            self._salvage(b"{" + text[: cut + len(separator)], final=False)
        self._pieces += 1

    def _decode(self, chunk: memoryview) -> bool:
        text = b"".join((b"[{", chunk, b"}]"))
        return self._decode_by_category(text) or self._decode_any(text)

    def _decode_by_category(self, text: bytes) -> bool:
        if self._by_category is None:
            return False
        try:
            events = self._by_category.decode(text)
        except BROKEN:
            self._in_vain += 1
            if self._in_vain > _TRIES + self._pieces // 2:
                self._by_category = None
            return False
        self.phased = True
        self.events += len(events)
        self._take(events)
        return True

    def _decode_any(self, text: bytes) -> bool:
        try:
            events = self._list.decode(text)
        except BROKEN:
            return False
        self.phased = self.phased or any(event.ph for event in events)
        self.events += len(events)
        self._take(events)
        return True

    def _salvage(self, before: bytes, final: bool) -> None:
        if self._go == self._body and not before:
            before = b"{"
        good = self.events - self.unfit
        patience = _PATIENCE + 10 * good - self.unfit - self.damaged
        found: Salvaged[E] = salvage(before + self._text, self._event, final, patience)
        self.unfit += found.unfit
        self.reason = self.reason or found.reason
        self.repaired += found.repaired
        self.damaged += found.damaged
        self.lost += found.lost
        self.phased = self.phased or any(event.ph for event in found.events)
        if self._is_ours:
            self.events += len(found.events) + found.unfit
            self._take(found.events)
        self._text, self._seen = found.rest, 0
        if found.hopeless or (self.lost > _LONGEST_BARREN and self.events == self.unfit):
            self._give_up()
        if found.ended:
            self.complete = True
            self._go = self._tail
        else:
            self._go = self._between

    def _tail(self) -> None:
        if len(self._text) > _LONGEST_METADATA:
            self._text = self._text[:_LONGEST_METADATA]

    def _read_tail(self) -> None:
        tail, self._text = self._text.strip(_BLANK), b""  # it may be large: no copy is kept
        if not tail or tail == b"}":
            return
        tail = b"{" + tail
        found = whole(tail)
        if found is None:
            self.partly_read = True
            found = known(tail)
        elif found.pop("traceEvents", None) is not None:
            self.partly_read = True
        self.metadata |= found

    def _check_length(self) -> None:
        # No event is as long as that: give up on whatever this is, and look for the next.
        if len(self._text) > _LONGEST_EVENT:
            self._salvage(b"", final=True)
            if not self.complete:
                self.damaged += 1
                self.lost += len(self._text)
                self._text = b""

    def _give_up(self) -> NoReturn:
        failures, good = self.unfit + self.damaged, self.events - self.unfit
        raise TraceError(
            f"{self._path}: is no trace, or damaged throughout: {good:,} events can be read, "
            f"and {failures:,} places cannot: copy or record it again"
        )
