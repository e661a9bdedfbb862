"""What edits of a run would save, for people and for machines; without edits, what to edit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from commtrace.analysis import Summary
from commtrace.causal.critical_path import CRITICAL_PATH, path_with
from commtrace.causal.edit_names import EDITS
from commtrace.causal.efficiency import EFFICIENCY, SLOWDOWN, efficiency, slowdown
from commtrace.causal.run.replayable import replayable
from commtrace.causal.whatif import EDITED, Edited, WhatIf
from commtrace.metrics.run.unrecorded_steps import slowed
from commtrace.reports import Look
from commtrace.reports.content import critical_path, what_ran
from commtrace.reports.content.tables import Section, more
from commtrace.reports.json_document import document, one_object, run_fields, run_schema
from commtrace.reports.json_schema import Json, columns, field, rows_of
from commtrace.reports.page import Page, page, say, table, title, written
from commtrace.units import NOTHING, clean, duration, ms, numbered, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SCHEMA_VERSION", "Replayed", "as_json", "as_text", "schema"]

SCHEMA_VERSION = 1
_ANY = Look()
_SHOWN = 12


@dataclass(frozen=True)
class Replayed:
    """What a report shows: what ran, its measures, the edits and what they save."""

    run: Summary
    measures: Measures
    whatif: WhatIf


def as_text(replayed: Replayed, look: Look = _ANY) -> str:
    """For a terminal: a table of the edits, a sentence each, and the new critical path."""
    console, answer = page(look), replayed.whatif
    holds = replayable(replayed.measures)
    say(console, clean(replayed.run.name), style="bold")
    say(console, what_ran(replayed.run))
    path = critical_path.sentence(replayed.measures) or critical_path.lacking(replayed.measures)
    if path:
        say(console, path)
    if missing := replayed.run.missing_ranks:
        say(
            console,
            f"No trace file for {numbered('rank', missing)}: the others wait for them as measured, "
            "and savings are bounds.",
        )
    if answer.edits:
        table(console, _edits(answer))
        for edited in answer.edits:
            say(console, _sentence(edited, answer), "- ", "  ")
        for note in slowed(replayed.measures):
            say(console, f"All are of recorded steps: {note.message}.")
    elif holds and len(replayed.measures.rows("ranks")) > 1:
        table(console, _slowdown(replayed.measures))
        table(console, _efficiency(replayed.measures))
    if holds:
        _show_path(console, replayed)
    if not answer.edits:
        title(console, "Edits")
        for edit, meaning in EDITS.items():
            say(console, f"{edit}: {meaning}", "  ", "    ")
    return written(console)


def _show_path(console: Page, replayed: Replayed) -> None:
    answer, run = replayed.whatif, replayed.measures
    path = path_with(run, answer.lags_ns[-1])
    of = "of a step, in the mean" if answer.steps else "of the run"
    after = ", with these edits" if len(answer.lags_ns) > 1 else ""
    table(console, critical_path.section(path, f"Critical path {of}{after}", answer.steps or 1))
    if len(answer.lags_ns) > 1:
        say(console, f"In all: {critical_path.shares(path, run)}.", style="dim")


def as_json(replayed: Replayed) -> str:
    """One JSON object, as ``schema`` describes it."""
    answer, run = replayed.whatif, replayed.measures
    found = {
        "run": run_fields(replayed.run),
        "run_ns": answer.run_ns,
        "step_ns": answer.step_ns,
        "edits": [asdict(edited) for edited in answer.edits],
        "critical_path": path_with(run, answer.lags_ns[-1]).dicts(),
        "slowdown": slowdown(run).dicts(),
        "efficiency": efficiency(run).dicts(),
    }
    return one_object(SCHEMA_VERSION, found)


def schema() -> Json:
    """The JSON Schema of what ``as_json`` returns; ``whatif.schema.json`` holds it as text."""
    return document(
        "whatif",
        SCHEMA_VERSION,
        {
            "run": run_schema(),
            "run_ns": field("integer", "How long the run's steps took in all, as measured.", "ns"),
            "step_ns": field("integer", "The median step, as measured.", "ns"),
            "edits": rows_of(EDITED.row, columns(EDITED)),
            "critical_path": rows_of(
                f"with all edits, {CRITICAL_PATH.row}", columns(CRITICAL_PATH)
            ),
            "slowdown": rows_of(f"as measured, {SLOWDOWN.row}", columns(SLOWDOWN)),
            "efficiency": rows_of(f"as measured, {EFFICIENCY.row}", columns(EFFICIENCY)),
        },
    )


def _edits(answer: WhatIf) -> Section:
    whole = "step time" if answer.steps else "the run"
    count = answer.steps or 1
    cells = [["as measured", NOTHING, NOTHING, NOTHING, duration(answer.step_ns)]]
    for its in answer.edits:
        if its.saved_ns is None or its.alone_ns is None:
            cells.append([clean(its.edit, 40), "refused", NOTHING, NOTHING, NOTHING])
            continue
        cells.append(
            [
                clean(its.edit, 40),
                _signed(its.saved_ns / count),
                _share(its.saved_ns, answer),
                _signed(its.alone_ns / count),
                duration(its.step_ns),
            ]
        )
    each = "Saved per step, " if answer.steps else "Saved in all, "
    parts = "" if answer.steps else " Without steps: the run in ten parts."
    return Section(
        "What if",
        (
            ("edit", "<"),
            ("saves", ">"),
            (f"of {whole}", ">"),
            ("alone", ">"),
            ("median\nstep" if answer.steps else "median\npart", ">"),
        ),
        cells,
        (f"{each}on top of the edits above; alone: without these.{parts}",),
    )


def _sentence(its: Edited, answer: WhatIf) -> str:
    """An edit and what it saves."""
    if its.saved_ns is None:
        return f"{clean(its.edit)} was refused: {clean(its.refused, 400)}"
    saves = "saves" if its.saved_ns >= 0 else "costs"
    total = abs(its.saved_ns)
    if 1000 * total < answer.run_ns:
        return f"{clean(its.edit)} saves nothing"
    share = percent(total, answer.run_ns)
    if not answer.steps:
        return f"{clean(its.edit)} {saves} {ms(total)} ({share} of the run)"
    return (
        f"{clean(its.edit)} {saves} {ms(total / answer.steps)} per step ({share} of step time), "
        f"{ms(total)} in all"
    )


def _slowdown(run: Measures) -> Section:
    """Of the run, and of what slows it most."""
    whole, *parts = slowdown(run).dicts()
    if sum(row["by"] == "host" for row in parts) == 1:
        parts = [row for row in parts if row["by"] != "host"]
    parts.sort(key=lambda row: -(row["slowdown"] or 0))
    names = {"run": "the run", "rank": "rank {rank}", "host": "host {host}"}
    names |= {"stage": "stage {stage}", "op": "{op}"}
    footer = (
        "The run's time over its time if all ranks did each segment in their mean time; of a rank, "
        "host or stage: if all others did. Of an operation: over its time if its transfers took "
        "their median."
    )
    return Section(
        "Slowdown by uneven work",
        (("of", "<"), ("times", ">")),
        [
            [
                clean(names[row["by"]].format(**row), 40),
                NOTHING if row["slowdown"] is None else f"{row['slowdown']:.3f}",
            ]
            for row in (whole, *parts[:_SHOWN])
        ],
        (*more(len(parts), _SHOWN), footer),
    )


def _efficiency(run: Measures) -> Section:
    (row,) = efficiency(run).dicts()
    return Section(
        "Efficiency",
        (("part", "<"), ("share", ">"), ("is", "<")),
        [
            [column.name.replace("_", " "), percent(row[column.name], 1), column.about.rstrip(".")]
            for column in EFFICIENCY.columns
        ],
        drop=("is",),
    )


def _share(time_ns: int, answer: WhatIf) -> str:
    sign = "-" if time_ns < 0 else ""
    return sign + percent(abs(time_ns), answer.run_ns)


def _signed(time_ns: float) -> str:
    sign = "-" if time_ns < 0 else ""
    return sign + duration(round(abs(time_ns)))
