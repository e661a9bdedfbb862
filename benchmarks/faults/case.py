"""A run and its truth: what was injected, and what the same run takes without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.faults.loop import Loop, log_uniform
from benchmarks.faults.workloads import data_parallel
from commtrace.diagnosis import Finding
from commtrace.measures import Measures

__all__ = ["LARGEST", "SMALLEST", "Case", "Fault", "Truth", "case"]

SMALLEST, LARGEST = 0.025, 0.4  # of a step: half the usual threshold, and eight times it


@dataclass(frozen=True)
class Truth:
    """Who is to blame: ``ranks``, and words that the finding must say (a pair, a group).

    ``also`` are rules whose findings are true as well: what the fault looks like elsewhere.
    ``gain_us`` is what the run takes less without the fault, None where no time is lost.
    """

    rule: str
    ranks: tuple[int, ...] = ()
    says: str = ""
    also: tuple[str, ...] = ()
    gain_us: float | None = None
    share: float | None = None

    def named_by(self, finding: Finding) -> bool:
        """Whether a finding is this fault, with the right culprit."""
        who = not self.ranks or finding.ranks == self.ranks
        return finding.rule == self.rule and who and self.says in finding.summary


Inject = Callable[[Loop, float, bool], Truth]


@dataclass(frozen=True)
class Fault:
    """What to do to a job so that it has a fault of about a share of a step, and who is it.

    ``inject`` draws the same dice and calls the same hooks whether it is ``present`` or not.
    ``job`` makes the machine, ``workload`` runs on it. A fault whose ``timed`` is false
    costs no time.
    """

    rule: str
    inject: Inject
    workload: Callable[[Loop], None] = data_parallel
    job: Callable[[int], Loop] = Loop
    timed: bool = True

    @property
    def mixes(self) -> bool:
        """Whether it can be one of several in a usual training run."""
        return self.workload is data_parallel and self.job is Loop


@dataclass(frozen=True)
class Case:
    """A recorded run and all that is wrong with it."""

    trace: Measures
    truths: tuple[Truth, ...] = ()


def case(seed: int, *faults: Fault, smallest: float = SMALLEST) -> Case:
    """One run with these faults; their gains are those of the runs that lack one of them.

    Each is of ``smallest`` to ``LARGEST`` of a step.
    """
    dice = random.Random(f"{seed}:{[fault.inject.__name__ for fault in faults]}")
    shares = [log_uniform(dice, smallest, LARGEST) for _ in faults]
    # Not the same job for every fault; what is odd stays so.
    job = seed + 4 * dice.randrange(1 << 20)

    def run(present: set[Fault]) -> tuple[Loop, list[Truth]]:
        loop = faults[0].job(job)
        truths = [
            fault.inject(loop, share, fault in present)
            for fault, share in zip(faults, shares, strict=True)
        ]
        faults[0].workload(loop)
        return loop, truths

    whole, truths = run(set(faults))
    took = whole.elapsed_us()
    for at, fault in enumerate(faults):
        if fault.timed:
            without, _ = run(set(faults) - {fault})
            gain = took - without.elapsed_us()
            truths[at] = replace(truths[at], gain_us=gain, share=gain / took)
    return Case(whole.trace(), tuple(truths))
