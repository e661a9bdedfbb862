"""What the recorder kept from before its first step, as messages were on their way.

torch notes the end of gloo's messages in the profile that they were called in, so that a profile
that has some goes on. Other ranks' files begin with their first step: there is nothing to compare
with what came before.
"""

from __future__ import annotations

from msgspec.structs import replace

from commtrace.arrays import Bool
from commtrace.reader.json.events import Hosted, Scan

__all__ = ["of_steps"]


def of_steps(scan: Scan, first: int | None) -> tuple[Scan, int]:
    """A CPU's file without what began before the ``first`` step, and how many events that is."""
    its = scan.annotations
    if first is None or scan.gpu.start_ns.size:
        return scan, 0
    begun = its.start_ns[its.name.being(f"ProfilerStep#{first}")]
    if begun.size != 1:
        return scan, 0
    since_ns = int(begun[0])
    within = [part.start_ns >= since_ns for part in (scan.operators, its)]
    calls = tuple(call for call in scan.calls if call.start_ns >= since_ns)
    before = sum(int((~some).sum()) for some in within) + len(scan.calls) - len(calls)
    if not before:
        return scan, 0
    operators, annotations = map(_taken, (scan.operators, its), within)
    return replace(scan, operators=operators, annotations=annotations, calls=calls), before


def _taken(its: Hosted, some: Bool) -> Hosted:
    return Hosted(its.name.take(some), its.thread[some], its.start_ns[some], its.duration_ns[some])
