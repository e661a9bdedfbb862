"""What the reports for people say, before any of them lays it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import codes, first_rows, sums
from commtrace.metrics.rank.copies import copies
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run import ranges as labels
from commtrace.metrics.run.collectives import collectives_by_dimension
from commtrace.metrics.run.sampled import is_sampled
from commtrace.metrics.run.unrecorded_steps import pace
from commtrace.metrics.run.unrecorded_work import UNRECORDED_WORK
from commtrace.reports.content import alike, critical_path, ranges, tables, waiting
from commtrace.reports.content.tables import Section, exposed_share, more
from commtrace.reports.content.unfound import unfound
from commtrace.reports.content.verdict import verdict
from commtrace.trace_tables import CUT_BEFORE_GPU, FAILED, LEFT_OUT, RECORDED_APART, SAMPLED
from commtrace.units import clean, counted, duration, numbered, percent

if TYPE_CHECKING:
    from commtrace.analysis import Analysis, Summary
    from commtrace.diagnosis import Note
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["headline", "notes", "sections", "unfound", "verdict", "what_ran"]

_NOTES = 12
_NAMED = 4


def headline(analysis: Analysis) -> list[str]:
    """A line each: the name, what ran, its communication's cost, critical path, who was waited for.

    Where no path is known, why; the rank only if one stands out. What a recorded workload asked,
    and the answer, comes before what ran, and behind it that the recording failed, that files of
    other runs are left out, that ranks were recorded at different times, and that recording has
    slowed their steps by far.
    """
    run, noted = analysis.run, {note.code for note in analysis.notes}
    path = critical_path.sentence(analysis.measures) or critical_path.lacking(analysis.measures)
    return [
        clean(run.name),
        *filter(None, [ranges.answer(analysis)]),
        what_ran(run),
        *_failed(analysis.notes),
        *_left_out(analysis.notes),
        *([_in_common(run)] if RECORDED_APART in noted else []),
        *_slowed(analysis.measures),
        clean(_exposure(devices(analysis.measures).dicts(), noted)),
        *filter(None, [path, waiting.straggler(analysis)]),
    ]


def _failed(notes: Sequence[Note]) -> list[str]:
    """What ended the recording: what follows is of a run that did not go on."""
    failed = [note.message for note in notes if note.code == FAILED]
    if not failed:
        return []
    what = " ".join(failed[0].split()).rstrip(".")
    return [clean(f"{what[:1].upper()}{what[1:]}.", 400)]


def _left_out(notes: Sequence[Note]) -> list[str]:
    """That files of other runs were given, too: whose run is told is not for the reader to find."""
    others = sum(note.code == "mixed-runs" and note.message.endswith(LEFT_OUT) for note in notes)
    files = counted(others, "file")
    return [f"{files} of other runs {'is' if others == 1 else 'are'} left out."] if others else []


def _in_common(run: Summary) -> str:
    """That only a part of what was recorded is analysed, of which nobody may have thought."""
    what = f"Only the {duration(run.span_ns)} in which all ranks were recorded are analysed"
    return f"{what}: call commtrace.step() once in each round to mark the same steps on all."


def _slowed(run: Measures) -> list[str]:
    """That what takes long in the recorded steps may be their recording."""
    its = pace(run)
    if its is None or not its.is_far_slower:
        return []
    slower = f"Recording made steps {its.slowdown:.2g} times as long"
    return [f"{slower}: what takes long here may be that; see the notes."]


def what_ran(run: Summary) -> str:
    """Backends, ranks, devices, their models, hosts, steps and time on one line."""
    present = len(run.ranks)
    ranks = counted(present, "rank")
    if run.world_size is not None and run.world_size != present:
        ranks = f"{present} of {counted(run.world_size, 'rank')}"
    hosts = [counted(len(run.hosts), "host")] if len(run.hosts) > 1 else list(run.hosts)
    steps = [counted(run.steps, "step")] if run.steps else []
    facts = [
        *([", ".join(run.backends)] if run.backends else []),
        ranks,
        *([_listed(run.devices)] if run.devices else []),
        *([_listed(run.gpus)] if run.gpus else []),
        *hosts,
        *steps,
        duration(run.span_ns),
    ]
    return " · ".join(clean(fact, 60) for fact in facts)


def sections(analysis: Analysis, bar: int) -> Iterator[Section]:
    """The tables that have something to say. Bars are ``bar`` characters long."""
    run = analysis.measures
    if len(busy := devices(run)):
        yield tables.devices(busy, bar, sampled=is_sampled(run))
    if section := alike.section(run):
        yield section
    if len(costs := collectives_by_dimension(run)):
        # A rank's exposed time is the sum of its devices', and a share is of their time.
        span_ns = _devices_of_a_rank(run) * analysis.run.span_ns
        yield tables.collectives(costs, span_ns, _most_exposed(busy), waiting.clocks(analysis))
    if waiting.matters(analysis):
        yield waiting.section(analysis)
    if section := ranges.section(labels.ranges(run)):
        yield section
    if len(moved := copies(run)):
        yield tables.copies(moved)


def _devices_of_a_rank(run: Measures) -> int:
    """On how many devices the rank with most of them communicates."""
    called = run.rows("collectives")
    rank, device = called.ints("rank"), called.coded("device")
    once = first_rows(codes(rank, device))
    known = rank[once][device.known[once]]
    return int(np.unique(known, return_counts=True)[1].max(initial=0))


def _most_exposed(busy: Rows) -> int:
    """How long the communication of the rank with most of that was exposed, on all its devices."""
    exposed = np.maximum(busy.ints("exposed_communication_ns"), 0)  # NULL where nothing is known
    return int(sums(codes(busy.ints("rank")), exposed, len(busy)).max(initial=0))


def notes(notes: Sequence[Note]) -> list[str]:
    """What is wrong with the traces, one line each; of many, one line for those of a kind."""
    if len(notes) <= _NOTES:
        return [*map(_note, notes)]
    alike: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        alike[note.code].append(note)
    lines = [_note(its[0]) if len(its) == 1 else _of_a_kind(its) for its in alike.values()]
    return [*lines[:_NOTES], *more(len(lines), _NOTES)]


def _exposure(devices: list[dict[str, Any]], codes: set[str]) -> str:
    if not any(row["communication_ns"] for row in devices):
        if CUT_BEFORE_GPU in codes:
            return "The trace ends before its GPU events: its communication is unknown."
        if "unread-events" in codes:
            return "No communication among the events that were read."
        if UNRECORDED_WORK in codes:
            return "Communication was called, and what it ran was not recorded."
        return "No communication."
    if SAMPLED in codes:
        return "How much of the communication is exposed is unknown: most events are missing."
    busy = [row for row in devices if row["communication_ns"] and row["span_ns"]]
    if not busy:
        return "How much of the communication is exposed is unknown."
    least, most = min(busy, key=exposed_share), max(busy, key=exposed_share)
    shares = [percent(row["exposed_communication_ns"], row["span_ns"]) for row in (least, most)]
    if shares[0] == shares[1]:
        return f"Exposed communication: {shares[0]} of the time."
    several = len({row["rank"] for row in busy}) < len(busy)
    where = [f"rank {r['rank']}" + f", {r['device']}" * several for r in (least, most)]
    return (
        f"Exposed communication: {shares[0]} ({where[0]}) to {shares[1]} ({where[1]}) of the time."
    )


def _note(note: Note) -> str:
    where = "" if note.rank is None else f" (rank {note.rank})"
    return f"{clean(note.code, 40)}{where}: {clean(note.message, 400)}"


def _of_a_kind(notes: list[Note]) -> str:
    ranks = {note.rank for note in notes if note.rank is not None}
    where = f", {numbered('rank', ranks)}" if ranks else ""
    first = clean(notes[0].message, 400)
    return f"{clean(notes[0].code, 40)} ({len(notes):,} notes{clean(where, 200)}): {first}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} … {names[-1]}"
