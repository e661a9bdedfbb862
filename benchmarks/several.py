"""``python -m benchmarks.several``: several culprits at once, in runs on CPUs.

Each alone may save nothing, as the other is as late. What is true is known by generating the
same run without one of them, and without all that were found before it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

from benchmarks.faults.loop import Loop, log_uniform
from benchmarks.faults.workloads import everyone_computes, gloo
from commtrace.causal.blame.culprits import culprits
from commtrace.rules import diagnose

__all__ = ["JOBS", "Delay", "Job", "Judged", "judged"]

RULES = ("straggler", "late-root", "early-root", "late-sender", "late-receiver")
_LEAST = 0.05
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
CHECKPOINT = "commtrace::checkpoint"


@dataclass(frozen=True)
class Delay:
    """Ranks that are late together, what they do, and how that is put into a job."""

    ranks: tuple[int, ...]
    cause: str | None
    inject: Callable[[Loop], None]


@dataclass(frozen=True)
class Job:
    """A job without delays, what runs in it, and the delays that a seed puts into it."""

    name: str
    make: Callable[[int], Loop]
    workload: Callable[[Loop], None]
    delays: Callable[[Loop, random.Random], tuple[Delay, ...]]

    def run(self, seed: int, left: Sequence[int]) -> Loop:
        """The job of a seed with only some of its delays."""
        loop = self.make(seed)
        every = self.delays(loop, random.Random(f"{self.name}:{seed}"))
        for number in left:
            every[number].inject(loop)
        self.workload(loop)
        return loop


@dataclass(frozen=True)
class Judged:
    """What was said of one delay: whether it is named, why, and both errors of its saving.

    It may be named ``together`` with another, as one saving without a single cause. The errors
    are shares of the run, as savings alone may be nothing.
    """

    job: str
    named: bool
    alone: float | None = None
    on_top: float | None = None
    together: bool = False
    cause: bool | None = None


def judged(job: Job, seed: int) -> Iterator[Judged]:
    """The diagnosis of the job with all its delays, for each of them.

    Those that are left count only if without them all the run were a twentieth shorter.
    """
    delays = job.delays(job.make(seed), random.Random(f"{job.name}:{seed}"))
    every = range(len(delays))
    whole = job.run(seed, every)
    took = whole.elapsed_us()
    trace = whole.trace()
    said = {one.ranks: one for one in diagnose(trace, select=RULES).findings}
    in_order = [one.ranks for one in culprits(trace, _LEAST).found]
    left, before = list(every), took
    for its in (said[ranks] for ranks in in_order if ranks in said):
        mended = [number for number in left if {*delays[number].ranks} <= {*its.ranks}]
        if {*its.ranks} != {rank for number in mended for rank in delays[number].ranks}:
            continue
        alone = took - job.run(seed, [n for n in every if n not in mended]).elapsed_us()
        left = [number for number in left if number not in mended]
        after = job.run(seed, left).elapsed_us()
        for number in mended:
            yield Judged(
                job.name,
                named=True,
                alone=(its.cost_ns / 1e3 - alone) / took,
                on_top=((its.cost_on_top_ns or 0) / 1e3 - (before - after)) / took,
                together=len(mended) > 1,
                cause=None if len(mended) > 1 else its.cause == delays[number].cause,
            )
        before = after
    worth = before - job.run(seed, ()).elapsed_us() >= _LEAST * took
    for _ in left if worth else ():
        yield Judged(job.name, named=False)


# ── jobs ───────────────────────────────────────────────────────────────────────────────────


def _flat(seed: int) -> Loop:
    return Loop(seed, ranks=random.Random(f"ranks:{seed}").choice([4, 6, 8]), backend="gloo")


def _larger(seed: int) -> Loop:
    """Where three are late, more than as many have to be on time: they are what is typical."""
    return Loop(seed, ranks=8, backend="gloo")


def _on_two_hosts(seed: int) -> Loop:
    return Loop(seed, ranks=4, backend="gloo", hosts=("a", "b"))


def _staged(seed: int) -> Loop:
    loop = Loop(seed, ranks=4, backend="gloo")
    loop.run.groups |= {"first": (0, 1), "second": (2, 3)}
    return loop


def _stages(loop: Loop) -> None:
    """Two stages of two replicas each: activations go from one to the other, gradients within."""
    for _ in range(loop.steps):
        with loop.step():
            for _ in range(8):
                for replica in range(2):
                    loop.compute(replica, loop.step_us / 16, place="forward")
                    loop.message(replica, replica + 2, 100_000)
                    loop.compute(replica + 2, loop.step_us / 16, place="forward")
            for name, members in (("first", (0, 1)), ("second", (2, 3))):
                loop.together("all_reduce", 1_000_000, ranks=members, group=name, wait=True)
            everyone_computes(loop, 0.05, kernels=1, place="update")


def _computing(ranks: tuple[int, ...], share: float, *, more: float = 0.0) -> Delay:
    """They take longer for all that they compute."""

    def inject(loop: Loop) -> None:
        for rank in ranks:
            loop.speed[rank] *= 1 + share + more

    return Delay(ranks, "compute", inject)


def _stalling(rank: int, us: float, cause: str, label: str | None) -> Delay:
    """The host does something else at the beginning of each step."""
    return Delay(
        (rank,), cause, lambda loop: loop.hooks["input"].append(lambda: loop.stall(rank, us, label))
    )


def _two_alike(loop: Loop, dice: random.Random) -> tuple[Delay, ...]:
    ranks = tuple(sorted(dice.sample(loop.everyone, 2)))
    us = loop.step_us * log_uniform(dice, 0.15, 0.6)

    def inject(loop: Loop) -> None:
        for rank in ranks:
            loop.hooks["input"].append(lambda rank=rank: loop.stall(rank, us))  # type: ignore[misc]

    return (Delay(ranks, "host", inject),)


def _slow_host(_loop: Loop, dice: random.Random) -> tuple[Delay, ...]:
    return (_computing(dice.choice([(0, 1), (2, 3)]), log_uniform(dice, 0.4, 0.9)),)


def _straggler_and_loader(loop: Loop, dice: random.Random) -> tuple[Delay, ...]:
    slow, loads = dice.sample(loop.everyone, 2)
    us = loop.step_us * log_uniform(dice, 0.15, 0.6)
    return _computing((slow,), log_uniform(dice, 0.4, 0.9)), _stalling(loads, us, "loader", LOADER)


def _three(loop: Loop, dice: random.Random) -> tuple[Delay, ...]:
    slow, loads, saves = dice.sample(loop.everyone, 3)
    first, second = (loop.step_us * log_uniform(dice, 0.15, 0.6) for _ in range(2))
    return (
        _computing((slow,), log_uniform(dice, 0.4, 0.9)),
        _stalling(loads, first, "loader", LOADER),
        _stalling(saves, second, "checkpoint", CHECKPOINT),
    )


JOBS = (
    Job("two equally late ranks", _flat, gloo, _two_alike),
    Job("a slow host", _on_two_hosts, gloo, _slow_host),
    Job("a slow stage", _staged, _stages, _slow_host),
    Job("straggler and slow loader", _flat, gloo, _straggler_and_loader),
    Job("straggler, slow loader, checkpoints", _larger, gloo, _three),
)


# ── printing ───────────────────────────────────────────────────────────────────────────────


def _of_seed(task: tuple[int, int]) -> list[Judged]:
    job, seed = task
    return list(judged(JOBS[job], seed))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each kind")
    options = parser.parse_args()
    tasks = [(job, seed) for job in range(len(JOBS)) for seed in range(options.seeds)]
    with ProcessPoolExecutor() as pool:
        every = [one for several in pool.map(_of_seed, tasks, chunksize=4) for one in several]
    print(
        "| at once | delays | named | of these together | cause "
        "| error of the saving alone, of the run | on top |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in (*(job.name for job in JOBS), "all"):
        mine = [one for one in every if name in ("all", one.job)]
        print(
            f"| {name} | {len(mine)} | {_share(one.named for one in mine)} "
            f"| {_share(one.together for one in mine if one.named)} "
            f"| {_share(one.cause for one in mine if one.cause is not None)} "
            f"| {_errors([one.alone for one in mine])} | {_errors([one.on_top for one in mine])} |"
        )


def _share(answers: Iterator[bool]) -> str:
    known = list(answers)
    return f"{sum(known)}/{len(known)}"


def _errors(errors: Sequence[float | None]) -> str:
    known = sorted(abs(one) for one in errors if one is not None)
    if not known:
        return ""
    worst = known[min(int(0.9 * len(known)), len(known) - 1)]
    return f"{median(known):.1%}, p90 {worst:.1%}"


if __name__ == "__main__":
    main()
