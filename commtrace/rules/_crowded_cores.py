"""Whether processes compute with more threads than cores, so that each waits for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from commtrace.causal.work.cores import bound_together, foreign_load
from commtrace.machine import Machine
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.machines import machines

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Crowded", "crowded_cores"]

_MUCH = 0.1  # of the time that a thread runs or waits for a core
_OTHERS = 0.1  # of the cores


class Crowded(Struct, frozen=True):
    """A host's ``ranks``, with their threads, on fewer ``cores``.

    The rank that waits longest did so for ``waited_ns`` in all, ``share`` of the time in which it
    ran or waited, in so many ``steps``. ``too_many`` are the ranks with more threads than their
    part of the cores, and ``others`` the share of these that other processes took. They are
    ``bound`` to these cores if others of the host are left to others.
    """

    ranks: tuple[int, ...]
    threads: tuple[int, ...]
    cores: int
    waited_ns: int
    share: float
    steps: int
    too_many: tuple[int, ...]
    others: float
    bound: bool

    @property
    def fit(self) -> int:
        """So many threads for each process have cores."""
        return max(self.cores // len(self.ranks), 1)

    @property
    def is_sure(self) -> bool:
        """Whether nothing else took the cores."""
        return self.others <= _OTHERS


def crowded_cores(run: Measures) -> Crowded | None:
    """The host whose threads wait longest for cores, of those with too many; None if none has."""
    if bound := bound_together(run):
        known = machines(run)
        cores = len(known[bound[0]].core_ids or ())
        return _sharing(run, {rank: known[rank] for rank in bound}, cores, bound)
    on = hosts(run)
    by_host: dict[str | None, dict[int, Machine]] = {}
    for rank, its in machines(run).items():
        by_host.setdefault(on.get(rank), {})[rank] = its
    found = (_of_host(run, its) for its in by_host.values())
    return max((its for its in found if its), key=lambda its: its.waited_ns, default=None)


def _of_host(run: Measures, its: dict[int, Machine]) -> Crowded | None:
    cores = {one.usable_cores for one in its.values()}
    (shared,) = cores if len(cores) == 1 else (None,)
    processes = {one.processes for one in its.values()}
    if shared is None or processes != {len(its)}:
        return None
    there = max((one.cores or shared for one in its.values()), default=shared)
    if shared < there and shared * len(its) <= there:
        return None  # each may have cores of its own
    return _sharing(run, its, shared)


def _sharing(
    run: Measures, its: dict[int, Machine], shared: int, bound: tuple[int, ...] = ()
) -> Crowded | None:
    """These ranks on so many cores; None if they hardly wait for these, or nothing tells."""
    threads = {rank: one.threads for rank, one in its.items() if one.threads is not None}
    if len(threads) < len(its):
        return None
    fit = max(shared // len(its), 1)
    too_many = tuple(sorted(rank for rank, count in threads.items() if count > fit)) or bound
    waits = [(*_waited(one), len(one.steps or ())) for one in its.values()]
    waited_us, ran_us, steps = max(waits)
    share = waited_us / max(waited_us + ran_us, 1)
    if sum(threads.values()) <= shared or not too_many or share < _MUCH:
        return None
    return Crowded(
        ranks=tuple(sorted(its)),
        threads=tuple(threads[rank] for rank in sorted(its)),
        cores=shared,
        waited_ns=1000 * waited_us,
        share=share,
        steps=steps,
        too_many=too_many,
        others=foreign_load(run, [*its]) or 0.0,
        bound=bool(bound),
    )


def _waited(its: Machine) -> tuple[int, int]:
    """How long its thread waited for a core in the recorded steps, and ran, in µs."""
    steps = its.steps or []
    return sum(waited for _, _, waited, _ in steps), sum(ran for _, ran, _, _ in steps)
