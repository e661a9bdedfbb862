"""Stages of a pipeline that have more to do than the others, or are slower."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.faults.loop import Loop
from commtrace.arrays import among
from commtrace.causal.blame.sets import known_sets
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.diagnosis import Finding
from commtrace.metrics.run.stages import micro_batches
from commtrace.metrics.run.waits import matched
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

LAYERS_US, HEAD_US, STAGES, MICRO = 1_000, 600, 3, 8
SOFTMAX = "cunn_SoftMaxForward"


def pipeline(
    layers_us: float = LAYERS_US,
    head_us: float = 0.0,
    slow: float = 1.0,
    replicas: int = 1,
    together: int = 0,
    parts: tuple[float, ...] = (1.0,) * STAGES,
) -> Loop:
    """Each of three stages works so long on a micro-batch's forward pass, twice that backward.

    Or on so many ``parts`` of it. The last has a head besides; or its GPU takes so many times as
    long. Replicas of a stage average their gradients, all or so many ``together``.
    """
    loop = Loop(3, ranks=len(parts) * replicas, steps=4, host_leads=True)
    ranks_of = [range(stage * replicas, (stage + 1) * replicas) for stage in range(len(parts))]
    loop.spread, loop.speed[-1] = 0.002, slow
    few = together or replicas
    groups = [its[at : at + few] for its in ranks_of for at in range(0, replicas, few)]
    if replicas > 1:
        loop.run.groups |= {f"dp{number}": tuple(its) for number, its in enumerate(groups)}

    def one(stage: int, times: int, to: int) -> None:
        for rank in ranks_of[stage]:
            for _ in range(round(2 * times * parts[stage])):
                loop.compute(rank, layers_us / 2)
            if head_us and stage == len(parts) - 1:
                loop.compute(rank, times * head_us / 2, name=SOFTMAX)
                loop.compute(rank, times * head_us / 2)  # a name that its layers have as well
            if 0 <= to < len(parts):
                loop.message(rank, rank + (to - stage) * replicas, 100_000, stream=30 + to)

    for _ in range(loop.steps):
        with loop.step():
            for _ in range(MICRO):
                for stage in range(len(parts)):
                    one(stage, 1, stage + 1)
            for _ in range(MICRO):
                for stage in reversed(range(len(parts))):
                    one(stage, 2, stage - 1)
            for number, its in enumerate(groups if replicas > 1 else ()):
                loop.together("all_reduce", 1_000_000, ranks=its, group=f"dp{number}", wait=True)
    return loop


def first(loop: Loop) -> Finding:
    return diagnose(loop.trace()).findings[0]


def test_what_a_stage_does_more_is_shared_by_all() -> None:
    uneven, even = pipeline(head_us=HEAD_US), pipeline(LAYERS_US + HEAD_US / STAGES)
    found = first(uneven)
    assert found.rule == "straggler"
    assert found.ranks == (STAGES - 1,)
    costs_us = uneven.elapsed_us() - even.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.1)
    assert found.confidence == "medium"  # whole layers may not be even
    assert found.summary.startswith("rank 2 delays")  # not for what it sends
    assert "computing more than the other stages" in found.summary
    both = (f"gemm, {SOFTMAX}", f"{SOFTMAX}, gemm")  # as long as each other
    said = "32 kernels more than the other stages, a step in the mean ({}:"
    assert any(said.format(names) in found.advice for names in both)
    assert "vocabulary parallelism" in found.advice


def test_so_it_is_where_a_stage_has_several_ranks() -> None:
    even = pipeline(LAYERS_US + HEAD_US / STAGES, replicas=2)
    uneven = pipeline(head_us=HEAD_US, replicas=2)
    found = first(uneven)
    assert found.ranks == (4, 5)
    costs_us = uneven.elapsed_us() - even.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.1)
    assert "vocabulary parallelism" in found.advice


@pytest.mark.parametrize("parts", [(2, 3, 3, 4), (1, 1, 3, 5)])
def test_of_a_host_only_the_stage_that_does_more_is_blamed(parts: tuple[float, ...]) -> None:
    """So many layers each, two stages on each of two hosts; in the mean the third has no more."""
    uneven, even = pipeline(parts=parts), pipeline(parts=(sum(parts) / len(parts),) * len(parts))
    uneven.run.hosts = ("a", "b")
    found = first(uneven)
    assert (found.rule, found.ranks) == ("straggler", (3,))
    costs_us = uneven.elapsed_us() - even.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.15)


def test_a_stage_of_several_groups_is_tried_as_one() -> None:
    """Its four ranks average their gradients in pairs: no group and no host has just these."""
    even = pipeline(LAYERS_US + HEAD_US / STAGES, replicas=4, together=2)
    uneven = pipeline(head_us=HEAD_US, replicas=4, together=2)
    stage = (8, 9, 10, 11)
    assert stage in known_sets(uneven.trace(), list(range(12)))
    found = first(uneven)
    assert found.ranks == stage
    costs_us = uneven.elapsed_us() - even.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.1)


def test_what_a_stage_may_leave_out_is_said_besides() -> None:
    uneven, without = pipeline(head_us=HEAD_US), pipeline()
    saved = {its.name: its.value for its in first(uneven).evidence}
    per_step_us = (uneven.elapsed_us() - without.elapsed_us()) / uneven.steps
    typical = saved["saved per step if typical, median"]
    assert typical / 1e3 == pytest.approx(per_step_us, rel=0.1)
    assert saved["saved per step if all stages do as much, median"] < typical


def test_the_bubble_of_uneven_stages_is_theirs_first() -> None:
    """More micro-batches would save more than even stages; the others wait mostly for the last."""
    found = diagnose(pipeline(head_us=HEAD_US / 3).trace()).findings
    bubble = next(its for its in found if its.rule == "pipeline-bubble")
    assert bubble.cost_ns > found[0].cost_ns
    assert bubble.explained_by == found[0].rule
    messages = next(its for its in found if its.rule in ("late-sender", "late-receiver"))
    assert messages.explained_by == found[0].rule == "straggler"


@pytest.mark.parametrize("head_us", [0.0, 30.0])
def test_a_slow_stage_is_made_as_the_others(head_us: float) -> None:
    """Though it runs a little that they do not: most of what it takes longer is for the same."""
    slow, usual = pipeline(head_us=head_us, slow=1.5), pipeline(head_us=head_us)
    found = first(slow)
    assert found.ranks == (STAGES - 1,)
    costs_us = slow.elapsed_us() - usual.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.12)
    assert found.confidence == "high"
    assert "nvidia-smi" in found.advice
    assert "vocabulary" not in found.advice


@pytest.mark.parametrize(
    ("kind", "only", "only_ns", "so"),
    [
        ("operators", ("aten::linalg_svdvals",), 60.0, True),
        ("operators", ("aten::linalg_svdvals",), 40.0, False),  # most of it others run as well
        ("operators", ("aten::_log_softmax",), 60.0, False),  # the last stage's loss
        ("kernels", ("gemm_128x64",), 60.0, False),  # another shape has another name
    ],
)
def test_what_no_other_stage_runs_at_all_is_no_layer_of_its(
    kind: str, only: tuple[str, ...], only_ns: float, so: bool
) -> None:
    its = OwnOperators(kind, 8.0, 1.0, 100.0, only_ns, 0.0, (*only, "aten::sum"), only)
    assert its.are_no_layers == so


def test_what_hands_on_micro_batches_is_neither_shapes_nor_what_is_sent_besides() -> None:
    """Activations and gradients of one size, shapes ahead of them, and a metric's inputs back."""
    run, size, logits = Tiny(2), 1 << 20, 1 << 24
    for step, batch in product(range(3), range(4)):
        at = 10_000.0 * step + 1_000 * batch
        for sender, bytes_, later in ((0, 64, 0), (0, size, 100), (1, size, 500), (1, logits, 600)):
            run.collective(sender, "send", at + later, 50, size=bytes_, peer=1 - sender)
            run.collective(1 - sender, "recv", at + later, 50, size=bytes_, peer=sender)
    trace = run.trace()
    operations = matched(trace).operations
    handed_on = operations.take(among(operations.ints("operation"), micro_batches(trace)))
    assert len(operations) == 48
    assert {*handed_on.ints("size_bytes").tolist()} == {size, logits}, "the largest back counts"
    assert len(handed_on) == 36
