"""Whether each fault is named, and whether it costs what is said."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.recorded.cases import Case
from benchmarks.recorded.measure import Recorded, measured, progress

__all__ = ["judge"]


@dataclass
class Judged:
    """A case's recordings: with the fault and without, in turn."""

    case: Case
    fault: list[Recorded] = field(default_factory=list)
    without: list[Recorded] = field(default_factory=list)

    def record(self) -> None:
        """One more round."""
        for fault, kept in ((True, self.fault), (False, self.without)):
            kept.append(
                measured(self.case.workload, self.case.settings(fault=fault), self.case.world_size)
            )

    @property
    def named(self) -> int:
        """Recordings in which the rule's first finding names the right ranks."""
        mine = [[f for f in one.findings if f.rule == self.case.rule] for one in self.fault]
        right = [fs for fs in mine if fs and self.case.ranks in (None, fs[0].ranks)]
        return len(right)

    @property
    def predicted_ms(self) -> list[float]:
        """What the rule's first finding says that is gained, per step or once, where it spoke."""
        sums = []
        for one in self.fault:
            mine = [f.cost_ns for f in one.findings if f.rule == self.case.rule]
            if mine:
                sums.append(mine[0] / 1e6 / (1 if self.case.once else len(one.steps_ms)))
        return sums

    @property
    def gained_ms(self) -> list[float]:
        """What was gained in each round."""
        pairs = zip(self.fault, self.without, strict=True)
        return [self._time(a) - self._time(b) for a, b in pairs]

    @property
    def error(self) -> float | None:
        """The predicted gain by the measured one, less 1; medians of the rounds."""
        if not (self.case.gain and self.predicted_ms):
            return None
        return statistics.median(self.predicted_ms) / statistics.median(self.gained_ms) - 1

    def _time(self, one: Recorded) -> float:
        return one.steps_ms[0] if self.case.once else one.step_ms

    def row(self) -> str:
        """Its line of the table."""
        before, after = (
            statistics.median(map(self._time, each)) for each in (self.fault, self.without)
        )
        gained, said = self.gained_ms, self.predicted_ms
        spread = f"{statistics.median(gained):.2f} ({min(gained):.2f}–{max(gained):.2f})"
        cells = [
            self.case.title,
            self.case.rule,
            f"{self.named}/{len(self.fault)}",
            f"{before:.1f} → {after:.1f}",
            spread if self.case.gain else "",
            f"{statistics.median(said):.2f}" if said and self.case.gain else "",
            "" if self.error is None else f"{self.error:+.0%}",
            _rules(self.fault, self.case.rule),
            _rules(self.without, *self.case.stays),
        ]
        return f"| {' | '.join(cells)} |"


def _rules(recordings: list[Recorded], *besides: str) -> str:
    counts = Counter(rule for one in recordings for rule in {f.rule for f in one.causes})
    return ", ".join(f"{rule} {n}" for rule, n in counts.most_common() if rule not in besides)


def judge(cases: list[Case], rounds: int) -> None:
    """Record each case in every round, so that all see the same machine; print the table."""
    judged = [Judged(case) for case in cases]
    for number in range(rounds):
        for one in judged:
            progress(f"round {number + 1} of {rounds}: {one.case.title}")
            one.record()
            progress(one.row())
    print(
        "| fault | rule | named | step, ms: with → without | gain, ms: median (min–max) "
        "| predicted | error | other findings | without the fault |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for one in judged:
        print(one.row())
    print()
    _summary(judged)


def _summary(judged: list[Judged]) -> None:
    faulty = sum(len(one.fault) for one in judged)
    named = sum(one.named for one in judged)
    said = sum(bool(_rules([one], *each.case.stays)) for each in judged for one in each.without)
    print(
        f"{2 * faulty} recordings. Named as the first finding of its rule, with the "
        f"right ranks: {named} of {faulty}. Without the fault, a finding in {said} of {faulty}."
    )
    for ranks in sorted({one.case.world_size for one in judged}):
        errors = [
            abs(one.error)
            for one in judged
            if one.case.world_size == ranks and one.error is not None
        ]
        if errors:
            half = statistics.median(errors)
            print(
                f"Error of the predicted gain on {ranks} ranks: median {half:.1%} of "
                f"{len(errors)} faults, at most {max(errors):.0%}."
            )
