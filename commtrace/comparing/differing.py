"""What else differs between two sides: what has to be known to read their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from commtrace.comparing.kinds import kinds_of_rows
from commtrace.comparing.recorded import Recorded
from commtrace.comparing.shapes import shapes
from commtrace.comparing.sides import Side
from commtrace.diagnosis import Note
from commtrace.units import clean, counted, numbered

__all__ = ["differing"]

_MANY = 0.15  # of the cores: as much is worth a word


def differing(
    base: Sequence[Recorded],
    candidate: Sequence[Recorded],
    of_base: Side,
    of_candidate: Side,
) -> tuple[Note, ...]:
    """Notes about other ranks, software and machines, other work, and disturbed recordings."""
    return (
        *_same(base, candidate),
        *_facts(base, candidate),
        *_operations(base, candidate),
        *_waits((*of_base, *of_candidate)),
        *_foreign("base", of_base),
        *_foreign("candidate", of_candidate),
        *_shapes((*base, *candidate)),
        *_lacking("base", of_base),
        *_lacking("candidate", of_candidate),
    )


def _same(base: Sequence[Recorded], candidate: Sequence[Recorded]) -> Iterator[Note]:
    before, after = (
        {file for one in side for file in one.measures.rows("ranks").coded("file").occurring()}
        for side in (base, candidate)
    )
    if both := len(before & after):
        files = f"{counted(both, 'file')} {'is' if both == 1 else 'are'}"
        yield Note("same-files", f"{files} on both sides: a recording does not differ from itself")


_FACTS: tuple[tuple[str, str, Callable[[Recorded], Any]], ...] = (
    ("world-size", "ranks", lambda its: its.run.world_size or len(its.run.ranks)),
    ("ranks", "traces", lambda its: numbered("rank", its.run.ranks)),
    ("backends", "backends", lambda its: ", ".join(its.run.backends)),
    ("torch", "torch", lambda its: _manifest(its, "versions", "torch")),
    ("cuda", "CUDA", lambda its: _manifest(its, "versions", "cuda")),
    ("nccl", "NCCL", lambda its: _manifest(its, "versions", "nccl")),
    ("cpu", "CPU", lambda its: _manifest(its, "cpu", "model")),
)


def _manifest(its: Recorded, part: str, name: str) -> Any:
    return its.measures.told(part).get(name)


def _facts(base: Sequence[Recorded], candidate: Sequence[Recorded]) -> Iterator[Note]:
    for code, name, fact in _FACTS:
        before, after = (
            {clean(value, 60) for its in side if (value := fact(its))} for side in (base, candidate)
        )
        if before and after and before != after:
            either = (" and ".join(sorted(its)) for its in (before, after))
            yield Note(f"different-{code}", f"{name}: {' before, '.join(either)} now")


def _operations(base: Sequence[Recorded], candidate: Sequence[Recorded]) -> Iterator[Note]:
    before, after = (
        {kind for its in side for kind in kinds_of_rows(its.measures)[0]}
        for side in (base, candidate)
    )
    if before and after and not before & after:
        message = (
            "no operation of one is in the other: it may be another program, another model, or "
            "other buckets"
        )
        yield Note("different-operations", message)


def _waits(every: Side) -> Iterator[Note]:
    if any(its.gpu_hosts is not None and its.sample.lacking is None for its in every):
        message = "not all waits of a GPU's host are in a trace: the others count as host"
        yield Note("unseen-waits", message)


def _foreign(name: str, side: Side) -> Iterator[Note]:
    """Other processes make single recordings' intervals wider, and several recordings differ."""
    disturbed = [its.foreign for its in side if its.foreign >= _MANY]
    if disturbed:
        most = f"up to {100 * max(disturbed):.0f} % of the CPU cores"
        several = f"{len(disturbed)} of {counted(len(side), 'recording')}"
        of = f"{several if len(side) > 1 else 'the recording'} of the {name}"
        yield Note(
            "foreign-load", f"other processes took {most} in {of}: record on a quiet machine"
        )


def _shapes(every: Sequence[Recorded]) -> Iterator[Note]:
    for why in dict.fromkeys(shapes(its.measures).unreadable for its in every):
        if why is not None:
            yield Note("unknown-shapes", f"kernels are compared by name, not by shape: {why}")


def _lacking(name: str, side: Side) -> Iterator[Note]:
    for why in dict.fromkeys(its.sample.lacking for its in side if its.sample.steps):
        if why is not None:
            message = f"the {name}'s steps are compared by the time of its mean device: {why}"
            yield Note("no-critical-path", message)
