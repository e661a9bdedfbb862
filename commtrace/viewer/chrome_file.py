"""A timeline as Chrome's JSON, for what cannot read Perfetto's own format.

It has processes and threads only: a rank is a process, each track below it a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from commtrace.arrays import Float64, Int64
from commtrace.viewer.slices import ROOT, Slice

__all__ = ["ChromeFile"]


class ChromeFile:
    """Writes events to a file; ``base_ns``, before all of them, is its time 0.

    Since 1970 the nanoseconds are more than the number of a JSON reader holds.
    """

    def __init__(self, out: BinaryIO, base_ns: int) -> None:
        self._out = out
        self._base_ns = base_ns
        self._tracks: list[tuple[int, str]] = [(ROOT, "")]  # process and name
        self._begun = False
        out.write(b'{"traceEvents":[\n')

    def close(self) -> None:
        """End the file."""
        self._out.write(b"\n]}\n")

    def section(self) -> None:
        """Nothing is shared here."""

    def track(self, name: str, parent: int = ROOT, *, unit: str | None = None) -> int:
        """A process if it is below ROOT, else a thread; a counter is named with its unit."""
        number = len(self._tracks)
        process, above = self._tracks[parent]
        process = process or number
        self._tracks.append((process, name if parent in (ROOT, process) else f"{above} › {name}"))
        if unit is not None:
            self._tracks[number] = process, f"{name} ({unit})"
            return number
        if process == number:
            self._named("process", number, name)
        self._named("thread", number, self._tracks[number][1])
        return number

    def slices(self, track: int, slices: Sequence[Slice]) -> None:
        """Complete events, and their arrows."""
        for its in slices:
            args = {name: value for name, value in its.args.items() if value is not None}
            self._event(
                track,
                ph="X",
                name=its.name,
                ts=self._since(its.start_ns),
                dur=_micros(its.end_ns - its.start_ns),
                args=args,
            )
            for arrow in its.leaves:
                self._arrow(track, its, ph="s", id=arrow)
            for arrow in its.reaches:
                self._arrow(track, its, ph="f", id=arrow, bp="e")

    def counter(self, track: int, times_ns: Int64, values: Float64) -> None:
        """Counter events."""
        name = self._tracks[track][1]
        for time_ns, value in zip(times_ns.tolist(), values.tolist(), strict=True):
            self._event(track, ph="C", name=name, ts=self._since(time_ns), args={"value": value})

    def _arrow(self, track: int, its: Slice, **fields: Any) -> None:
        self._event(track, cat="arrow", name="arrow", ts=self._since(its.start_ns), **fields)

    def _named(self, what: str, track: int, name: str) -> None:
        self._event(track, ph="M", name=f"{what}_name", args={"name": name})
        self._event(track, ph="M", name=f"{what}_sort_index", args={"sort_index": track})

    def _event(self, track: int, **fields: Any) -> None:
        event = {"pid": self._tracks[track][0], "tid": track, **fields}
        self._out.write(b",\n" * self._begun + msgspec.json.encode(event))
        self._begun = True

    def _since(self, time_ns: int) -> msgspec.Raw:
        return _micros(time_ns - self._base_ns)


def _micros(ns: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
