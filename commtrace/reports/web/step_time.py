"""Where the time goes, of a step on average: per rank, per dimension, and on the critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import distinct, sums
from commtrace.causal.critical_path import KINDS
from commtrace.causal.steps import path_of
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.dimensions import dimensions
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.sampled import is_sampled
from commtrace.metrics.run.whole import part_of_time, step_count
from commtrace.reports.content import critical_path
from commtrace.reports.content.tables import FILTERED
from commtrace.reports.web.alike_bars import alike_bars
from commtrace.reports.web.bars import Bar, Part, bars, legend
from commtrace.reports.web.blocks import blocks
from commtrace.reports.web.markup import Markup, tag
from commtrace.table import Rows
from commtrace.units import clean, counted, duration, percent

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.measures import Measures

__all__ = ["step_time"]

_MOST_BARS = 64
_MOST_DIMENSIONS = 12
_MOST_RANKS = 6
_PARTS = ("compute", "hidden", "transfer", "wait", "copy", "idle")


def step_time(analysis: Analysis) -> Markup | None:
    """Bars of groups of ranks, of every rank, of dimensions, and of the critical path."""
    run = analysis.measures
    parts = [alike_bars(run), _by_rank(run), _critical(run), _by_dimension(run)]
    return tag("div", *parts) if any(parts) else None


def _by_rank(run: Measures) -> Markup | None:
    waits = {(row["rank"], row["device"]): row for row in exposed_waits(run).dicts()}
    known = [
        {**row, **waits[row["rank"], row["device"]]}
        for row in devices(run).dicts()
        if row["span_ns"] is not None
    ]
    if not known:
        return None
    steps = step_count(run)
    several = len({row["device"] for row in known}) > 1
    merged = list(blocks(known, _MOST_BARS))
    drawn = [_device(its, steps, several) for its in merged]
    longest = max(sum(part.length for part in bar.parts) for bar in drawn)
    hint = ["A step on average." if steps > 1 else "The whole recording."]
    if is_sampled(run):
        hint.append(FILTERED)
    if len(merged) < len(known):
        hint.append(f"A bar is the mean of up to {len(merged[0])} ranks.")
    return tag(
        "figure",
        tag("figcaption", "Each rank's time"),
        legend(kind for kind in _PARTS if any(_has(bar, kind) for bar in drawn)),
        bars(drawn, longest, "each rank's time"),
        tag("p", " ".join(hint), class_="hint"),
    )


def _device(its: Sequence[dict[str, Any]], steps: int, several: bool) -> Bar:
    lengths = [_lengths(row) for row in its]
    mean = {kind: sum(one[kind] for one in lengths) / len(its) / steps for kind in _PARTS}
    span = sum(mean.values())
    ends = [str(its[0]["rank"]), *([str(its[-1]["rank"])] if len(its) > 1 else [])]
    name = f"rank{'s' * (len(its) > 1)} {'–'.join(ends)}"
    name += f", {clean(its[0]['device'], 16)}" if several and len(its) == 1 else ""
    parts = [
        Part(
            kind,
            mean[kind],
            f"{_SAID[kind]} {duration(round(mean[kind]))}, {percent(mean[kind], span)}",
        )
        for kind in _PARTS
    ]
    exposed = mean["transfer"] + mean["wait"]
    value = f"{percent(exposed, span)} exposed"
    return Bar(name, parts, value if exposed + mean["hidden"] else "no communication")


def _has(bar: Bar, kind: str) -> bool:
    return any(part.kind == kind and part.length for part in bar.parts)


_SAID = {
    "compute": "compute",
    "hidden": "communication under compute",
    "transfer": "exposed transfer",
    "wait": "exposed waiting",
    "copy": "copy alone",
    "idle": "idle",
}


def _lengths(row: dict[str, Any]) -> dict[str, int]:
    """The disjoint parts of a device's span."""
    hidden, exposed = row["overlapped_communication_ns"], row["exposed_communication_ns"]
    wait = min(row["exposed_wait_ns"], exposed)
    compute, idle = row["compute_ns"], row["idle_ns"]
    return {
        "compute": compute - hidden,
        "hidden": hidden,
        "transfer": exposed - wait,
        "wait": wait,
        "copy": row["span_ns"] - compute - exposed - idle,
        "idle": idle,
    }


def _by_dimension(run: Measures) -> Markup | None:
    each = _sums(dimensions(run).dicts())
    if not each:
        return None
    present = max(len(run.rows("ranks")), 1)
    steps = step_count(run)
    drawn = [_dimension(row, present * steps) for row in each[:_MOST_DIMENSIONS]]
    longest = max(sum(part.length for part in bar.parts) for bar in drawn)
    hint = "A rank's mean, in a step." if steps > 1 else "A rank's mean, in all."
    if len(each) > _MOST_DIMENSIONS:
        hint += f" {counted(len(each) - _MOST_DIMENSIONS, 'row')} with less are not shown."
    return tag(
        "figure",
        tag("figcaption", "Communication by dimension and operation"),
        legend(("transfer", "wait")),
        bars(drawn, longest, "communication by dimension"),
        tag("p", f"{hint} What is hidden under compute counts, too.", class_="hint"),
    )


def _sums(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each operation took in each dimension, the costliest first; unknown waits are none."""
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in table:
        dimension, op = row["dimension"] or "", row["op"]
        nothing = {"dimension": dimension, "op": op, "duration_ns_total": 0, "wait_ns_total": None}
        its = found.setdefault((dimension, op), nothing)
        its["duration_ns_total"] += row["duration_ns_total"]
        if row["wait_ns_total"] is not None:
            its["wait_ns_total"] = (its["wait_ns_total"] or 0) + row["wait_ns_total"]
    return sorted(
        found.values(),
        key=lambda its: (-its["duration_ns_total"], its["dimension"], its["op"] is None, its["op"]),
    )


def _dimension(row: dict[str, Any], shares: int) -> Bar:
    total = row["duration_ns_total"] / shares
    wait = min(row["wait_ns_total"] or 0, row["duration_ns_total"]) / shares
    op = clean(row["op"], 24) if row["op"] else "unknown operation"
    name = f"{clean(row['dimension'], 24)} {op}".strip()
    parts = [
        Part("transfer", total - wait, f"transfer {duration(round(total - wait))}"),
        Part("wait", wait, f"waiting {duration(round(wait))}"),
    ]
    known = row["wait_ns_total"] is not None
    waiting = f"{percent(wait, total)} waiting" if known else "waiting unknown"
    return Bar(name, parts, f"{duration(round(total))}, {waiting}")


def _critical(run: Measures) -> Markup | None:
    """The path as one bar, and whose time it is; nothing where it is not known for sure."""
    if critical_path.sentence(run) is None:
        return None
    path = path_of(run)
    assert path is not None
    time_ns, kind_of = path.ints("time_ns"), path.coded("kind")
    steps, whole = distinct(path.ints("step")).size, int(time_ns.sum())
    kinds = [kind for kind in KINDS if time_ns[kind_of.being(kind)].any()]
    parts = list(_pieces(path, kinds, whole))
    total = duration(round(whole / steps))
    bar = Bar("critical path", parts, total)
    ranks, number = np.unique(path.ints("rank"), return_inverse=True)
    by_rank = sums(number, time_ns, ranks.size)
    longest = np.argsort(-by_rank, kind="stable")[:_MOST_RANKS].tolist()
    of_ranks = ", ".join(f"rank {ranks[at]} {percent(int(by_rank[at]), whole)}" for at in longest)
    shares = critical_path.of_run(path, run)
    return tag(
        "figure",
        tag("figcaption", f"The critical path of a {part_of_time(run)}"),
        legend(kinds),
        bars([bar], whole, "the critical path"),
        tag("p", f"{shares}. On it are {of_ranks}.", class_="hint"),
    )


def _pieces(path: Rows, kinds: list[str], whole: int) -> Iterator[Part]:
    """Each kind, and within transfers each operation, the longest first."""
    for kind in kinds:
        mine = path.take(path.coded("kind").being(kind))
        by_op: Counter[str] = Counter()
        for op, time in zip(mine.coded("op").decoded(), mine.ints("time_ns").tolist(), strict=True):
            by_op[op or ""] += time
        for op, time in sorted(by_op.items(), key=lambda its: (-its[1], its[0])):
            what = f"{kind} {clean(op, 24)}".strip()
            yield Part(kind, float(time), f"{what} {percent(time, whole)}")
