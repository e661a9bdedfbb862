"""One trace file, bytes -> Scan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from commtrace.diagnosis import Note
from commtrace.errors import TraceError
from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.columns_from_events import Collector
from commtrace.reader.json.document import Document, Event, NotATraceError, NumberedEvent
from commtrace.reader.json.events import Scan
from commtrace.reader.json.metadata import parsed, quoted
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import InexactError, from_numbers, nanoseconds
from commtrace.units import counted

__all__ = ["base_ns", "scan"]

_BASE_LIMIT_NS = 2**61
_LATEST_NS = 2**62


def scan(path: Path, *, max_bytes: int | None = None, fast: bool = True) -> Scan:
    """Read one trace file, gzip or plain, whatever its layout, also when damaged.

    Memory is bounded by what is kept. ``max_bytes`` is how large the file may become
    decompressed (by default see ``source.allowed_bytes``); without ``fast``, every event
    is parsed: the same result, slower. What was skipped is in the notes.

    Raises TraceError where the file cannot be read, is not a trace, or becomes too large.
    """
    with suppress(InexactError):
        return _scanned(path, max_bytes, fast, exact=False)
    return _scanned(path, max_bytes, fast, exact=True)


def _scanned(path: Path, max_bytes: int | None, fast: bool, exact: bool) -> Scan:
    """The file with times as numbers or, where that is not ``exact``, as text."""
    accelerators = Accelerators()
    reading = _Reading(path, max_bytes, fast, accelerators, exact)
    reading.run(operators=False)
    if accelerators.late:
        accelerators = accelerators.again()
        reading = _Reading(path, max_bytes, fast, accelerators, exact)
        reading.run(operators=False)
    if reading.lacks_operators:
        # The process saw GPUs, but nothing ran there: its work is on the CPU.
        reading = _Reading(path, max_bytes, fast, accelerators.again(), exact)
        reading.run(operators=True)
    return reading.scan()


def base_ns(metadata: Mapping[str, Any]) -> int | None:
    """What is to be added to every time of a file; None if it cannot be."""
    base = metadata.get("baseTimeNanoseconds", 0)
    return base if type(base) is int and 0 <= base < _BASE_LIMIT_NS else None


class _Reading:
    """One pass over a file."""

    def __init__(
        self,
        path: Path,
        max_bytes: int | None,
        fast: bool,
        accelerators: Accelerators,
        exact: bool,
    ) -> None:
        self._path = path
        self._source = Source(path, max_bytes)
        self._exact = exact
        self._collector = Collector(accelerators, nanoseconds if exact else from_numbers)
        kind = Event if exact else NumberedEvent
        self._document = Document(path, kind, self._take, fast=fast)
        self._notes: list[Note] = []
        self._operators = True

    def run(self, operators: bool) -> None:
        """Read the file; all its ``operators``, or only until it shows that it has a GPU."""
        self._keep_all = operators
        for block in self._source:
            self._document.feed(block)
        try:
            self._document.finish()
        except TraceError:
            if self._source.problem is None:
                raise
            problem = f"no event of it can be read: {self._source.problem}"
            raise TraceError(f"{self._path}: {problem}; copy or record it again") from None
        self._collector.flush()
        if self._document.unfit and not self._exact:
            raise InexactError  # a time may be of a type that is none
        if self._collector.has_gpu:
            self._collector.drop_operators()
        if self._document.bare and not self._collector.seen:
            kind = NotATraceError if self._document.complete else TraceError
            raise kind(
                f"{self._path}: is a list, but not of trace events: "
                "give a trace that torch.profiler exported"
            )

    @property
    def lacks_operators(self) -> bool:
        """Whether operators were left out that turned out to be all there is."""
        return not self._operators and not self._collector.has_gpu

    def scan(self) -> Scan:
        """What was read."""
        collector, document = self._collector, self._document
        metadata = document.metadata
        base = self._base(metadata)
        self._read_distributed(metadata)
        self._note_faults()
        gpu, launches = collector.gpu(base), collector.launches(base)
        operators, annotations = collector.operators(base), collector.annotations(base)
        read = [part for part in (gpu, launches, operators, annotations) if part.start_ns.size]
        first = min((int(part.start_ns.min()) for part in read), default=_LATEST_NS) - base
        last = max((int((p.start_ns + p.duration_ns).max()) for p in read), default=0) - base
        for message in collector.unread.messages(first, last):
            self._note("unread-events", message)
        return Scan(
            file=str(self._path),
            metadata=metadata,
            gpu=gpu,
            launches=launches,
            synchronisations=collector.synchronisations(base),
            operators=operators,
            annotations=annotations,
            calls=collector.calls(base),
            events=document.events,
            notes=tuple(self._notes),
            device_type=collector.accelerators.device_type,
        )

    def _take(self, events: list[Event]) -> None:
        self._collector.take(events)
        if (
            self._operators
            and not self._keep_all
            and (self._collector.has_gpu or self._document.metadata.get("deviceProperties"))
        ):
            self._operators = False
            self._collector.drop_operators()
            self._document.drop_operators()

    def _note(self, code: str, message: str) -> None:
        self._notes.append(Note(code, message, file=str(self._path)))

    def _base(self, metadata: dict[str, Any]) -> int:
        base = base_ns(metadata)
        if base is None:
            value = quoted(metadata["baseTimeNanoseconds"])
            self._note("bad-metadata", f"baseTimeNanoseconds is {value}: taken as 0")
        return base or 0

    def _read_distributed(self, metadata: dict[str, Any]) -> None:
        value = metadata.get("distributedInfo")
        if value is None or isinstance(value, dict):
            return
        info = parsed(value)
        if isinstance(info, dict):
            metadata["distributedInfo"] = info
            return
        del metadata["distributedInfo"]
        self._note("bad-metadata", f"distributedInfo is {quoted(value)}: not used")

    def _note_faults(self) -> None:
        source, document, collector = self._source, self._document, self._collector
        if not document.complete:
            problem = source.problem or "the JSON breaks off"
            tail = f", its last {document.unfinished:,} unfinished" if document.unfinished else ""
            self._note(
                "truncated",
                f"{problem}: what came before is analysed, {source.read:,} bytes of JSON{tail}",
            )
        elif source.problem:
            self._note("damaged", f"{source.problem}; every event could be read")
        if document.partly_read:
            known = ", ".join(sorted(document.metadata)) or "none of them"
            self._note("damaged", f"the metadata are not JSON; could be read: {known}")
        if document.damaged:
            share = 100 * document.lost / source.read
            self._note(
                "damaged",
                f"not JSON in {document.damaged:,} place(s): {document.lost:,} bytes were skipped, "
                f"{'<0.01' if share < 0.01 else f'{share:.3g}'} % of the file",
            )
        if document.repaired:
            self._note(
                "repaired",
                f"{counted(document.repaired, 'event')} held NaN, stray quotes, control "
                "characters or bytes that are not UTF-8",
            )
        if document.unfit:
            self._note(
                "bad-events",
                f"{counted(document.unfit, 'event')} skipped whose fields have the wrong types; "
                f"the first: {document.reason}",
            )
        if left_out := collector.left_out:
            self._note(
                "bad-events",
                f"{counted(left_out.count, 'event')} skipped; the first is one {left_out.reason}",
            )
        if odd := collector.unbelieved:
            self._note(
                "bad-arguments",
                f"of {counted(odd.count, 'event')} some arguments are not used; "
                f"the first is one {odd.reason}",
            )
