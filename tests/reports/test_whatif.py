"""What a replay says: texts as wide as asked, and JSON as its schema has it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from commtrace.errors import UsageError
from commtrace.reports import Look
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.reports.whatif import as_json, as_text, schema
from commtrace.run import Run
from commtrace.synthetic import BASE_NS, Tiny


def slow(manifest: dict[str, Any] | None = None) -> Run:
    """Rank 1 of 2 computes for 9 ms, rank 0 for 5, before each of four all_reduces of 1 ms."""
    tiny = Tiny(2, backend="gloo", manifest=manifest)
    for step in range(4):
        at = step * 10_000
        for rank, work in enumerate((5_000, 9_000)):
            tiny.op(rank, at, work)
            tiny.collective(
                rank,
                "all_reduce",
                at + work,
                10_000 - work,
                size=1 << 20,
                asynchronous=0,
                thread=1,
                launch_ns=BASE_NS + (at + work) * 1_000,
            )
            tiny.gap(rank, at + work, 10_000 - work)
            tiny.step(rank, step, at, 10_000)
    return Run(tiny.trace(), "slow")


@pytest.fixture(scope="module")
def run() -> Run:
    return slow()


@pytest.mark.parametrize(("step_ms", "said"), [(5, True), (10, False)])
def test_savings_of_steps_that_recording_slowed_say_so(step_ms: int, said: bool) -> None:
    each = [{"rank": rank, "unrecorded_steps_ns": [1_000_000 * step_ms] * 8} for rank in (0, 1)]
    shown = " ".join(as_text(slow({"ranks": each}).replayed(["even"])).split())
    assert (
        "All are of recorded steps: recording made steps 2 times as long: 10 ms" in shown
    ) == said


def test_each_edit_is_a_row_and_a_sentence(run: Run) -> None:
    shown = as_text(run.replayed(["rank=1:typical", "remove:barrier", "even"]))
    assert "rank=1:typical 4.00 ms 40 % 4.00 ms 6.00 ms" in " ".join(shown.split())
    assert "- rank=1:typical saves 4 ms per step (40 % of step time), 16 ms in all" in shown
    assert "- remove:barrier was refused: the run has no barrier" in shown
    assert "- even saves nothing" in shown
    assert "Critical path of a step, in the mean, with these edits" in shown
    assert "In all: 83 % compute, 17 % transfer." in shown


def test_what_makes_a_run_slower_is_said_to_cost(run: Run) -> None:
    shown = as_text(run.replayed(["rank=0:typical"]))
    assert "saves nothing" in shown, "the other rank is as late by itself"
    shown = as_text(run.replayed(["rank=1:typical", "rank=0:typical", "rank=1:typical"]))
    assert shown.count("saves nothing") == 2


def test_without_edits_it_shows_where_time_goes_and_what_edits_there_are(run: Run) -> None:
    shown = as_text(run.replayed([]))
    assert "in the median: 90 % compute, 10 % transfer." in shown
    words = " ".join(shown.split())
    assert "the run 1.250 rank 1 1.250 rank 0 1.000 all_reduce 1.000" in words
    assert "load balance 78 %" in words
    assert "  rank=R:typical: rank R does each segment" in shown


def test_of_one_rank_there_is_no_uneven_work() -> None:
    tiny = Tiny(1)
    for step in range(4):
        tiny.step(0, step, 10_000.0 * step, 10_000)
        tiny.kernel(0, 10_000.0 * step + 10, 8_000)
        tiny.collective(0, "all_reduce", 10_000.0 * step + 8_020, 900, size=1 << 20)
    shown = as_text(Run(tiny.trace(), "alone").replayed([]))
    assert "Critical path" in shown
    assert "uneven work" not in shown
    assert "load balance" not in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_is_as_wide_as_asked(run: Run, width: int) -> None:
    for edits in ([], ["rank=1:typical", "all_reduce:dtype=bfloat16"]):
        lines = as_text(run.replayed(edits), Look(width=width)).splitlines()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("edits", [[], ["even", "remove:barrier"]])
def test_the_json_is_as_its_schema_has_it(run: Run, edits: list[str]) -> None:
    document = json.loads(as_json(run.replayed(edits)))
    jsonschema.Draft202012Validator(schema()).validate(document)
    assert [row["edit"] for row in document["edits"]] == edits
    saved = sum(row["saved_ns"] or 0 for row in document["edits"])
    assert document["run_ns"] == 40_000_000
    assert sum(row["time_ns"] for row in document["critical_path"]) == 40_000_000 - saved


def test_the_schema_is_shipped_and_strict() -> None:
    shipped = resources.files("commtrace.reports") / "whatif.schema.json"
    assert json.loads(shipped.read_text("utf-8")) == schema(), "run `make docs`"
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["additionalProperties"] is False


def test_reports_say_where_a_step_goes(run: Run) -> None:
    analysis = run.analysis(select=["desync"])
    for report in (terminal, markdown):
        assert "in the median: 90 % compute, 10 % transfer." in report.render(analysis)


def on_gpus(pause_us: float) -> Run:
    """Kernels launched at once, each so long after the one before."""
    tiny = Tiny(2)
    for rank in range(2):
        for number in range(5):
            at = number * (100 + pause_us)
            tiny.kernel(rank, at, 100, launch_ns=BASE_NS)
        tiny.collective(rank, "all_reduce", at + 102, 100, size=1 << 20, launch_ns=BASE_NS)
    return Run(tiny.trace(), "gpus")


def test_of_gpus_they_say_it_where_the_waits_are_known() -> None:
    run = on_gpus(pause_us=1)
    assert "Critical path: 83 % compute" in terminal.render(run.analysis(select=["desync"]))
    assert "refused" not in as_text(run.replayed(["even"]))
    run = on_gpus(pause_us=100)
    assert "Critical path" not in terminal.render(run.analysis(select=["desync"]))
    shown = as_text(run.replayed(["even"]))
    assert "even was refused: needs to know what the GPUs' work waited for" in " ".join(
        shown.split()
    )
    assert "No critical path: it needs to know what the GPUs' work waited for" in " ".join(
        shown.split()
    )
    assert "Critical path of" not in shown


def test_a_notebook_has_the_same_as_tables(run: Run) -> None:
    table = run.whatif("rank=1:typical", "remove:barrier")
    assert table["saved_ns"].tolist()[0] == 16_000_000
    assert table["refused"].tolist()[1] == "the run has no barrier"
    assert (
        run.replay("rank=1:typical")["duration_ns"].tolist() == [10_000_000] * 4 + [6_000_000] * 4
    )
    assert run.critical_path()["time_ns"].sum() == 40_000_000
    assert run.step_times()["critical_ns"].sum() == 40_000_000
    assert run.slowdown()["slowdown"].tolist()[0] == pytest.approx(1.25)
    assert run.efficiency()["load_balance"].tolist() == [pytest.approx(7 / 9)]


def test_a_run_without_communication_cannot_be_replayed() -> None:
    run = Run(Tiny(1).trace(), "nothing")
    for ask in (run.critical_path, run.whatif, run.replay):
        with pytest.raises(UsageError, match="nothing: cannot be replayed: needs communication"):
            ask()
