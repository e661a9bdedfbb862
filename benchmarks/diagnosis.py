"""``python -m benchmarks.diagnosis``: how often the diagnosis is right, on known faults.

Every fault's gain is known by generating the same run without it. Rules were tuned on even
seeds (``--tune``); the tables are of odd ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.faults import CLEAN, FAULTS, SMALLEST, Case, Truth, case
from commtrace.diagnosis import Finding
from commtrace.rules import RULES, diagnose

_LARGE = 0.05  # of a step: what rules promise to see
_SMALLEST_OF_SEVERAL = 0.08
_SIZES = (0.025, 0.05, 0.1, 1.0)


@dataclass(frozen=True)
class Answer:
    """What the diagnosis made of one injected fault.

    ``first``: the first finding of its kind names it; ``error`` is that of the gain, None
    where none is known; ``linked`` and ``loose`` count its symptoms that are, or are not,
    listed below a cause.
    """

    rule: str
    share: float | None
    first: bool
    error: float | None
    linked: int
    loose: int


@dataclass(frozen=True)
class Result:
    """One judged run: its kind, its answers, and its findings by rule, true or false."""

    kind: str
    answers: tuple[Answer, ...]
    findings: tuple[tuple[str, bool], ...]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each fault")
    parser.add_argument("--tune", action="store_true", help="the even seeds, for tuning")
    parser.add_argument("--only", default="", help="only faults of this rule, and their misses")
    options = parser.parse_args()
    seeds = [2 * i + (not options.tune) for i in range(options.seeds)]
    tasks = list(_tasks(seeds, options.only))
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(_judged, tasks, chunksize=4))
    if options.only:
        for task, result in zip(tasks, results, strict=True):
            print(*task, result)
        return
    single = [one for one in results if one.kind == "fault"]
    clean = [one for one in results if one.kind not in ("fault", "2", "3")]
    _print_rules(single, results)
    _print_sizes(single)
    _print_clean(clean)
    _print_several([one for one in results if one.kind in ("2", "3")])


# ── judging ────────────────────────────────────────────────────────────────────────────────


def _tasks(seeds: Sequence[int], only: str) -> Iterable[tuple[str, int, tuple[int, ...]]]:
    for at, fault in enumerate(FAULTS):
        yield from (("fault", seed, (at,)) for seed in seeds if only in ("", fault.rule))
    if not only:
        yield from ((kind, seed, ()) for kind in CLEAN for seed in seeds)
        mixing = [at for at, fault in enumerate(FAULTS) if fault.mixes and fault.timed]
        for count in (2, 3):
            for seed in [s + 1000 * i for s in seeds for i in range(2)]:
                chosen = random.Random(f"{count}{seed}").sample(mixing, count)
                yield str(count), seed, tuple(chosen)


def _judged(task: tuple[str, int, tuple[int, ...]]) -> Result:
    kind, seed, chosen = task
    if not chosen:
        return _judge(kind, CLEAN[kind](seed))
    smallest = SMALLEST if kind == "fault" else _SMALLEST_OF_SEVERAL
    return _judge(kind, case(seed, *(FAULTS[at] for at in chosen), smallest=smallest))


def _judge(kind: str, run: Case) -> Result:
    findings = diagnose(run.trace).findings
    faults = [one for one in findings if not RULES[one.rule].good_news]
    return Result(
        kind,
        tuple(_answer(truth, findings) for truth in run.truths),
        tuple((one.rule, _is_true(one, run.truths)) for one in faults),
    )


def _answer(truth: Truth, findings: Sequence[Finding]) -> Answer:
    mine = [one for one in findings if one.rule == truth.rule]
    first = bool(mine) and truth.named_by(mine[0])
    error = None
    if first and truth.gain_us and truth.gain_us > 0:
        error = mine[0].cost_ns / 1e3 / truth.gain_us - 1
    above = {one.explained_by for one in mine}
    symptoms = [one for one in findings if one.rule in truth.also and one.rule not in above]
    linked = sum(one.explained_by is not None for one in symptoms)
    return Answer(truth.rule, truth.share, first, error, linked, len(symptoms) - linked)


def _is_true(finding: Finding, truths: Iterable[Truth]) -> bool:
    return any(truth.named_by(finding) or finding.rule in truth.also for truth in truths)


# ── printing ───────────────────────────────────────────────────────────────────────────────


def _print_rules(single: Sequence[Result], results: Sequence[Result]) -> None:
    said: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        for rule, true in result.findings:
            said[rule].append(true)
    print("| rule | injected | of ≥ 5 % named first | precision | error of the gain | spread |")
    print("|---|--:|--:|--:|--:|--:|")
    named: list[bool] = []
    for rule in RULES:
        mine = [a for one in single for a in one.answers if a.rule == rule]
        large = [a for a in mine if a.share is None or a.share >= _LARGE]
        errors = [a.error for a in large if a.error is not None]
        named += [a.first for a in large]
        print(
            f"| {rule} | {len(mine)} | {_of([a.first for a in large])} | {_of(said[rule])} "
            f"| {_middle(errors)} | {_quartiles(errors)} |"
        )
    print(f"| all | {sum(len(one.answers) for one in single)} | {_of(named)} | "
          f"{_of([true for of_rule in said.values() for true in of_rule])} | | |\n")  # fmt: skip


def _print_sizes(single: Sequence[Result]) -> None:
    print("| size of the fault, of a step | injected | named first | error of the gain |")
    print("|---|--:|--:|--:|")
    for low, high in zip((0.0, *_SIZES), _SIZES, strict=False):
        mine = [
            a
            for one in single
            for a in one.answers
            if a.share is not None and low <= a.share < high
        ]
        errors = [a.error for a in mine if a.error is not None]
        print(
            f"| {100 * low:g} to {100 * high:g} % | {len(mine)} | {_of([a.first for a in mine])} "
            f"| {_middle(errors)} |"
        )
    print()


def _print_clean(clean: Sequence[Result]) -> None:
    print("| clean runs | runs | with a finding | findings |")
    print("|---|--:|--:|---|")
    for kind in (*CLEAN, "all"):
        mine = [one for one in clean if kind in ("all", one.kind)]
        rules = Counter(rule for one in mine for rule in {rule for rule, _ in one.findings})
        share = sum(bool(one.findings) for one in mine) / max(len(mine), 1)
        which = ", ".join(f"{rule} {100 * n / len(mine):.1f} %" for rule, n in rules.most_common())
        print(f"| {kind} | {len(mine)} | {share:.1%} | {which} |")
    print()


def _print_several(mixed: Sequence[Result]) -> None:
    print("| faults at once | runs | named first | findings that are true | symptoms under a cause "
          "| error of the gain |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|")
    for kind in ("2", "3"):
        mine = [one for one in mixed if one.kind == kind]
        answers = [a for one in mine for a in one.answers if (a.share or 0) >= _LARGE]
        true = [true for one in mine for _, true in one.findings]
        linked = [True] * sum(a.linked for a in answers) + [False] * sum(a.loose for a in answers)
        errors = [a.error for a in answers if a.error is not None]
        print(
            f"| {kind} | {len(mine)} | {_of([a.first for a in answers])} | {_of(true)} "
            f"| {_of(linked)} | {_middle(errors)} |"
        )


def _of(answers: Sequence[bool]) -> str:
    if not answers:
        return ""
    return f"{sum(answers)}/{len(answers)} {sum(answers) / len(answers):.1%}"


def _middle(errors: Sequence[float]) -> str:
    return f"{statistics.median(errors):+.1%}" if errors else ""


def _quartiles(errors: Sequence[float]) -> str:
    if len(errors) < 4:
        return ""
    low, _, high = statistics.quantiles(errors, n=4)
    return f"{low:+.1%} to {high:+.1%}"


if __name__ == "__main__":
    main()
