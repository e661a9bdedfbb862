"""The benchmarks of matching and of the causal model, at the smallest size."""

from __future__ import annotations

from benchmarks import causal_cost
from benchmarks.matching import generate, measure
from commtrace.causal.run.run_graph import run_graph


def test_what_was_generated_is_matched() -> None:
    run = generate(ranks=3, operations=40)
    _, _, alone = measure(run, rounds=1)
    assert len(run.collectives) > 100
    assert alone <= 8  # 0.5 % of the events are lost, and windows open late


def test_the_causal_model_is_measured_on_a_run_that_it_holds() -> None:
    run = causal_cost.on_cpus(generate(ranks=4, operations=200))
    assert run_graph(run).steps == (0, 1, 2, 3)
    assert len(causal_cost.seconds(ranks=3, operations=100)) == len(causal_cost.PARTS)
