"""What a comparison says of small runs whose change is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commtrace.comparing.compared import compared
from commtrace.comparing.gate import Gate
from commtrace.comparing.recorded import Recorded
from commtrace.comparison import Comparison
from commtrace.comparison import compare as compare_with_findings
from commtrace.diagnosis import Diagnosis
from commtrace.errors import UsageError
from commtrace.metrics.run.summary import summary
from commtrace.run import Run

Make = Callable[..., Run]


def noisy(*work: float, steps: int = 8, seed: int = 0, share: float = 0.01) -> list[list[float]]:
    dice = random.Random(f"{seed}:{work}")
    return [[round(its * dice.gauss(1, share)) for its in work] for _ in range(steps)]


def compare(base: Run | list[Run], candidate: Run | list[Run]) -> Comparison:
    """Without asking the rules."""

    def side(runs: Run | list[Run]) -> list[Recorded]:
        every = [runs] if isinstance(runs, Run) else runs
        return [Recorded(summary(r.measures, r.name), r.measures, Diagnosis()) for r in every]

    return Comparison(compared(side(base), side(candidate)))


def top(its: Comparison) -> dict[str, object]:
    return its.changes.iloc[0].dropna().to_dict()


def adds_up(its: Comparison) -> bool:
    change = its.step["candidate_ns"] - its.step["base_ns"]
    return int(its.changes["change_ns"].sum()) + its.rest_ns == change


def test_a_rank_that_computes_longer_is_named_and_the_rows_add_up(make: Make) -> None:
    its = compare(make(noisy(10_000, 9_000)), make(noisy(10_000, 15_000)))
    assert its.verdict == "slower"
    assert top(its)["kind"] == "compute"
    assert top(its)["rank"] == 1
    assert top(its)["kernel"] == "aten::mm"
    assert top(its)["place"] == "all_reduce"
    assert top(its)["change_ns"] == pytest.approx(5e6, rel=0.05), "1 ms of it was hidden"
    assert adds_up(its)
    assert abs(its.rest_ns) < 0.1e6


def test_all_ranks_slower_alike_may_be_the_machine_and_one_alone_is_not(make: Make) -> None:
    base = make(noisy(10_000, 10_000))
    all_ranks = compare(base, make(noisy(14_000, 14_000)))
    assert all_ranks.verdict == "inconclusive", "one recording a side"
    assert compare(base, make(noisy(10_000, 14_000))).verdict == "slower"


def test_what_is_hidden_behind_another_rank_is_no_part_of_the_change(make: Make) -> None:
    its = compare(make(noisy(10_000, 4_000)), make(noisy(10_000, 8_000)))
    assert its.verdict == "inconclusive", "one recording of each cannot rule out 5 %"
    assert not (its.changes["low_ns"] > 0).any()
    assert adds_up(its)


def test_idle_hosts_of_all_ranks_are_one_row(make: Make) -> None:
    work = noisy(10_000, 10_000)
    its = compare(make(work), make(work, host=[[3_000, 3_000]] * 8))
    assert top(its)["kind"] == "host"
    assert "rank" not in top(its)
    assert top(its)["change_ns"] == pytest.approx(3e6, rel=0.05)


def test_ranks_that_take_turns_cost_more_than_their_means(make: Make) -> None:
    turns = [[6_000, 0] if step % 2 else [0, 6_000] for step in range(8)]
    work = noisy(10_000, 10_000)
    its = compare(make(work), make(work, host=turns))
    assert top(its)["kind"] == "host"
    assert top(its)["change_ns"] == pytest.approx(6e6, rel=0.05)
    assert adds_up(its)


def test_a_longer_transfer_is_its_operation_s(make: Make) -> None:
    work = noisy(10_000, 10_000)
    its = compare(make(work), make(work, transfer=4_000))
    assert top(its)["kind"] == "transfer"
    assert top(its)["op"] == "all_reduce"
    assert top(its)["change_ns"] == 3_000_000
    assert its.rest_ns == 0


def test_operations_appear_and_disappear(make: Make) -> None:
    work = noisy(10_000, 10_000)
    its = compare(make(work), make(work, ops=("all_reduce", "barrier")))
    assert its.compared.appeared.coded("op").decoded() == ["barrier"]
    assert its.compared.appeared.floats("candidate_count").tolist() == [1.0]
    assert top(its)["op"] == "barrier"
    back = compare(make(work, ops=("all_reduce", "barrier")), make(work))
    assert back.compared.disappeared.coded("op").decoded() == ["barrier"]
    assert top(back)["change_ns"] == -1_000_000


def test_an_operation_of_another_size_is_the_same_one(make: Make) -> None:
    work = noisy(10_000, 10_000)
    its = compare(make(work), make(work, size=1 << 22, transfer=3_000))
    assert top(its)["base_size_bytes"] == 1 << 20
    assert top(its)["size_bytes"] == 1 << 22
    assert top(its)["change_ns"] == 2_000_000
    assert not len(its.compared.appeared)
    assert "1.05 MB → 4.19 MB" in repr(its._repr_html_())


def test_other_programs_are_compared_and_it_is_said(make: Make) -> None:
    its = compare(make(noisy(10_000, 10_000)), make(noisy(9_000, 9_000, 9_000), ops=("barrier",)))
    codes = {note.code for note in its.notes}
    assert {"different-world-size", "different-operations"} <= codes
    assert adds_up(its)


def test_warm_up_and_an_outlying_step_do_not_decide(make: Make) -> None:
    work = noisy(10_000, 10_000)
    disturbed = [[90_000.0, 10_000], *work[1:5], [10_000, 60_000], *work[6:]]
    its = compare(make(work), make(disturbed))
    assert abs(its.step["change_pct"]) < 1
    rows = its.outlying_steps
    assert rows["reason"].tolist() == ["warm-up", "outlying"]
    assert rows["rank"].tolist() == [0, 1]
    assert rows["kind"].tolist() == ["compute", "compute"]


def test_a_stall_in_every_third_step_decides(make: Make) -> None:
    work = noisy(10_000, 10_000)
    stalls = [[0.0, 40_000] if step % 3 == 1 else [0.0, 0] for step in range(8)]
    its = compare(make(work), make(work, host=stalls))
    assert its.verdict == "slower"
    assert top(its)["kind"] == "host"
    assert top(its)["rank"] == 1
    assert its.outlying_steps.empty


def test_a_stall_in_most_recordings_decides(make: Make) -> None:
    once = [[0.0, 80_000] if step == 5 else [0.0, 0] for step in range(8)]
    base = [make(noisy(10_000, 10_000, seed=seed)) for seed in range(3)]
    after = [make(noisy(10_000, 10_000, seed=seed), host=once) for seed in range(3, 6)]
    assert abs(compare(base[:1], after[:1]).step["change_pct"]) < 1
    its = compare(base, after)
    assert its.verdict == "slower"
    assert its.step["between"] == "measured"
    assert its.step["change_pct"] == pytest.approx(1_000 / 11, rel=0.05)


def test_too_few_steps_have_no_verdict(make: Make) -> None:
    its = compare(make(noisy(10_000, 10_000, steps=2)), make(noisy(30_000, 10_000)))
    assert its.verdict == "inconclusive"
    assert its.compared.why == "needs 3 steps on each side, has 2"
    assert its.step["change_pct"] is not None
    assert Gate(3).failed(its.compared) is not None or its.step["low_pct"] <= 3
    assert Gate(1_000).failed(its.compared) is None
    assert Gate(1_000, strict=True).failed(its.compared) is not None


def test_runs_without_steps_have_no_verdict(make: Make) -> None:
    run = make(noisy(10_000, 10_000))
    none = Run(replace_steps(run), "none")
    its = compare(none, run)
    assert its.verdict == "inconclusive"
    assert its.step["base_ns"] is None
    assert its.changes.empty
    assert its.operations.empty
    assert "no whole steps" in its.compared.why


def replace_steps(run: Run) -> object:
    from dataclasses import replace

    return replace(run.measures, steps=run.measures.rows("steps").take(slice(0)))


def test_one_rank_is_compared_by_where_its_time_goes(make: Make) -> None:
    from commtrace.synthetic import Tiny

    def run(computes: float) -> Run:
        tiny = Tiny(1)
        for step in range(6):
            tiny.step(0, step, step * 10_000 + 10, 9_980)
            tiny.kernel(0, step * 10_000 + 100, computes + step)
        return Run(tiny.trace(), "one")

    its = compare(run(4_000), run(6_000))
    assert "no-critical-path" in {note.code for note in its.notes}
    assert top(its)["change_ns"] == 2_000_000
    assert adds_up(its)


def test_the_same_recording_twice_has_not_changed(make: Make) -> None:
    run = make(noisy(10_000, 11_000))
    its = compare(run, run)
    assert its.step["change_pct"] == 0
    assert not its.changes["change_ns"].any()


def test_findings_are_new_resolved_or_remain(make: Make) -> None:
    even, uneven = make(noisy(10_000, 10_000)), make(noisy(10_000, 18_000))
    its = compare_with_findings(even, uneven).findings
    assert {(one.rule, one.ranks) for one in its.new} >= {("straggler", (1,))}
    back = compare_with_findings(uneven, even).findings
    assert back.resolved == its.new
    assert compare_with_findings(uneven, uneven).findings.remaining == its.new + its.remaining


def test_foreign_processes_widen_what_runs_on_cores(make: Make) -> None:
    machine = {"cores": 2, "usable_cores": 2, "processes": 2, "seconds": 1.0, "busy_s": 2.0}
    manifest = {"ranks": [{"rank": rank, "machine": {**machine, "own_s": 0.7}} for rank in (0, 1)]}
    work = noisy(10_000, 10_000)
    disturbed = make([[1.3 * its for its in step] for step in work], manifest=manifest)
    its = compare(make(work), disturbed)
    assert its.verdict == "inconclusive", "30 % of the cores were others'"
    assert "foreign-load" in {note.code for note in its.notes}


def test_several_recordings_in_turn_are_compared_by_pairs(make: Make) -> None:
    def side(work: float, after: int) -> list[Run]:
        return [
            make(
                noisy(work * drift, work * drift, steps=4, seed=number + 10 * after),
                manifest={"started": f"2026-01-01T00:0{2 * number + after}:00Z"},
            )
            for number, drift in enumerate((1, 1.5, 2, 2.5))
        ]

    base, after = side(10_000, 0), side(11_000, 1)
    in_turn = compare(list(reversed(base)), after)
    assert in_turn.verdict == "slower", "the machine's drift is the same in each pair"
    unknown = [make(noisy(10_000 * its, 10_000 * its, steps=4)) for its in (1, 1.5, 2, 2.5)]
    anyhow = compare(unknown, after)
    assert anyhow.verdict == "inconclusive"


def test_a_side_needs_a_recording(make: Make) -> None:
    with pytest.raises(UsageError, match="needs a recording on each side"):
        compare_with_findings([], make(noisy(1_000, 1_000)))


@pytest.mark.parametrize("seed", range(4))
def test_any_two_runs_add_up(make: Make, seed: int) -> None:
    dice = np.random.default_rng(seed)

    def run() -> Run:
        ranks = 3
        work = dice.integers(1_000, 20_000, (6, ranks)).tolist()
        host = dice.integers(0, 9_000, (6, ranks)).tolist()
        ops = dice.choice(["all_reduce", "barrier", "all_gather"], 2).tolist()
        return make(work, host=host, ops=ops, transfer=float(dice.integers(10, 5_000)))

    assert adds_up(compare(run(), run()))


def test_a_recording_does_not_differ_from_itself(recorded: Path) -> None:
    folder = recorded / "ddp_training" / "gloo-4"
    (note, *_) = compare_with_findings(folder, folder).notes
    assert (note.code, note.message.partition(":")[0]) == (
        "same-files",
        "4 files are on both sides",
    )
