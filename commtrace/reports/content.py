"""What the reports for people say, before any of them lays it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from commtrace.reports.text import clean, duration, percent, rate, size
from commtrace.schema import rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analysis import Analysis
    from commtrace.schema import Note

__all__ = ["BAR", "Section", "headline", "notes", "sections"]

BAR = "█▓▒░·"
"""Glyphs of a bar's parts: compute, with communication, exposed communication, copy, idle."""

_ENDS = 4
_COSTLIEST = 10
_ROUTES = 10
_NOTES = 12
_NAMED = 4


@dataclass(frozen=True)
class Section:
    """A table of text. Cells come from traces: whoever lays them out must escape them.

    ``columns`` are names, each with ``<`` or ``>`` for its alignment; ``footer`` is what
    else there is to say.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    cells: list[list[str]]
    footer: tuple[str, ...] = ()


def headline(analysis: Analysis) -> list[str]:
    """What ran, and what its communication cost: a line each, the name first."""
    run = analysis.run
    present = len(run.ranks)
    ranks = f"{present} rank{'s' * (present != 1)}"
    if run.world_size is not None and run.world_size != present:
        ranks = f"{present} of {run.world_size} ranks"
    hosts = [f"{len(run.hosts)} hosts"] if len(run.hosts) > 1 else list(run.hosts)
    steps = [f"{run.steps} step{'s' * (run.steps != 1)}"] if run.steps else []
    facts = [
        *([", ".join(run.backends)] if run.backends else []),
        ranks,
        *([_listed(run.devices)] if run.devices else []),
        *hosts,
        *steps,
        duration(run.span_ns),
    ]
    return [
        clean(run.name),
        " · ".join(clean(fact, 60) for fact in facts),
        _verdict(rows(analysis.devices)),
    ]


def sections(analysis: Analysis, bar: int) -> Iterator[Section]:
    """The tables that have something to say. Bars are ``bar`` characters long."""
    if len(analysis.devices):
        yield _devices(analysis.devices, bar)
    if len(analysis.collectives):
        yield _collectives(analysis.collectives, analysis.run.span_ns)
    if len(analysis.copies):
        yield _copies(analysis.copies)


def notes(analysis: Analysis) -> list[str]:
    """What is wrong with the traces, one line each."""
    shown = [_note(note) for note in analysis.notes[:_NOTES]]
    return [*shown, *_more(len(analysis.notes), _NOTES)]


def _verdict(devices: list[dict[str, Any]]) -> str:
    if not any(row["communication_ns"] for row in devices):
        return "No communication."
    busy = [row for row in devices if row["communication_ns"] and row["span_ns"]]
    if not busy:
        return "How much of the communication is exposed cannot be told."
    least, most = min(busy, key=_exposed_share), max(busy, key=_exposed_share)
    shares = [percent(row["exposed_communication_ns"], row["span_ns"]) for row in (least, most)]
    if shares[0] == shares[1]:
        return f"Exposed communication: {shares[0]} of the time."
    ranks = least["rank"], most["rank"]
    return (
        f"Exposed communication: {shares[0]} (rank {ranks[0]}) to {shares[1]} (rank {ranks[1]}) "
        "of the time."
    )


def _devices(devices: pd.DataFrame, bar: int) -> Section:
    table = rows(devices)
    footer = ["Share of the span below each time; compute includes what is overlapped."]
    if bar:
        footer.append(
            f"{BAR[0]} compute  {BAR[1]} with comm.  {BAR[2]} exposed comm.  "
            f"{BAR[3]} copy alone  {BAR[4]} idle"
        )
    if len(table) > 2 * _ENDS:
        table.sort(key=_exposed_share, reverse=True)
        footer.append(
            f"The {_ENDS} with the most and the {_ENDS} with the least exposed communication; "
            f"{len(table) - 2 * _ENDS} in between are not shown."
        )
        table = table[:_ENDS] + table[-_ENDS:]
    return Section(
        "Where the time went",
        (
            ("rank", ">"),
            ("device", "<"),
            ("span", "<"),
            ("compute", ">"),
            ("exposed\ncomm.", ">"),
            ("overlapped\ncomm.", ">"),
            ("copy", ">"),
            ("idle", ">"),
        ),
        [_device(row, bar) for row in table],
        tuple(footer),
    )


def _device(row: dict[str, Any], bar: int) -> list[str]:
    span = row["span_ns"]
    parts = ("compute", "exposed_communication", "overlapped_communication", "copy", "idle")
    times = [row[f"{part}_ns"] for part in parts]
    return [
        str(row["rank"]),
        clean(row["device"], 16),
        f"{duration(span)}\n{_bar(row, bar)}".strip(),
        *(f"{duration(time)}\n{percent(time, span)}" for time in times),
    ]


def _exposed_share(row: dict[str, Any]) -> float:
    return (row["exposed_communication_ns"] or 0) / (row["span_ns"] or 1)


def _bar(row: dict[str, Any], width: int) -> str:
    """The disjoint parts of the span, each as long as it lasted."""
    span = row["span_ns"]
    if not span:
        return ""
    compute, exposed = row["compute_ns"], row["exposed_communication_ns"]
    overlapped, idle = row["overlapped_communication_ns"], row["idle_ns"]
    copy = span - compute - exposed - idle
    ends = accumulate([compute - overlapped, overlapped, exposed, copy, idle])
    places = [0, *(round(width * end / span) for end in ends)]
    return "".join(
        glyph * (end - start) for glyph, (start, end) in zip(BAR, pairwise(places), strict=True)
    )


def _collectives(collectives: pd.DataFrame, span_ns: int) -> Section:
    table = rows(collectives)
    footer = []
    if any(row["bound"] == "lower" for row in table):
        footer.append("≥ a lower bound: the time includes waiting for other ranks.")
    if hidden := table[_COSTLIEST:]:
        rest, all_ = (sum(row["duration_ns_total"] for row in part) for part in (hidden, table))
        footer.append(
            f"{len(hidden)} more are not shown: {duration(rest)} of {duration(all_)} in total."
        )
    return Section(
        "The costliest collectives",
        (
            ("op", "<"),
            ("group", "<"),
            ("n", ">"),
            ("dtype", "<"),
            ("size", ">"),
            ("count", ">"),
            ("p50", ">"),
            ("total", ">"),
            ("busbw\nGB/s", ">"),
            ("exposed", ">"),
        ),
        [_collective(row, span_ns) for row in table[:_COSTLIEST]],
        tuple(footer),
    )


def _collective(row: dict[str, Any], span_ns: int) -> list[str]:
    bound = "≥ " if row["bound"] == "lower" and row["busbw_gb_s"] is not None else ""
    return [
        clean(row["op"], 16),
        clean(row["group"], 24),
        clean(row["group_size"]),
        clean(row["dtype"], 16),
        size(row["size_bytes"]),
        f"{row['count']:,}",
        duration(row["duration_ns_p50"]),
        duration(row["duration_ns_total"]),
        bound + rate(row["busbw_gb_s"]),
        percent(row["exposed_ns"], span_ns),
    ]


def _copies(copies: pd.DataFrame) -> Section:
    table = sorted(rows(copies), key=lambda row: -row["duration_ns_total"])
    return Section(
        "Copies",
        (
            ("rank", ">"),
            ("from → to", "<"),
            ("memory", "<"),
            ("count", ">"),
            ("bytes", ">"),
            ("total", ">"),
            ("p50\nGB/s", ">"),
            ("busy\nGB/s", ">"),
        ),
        [
            [
                str(row["rank"]),
                f"{clean(row['source'], 16)} → {clean(row['destination'], 16)}",
                clean(row["memory"], 16),
                f"{row['count']:,}",
                size(row["bytes"]),
                duration(row["duration_ns_total"]),
                rate(row["gb_s_p50"]),
                rate(row["gb_s_busy"]),
            ]
            for row in table[:_ROUTES]
        ],
        tuple(_more(len(table), _ROUTES)),
    )


def _note(note: Note) -> str:
    where = "" if note.rank is None else f" (rank {note.rank})"
    return f"{clean(note.code, 40)}{where}: {clean(note.message, 400)}"


def _more(count: int, shown: int) -> list[str]:
    return [f"{count - shown} more are not shown."] if count > shown else []


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} … {names[-1]}"
