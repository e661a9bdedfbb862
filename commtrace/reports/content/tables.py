"""The tables of the reports for people."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from commtrace.metrics.run.group_sizes import DEDUCED
from commtrace.units import NOTHING, clean, counted, duration, percent, rate, size

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = [
    "BAR",
    "FILTERED",
    "Section",
    "collectives",
    "copies",
    "devices",
    "exposed_share",
    "more",
    "on_one_line",
]

BAR = "█▓▒░·"
"""Glyphs of a bar's parts: compute, with communication, exposed communication, copy, idle."""

FILTERED = "Most events are missing: compute is more, idle and exposed time mean little."
"""What times are worth that come from a sample of a run's events."""

_DEDUCED = {
    "groups": "† n deduced: all groups that the trace lists are as large.",
    "ranks": "† n deduced: all ranks of the job took part; each time all waited for the last.",
}
_ENDS = 4
_COSTLIEST = 10
_SPREAD = 1.5  # times the median: a 95th percentile above it has a column
_LINE = 18  # characters
_ROUTES = 10
_VARIES = "~"
_INFERRED = "*"


class Section(Struct, frozen=True):
    """A table of text. Cells come from traces: whoever lays them out must escape them.

    ``columns`` are names, each with ``<`` or ``>`` for its alignment; ``footer`` is what
    else there is to say. Where all do not fit, those of ``drop`` are left out, the first first.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    cells: list[list[str]]
    footer: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def on_one_line(name: str) -> str:
    r"""A column's name, which has several lines where it heads a table.

    >>> on_one_line("busbw\nGB/s"), on_one_line("over-\nlapped")
    ('busbw GB/s', 'overlapped')
    """
    return name.replace("-\n", "").replace("\n", " ")


def devices(devices: Rows, bar: int, *, sampled: bool = False) -> Section:
    """Where the time of each device went, with a bar ``bar`` characters long.

    ``sampled`` says that most events are missing. Of the CPU of a rank with a GPU only the
    communication is known: at most that is exposed.
    """
    table = devices.dicts()
    copied = any(row["copy_ns"] for row in table)
    overlap = "compute and copy include" if copied else "compute includes"
    footer = [f"Share of the span below each time; {overlap} what is overlapped."]
    if sampled:
        footer.insert(0, FILTERED)
    if bar:
        footer.append(
            f"{BAR[0]} compute  {BAR[1]} with comm.  {BAR[2]} exposed comm.  "
            f"{BAR[3]} copy alone  {BAR[4]} idle"
        )
    unknown = [row for row in table if row["span_ns"] is None]
    if len(table) > 2 * _ENDS:
        known = [row for row in table if row["span_ns"] is not None]
        table = sorted(known, key=exposed_share, reverse=True)
        if hidden := table[_ENDS:-_ENDS]:
            footer.append(
                f"The {_ENDS} with the most and the {_ENDS} with the least exposed "
                f"communication; {_hidden(len(hidden), 'in between')}. {_typical(table)}"
            )
            table = table[:_ENDS] + table[-_ENDS:]
        if unknown:
            most = duration(max(row["communication_ns"] for row in unknown))
            footer.append(
                f"{counted(len(unknown), 'CPU')} communicated, too, for up to {most}: not shown."
            )
    elif unknown:
        footer.append("≤ all communication of the device: what it computed meanwhile is unknown.")
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
        ("idle", "copy", "overlapped\ncomm."),
    )


def _typical(table: list[dict[str, Any]]) -> str:
    """The medians of all devices' shares, which need not be those of one of them."""
    parts = ("compute", "exposed_communication", "overlapped_communication", "idle")
    each = {
        part: [(row[f"{part}_ns"] or 0) / (row["span_ns"] or 1) for row in table] for part in parts
    }
    shares = (f"{100 * _median(its):.0f} % {part.replace('_', ' ')}" for part, its in each.items())
    return f"Typical of all {len(table):,} (medians): {', '.join(shares)}."


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _device(row: dict[str, Any], bar: int) -> list[str]:
    span = row["span_ns"]
    if span is None:
        at_most = f"≤ {duration(row['communication_ns'])}"
        times = [NOTHING, at_most, at_most, NOTHING, NOTHING]
    else:
        parts = ("compute", "exposed_communication", "overlapped_communication", "copy", "idle")
        lengths = [row[f"{part}_ns"] for part in parts]
        times = [f"{duration(length)}\n{percent(length, span)}" for length in lengths]
    name = clean(row["device"], 16)
    return [str(row["rank"]), name, f"{duration(span)}\n{_bar(row, bar)}".strip(), *times]


def exposed_share(row: dict[str, Any]) -> float:
    """The share of a device's span that is exposed communication."""
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


def collectives(collectives: Rows, span_ns: int, exposed_ns: int, clocks: list[str]) -> Section:
    """The costliest kinds of collectives.

    ``exposed_ns`` is the time of the rank that had most; ``clocks`` are lines about what the wait
    rests on.
    """
    table = collectives.dicts()
    shown = table[:_COSTLIEST]
    spread = any(row["duration_ns_p95"] > _SPREAD * row["duration_ns_p50"] for row in shown)
    rows = [_collective(row, span_ns, clocks_differ=bool(clocks), spread=spread) for row in shown]
    footer = []
    if any(row["wait_ns_total"] for row in table):
        footer.append("wait: its share of the time; busbw is of the transfer without it.")
    footer += clocks
    if any(cell.startswith("≥") for row in rows for cell in row):
        footer.append("≥ a lower bound: the time can include waiting for other ranks.")
    if any(row["sizes"] > 1 for row in shown):
        footer.append(f"{_VARIES} the median of sizes that vary from step to step.")
    footer += [why for how, why in _DEDUCED.items() if any(r[DEDUCED.name] == how for r in table)]
    if any(row["dimension_provenance"] == "inferred" for row in shown):
        footer.append(f"{_INFERRED} inferred from the groups' ranks and traffic.")
    if any(row["busbw_gb_s"] == 0 for row in table):
        footer.append("No busbw where a group is one rank: nothing crosses a link.")
    if sum(row["exposed_ns"] or 0 for row in table) > exposed_ns:
        footer.append(
            "exposed: its share of the time, mean of ranks; what runs at once counts for each."
        )
    if hidden := table[_COSTLIEST:]:
        rest, all_ = (sum(row["duration_ns_total"] for row in part) for part in (hidden, table))
        footer.append(f"{_hidden(len(hidden))}: {duration(rest)} of {duration(all_)} in total.")
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
            *((("p95", ">"),) if spread else ()),
            ("wait", ">"),
            ("busbw\nGB/s", ">"),
            ("exposed", ">"),
        ),
        rows,
        tuple(footer),
        ("dtype", "count", "p95", "n", "group", "wait", "busbw\nGB/s"),
    )


def _collective(
    row: dict[str, Any], span_ns: int, *, clocks_differ: bool, spread: bool
) -> list[str]:
    total_ns, wait_ns = row["duration_ns_total"], row["wait_ns_total"]
    if wait_ns == 0 and clocks_differ:
        wait_ns = None  # a wait below what the clocks resolve is not known to be none
    if wait_ns is not None:
        wait_ns = min(wait_ns, total_ns)  # a send can wait before gloo notes it
    busbw = rate(row["busbw_gb_s"] or None)  # it is 0 in a group of one rank
    bounded = row["bound"] == "lower" and row["busbw_gb_s"] and not busbw.startswith("<")
    return [
        _operation(row),
        _group(row),
        clean(row["group_size"]) + ("†" if row[DEDUCED.name] else ""),
        clean(row["dtype"], 16),
        _VARIES * (row["sizes"] > 1) + size(row["size_bytes"]),
        f"{row['count']:,}",
        duration(row["duration_ns_p50"]),
        *([duration(row["duration_ns_p95"])] if spread else []),
        percent(wait_ns, total_ns),
        ("≥ " if bounded else "") + busbw,
        percent(row["exposed_ns"], span_ns),
    ]


def _group(row: dict[str, Any]) -> str:
    """A dimension's name stands for all its groups."""
    if row["dimension"] is None:
        return clean(row["group"], 24)
    name = clean(row["dimension"], 16) + _INFERRED * (row["dimension_provenance"] == "inferred")
    return f"{name}, {counted(row['groups'], 'group')}" if row["groups"] > 1 else name


def _operation(row: dict[str, Any]) -> str:
    op, executed = row["op"], row["executed"]
    ran = f"\n(ran as {clean(executed, 16)})" if executed and op != executed else ""
    lines = (row["called_at"] or "").split("; ")
    return clean(op, 16) + ran + "".join(f"\n{_line(one)}" for one in lines if one)


def _line(called_at: str) -> str:
    """A file's name, or its end, and the line's number."""
    line = clean(re.split(r" in |, by ", called_at)[0].rpartition("/")[2], 200)
    return line if len(line) <= _LINE else f"…{line[1 - _LINE :]}"


def copies(copies: Rows) -> Section:
    """The costliest routes of copies."""
    table = sorted(copies.dicts(), key=lambda row: -row["duration_ns_total"])
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
                _route(row),
                clean(row["memory"], 16),
                f"{row['count']:,}",
                size(row["bytes"]),
                duration(row["duration_ns_total"]),
                rate(row["gb_s_p50"]),
                rate(row["gb_s_busy"]),
            ]
            for row in table[:_ROUTES]
        ],
        tuple(more(len(table), _ROUTES)),
        ("count", "p50\nGB/s", "bytes"),
    )


def _route(row: dict[str, Any]) -> str:
    source, destination, kind = row["source"], row["destination"], row["kind"]
    if source is None and destination is None:
        return clean(kind, 16)
    return f"{clean(source, 16)} → {clean(destination, 16)}"


def more(count: int, shown: int) -> list[str]:
    """A line that says how many are not shown, if any."""
    return [f"{_hidden(count - shown)}."] if count > shown else []


def _hidden(count: int, which: str = "more") -> str:
    return f"{count} {which} {'is' if count == 1 else 'are'} not shown"
