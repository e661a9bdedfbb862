"""Who sends how much to whom, and how fast: between ranks, and between devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commtrace.metrics.rank.copies import copies
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.pair_traffic import ROUTED, pair_traffic
from commtrace.reports.web.blocks import blocks
from commtrace.reports.web.cells import Cell, cells
from commtrace.reports.web.markup import Markup, tag
from commtrace.units import clean, counted, mb, rate

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.measures import Measures

__all__ = ["matrices"]

_MOST = 48  # rows and columns
_HOSTS = 4
_Pair = tuple[str, str]


@dataclass(frozen=True)
class _Sent:
    """What one end sent to the other: bytes, and GB/s if known."""

    size: int
    gb_s: float | None


def matrices(analysis: Analysis) -> Markup | None:
    """The matrices of ranks and of devices, where anything is known to be sent."""
    figures = [*_ranks(analysis), *_devices(analysis.measures)]
    if not figures:
        return None
    hidden = _unrouted(analysis.measures)
    hint = (
        f"Not in it: {hidden}. Which ranks they send to is up to the algorithm, and not in a trace."
        if hidden
        else None
    )
    return tag("div", *figures, tag("p", hint, class_="hint") if hint else None)


def _ranks(analysis: Analysis) -> Iterator[Markup]:
    table = pair_traffic(analysis.measures).dicts()
    if not table:
        return
    parts = list(blocks(analysis.run.ranks, _MOST))
    names = [f"{its[0]}–{its[-1]}" if len(its) > 1 else str(its[0]) for its in parts]
    at = {rank: name for name, its in zip(names, parts, strict=True) for rank in its}
    others = sorted({row[end] for row in table for end in ("source", "destination")} - at.keys())
    at |= {rank: str(rank) for rank in others[: max(_MOST - len(names), 0)]}
    sent: dict[_Pair, list[_Sent]] = {}
    for row in table:
        if row["source"] in at and row["destination"] in at:
            pair = at[row["source"]], at[row["destination"]]
            sent.setdefault(pair, []).append(_Sent(row["bytes"], row["gb_s"]))
    ends = list(dict.fromkeys(at.values()))
    yield from _both("From rank to rank", "rank ", ends, _together(sent))


def _devices(run: Measures) -> Iterator[Markup]:
    host_of = hosts(run)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for row in copies(run).dicts():
        by_host.setdefault(host_of.get(row["rank"], ""), []).append(row)
    for host in sorted(by_host)[:_HOSTS]:
        sent: dict[_Pair, list[_Sent]] = {}
        for row in by_host[host]:
            if row["source"] and row["destination"] and row["bytes"]:
                pair = clean(row["source"], 12), clean(row["destination"], 12)
                sent.setdefault(pair, []).append(_Sent(row["bytes"], row["gb_s_busy"]))
        ends = sorted({end for pair in sent for end in pair}, key=lambda end: (len(end), end))
        title = "Copies from device to device"
        title += f" of host {clean(host, 40)}" if len(set(host_of.values())) > 1 else ""
        if sent:
            yield from _both(title, "", ends[:_MOST], _together(sent))


def _together(sent: Mapping[_Pair, Sequence[_Sent]]) -> dict[_Pair, _Sent]:
    """Bytes added; bandwidths weighted with their bytes."""
    every = {}
    for pair, its in sent.items():
        timed = [one for one in its if one.gb_s]
        time = sum(one.size / one.gb_s for one in timed if one.gb_s)
        speed = sum(one.size for one in timed) / time if time else None
        every[pair] = _Sent(sum(one.size for one in its), speed)
    return every


def _both(
    title: str, prefix: str, ends: Sequence[str], sent: Mapping[_Pair, _Sent]
) -> Iterator[Markup]:
    drawn = [_grid("bytes", prefix, ends, {p: float(s.size) for p, s in sent.items()}, mb)]
    speeds = {pair: one.gb_s for pair, one in sent.items() if one.gb_s}
    if speeds:
        drawn.append(_grid("GB/s", prefix, ends, speeds, lambda v: f"{rate(v)} GB/s"))
    yield tag("figure", tag("figcaption", title), tag("div", *drawn, class_="side-by-side"))


def _grid(
    what: str,
    prefix: str,
    ends: Sequence[str],
    values: Mapping[_Pair, float],
    shown: Callable[[float], str],
) -> Markup:
    found = [
        Cell(
            ends.index(source),
            ends.index(destination),
            value,
            f"{prefix}{source} → {prefix}{destination}: {shown(value)}",
            shown(value).removesuffix(" GB/s"),
        )
        for (source, destination), value in values.items()
        if source in ends and destination in ends
    ]
    return tag(
        "div",
        tag("h4", f"{what}, from row to column"),
        cells(found, ends, ends, ramp="blue", label=f"{what} from row to column", texts=True),
    )


def _unrouted(run: Measures) -> str:
    ops = run.rows("collectives").coded("op")
    hidden = ops.take(ops.where(lambda op: op not in (*ROUTED, "barrier")))
    names = sorted(hidden.occurring())
    return f"{', '.join(names)} ({counted(len(hidden), 'call')})" if names else ""
