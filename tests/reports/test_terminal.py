"""The terminal's report of typical runs at usual widths: what an engineer has before them.

``pytest tests/reports --regenerate`` writes the expected texts anew; look at their diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from commtrace.analysis import Analysis
from commtrace.diagnosis import Diagnosis, Evidence, Finding
from commtrace.reports import Look
from commtrace.reports.formats import text as terminal
from commtrace.run import Run
from commtrace.synthetic import BASE_NS, Tiny

Expect = Callable[[str, str], None]

WIDTHS = (60, 80, 120, 200)
MS = 1_000_000
STRAGGLER = Finding(
    rule="straggler",
    summary="rank 2 is last in 5 of 5 collectives, by 12 ms: 60 ms of waiting",
    ranks=(2,),
    streams=(),
    start_ns=BASE_NS,
    end_ns=BASE_NS + 500 * MS,
    cost_ns=60 * MS,
    evidence=(Evidence("last", 5, "operations", 4),),
    ruled_out=(),
    advice="before each collective rank 2 computes 12 ms longer: split the work evenly",
    confidence="high",
)
LATE = replace(STRAGGLER, rule="device-late", explained_by="straggler")
FIVE = (
    STRAGGLER,
    replace(LATE, summary="rank 2 computes 12 ms longer than the others before each collective"),
    replace(
        STRAGGLER,
        rule="exposed-communication",
        summary="30 ms of communication runs with no compute beside it, mostly all_gather; "
        "compute could hide 21 ms",
        ranks=(),
        cost_ns=21 * MS,
        advice="start all_gather asynchronously and wait for it only where its result is used; "
        "the trace does not tell whether the compute needs it at once",
        confidence="medium",
        place="forward",
    ),
    replace(
        STRAGGLER,
        rule="cold-start",
        summary="the first all_reduce of a group takes 9 ms, 4x the usual 2.25 ms",
        end_ns=BASE_NS + 9 * MS,
        cost_ns=6_750_000,
        advice="run one operation of each group before timing starts",
    ),
    replace(
        STRAGGLER,
        rule="latency-bound",
        summary="200 all_reduce of 4 kB take 14 µs each, of which 13 µs are latency",
        cost_ns=2_500_000,
        advice="send them in one bucket",
        confidence="low",
    ),
    replace(
        STRAGGLER,
        rule="unfit-trace",
        summary="3 % of the kernels lack their launch: step and cause are unknown",
        cost_ns=0,
        advice="start the profiler a step earlier",
    ),
)
SKIPPED = {
    "below-link-speed": "no recorded topology tells one link between all GPUs",
    "at-the-roofline": "no recorded topology tells one link between all GPUs",
    "cold-start": "no group's first operation is known to be in the trace",
    "late-sender": "0 sends matched with their recv, needs 10",
    "uneven-all-to-all": "no all_to_all has its sizes on every rank of its group",
}
UNFIT = replace(
    STRAGGLER,
    rule="unfit-trace",
    summary="no trace file for ranks 1–15: waiting for them cannot be separated from transfer",
    cost_ns=0,
    advice="record every rank in the same steps and give all files together",
)
ALONE = dict.fromkeys(
    ("degraded-link", "device-late", "host-late", "jitter", "latency-bound", "straggler"),
    "one rank only: waiting is not separable",
)


def training(
    ranks: int, *, of: int | None = None, late: int | None = None, exposed_us: int = 2_000
) -> Tiny:
    """Five steps of 100 ms; every rank computes, and an all_reduce ends some time behind that."""
    run = Tiny(ranks)
    run.groups["0"] = tuple(range(of or ranks))
    for rank in range(ranks):
        for step in range(5):
            start = 100_000 * step
            slow = 12_000 if rank == late else 10 * rank
            run.step(rank, step, start, 99_000)
            run.kernel(rank, start, 80_000 + slow, step=step)
            begin = start + 40_000 + slow
            end = start + 80_000 + exposed_us * (1 + step % 2) + (12_000 if late else 0)
            run.collective(
                rank, "all_reduce", begin, end - begin, size=256_000_000, dtype="bfloat16"
            )
    return run


def in_two_dimensions() -> Tiny:
    """The same with a late rank, and all_gathers over two groups of a named dimension."""
    run = training(4, late=2)
    run.groups |= {"mesh_tp:0": (0, 1), "mesh_tp:1": (2, 3)}
    for group, members in list(run.groups.items())[1:]:
        for rank in members:
            for step in range(5):
                start = 100_000 * step + 4_000
                run.step(rank, step, start - 1_000, 60_000, label="forward")
                run.collective(
                    rank, "all_gather", start, 500 + 900 * (step == 2), size=8_000_000, group=group
                )
    return run


def analysed(
    run: Tiny, *findings: Finding, world_size: int | None = None, **skipped: str
) -> Analysis:
    """What the rules say is given: they change, and are tested elsewhere."""
    trace = run.trace()
    ranks = trace.ranks.assign(start_ns=BASE_NS, end_ns=BASE_NS + 500 * MS)
    if world_size:
        ranks = ranks.assign(world_size=world_size)
    trace = replace(trace, ranks=ranks)
    analysis = Run(trace, "traces/run").analysis(select=["desync"])
    diagnosis = Diagnosis(findings, skipped)
    return replace(analysis, verdict=replace(analysis.verdict, diagnosis=diagnosis))


RUNS: dict[str, Callable[[], Analysis]] = {
    "clean": lambda: analysed(training(4), **SKIPPED),
    "one-fault": lambda: analysed(training(4, late=2), STRAGGLER, LATE, **SKIPPED),
    "five-faults": lambda: analysed(in_two_dimensions(), *FIVE, **SKIPPED),
    "64-ranks": lambda: analysed(training(64, late=2), STRAGGLER, **SKIPPED),
    "one-of-16": lambda: analysed(
        training(1, of=16, exposed_us=15_000), UNFIT, world_size=16, **{**SKIPPED, **ALONE}
    ),
}


@cache
def analysis_of(name: str) -> Analysis:
    return RUNS[name]()


@pytest.mark.parametrize(
    ("name", "width"),
    [*((name, 80) for name in RUNS), *((name, 60) for name in RUNS), ("five-faults", 120)],
)
def test_the_report_as_it_is_read(expect: Expect, name: str, width: int) -> None:
    expect(f"{name}-{width}.txt", terminal.render(analysis_of(name), Look(width=width)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_torn_apart(name: str, width: int) -> None:
    """No line is too wide, no number is cut, none is parted from its unit."""
    shown = terminal.render(analysis_of(name), Look(width=width))
    assert max(map(len, shown.splitlines())) <= width
    assert not re.search(r"\d…|…\d", shown)
    assert not re.search(r"\d\n *(%|[mµn]?s|[kMGT]?B)\b", shown)


@pytest.mark.parametrize("name", RUNS)
def test_a_pipe_gets_the_words_that_a_terminal_gets(name: str) -> None:
    plain = terminal.render(analysis_of(name), Look(width=80))
    colourful = terminal.render(analysis_of(name), Look(width=80, color=True))
    assert "\x1b" not in plain
    stripped = re.sub(r"\x1b\[[\d;]*m", "", colourful)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_the_width_changes_no_sentence() -> None:
    """What is said of findings is the same everywhere; only its lines break elsewhere."""
    said = {
        " ".join(shown[shown.index("\nFindings") :].split())
        for width in WIDTHS
        for shown in [terminal.render(analysis_of("five-faults"), Look(width=width))]
    }
    assert len(said) == 1
