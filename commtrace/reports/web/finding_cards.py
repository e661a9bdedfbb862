"""The verdict: every finding with its evidence, what was ruled out, advice, and its replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commtrace.causal.steps import path_of
from commtrace.metrics.run.whole import part_of_time
from commtrace.reports import content
from commtrace.reports.content import findings
from commtrace.reports.content.critical_path import median_step_ns
from commtrace.reports.content.open_command import open_command_shown, range_in_run
from commtrace.reports.content.saving import unrecorded_step_ns
from commtrace.reports.web.bars import Bar, Part, bars
from commtrace.reports.web.markup import Markup, listed, tag
from commtrace.units import clean, counted, duration, ms, numbered, percent, rate, size

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Evidence, Finding

__all__ = ["finding_cards"]

_SHOWN = 24


def finding_cards(analysis: Analysis) -> Markup:
    """All faults that no other explains, greatest saving first; without any, why there is none.

    Below them what was looked at and found too little.
    """
    families = findings.faults(analysis.verdict)
    cards = [
        _card(number, cause, symptoms, analysis)
        for number, (cause, *symptoms) in enumerate(families[:_SHOWN], 1)
    ]
    if not families:
        cards = [tag("p", line, class_="verdict") for line in content.verdict(analysis)]
    hidden = len(families) - _SHOWN
    little, _ = content.unfound(analysis)
    rest = f"{counted(hidden, 'more finding')}: see --format json." if hidden > 0 else None
    return tag(
        "div",
        *cards,
        *(tag("p", line, class_="good") for line in findings.good_news(analysis.verdict)),
        tag("p", rest) if rest else None,
        listed(*little),
    )


def _card(number: int, cause: Finding, symptoms: list[Finding], analysis: Analysis) -> Markup:
    text = findings.text_of(cause, symptoms, analysis.verdict)
    related = [line for line in text.lines if line.startswith("related: ")]
    return tag(
        "article",
        tag("h3", tag("span", str(number), class_="badge"), text.summary),
        _saving(text.lines[0], cause),
        *(tag("p", line) for line in findings.called_at(cause)),
        tag("p", clean(cause.advice, findings.ADVICE), class_="advice"),
        tag(
            "div",
            _block("Evidence", _evidence(cause)),
            _block("Replayed without it", _replay(cause, analysis)),
            _block("Ruled out", _ruled_out(cause)),
            class_="blocks",
        ),
        tag("p", *(tag("span", fact) for fact in (*_facts(cause), *related)), class_="meta"),
        tag(
            "p",
            tag(
                "button",
                "Show in the timeline",
                type="button",
                class_="needs-timeline",
                data_start=str(cause.start_ns),
                data_end=str(cause.end_ns),
                data_label=f"finding {number}",
            ),
            f" {range_in_run(analysis, cause)}, in Perfetto: ",
            tag("code", open_command_shown(analysis, number)),
        ),
        class_="finding",
        id=f"finding-{number}",
    )


def _saving(line: str, cause: Finding) -> Markup | None:
    return tag("p", line, class_="saving") if cause.cost_ns else None


def _block(title: str, inner: Markup | None) -> Markup | None:
    return None if inner is None else tag("div", tag("h4", title), inner)


def _facts(cause: Finding) -> Iterator[str]:
    if cause.ranks:
        yield clean(numbered("rank", cause.ranks), 80)
    if cause.place:
        where = "" if cause.place.startswith("before ") else "in "
        yield f"{where}{clean(cause.place, 80)}"
    if cause.cause:
        yield f"cause: {clean(cause.cause, 40)}"
    yield f"{cause.confidence} confidence"
    yield f"commtrace explain {cause.rule}"


def _evidence(cause: Finding) -> Markup | None:
    """Numbers of one unit on one scale, a tick where the threshold is."""
    if not cause.evidence:
        return None
    charts = []
    for unit in dict.fromkeys(one.unit for one in cause.evidence):
        alike = [one for one in cause.evidence if one.unit == unit]
        most = max(abs(value) for one in alike for value in (one.value, one.threshold or 0))
        comparable = len(alike) > 1 or alike[0].threshold is not None
        charts.append(bars([_number(one, comparable) for one in alike], most, "evidence"))
    marked = any(one.threshold is not None for one in cause.evidence)
    hint = tag("p", "tick: what it was held against", class_="hint") if marked else None
    return tag("div", *charts, hint)


def _number(one: Evidence, comparable: bool) -> Bar:
    """A bar only where there is something to compare it with."""
    shown = _shown(one.value, one.unit)
    parts = [Part("evidence", abs(one.value), shown)] if comparable else []
    return Bar(clean(one.name, 120), parts, shown, one.threshold)


def _shown(value: float, unit: str) -> str:
    if unit == "ns":
        return ms(value) if value < 0 else duration(round(value))
    if unit == "bytes":
        return size(round(value))
    if unit == "GB/s":
        return f"{rate(value)} GB/s"
    if unit == "probability":
        return f"{value:.2g}"
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return digits if unit == "ratio" else f"{digits}{' ' * (unit != 'x')}{clean(unit, 24)}"


def _replay(cause: Finding, analysis: Analysis) -> Markup | None:
    """The median step, measured or as it is unrecorded, and replayed without the fault.

    Of a run without steps its tenths.
    """
    path = path_of(analysis.measures) if cause.replayed_step_ns is not None else None
    if cause.replayed_step_ns is None or path is None or not len(path):
        return None
    unrecorded_ns = unrecorded_step_ns(cause)
    step_ns = median_step_ns(path) if unrecorded_ns is None else unrecorded_ns
    which = "measured" if unrecorded_ns is None else "unrecorded"
    part = f"median {part_of_time(analysis.measures)}"
    less = percent(step_ns - cause.replayed_step_ns, step_ns)
    rows = [
        Bar(name, [Part(kind, time, ms(time))], ms(time))
        for name, kind, time in (
            (f"{part}, {which}", "measured", step_ns),
            (f"{part} without it", "evidence", float(cause.replayed_step_ns)),
        )
    ]
    on_top = cause.cost_on_top_ns
    further = (
        f"With the other ranks mended that delay the run it saves {ms(on_top)} in all."
        if on_top is not None and on_top != cause.cost_ns
        else None
    )
    return tag(
        "div",
        bars(rows, max(step_ns, float(cause.replayed_step_ns)), "replay"),
        tag("p", f"It saves {less} of the {part}. ", further, class_="hint"),
    )


def _ruled_out(cause: Finding) -> Markup | None:
    lines = [tag("li", clean(line, 300)) for line in cause.ruled_out]
    return tag("ul", *lines) if lines else None
