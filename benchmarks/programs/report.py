"""The judged programs as markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from benchmarks.programs.trial import Trial
from benchmarks.programs.verdict import Judged, false_alarms, short

__all__ = ["HEADER", "row", "totals"]

COLUMNS = (
    "program",
    "fault",
    "step, ms: clean → fault",
    "injected, ms",
    "first finding",
    "rule",
    "ranks",
    "place",
    "predicted, ms",
    "against injected",
    "against measured",
    "clean: findings",
    "false alarms",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def row(judged: Judged) -> str:
    """One program with one fault."""
    return f"| {' | '.join(_cells(judged))} |"


def _cells(judged: Judged) -> Iterator[str]:
    fault, program, done = judged.fault, judged.program, judged.done
    clean = [trial for trial in judged.clean if not trial.failed]
    yield f"{program.name}, {program.world_size} ranks"
    yield fault.name
    yield f"{_median_ms(clean)} → {_median_ms(done)}"
    yield "" if fault.delay_ms is None else f"{fault.delay_ms:.0f}"
    yield _counted([*(short(trial.first) for trial in done), *_failures(judged.faulty)])
    yield _share(map(judged.rule, done))
    yield _share(map(judged.ranks, done))
    yield _share(place for place in map(judged.place, done) if place is not None)
    yield "" if judged.predicted_ms is None else f"{judged.predicted_ms:.1f}"
    yield _percent(judged.error(fault.delay_ms))
    yield _percent(judged.error(judged.gained_ms))
    found = [short(finding) for trial in clean for finding in trial.findings]
    yield _counted([*found, *_failures(judged.clean)])
    yield _counted(short(finding) for trial in clean for finding in false_alarms(trial, program))


def totals(title: str, all_judged: list[Judged]) -> str:
    """What it comes to, over these."""
    pairs = [(judged, trial) for judged in all_judged for trial in judged.done]
    # Faults of one program share its clean recordings.
    shared = {judged.program.name: judged for judged in all_judged}.values()
    clean = [(judged, trial) for judged in shared for trial in judged.clean if not trial.failed]
    alarms = [list(false_alarms(trial, judged.program)) for judged, trial in clean]
    failed = [
        f"{program.name}: {trial.failed}"
        for program, trials in (
            *((judged.program, judged.clean) for judged in shared),
            *((judged.program, judged.faulty) for judged in all_judged),
        )
        for trial in trials
        if trial.failed
    ]
    placed = [place for judged, trial in pairs if (place := judged.place(trial)) is not None]
    both, rule, ranks = (
        _share(answer(judged, trial) for judged, trial in pairs)
        for answer in (Judged.right, Judged.rule, Judged.ranks)
    )
    injected = _errors(all_judged, lambda judged: judged.fault.delay_ms)
    measured = _errors(all_judged, lambda judged: judged.gained_ms)
    named = _counted(short(finding) for each in alarms for finding in each)
    counts = f"{len(shared)} programs, {len(pairs)} recordings with a fault, {len(clean)} without"
    return f"""**{title}**: {counts}.

- first finding right, rule and ranks: {both}; rule: {rule}; ranks: {ranks}; place: {_share(placed)}
- saving against the injected delay: {injected}
- saving against the recordings without the fault: {measured}
- false alarms: in {_share(map(bool, alarms))} recordings without a fault {named and f"({named})"}
- failed recordings: {len(failed)} {"; ".join(failed)}"""


def _errors(all_judged: list[Judged], true_ms: Callable[[Judged], float | None]) -> str:
    errors = [judged.error(true_ms(judged)) for judged in all_judged]
    known = sorted(abs(error) for error in errors if error is not None)
    if not known:
        return "none to compare"
    worst = known[min(int(0.9 * len(known)), len(known) - 1)]
    return f"median error {median(known):.0%}, p90 {worst:.0%} ({len(known)} faults)"


def _median_ms(trials: list[Trial]) -> str:
    return f"{median(trial.step_ms for trial in trials):.0f}" if trials else "failed"


def _failures(trials: list[Trial]) -> Iterator[str]:
    for trial in trials:
        if trial.failed:
            yield f"failed: {trial.failed}"


def _share(answers: Iterable[bool]) -> str:
    known = list(answers)
    return f"{sum(known)}/{len(known)}" if known else ""


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.0%}"


def _counted(texts: Iterable[str]) -> str:
    counts = Counter(texts).most_common()
    return ", ".join(f"{text} ×{n}" if n > 1 else text for text, n in counts)
