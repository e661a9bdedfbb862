"""The judged programs as markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from benchmarks.programs.trial import Trial
from benchmarks.programs.verdict import Judged, false_alarms, short
from commtrace.units import counted

__all__ = ["kinds", "table", "totals"]

COLUMNS = (
    "program",
    "fault",
    "step, ms: clean → fault",
    "injected, ms",
    "first finding",
    "rule",
    "ranks",
    "place",
    "cause",
    "predicted, ms",
    "against injected",
    "against measured",
    "clean: findings",
    "false alarms",
)
KINDS = (
    "kind of fault",
    "faults",
    "first finding right",
    "cause right",
    "saving against injected: median error",
    "against measured",
)


def table(all_judged: Iterable[Judged]) -> str:
    """One row for each program with one of its faults."""
    return _table(COLUMNS, map(_cells, all_judged))


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(columns)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(judged: Judged) -> Iterator[str]:
    fault, program, done = judged.fault, judged.program, judged.done
    clean = [trial for trial in judged.clean if not trial.failed]
    yield f"{program.name}, {program.world_size} ranks"
    yield fault.name
    yield f"{_median_ms(clean)} → {_median_ms(done)}"
    yield "" if judged.injected_ms is None else f"{judged.injected_ms:.0f}"
    yield _counted([*(short(trial.first) for trial in done), *_failures(judged.faulty)])
    yield _share(map(judged.rule, done))
    yield _share(map(judged.ranks, done))
    yield _share(map(judged.place, done))
    yield _share(map(judged.cause, done))
    yield "" if judged.predicted_ms is None else f"{judged.predicted_ms:.1f}"
    yield _percent(judged.error(judged.injected_ms))
    yield _percent(judged.error(judged.gained_ms))
    found = [short(finding) for trial in clean for finding in trial.findings]
    yield _counted([*found, *_failures(judged.clean)])
    yield _counted(short(finding) for trial in clean for finding in false_alarms(trial, program))


def kinds(all_judged: Iterable[Judged]) -> str:
    """One row for each kind of fault: the rule that names it, and what causes it."""
    by_kind: dict[str, list[Judged]] = defaultdict(list)
    for judged in all_judged:
        rules, causes = judged.fault.rules, judged.fault.causes
        by_kind[", ".join([*(rules[:1] or ["nobody to blame"]), *map(str, causes[:1])])].append(
            judged
        )
    return _table(KINDS, (_kind(name, by_kind[name]) for name in sorted(by_kind)))


def _kind(name: str, all_judged: list[Judged]) -> Iterator[str]:
    yield name
    yield str(len(all_judged))
    yield _share_of(all_judged, Judged.right)
    yield _share_of(all_judged, Judged.cause)
    yield _errors(all_judged, lambda judged: judged.injected_ms)
    yield _errors(all_judged, lambda judged: judged.gained_ms)


def totals(title: str, all_judged: list[Judged], what: str = "recordings") -> str:
    """What it comes to, over these."""
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
    right, rule, ranks, place, cause, misled = (
        _share_of(all_judged, answer)
        for answer in (
            Judged.right,
            Judged.rule,
            Judged.ranks,
            Judged.place,
            Judged.cause,
            Judged.misled,
        )
    )
    named = _counted(short(finding) for each in alarms for finding in each)
    done = sum(len(judged.done) for judged in all_judged)
    counts = f"{len(shared)} programs, {done} {what} with a fault, {len(clean)} without"
    return f"""**{title}**: {counts}.

- first finding right, rule and ranks: {right}; rule: {rule}; ranks: {ranks}; place: {place}; \
cause: {cause or "none named"}
- first finding blames the wrong ranks, with medium or high confidence: {misled}
- saving against the injected delay: {_errors(all_judged, lambda judged: judged.injected_ms)}
- saving against the {what} without the fault: \
{_errors(all_judged, lambda judged: judged.gained_ms)}
- false alarms: in {_share(map(bool, alarms))} {what} without a fault {named and f"({named})"}
- failed: {len(failed)} {"; ".join(failed)}"""


def _errors(all_judged: list[Judged], true_ms: Callable[[Judged], float | None]) -> str:
    errors = [judged.error(true_ms(judged)) for judged in all_judged]
    known = sorted(abs(error) for error in errors if error is not None)
    if not known:
        return "none to compare"
    worst = known[min(int(0.9 * len(known)), len(known) - 1)]
    return f"median error {median(known):.0%}, p90 {worst:.0%} ({counted(len(known), 'fault')})"


def _median_ms(trials: list[Trial]) -> str:
    return f"{median(trial.step_ms for trial in trials):.0f}" if trials else "failed"


def _failures(trials: list[Trial]) -> Iterator[str]:
    for trial in trials:
        if trial.failed:
            yield f"failed: {trial.failed}"


def _share_of(all_judged: list[Judged], answer: Callable[[Judged, Trial], bool | None]) -> str:
    return _share(answer(judged, trial) for judged in all_judged for trial in judged.done)


def _share(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)}/{len(known)}" if known else ""


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.0%}"


def _counted(texts: Iterable[str]) -> str:
    counts = Counter(texts).most_common()
    return ", ".join(f"{text} ×{n}" if n > 1 else text for text, n in counts)
