"""The main thing comes first: the costliest finding, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from commtrace.analysis import Analysis, Question
from commtrace.diagnosis import LOOKED, Diagnosis, Finding, Note
from commtrace.reports import content
from commtrace.reports.content.unfound import CONCERNS
from commtrace.reports.formats import html
from commtrace.rules import RULES
from commtrace.run import Run
from commtrace.synthetic import Tiny

FINDING = Finding(
    rule="straggler",
    summary="rank 5 is last in 38 of 40 collectives, by 12 ms: 60 ms of waiting; only 4 of 8 ranks "
    "were compared",
    ranks=(5,),
    streams=(),
    start_ns=0,
    end_ns=10**12,
    cost_ns=30_000,
    evidence=(),
    ruled_out=(),
    advice="look at its data loader; then (if it has time for that; not before) at its clocks, or "
    "at its disk; and then at ours",
    confidence="high",
)


def analysed(run: Tiny, *findings: Finding, **skipped: str) -> Analysis:
    analysis = Run(run.trace(), "run").analysis(select=["desync"])
    diagnosis = Diagnosis(findings, skipped)
    return replace(analysis, verdict=replace(analysis.verdict, diagnosis=diagnosis))


def one_rank(compute_us: float, *, at_us: float, exposed_from: float = 0) -> Tiny:
    """Communication for 1 ms, and compute at some time."""
    run = Tiny(ranks=1)
    run.collective(0, "all_reduce", exposed_from, 1_000, size=4_000_000)
    if compute_us:
        run.kernel(0, at_us, compute_us)
    return run


BOTH = one_rank(1_000, at_us=1_000)
BEHIND = "to hide its 1.00 ms of exposed communication behind."
LEFT = (
    "to hide its 700 µs of exposed communication behind: other communication runs beside the rest, "
    "300 µs."
)


def test_the_costliest_finding_in_two_lines() -> None:
    symptom = replace(FINDING, rule="host-late", explained_by="straggler")
    lines = content.verdict(analysed(BOTH, FINDING, symptom, replace(FINDING, cost_ns=10_000)))
    cure = (
        "look at its data loader; then (if it has time for that; not before) at its clocks, or "
        "at its disk"
    )
    assert lines == [
        "Finding 1 of 2: rank 5 is last in 38 of 40 collectives, by 12 ms: 60 ms of waiting",
        f"Potential saving: up to 30 µs in all (2 % of the run) → {cure}",
    ]


def test_a_finding_without_a_cost_has_its_advice() -> None:
    free = replace(FINDING, cost_ns=0, advice="record again")
    assert content.verdict(analysed(BOTH, free))[1:] == ["→ record again"]


def test_what_the_answer_said_is_not_said_again() -> None:
    asked = Question("Who is late?", "", ())
    lines = content.verdict(replace(analysed(BOTH, FINDING), question=asked))
    assert lines[0] == "Finding: the answer above."


@pytest.mark.parametrize(
    ("run", "skipped", "why"),
    [
        (one_rank(100_000, at_us=1_000), {}, ""),  # 1 % is exposed
        (
            one_rank(1_000, at_us=1_000),
            {"exposed-communication": "no steps"},
            " exposed-communication was not checked: no steps.",
        ),
        (
            one_rank(100, at_us=1_000),
            {},
            f" Rank 0 has only 100 µs of compute {BEHIND}",
        ),
        (
            one_rank(0, at_us=0),
            {},
            f" Rank 0 has no compute {BEHIND}",
        ),
        (
            one_rank(320, at_us=700),
            {},
            f" Rank 0 has only 20.0 µs of compute left {LEFT}",
        ),
        (
            one_rank(990, at_us=-150),
            {},
            " Of rank 0's communication 84 % is hidden already.",
        ),
        (
            one_rank(1_000, at_us=1_000),
            {},
            " exposed-communication was not selected.",
        ),
    ],
)
def test_exposed_communication_is_never_nothing_without_a_reason(
    run: Tiny, skipped: dict[str, str], why: str
) -> None:
    assert content.verdict(analysed(run, **skipped)) == [f"No findings.{why}"]


def test_a_rule_that_was_asked_and_found_nothing_is_not_said_to_be_left_out() -> None:
    never = {"exposed-communication": {"min_step_share": 2.0, "large_step_share": 2.0}}
    analysis = Run(BOTH.trace(), "run").analysis(select=["exposed-communication"], thresholds=never)
    assert content.verdict(analysis) == [
        "No findings. exposed-communication was checked, and stays below its thresholds."
    ]


def not_checked(run: Tiny, skipped: dict[str, str]) -> list[str]:
    (_, little), (title, lines) = content.unfound(analysed(run, **skipped))
    assert (title, little) == ("Not checked", [])
    return lines


def test_what_was_looked_at_in_vain_was_checked() -> None:
    lacks = {"straggler": "2 operations, needs 10"}
    skipped = {"exposed-communication": f"{LOOKED}hiding saves too little", **lacks}
    analysis = analysed(BOTH, **skipped)
    checked, unchecked = content.unfound(analysis)
    little = ["exposed-communication: hiding saves too little"]
    assert checked == ("Checked, with little to save", little)
    assert unchecked == ("Not checked", ["straggler: 2 operations, needs 10"])
    page = html.render(analysis)
    places = [f">{text}" for text in ("No findings.", checked[0], "Timeline</h2>", unchecked[0])]
    assert places == sorted(places, key=page.index)


def test_rules_that_lack_data_are_named_by_what_they_lack() -> None:
    two = Tiny(ranks=2)
    for rank in (0, 1):
        two.collective(rank, "broadcast", 0, 1_000, size=4_000_000)
    skipped = {
        "straggler": "2 operations, needs 10",
        "jitter": "2 operations, needs 10",
        "late-root": "no root is known",
        "late-sender": "0 sends",
        "pageable-copy": "no copies",
    }
    assert not_checked(two, skipped) == [
        "jitter, straggler: 2 operations, needs 10",
        "late-root: no root is known",
        "2 rules do not apply to what ran: see --format json.",
    ]
    assert not_checked(two, {"late-sender": "0 sends"}) == [
        "1 rule does not apply to what ran: see --format json."
    ]
    assert not_checked(two, {}) == []


def test_rules_of_gpus_concern_no_cpu() -> None:
    skipped = {"launch-gap": "nothing ran on a GPU"}
    (named,) = not_checked(Tiny(backend="nccl"), skipped)
    assert named == "launch-gap: nothing ran on a GPU"
    (counted,) = not_checked(Tiny(backend="gloo"), skipped)
    assert counted.startswith("1 rule does not apply")


def test_what_rules_concern_is_said_of_rules_that_there_are() -> None:
    assert CONCERNS.keys() <= RULES.keys()


def test_that_the_recording_failed_stands_above_what_is_found() -> None:
    analysis = analysed(BOTH)
    failed = Note("failed-recording", "the recording failed: rank 1: ValueError:\nboom.")
    said = content.headline(replace(analysis, notes=(failed,)))
    assert "The recording failed: rank 1: ValueError: boom." in said


@pytest.mark.parametrize(("behind_us", "said"), [(40, True), (90, False)])
def test_that_recording_slowed_steps_by_far_stands_above_what_is_found(
    behind_us: int, said: bool
) -> None:
    run = Tiny(2, backend="gloo")
    for rank, step in product(range(2), range(4)):
        run.step(rank, step, 100 * step, 100)
        run.collective(rank, "all_reduce", 100 * step + 50, 50, size=1 << 20)
    run.manifest = {
        "ranks": [{"rank": rank, "unrecorded_steps_ns": [1_000 * behind_us] * 9} for rank in (0, 1)]
    }
    told = [line for line in content.headline(analysed(run)) if "Recording made" in line]
    assert told == said * [
        "Recording made steps 2.5 times as long: what takes long here may be that; see the notes."
    ]
