"""Two stages with one micro-batch, which can only take turns."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules.pipeline_bubble import PipelineBubble
from commtrace.synthetic import BASE_NS, Tiny


def taking_turns(micro_batches: int) -> Measures:
    """The last stage computes 6 ms for each micro-batch, the first 3 ms before and behind."""
    run, each = Tiny(2), 12_400
    for step in range(8):
        first = each * micro_batches * step
        for rank in (0, 1):
            run.step(rank, step, first, each * micro_batches)
        for batch in range(micro_batches):
            at = first + each * batch
            called = {"launch_ns": BASE_NS + 1_000 * (at + 5)}
            message = {"size": 1 << 20, **called}
            run.kernel(0, at + 10, 2_980, **called)
            run.collective(0, "send", at + 3_000, 100, peer=1, **message)
            run.collective(1, "recv", at + 10, 3_095, peer=0, **message)
            run.kernel(1, at + 3_110, 5_990, **called)
            run.collective(1, "send", at + 9_110, 100, peer=0, **message)
            run.collective(0, "recv", at + 3_105, 6_110, peer=1, **message)
            run.kernel(0, at + 9_220, 2_980, **called)
    return run.trace()


@pytest.mark.parametrize(
    ("micro_batches", "turns", "symptom"), [(1, True, True), (1, False, False), (2, True, False)]
)
def test_who_may_only_take_its_turn_is_a_symptom_of_one_micro_batch(
    micro_batches: int, turns: bool, symptom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.rules.pipeline_bubble.may_be_a_bubble", lambda *_: turns)
    (finding,) = PipelineBubble(min_step_share=0.01).check(taking_turns(micro_batches))
    assert ("straggler" in (finding.explains or ())) == symptom
