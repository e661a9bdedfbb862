"""What the reports say of findings, whatever stands in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt

from commtrace.analysis import Analysis
from commtrace.diagnosis import Diagnosis, Evidence, Finding, Verdict
from commtrace.measures import Measures
from commtrace.reports import Look, notebook
from commtrace.reports.content.findings import closing, texts
from commtrace.reports.content.saving import saving
from commtrace.reports.formats import json as json_report
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.rules import RULES, explanation
from commtrace.run import Run

Make = Callable[..., Measures]

VALIDATOR = jsonschema.Draft202012Validator(json_report.schema())
MS = 1_000_000
FINDING = Finding(
    rule="straggler",
    summary="rank 5 is last in 38 of 40 steps",
    ranks=(5,),
    streams=(),
    start_ns=0,
    end_ns=1,
    cost_ns=11 * MS,
    evidence=(Evidence("steps", 38, "steps", 4),),
    ruled_out=(),
    advice="look at its data loader",
    confidence="high",
)
SYMPTOM = replace(FINDING, rule="host-late", explained_by="straggler")
GOOD = replace(FINDING, rule="at-the-roofline", summary="all is fast", cost_ns=0)


def verdict(*findings: Finding, **skipped: str) -> Verdict:
    return Verdict(Diagnosis(findings, skipped), 100 * MS, frozenset({"at-the-roofline"}))


def reported(make_trace: Make, judged: Verdict) -> Analysis:
    return replace(Run(make_trace(), "run").analysis(select=["straggler"]), verdict=judged)


@pytest.mark.parametrize(
    ("end_ns", "weighed", "said"),
    [
        (100 * MS, {"steps": 4}, "2.75 ms per step (11 % of step time), 11 ms in all"),
        (25 * MS, {"steps": 4}, "11 ms in all (11 % of step time)"),  # within one step
        (100 * MS, {"steps": 1}, "11 ms in all (11 % of step time)"),
        (100 * MS, {"in_steps": False}, "11 ms in all (11 % of the run)"),
    ],
)
def test_a_saving_is_said_per_step_and_in_all(end_ns: int, weighed: Any, said: str) -> None:
    found = replace(FINDING, end_ns=end_ns)
    judged = replace(verdict(found), **weighed)
    assert saving(found, judged) == f"potential saving: up to {said}"
    assert texts(judged)[0].lines[0] == saving(found, judged)


@pytest.mark.parametrize(
    ("cost_ns", "on_top_ns", "said"),
    [
        (0, 40_000_000, "none before what delays the run more is mended, then up to 40 ms in all"),
        (3_000_000, 40_000_000, "next to none before what delays the run more is mended, then up"),
        (5_000_000, 40_000_000, "up to 5 ms"),
    ],
)
def test_what_hides_behind_others_saves_when_these_are_mended(
    cost_ns: int, on_top_ns: int, said: str
) -> None:
    its = replace(FINDING, cost_ns=cost_ns, cost_on_top_ns=on_top_ns)
    assert (saving(its, verdict()) or "").startswith(f"potential saving: {said}")


def test_what_has_no_cost_promises_no_saving() -> None:
    assert saving(replace(FINDING, cost_ns=0), verdict()) is None


def test_a_finding_its_cost_its_cure_and_its_symptoms(make_trace: Make) -> None:
    other = replace(FINDING, rule="desync", summary="ranks disagree", cost_ns=0, confidence="low")
    late = replace(SYMPTOM, rule="device-late", summary=f"late on the device, {FINDING.summary}")
    same = replace(SYMPTOM, rule="jitter", summary=FINDING.summary)
    judged = verdict(FINDING, SYMPTOM, SYMPTOM, same, late, other, GOOD)
    shown = terminal.render(reported(make_trace, judged), Look(width=80))
    assert shown[shown.index("Findings") :].splitlines() == [
        "Findings",
        "1. rank 5 is last in 38 of 40 steps",
        "   potential saving: up to 11 ms in all (11 % of step time)",
        "   high confidence · straggler",
        "   → look at its data loader",
        "   related: host-late (2×), jitter, device-late (late on the device)",
        "",
        "2. ranks disagree",
        "   low confidence · desync",
        "   → look at its data loader",
        "",
        "Good news: all is fast (at-the-roofline)",
    ]
    assert shown.splitlines()[-1] in markdown.render(reported(make_trace, judged))
    assert "related: host-late" in notebook.render(reported(make_trace, judged))
    assert judged.faults == judged.diagnosis.findings[:-1]


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (verdict(), []),
        (verdict(GOOD), ["Good news: all is fast (at-the-roofline)"]),
        (verdict(*[FINDING] * 13), ["3 more are not shown."]),
    ],
)
def test_what_else_there_is_to_say(judged: Verdict, said: list[str]) -> None:
    assert list(closing(judged)) == said


@pytest.mark.parametrize(
    "text",
    ["\x1b[2Ja", "[red]a[/red]", "a|b\n# c", "`a` **b** <b>c</b>", "[a](http://b)", "1. a", "- a"],
)
def test_a_findings_text_is_no_markup(make_trace: Make, text: str) -> None:
    judged = verdict(replace(FINDING, summary=text, advice=text))
    analysis = reported(make_trace, judged)
    shown = terminal.render(analysis, Look(width=200))
    assert all(c.isprintable() for c in shown.replace("\n", ""))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render(analysis))
    inline = [child.type for token in tokens for child in token.children or ()]
    assert set(inline) <= {"text", "text_special", "softbreak", "code_inline"}
    assert inline.count("code_inline") == 1  # the command that opens it
    kinds = [token.type for token in tokens]
    assert (kinds.count("ordered_list_open"), kinds.count("bullet_list_open")) == (1, 1)
    assert "<b>c" not in notebook.render(analysis)


@pytest.mark.parametrize("name", RULES)
def test_every_rules_finding_fits_the_schema_and_the_screen(name: str) -> None:
    analysis = Run(RULES[name].bad(), name).analysis(select=[name])
    document = json.loads(json_report.render(analysis))
    VALIDATOR.validate(document)
    assert document["findings"][0]["rule"] == name
    look = Look(width=80)
    for shown in (terminal.render(analysis, look), terminal.explain(explanation(name), look)):
        assert max(map(len, shown.splitlines())) <= 80


def test_an_explanation_has_it_all() -> None:
    shown = terminal.explain(explanation("straggler"), Look(width=80))
    parts = (
        "What it detects",
        "Blind spots",
        "--threshold straggler.min_step_share=0.05",
        "Example:",
    )
    assert [part for part in parts if part not in shown] == []
    assert "1. rank 1 delays every step by 4 ms" in shown
    assert "``" not in shown
    assert "`min_step_share`" in markdown.explain(explanation("straggler"))
