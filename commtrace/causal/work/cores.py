"""How busy the cores are that a host's ranks share: where they are, waiting less gains nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, distinct
from commtrace.causal.run.replayable import replayable
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.causal.work.core_speed import slower_core
from commtrace.causal.work.segments import own_work
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.machines import machines
from commtrace.metrics.run.whole import profiler_steps
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "FULL",
    "Processor",
    "asleep_ns",
    "bound_together",
    "cores_used",
    "fight",
    "foreign_load",
    "full_cores",
    "idle_cores_ns",
    "processor",
    "taken_cores",
    "works_more",
]

FULL = 0.85
"""The share of the cores above which they have no time left: what then runs takes another's."""
_FOREIGN = 0.15  # of the cores
_FIGHT = 1.36  # so much longer operators take that fight for a core
_SHARED = 1.3
_BESIDE = 1.2  # where it is known how fast their cores were: 1.15 in clean runs of equal work
_MORE_WORK = 1.2  # times the others' processor time: 1.1 is chance where cores share caches


@measure
def cores_used(run: Measures) -> float | None:
    """The share of the busiest host's cores that operators and transfers fill, if that is known.

    Only a recording's manifest says how many cores its ranks may use. None where GPUs communicate.
    """
    its = run_graph(run)
    if not its.calls.on_cpu.all():
        return None
    begin, end = its.begin_ns, int(its.end_ns.max())
    used: dict[str | None, float] = {}
    on, cores = hosts(run), _cores(run)
    for rank in distinct(its.calls.rank).tolist():
        if rank not in cores:
            return None
        computes = int(covered([begin], [end], host_busy(run, rank))[0])
        transfers = int(its.transfer_ns[its.calls.rank == rank].sum())
        share = (computes + transfers) / max(cores[rank] * (end - begin), 1)
        used[on.get(rank)] = used.get(on.get(rank), 0.0) + share
    return max(used.values(), default=None)


def _crowded(run: Measures) -> float:
    """Processes per core that they may use, as the recording says; 1 where it does not."""
    cores, shares = _cores(run), [1.0]
    if cores and _on_one_host(run):
        shares.append(len(run.rows("ranks")) / min(cores.values()))
    for rank, machine in machines(run).items():
        processes = machine.processes
        if processes is not None and rank in cores:
            shares.append(processes / cores[rank])
    return max(shares)


def fight(run: Measures, ranks: Collection[int], *, few: bool = False) -> float:
    """How many times as long these ranks' work may take only because processes fight for cores.

    Where it is known how long they waited for one, and is no part of their work, they still share
    what these share: caches, memory, and the parts of a core that it lends to another; the more
    the longer they waited, and in ``few`` steps, which are alike, as much as the waiting may be.
    Where it is known how much longer their cores took for a fixed piece of work, so much longer
    still, and else less.
    """
    core = slower_core(run, ranks)
    slower = max(core or 1.0, 1.0)
    waited = own_work(run).waited_ns
    if waited is None:
        return slower * max(_FIGHT, _crowded(run))
    mine = np.isin(run_graph(run).calls.rank, list(ranks))
    share = waited[mine].sum() / max(own_work(run).own_ns[mine].sum() + waited[mine].sum(), 1)
    most = (_SHARED if core is None else _BESIDE) + float(share)
    return slower * (max(_FIGHT, most) if few else most)


def foreign_load(run: Measures, ranks: Collection[int] | None = None) -> float | None:
    """The share of a host's cores that other processes took, where no core had time left.

    0 where some had; the most of the hosts of these ranks, by default of all. None where no
    recording says it.
    """
    on = hosts(run)
    its = {on[rank] for rank in (on if ranks is None else ranks) if rank in on}
    loads = (
        _foreign_load(run, [rank for rank, where in on.items() if where == host]) for host in its
    )
    return max((load for load in loads if load is not None), default=None)


def _foreign_load(run: Measures, of_host: list[int]) -> float | None:
    numbers = _numbers(run, of_host, "own_s", "seconds", "usable_cores", "cores", "busy_s")
    if numbers is None:
        return None
    there, busy = _cores_s(*numbers[1:4]), float(numbers[4].max())
    if there <= 0 or busy < FULL * there:
        return 0.0
    return min(max((busy - float(numbers[0].sum())) / there, 0.0), 1.0)


class Processor(Struct, frozen=True):
    """The processor time of ranks' processes: beyond what is usual, in multiples of it, all."""

    more_ns: float
    times: float
    all_ns: float


def processor(run: Measures, ranks: Collection[int]) -> Processor | None:
    """What each of these ranks' processes took more than is usual of the others, in all steps.

    However long they waited for a core. None where no recording says it, or not all ranks
    communicate from CPUs.
    """
    known, shares = _shares(run)
    mine = np.isin(known, list(ranks))
    if not mine.any() or mine.all() or not run_graph(run).calls.on_cpu.all():
        return None
    mean, usual = float(shares[mine].mean()), median(shares[~mine])
    all_ns = float(run_graph(run).step_ns.sum())
    return Processor((mean - usual) * all_ns, mean / max(usual, 1e-9), mean * all_ns)


@measure
def _shares(run: Measures) -> tuple[Int64, Float64]:
    """The ranks whose processor time is known, and how much of a core each took."""
    shares = {
        rank: its.own_s / its.seconds
        for rank, its in machines(run).items()
        if its.own_s is not None and its.seconds
    }
    return np.asarray([*shares], dtype=np.int64), np.asarray([*shares.values()], dtype=np.float64)


def works_more(run: Measures, ranks: Collection[int]) -> bool:
    """Whether these ranks' processes surely took more processor time than the others'."""
    took = processor(run, ranks)
    if took is None or took.times < _MORE_WORK:
        return False
    return took.times >= _MORE_WORK * max(slower_core(run, ranks) or 1.0, 1.0)


def taken_cores(run: Measures, ranks: Collection[int] | None = None) -> str | None:
    """In words, that other processes took much of the cores of these ranks' hosts, if they did."""
    foreign = foreign_load(run, ranks)
    if foreign is None or foreign < _FOREIGN:
        return None
    share = f"{100 * foreign:.0f} %"
    return f"other processes took {share} of the CPU cores meanwhile, and left none idle"


def bound_together(run: Measures) -> tuple[int, ...]:
    """Ranks of one host that are bound to the very same cores, fewer than the host's and than they.

    The most of those on one host; none where no recording says to which they are bound.
    """
    on, sharing = hosts(run), dict[tuple[object, ...], list[int]]()
    for rank, its in machines(run).items():
        cores = its.core_ids
        if cores and its.cores and len(cores) < its.cores:
            sharing.setdefault((on.get(rank), *cores), []).append(rank)
    many: list[list[int]] = [
        ranks for (_, *cores), ranks in sharing.items() if len(ranks) > len(cores)
    ]
    return tuple(sorted(sorted(many, key=len)[-1])) if many else ()


def full_cores(run: Measures) -> str | None:
    """In words, why gloo's threads had to wait for the cores, as far as it is known.

    Others took these, or the ranks' own operators and transfers fill them.
    """
    if not run.rows("collectives").coded("device").being("cpu").any():
        return None
    taken = taken_cores(run)
    used = cores_used(run) if taken is None and replayable(run) else None
    if used is None or used < FULL:
        return taken
    return f"operators and transfers fill {min(100 * used, 100):.0f} % of the CPU cores"


@measure
def asleep_ns(run: Measures) -> dict[int, float] | None:
    """How long each rank's thread neither ran, nor waited for a core or another rank.

    Whatever fills the cores, that is time in which something else can be done. None where no
    recording says what each rank's thread ran.
    """
    calls, own = run_graph(run).calls, own_work(run).own_ns.sum(axis=1)
    steps = set(profiler_steps(run).ints("step").tolist())
    known = machines(run)
    asleep = {}
    for rank in distinct(calls.rank).tolist():
        its = known[rank].steps if rank in known else None
        ran = [ran_us for number, ran_us, *_ in its or () if number in steps]
        if not ran:
            return None
        asleep[rank] = max(float(own[calls.rank == rank].sum()) - 1e3 * sum(ran), 0.0)
    return asleep


def idle_cores_ns(run: Measures) -> int | None:
    """How much shorter a run on CPUs could be if its processes left its cores no idle time.

    None where no recording says what they took, on GPUs, or on several hosts.
    """
    if not _on_one_host(run):
        return None
    ranks = run.rows("ranks").ints("rank").tolist()
    numbers = _numbers(run, ranks, "own_s", "seconds", "usable_cores", "cores")
    if numbers is None or not run_graph(run).calls.on_cpu.all():
        return None
    there = _cores_s(*numbers[1:])
    idle = max(1 - float(numbers[0].sum()) / there, 0.0) if there > 0 else 0.0
    return round(idle * float(run_graph(run).step_ns.sum()))


def _cores_s(seconds: Float64, usable: Float64, cores: Float64) -> float:
    """The time that the cores had which ranks may use: each its own, or all the same."""
    return float(seconds.max() * min(usable.sum(), cores.max()))


def _numbers(run: Measures, ranks: Collection[int], *names: str) -> Float64 | None:
    """What each of these ranks' processes, all of one host, measured of it: names × ranks.

    None where one is not known.
    """
    of = [machine for rank, machine in machines(run).items() if rank in ranks]
    rows = [[getattr(machine, name) for name in names] for machine in of]
    if not rows or any(each is None for row in rows for each in row):
        return None
    numbers: Float64 = np.asarray(rows, dtype=np.float64).T
    return numbers


def _cores(run: Measures) -> dict[int, int]:
    """How many cores each rank may use, with others: as the rank found them, else the CPU's."""
    every = run.told("cpu").get("count") if _on_one_host(run) else None
    counts = dict.fromkeys(run.rows("ranks").ints("rank").tolist(), every)
    counts |= {rank: its.usable_cores for rank, its in machines(run).items()}
    return {rank: its for rank, its in counts.items() if isinstance(its, int) and its > 0}


def _on_one_host(run: Measures) -> bool:
    return len(set(hosts(run).values())) == 1
