"""One pass over a file, or over a share of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commtrace.diagnosis import Note
from commtrace.errors import TraceError
from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.categories import READ
from commtrace.reader.json.columns_from_events import Collector
from commtrace.reader.json.decoded_event import Event, NumberedEvent
from commtrace.reader.json.document import WHOLE, Document, NotATraceError, Share
from commtrace.reader.json.events import NONE, Scan
from commtrace.reader.json.metadata import base_ns, parsed, quoted
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import InexactError, from_numbers, nanoseconds
from commtrace.units import counted

__all__ = ["Reading"]

_LATEST_NS = 2**62


class Reading:
    """One pass over a file, or over a share of it.

    ``collectors`` have the events of each run of its text.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int | None,
        fast: bool,
        accelerators: Accelerators,
        exact: bool,
        share: Share = WHOLE,
    ) -> None:
        self.accelerators = accelerators
        self.collectors: dict[int, Collector] = {}
        self._path = path
        self._source = Source(path, max_bytes)
        self._exact = exact
        kind = Event if exact else NumberedEvent
        wanted = READ if fast else None
        self._document = Document(path, kind, self._take, wanted=wanted, share=share)
        self._notes: list[Note] = []

    def run(self) -> None:
        """Read the file."""
        for block in self._source:
            self._document.feed(block)
        try:
            self._document.finish()
        except TraceError:
            if self._source.problem is None:
                raise
            problem = f"no event of it can be read: {self._source.problem}"
            raise TraceError(f"{self._path}: {problem}; copy or record it again") from None
        self._flush()
        if self._document.unfit and not self._exact:
            raise InexactError  # a time may be of a type that is none

    @property
    def events(self) -> int:
        """How many there are, kept or not."""
        return self._document.events

    @property
    def has_faults(self) -> bool:
        """Whether any event is not as it should be."""
        its = self._document
        odd = its.unfit or its.damaged or its.repaired or not its.phased
        return bool(odd) or any(
            one.checked.left_out or one.checked.unbelieved for one in self.collectors.values()
        )

    def join(self, collectors: Mapping[int, Collector], events: int) -> None:
        """Take what others read of the file."""
        self.collectors |= collectors
        self._document.events += events

    def scan(self) -> Scan:
        """What was read."""
        document, metadata = self._document, self._document.metadata
        collector = self._joined()
        if document.bare and not document.phased:
            kind = NotATraceError if document.complete else TraceError
            raise kind(
                f"{self._path}: is a list, but not of trace events: "
                "give a trace that torch.profiler exported"
            )
        base = self._base(metadata)
        self._read_distributed(metadata)
        self._note_faults(collector)
        gpu, launches = collector.gpu(base), collector.launches(base)
        hosted, annotations = collector.operators(base), collector.annotations(base)
        operators, beside_gpu = (NONE, hosted) if collector.has_gpu else (hosted, NONE)
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
            beside_gpu=beside_gpu,
            annotations=annotations,
            calls=collector.calls(base),
            events=document.events,
            notes=tuple(self._notes),
            device_type=collector.accelerators.device_type,
        )

    def _take(self, events: list[Event]) -> None:
        self._of_run(self._document.run).take(events)

    def _of_run(self, run: int) -> Collector:
        if run not in self.collectors:
            self._flush()
            times = nanoseconds if self._exact else from_numbers
            self.collectors[run] = Collector(self.accelerators, times)
        return self.collectors[run]

    def _flush(self) -> None:
        """Have all events so far in columns; only the last run's may wait."""
        for collector in list(self.collectors.values())[-1:]:
            collector.flush()

    def _joined(self) -> Collector:
        first, *others = [self.collectors[run] for run in sorted(self.collectors)] or [
            self._of_run(0)
        ]
        for later in others:
            first.join(later)
        return first

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

    def _note_faults(self, collector: Collector) -> None:
        source, document = self._source, self._document
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
            known = ", ".join(sorted(document.metadata))
            told = f"of them {known} could be read" if known else "none of them could be read"
            self._note(
                "damaged",
                f"the file's metadata are not JSON, {told}; "
                f"events that were read: {document.events:,}",
            )
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
        if left_out := collector.checked.left_out:
            self._note(
                "bad-events",
                f"{counted(left_out.count, 'event')} skipped; the first is one {left_out.reason}",
            )
        if odd := collector.checked.unbelieved:
            self._note(
                "bad-arguments",
                f"of {counted(odd.count, 'event')} some arguments are not used; "
                f"the first is one {odd.reason}",
            )
