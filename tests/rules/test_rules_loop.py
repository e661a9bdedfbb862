"""What holds for whatever rules are asked: shares, costs, and a rule that breaks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest

from commtrace.diagnosis import LOOKED, Evidence, Finding, Note
from commtrace.measures import Measures
from commtrace.metrics.run.whole import Whole, steps_without_work, whole
from commtrace.reports import Look, notebook
from commtrace.reports.formats import json as as_json
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.rules import RULES, Rule, diagnose
from commtrace.rules import _ask as _diagnose
from commtrace.rules._rule import too
from commtrace.run import Run
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.trace_tables import TABLES
from commtrace.units import ms
from tests.edited import edited


def idle_gpu(step_us: float) -> Measures:
    """200 kernels, one every 30 µs, and a step that is long over."""
    run = Tiny()
    run.step(0, 0, 0, step_us)
    for i in range(200):
        at = 100 + 30 * i
        run.kernel(0, at + 5, 10, launch_ns=BASE_NS + round(1e3 * at))
    return run.trace()


def shares(diagnosis_of: Measures) -> list[Evidence]:
    found = diagnose(diagnosis_of).findings
    return [one for finding in found for one in finding.evidence if "time" in one.name]


@pytest.mark.parametrize("step_us", [0, 0.002, 1, 90])
def test_steps_without_the_work_are_no_measure(step_us: float) -> None:
    trace = idle_gpu(step_us)
    assert whole(trace) == Whole(6_085_000, in_steps=False)
    (share,) = shares(trace)
    assert share.name == "share of the run's time"
    assert 60 < share.value < 70
    analysis = Run(trace, "a.json").analysis()
    (note,) = analysis.notes
    assert note.code == "steps-without-work"
    assert "or commtrace.step() if commtrace records" in note.message
    assert "of the run)" in terminal.render(analysis)
    assert "of the steps" not in terminal.render(analysis)


def test_a_program_is_not_asked_for_the_steps_that_a_broken_file_lost() -> None:
    asked = {
        code: steps_without_work(replace(idle_gpu(90), notes=(Note(code, "why"),)))[0].message
        for code in ("truncated", "rank-assumed")
    }
    assert "what is left of a file" in asked["truncated"]
    assert "prof.step()" not in asked["truncated"]
    assert "prof.step()" in asked["rank-assumed"]


def test_steps_that_hold_the_work_are_the_measure() -> None:
    trace = idle_gpu(6_200)
    assert whole(trace) == Whole(6_200_000, in_steps=True)
    assert shares(trace)[0].name == "share of the steps' time"
    assert not steps_without_work(trace)
    assert not steps_without_work(Tiny().trace())


def test_a_kernel_that_its_step_launched_is_part_of_it() -> None:
    run = Tiny()
    run.step(0, 1, 0, 0.002)
    run.kernel(0, 50, 100, step=1)
    assert whole(run.trace()) == Whole(150_000, in_steps=True)


def test_ranks_of_one_and_of_ten_steps_are_weighed_by_the_longest() -> None:
    run = Tiny(ranks=3)
    for rank, steps in enumerate((1, 1, 10)):
        for step in range(steps):
            run.step(rank, step, 1000 * step, 1000)
            run.kernel(rank, 1000 * step, 900)
    assert whole(run.trace()) == Whole(10_000_000, in_steps=True)


def test_no_time_at_all_is_no_division() -> None:
    run = Tiny()
    run.step(0, 0, 0, 0)
    run.kernel(0, 0, 0)
    assert whole(run.trace()).time_ns == 0
    assert not diagnose(run.trace()).findings
    assert not diagnose(Tiny().trace()).findings


def asked(monkeypatch: pytest.MonkeyPatch, trace: Measures, *made: object) -> None:
    """In the place of launch-gap a rule that yields, and raises, these."""
    original = RULES["launch-gap"]

    def check(_self: Rule, _trace: Measures) -> Iterator[Finding]:
        for one in made:
            if isinstance(one, Exception):
                raise one
            assert isinstance(one, Finding)
            yield one

    assert trace
    monkeypatch.setattr(original, "check", check)


def a_finding(trace: Measures) -> Finding:
    (found,) = diagnose(trace, select=["launch-gap"]).findings
    return found


def test_no_finding_costs_more_than_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = idle_gpu(0)
    asked(monkeypatch, trace, replace(a_finding(trace), cost_ns=10**12))
    (found,) = diagnose(trace, select=["launch-gap"]).findings
    assert found.cost_ns == whole(trace).time_ns


def test_a_rule_that_breaks_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, broken_rules: Callable[[str, Exception], str]
) -> None:
    trace = RULES["straggler"].bad()
    before = diagnose(trace, ignore=["launch-gap"])
    some = replace(before.findings[0], rule="launch-gap")
    asked(monkeypatch, trace, some, ZeroDivisionError("division\nby zero"))
    with pytest.raises(AssertionError, match="launch-gap broke"):
        diagnose(trace)  # in the tests it is no skipped rule
    monkeypatch.setattr(_diagnose, "broken", broken_rules)
    analysis = Run(trace, "a.json").analysis()
    diagnosis = analysis.verdict.diagnosis
    assert diagnosis.findings == before.findings, "what a broken rule found first does not count"
    reason = diagnosis.skipped["launch-gap"]
    assert reason == (
        "error in launch-gap: ZeroDivisionError: division by zero; please report it with the trace"
    )
    assert "broken-rule: launch-gap was not checked" in terminal.render(analysis, Look(width=200))
    for report in (markdown.render(analysis), notebook.render(analysis)):
        assert "ZeroDivisionError" in report
    document = json.loads(as_json.render(analysis))
    assert document["skipped"]["launch-gap"] == reason
    assert [note["code"] for note in document["notes"]] == ["broken-rule"]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 µs"),
        (-1_080_000, "-1.08 ms"),
        (999, "0.999 µs"),
        (99_950, "100 µs"),
        (999_600, "1 ms"),
        (999_600_000, "1 s"),
        (1_234_567_000_000, "1,235 s"),
    ],
)
def test_times_in_sentences(time_ns: int, text: str) -> None:
    assert ms(time_ns) == text


def reason(trace: Measures, rule: str, **thresholds: float) -> str | None:
    diagnosis = diagnose(trace, select=[rule], thresholds={rule: thresholds})
    assert not diagnosis.findings
    return diagnosis.skipped.get(rule)


def launches(gaps: int, every_us: float = 30) -> Measures:
    run = Tiny()
    run.step(0, 0, 0, (gaps + 1) * every_us)
    for i in range(gaps + 1):
        at = i * every_us
        run.kernel(0, at + 5, 8, launch_ns=BASE_NS + round(1e3 * at))
    return run.trace()


def test_few_gaps_that_matter_are_not_fine() -> None:
    assert reason(launches(37), "launch-gap") == "needs 100 gaps, has 37"
    assert reason(launches(1), "launch-gap") == "needs 100 gaps, has 1"
    assert reason(launches(37, every_us=8), "launch-gap") is None, "the GPU is never idle"


def blocked_calls(steps: int, compute_at: float) -> Measures:
    run = Tiny()
    for step in range(steps):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.collective(0, "all_reduce", start + 100, 400, size=1 << 24, asynchronous=1)
        launch = BASE_NS + round(1e3 * (start + 110))
        run.kernel(0, start + compute_at, 380, launch_ns=launch)
    return run.trace()


def test_three_steps_of_false_overlap_are_not_fine() -> None:
    told = "needs 10 calls of one kind that hide nothing, has 3"
    assert reason(blocked_calls(3, 505), "false-overlap") == told
    assert reason(blocked_calls(3, 105), "false-overlap") is None


FEWER = {
    "at-the-roofline": ({"min_count": 13}, "needs 13 operations of one kind in one group, has 12"),
    "below-link-speed": ({"min_count": 13}, "needs 13 operations of one kind in one group, has 12"),
    "cold-start": ({"others": 6}, "needs 6 later operations of the same kind, has 5"),
    "degraded-link": (
        {"min_count": 100},
        "needs 100 operations of 100 kB or more, of one group and recorded on every rank",
    ),
    "detour-beats-direct": (
        {"min_copies": 11},
        "needs 11 copies of 16 MB or more between two GPUs",
    ),
    "early-root": ({"min_operations": 13}, "needs 13 operations (reduce or gather) matched"),
    "false-overlap": (
        {"min_operations": 13},
        "needs 13 calls of one kind that hide nothing, has 12",
    ),
    "head-of-line": ({"min_operations": 13}, "needs 13 operations stuck behind one kind, has 12"),
    "latency-bound": ({"min_count": 1000}, "needs 1,000 small operations in rows"),
    "launch-gap": ({"min_gaps": 1000}, "needs 1,000 gaps"),
    "pipeline-bubble": ({"min_operations": 1000}, "needs 1,000 sends matched with their recv"),
    "slow-link": ({"min_count": 13}, "needs 3 pairs of ranks with 13 transfers or more, has 0"),
    "uneven-p2p-bandwidth": (
        {"min_copies": 11},
        "needs 11 copies of 16 MB or more between two GPUs",
    ),
}


@pytest.mark.parametrize("rule", FEWER)
def test_below_its_minimum_a_rule_says_so(rule: str) -> None:
    thresholds, told = FEWER[rule]
    assert told in (reason(RULES[rule].bad(), rule, **thresholds) or "")


def test_a_stall_is_told_from_the_devices_first_work() -> None:
    run = Tiny()
    run.step(0, 0, 0, 20_000)
    run.kernel(0, 0, 50, launch_ns=None)
    for i in range(3):
        run.kernel(0, 5_000 + 20 * i, 10, launch_ns=BASE_NS + 1000 * (4_995 + 20 * i))
    (found,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert "4.95 ms from 50 µs after cuda:0's first work" in found.advice


def test_long_names_are_cut_in_the_middle() -> None:
    run = Tiny()
    label = "an annotation that is much longer than anybody reads ## step of the optimizer"
    for step in range(2):
        run.step(0, step, 6_000 * step, 6_000)
        run.step(0, step, 6_000 * step, 6_000, label=label)
        at = 6_000 * step + 5_000
        run.kernel(0, at, 800, launch_ns=BASE_NS + 1000 * (at - 5))
    (found,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert "'an annotation that i…ep of the optimizer'" in found.summary


@pytest.mark.parametrize("rule", ["decomposed-all-reduce", "device-late", "late-sender"])
def test_the_order_of_events_changes_nothing(rule: str) -> None:
    trace = RULES[rule].bad()
    dice = random.Random(0)
    tables = {}
    for table in TABLES:
        listed = trace.rows(table.name).dicts()
        dice.shuffle(listed)
        tables[table.name] = table.of_dicts(listed)
    documents = [
        as_json.render(Run(one, "a.json").analysis(), Look(operations=True))
        for one in (trace, replace(trace, **tables))
    ]
    assert documents[0] == documents[1]


def test_communication_without_operations() -> None:
    run = Tiny()
    for step in range(3):
        run.step(0, step, step * 10_000, 10_000)
        run.kernel(0, step * 10_000 + 400, 4000, kind="communication", stream=20)
        run.kernel(0, step * 10_000 + 4400, 4000)
    (found,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert found.streams == (20,)


def without_time(trace: Measures, table: str, op: str | None = None) -> Measures:
    events = trace.rows(table)
    zero = events.coded("op").being(op) if op else events.coded("kind").being("compute")
    duration = np.where(zero, 0, events.ints("duration_ns"))
    changed: Any = events.table.rows({**events.columns, "duration_ns": duration})
    return replace(trace, **{table: changed})


@pytest.mark.parametrize(
    ("rule", "table", "op"),
    [
        ("full-precision-payload", "kernels", None),
        ("contention", "kernels", None),
        ("decomposed-all-reduce", "collectives", "all_reduce"),
        ("cold-start", "collectives", "all_reduce"),
    ],
)
def test_no_duration_is_no_fault_of_a_rule(rule: str, table: str, op: str | None) -> None:
    assert not diagnose(without_time(RULES[rule].bad(), table, op), select=[rule]).findings


def test_operations_on_a_device_without_kernels() -> None:
    """A copy engine's: no graph of the device's work holds them."""
    trace = RULES["redundant"].bad()
    elsewhere = edited(trace, "collectives", device="cuda:1")
    told = "needs the kernel of each operation, which one of a copy engine lacks"
    for rule in ("redundant", "straggler"):
        assert reason(elsewhere, rule) == told


def test_who_waits_is_told_how_many_rules_were_asked() -> None:
    told: list[tuple[int, int]] = []
    wanted = ["straggler", "jitter"]
    Run(idle_gpu(6_200), "a.json").analysis(select=wanted, progress=lambda *done: told.append(done))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_what_costs_little_comes_behind_large_communication_without_a_known_saving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = idle_gpu(0)
    time_ns, one = whole(trace).time_ns, a_finding(trace)
    little = replace(one, rule="cold-start", cost_ns=time_ns // 50)
    much = replace(little, cost_ns=time_ns // 10)
    unknown = replace(one, rule="exposed-communication", cost_ns=0, weighs_ns=time_ns // 20)
    asked(monkeypatch, trace, little, unknown)
    found = diagnose(trace, select=["launch-gap"]).findings
    assert [(its.rule, its.explained_by) for its in found] == [
        ("exposed-communication", None),
        ("cold-start", None),
    ]
    asked(monkeypatch, trace, much, unknown)
    found = diagnose(trace, select=["launch-gap"]).findings
    assert [its.explained_by for its in found] == [None, "cold-start"]


@pytest.mark.parametrize("around", [2, 3])
def test_what_explains_one_another_is_not_lost(around: int) -> None:
    """The costliest is the cause of none of those that explain it."""
    trace = idle_gpu(0)
    names = ["straggler", "uneven-all-to-all", "jitter"][:around]
    its = [
        replace(a_finding(trace), rule=name, cost_ns=1_000_000 - at, explains=(names[at - 1],))
        for at, name in enumerate(names)
    ]
    found = _diagnose._ordered(its, 100_000_000)
    assert sorted(one.rule for one in found) == sorted(names)
    assert [one.explained_by is None for one in found] == [True] + (around - 1) * [False]


@pytest.mark.parametrize("confidence", ["medium", "low"])
def test_what_may_be_meant_goes_behind_what_is_surely_wrong(
    monkeypatch: pytest.MonkeyPatch, confidence: Literal["medium", "low"]
) -> None:
    trace = idle_gpu(0)
    time_ns, one = whole(trace).time_ns, a_finding(trace)
    less = replace(one, rule="latency-bound", cost_ns=time_ns // 10, confidence=confidence)
    more = replace(one, rule="early-root", cost_ns=time_ns // 5, confidence="low", behind=True)
    asked(monkeypatch, trace, less, more)
    found = [its.rule for its in diagnose(trace, select=["launch-gap"]).findings]
    sure = confidence == "medium"
    assert found == (["latency-bound", "early-root"] if sure else ["early-root", "latency-bound"])


@pytest.mark.parametrize(("tenths", "first"), [(9, "early-root"), (11, "latency-bound")])
def test_of_what_spares_memory_half_counts(
    monkeypatch: pytest.MonkeyPatch, tenths: int, first: str
) -> None:
    trace = idle_gpu(0)
    time_ns, one = whole(trace).time_ns, a_finding(trace)
    less = replace(one, rule="latency-bound", cost_ns=time_ns * tenths // 200, confidence="low")
    more = replace(one, rule="early-root", cost_ns=time_ns * 15 // 200, spares_memory=True)
    asked(monkeypatch, trace, less, more)
    assert next(iter(diagnose(trace, select=["launch-gap"]).findings)).rule == first


@pytest.mark.parametrize(
    ("rule", "tenths", "first"),
    [
        ("exposed-communication", 5, "exposed-communication"),
        ("full-precision-payload", 5, "full-precision-payload"),
        ("exposed-communication", 4, "redundant"),
        ("host-bound", 4, "redundant"),
    ],
)
def test_what_takes_a_models_memory_is_behind_what_saves_half_of_the_same_without(
    monkeypatch: pytest.MonkeyPatch, rule: str, tenths: int, first: str
) -> None:
    trace = idle_gpu(0)
    tenth, one = whole(trace).time_ns // 100, a_finding(trace)
    less = replace(one, rule=rule, cost_ns=tenths * tenth, confidence="medium")
    more = replace(one, rule="redundant", cost_ns=10 * tenth, spares_memory="all")
    asked(monkeypatch, trace, less, more)
    found = diagnose(trace, select=["launch-gap"]).findings
    assert [its.explained_by for its in found if its.rule == rule] == [
        None if first == rule or rule == "host-bound" else "redundant"
    ]
    assert found[0].rule == first


@pytest.mark.parametrize(
    ("tenths", "memory", "moot"), [(9, "some", True), (11, "some", False), (11, False, True)]
)
def test_what_saves_more_is_not_moot_beside_what_takes_memory(
    monkeypatch: pytest.MonkeyPatch, tenths: int, memory: Literal["some", False], moot: bool
) -> None:
    trace = idle_gpu(0)
    tenth, one = whole(trace).time_ns // 100, replace(a_finding(trace), operations=np.arange(9))
    units = replace(one, rule="latency-bound", cost_ns=tenths * tenth, confidence="medium")
    again = replace(one, rule="redundant", cost_ns=10 * tenth, spares_memory=memory)
    asked(monkeypatch, trace, units, again)
    found = {its.rule: its.explained_by for its in diagnose(trace, select=["launch-gap"]).findings}
    assert found["latency-bound"] == ("redundant" if moot else None)


@pytest.mark.parametrize(("tenths", "first"), [(12, "latency-bound"), (14, "early-root")])
def test_what_is_surer_and_saves_nearly_as_much_is_first(
    monkeypatch: pytest.MonkeyPatch, tenths: int, first: str
) -> None:
    trace = idle_gpu(0)
    tenth, one = whole(trace).time_ns // 100, a_finding(trace)
    sure = replace(one, rule="latency-bound", cost_ns=10 * tenth, confidence="medium")
    more = replace(one, rule="early-root", cost_ns=tenths * tenth, confidence="low")
    asked(monkeypatch, trace, more, sure)
    found = diagnose(trace, select=["launch-gap"]).findings
    assert found[0].rule == first


def test_who_has_a_fault_too_is_said_in_short() -> None:
    run = Tiny(3)
    for rank in range(3):
        run.kernel(rank, 0, 10)
    assert too((0, 1, 2), 1, run.trace()) == " (all other ranks, too)"
    assert too((0, 1), 1, run.trace()) == " (rank 0, too)"
    assert not too((1,), 1, run.trace())


def a_little_late(more_us: float, *, large: bool) -> Measures:
    """Rank 1 computes a little longer in each step of 10 ms; all communicate for 1 ms, or 4."""
    run = Tiny(ranks=2)
    for step, rank in product(range(12), range(2)):
        begun = 10_000 * step
        run.step(rank, step, begun, 10_000)
        took = 5_000 + more_us * rank
        run.kernel(rank, begun + 10, took)
        came = begun + 20 + took
        end = begun + (9_990 if large else 5_600)
        run.collective(rank, "all_reduce", came, end - came, size=1 << 26)
        if not large:
            run.kernel(rank, end + 10, begun + 9_990 - end)
    return run.trace()


def test_what_costs_a_little_less_is_told_where_nothing_is_found_or_no_rank() -> None:
    few = {"select": ["straggler", "exposed-communication"]}
    little = diagnose(a_little_late(400, large=False), **few)
    assert not little.findings
    assert little.skipped["straggler"].startswith(f"{LOOKED}rank 1 delays every step by 0.3")
    assert little.skipped["straggler"].endswith("(3.9 % of the steps' time)")
    assert "straggler" not in diagnose(a_little_late(100, large=False), **few).skipped
    much = diagnose(a_little_late(400, large=True), **few)
    assert much.findings
    assert much.skipped["straggler"].endswith("(4.0 % of the steps' time)")
    late = diagnose(a_little_late(800, large=True), **few)
    assert "straggler" in [finding.rule for finding in late.findings]
    assert "straggler" not in late.skipped
