"""One way between two ranks or hosts, or a group's, is slower than all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import Float64
from commtrace.causal.savings import Saving, of_transfers, saving, taking_less
from commtrace.comms import POINT_TO_POINT, members
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.bandwidth import streams
from commtrace.metrics.run.group_dimensions import dimensions_of, spoken
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._between_hosts import FAR, BetweenHosts, between_hosts
from commtrace.rules._rule import Rule
from commtrace.rules._slow_groups import SlowGroups, slow_groups
from commtrace.rules._slow_links import (
    MIN_COUNT,
    MIN_RATIO,
    Rings,
    SlowPairs,
    SlowTransfers,
    by_pair,
    rings_over,
    slow_transfers,
)
from commtrace.synthetic import Tiny
from commtrace.units import clean, counted, numbered, rate

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows


class SlowLink(Rule, frozen=True):
    """Transfers between two particular ranks or hosts take longer than the same between any others.

    What it detects
        Transfers between two ranks (sends, or operations of groups of two) are compared with the
        median of their own kind and size, within machines and across them separately. One pair with
        ``min_count`` transfers, one way or both, takes more than ``min_ratio`` times as long as the
        others, its first quartile above their third, and no other pair is half as slow, or only a
        few are, on GPUs, none of whose ranks is slow with all that it exchanges with; and it is
        worth ``min_step_share`` of the step. Between machines also all pairs of two hosts, or all
        that one host sends or receives. What gloo moves has to take as long nearly every time, as
        cores that are shared would not make it; of its messages only the wait for them is known,
        which has to be four times another pair's. Groups of more than two ranks, on GPUs, are
        compared with two siblings or more, of as many ranks and hosts along one dimension of the
        job's mesh, or with one where each is on one host, with low confidence: one, or a quarter of
        them at most, takes more than ``min_ratio`` times as long as these for the same all_reduces,
        all_gathers and reduce_scatters, its first quartile above their third, and no other exceeds
        what is usual by a quarter as much. Where none of these stands out, all that GPUs move
        between hosts is held against a twentieth of the bandwidth within hosts: adapters for each
        GPU give more, behind any NVLink. All_reduces, all_gathers and reduce_scatters of GPUs whose
        bus bandwidth is that of a slow link between two of their ranks, within a quarter, are slow
        for it: the saving has what they lose.

    Why it costs time
        Everybody who waits for these two ranks waits for their link.

    What to do
        Look at the cable, switch port or slot between the two; try the ranks in another
        order, so that a heavy pair does not use this link.

    Blind spots
        Groups of more than two ranks do not show their edges, as NCCL chooses the rings: all
        their ranks are named. Where all groups of a dimension are slow, or more than a few, none
        is. A slow rank is slow on all its edges and is no slow link; where an end has no other edge
        in the trace, or a rank no other group that is compared, or all edges of a host are slow,
        the two cannot be separated, and the finding says so. Of two hosts alone nobody can tell
        what their link should give, but that it is not that slow: the saving is then that of a
        tenth of the bandwidth within hosts, as an adapter for each GPU usually gives, and the
        finding is not sure.
    """

    explains: ClassVar[tuple[str, ...]] = (
        "below-link-speed",
        "late-sender",
        "late-receiver",
        "exposed-communication",
    )

    min_count: int = MIN_COUNT
    min_ratio: float = MIN_RATIO
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """The pairs, or the hosts, that stand out, and of each dimension the groups."""
        groups = slow_groups(run, self.min_count, self.min_ratio)
        network = between_hosts(run, self.min_count)
        for slow in groups or ():
            gain = self._saving(run, slow.transfers, slow.less_ns)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._of_groups(slow, gain, run)
        try:
            found = slow_transfers(run, self.min_count, self.min_ratio)
        except CannotLook:
            if groups is None and network is None:
                raise
            found = None
        if found is not None:
            rings = rings_over(run, found)
            gain = self._saving(run, found.transfers, found.less_ns, rings)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(found, rings, gain, run)
        elif network is not None and not groups:
            least = self._saving(run, network.transfers, network.too_slow_ns)
            if worth_reporting(least.cost_ns, run, self.min_step_share):
                gain = self._saving(run, network.transfers, network.less_ns)
                yield self._of_network(network, gain, run)

    def _saving(
        self, run: Measures, its: Rows, less: Float64, rings: Rings | None = None
    ) -> Saving:
        """If transfers take so much less, with what ``rings`` over the link take longer."""
        estimate = wall_ns(its.ints("last_end_ns"), less)
        if rings is None:
            return of_transfers(run, its, less, estimate, self.min_step_share)
        faster = taking_less(run, its, less)
        too = taking_less(run, rings.transfers, rings.less_ns)
        estimate += wall_ns(rings.transfers.ints("last_end_ns"), rings.less_ns)
        return saving(run, lambda lag: too(faster(lag)), estimate, self.min_step_share)

    def _finding(
        self, found: SlowTransfers, rings: Rings | None, gain: Saving, run: Measures
    ) -> Finding:
        link, transfers, ratio = found.link, found.transfers, found.ratio
        slow, rest = found.slow, found.rest
        op = transfers.coded("op")
        way = "→" if op.where(POINT_TO_POINT.__contains__).all() else "–"
        ends = link.ends.replace("→", way)
        pairs = by_pair(rest)
        count = len({frozenset(pair) for pair in pairs} if "↔" in ends else pairs)
        others = "the other pair" if count == 1 else f"the other {count} pairs"
        touching = {rank for pair in pairs for rank in pair}
        separable = link.separable and touching.issuperset(link.slow[0])
        waits = bool(slow.flags("on_cpu").all())
        took = "keep their receivers waiting" if waits else "take"
        times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"
        mostly = op.names[np.bincount(op.codes).argmax()]
        return self.finding(
            transfers,
            summary=(
                f"{len(transfers)} transfers {ends} {took} {times} times as long as the same "
                f"between {others}"
                + ("" if separable else f"; link or {link.unit}, the trace does not show which")
                + (
                    f"; as slow are {counted(len(rings.transfers), 'ring')} over it"
                    if rings
                    else ""
                )
            ),
            ranks=link.ranks,
            streams=streams(transfers, run),
            saving=gain,
            place=f"in the {mostly} {ends}" if waits else None,
            evidence=(
                Evidence("time against the other pairs", ratio, "x", self.min_ratio),
                *_bandwidth(f"bandwidth {ends}", slow),
                *_bandwidth("bandwidth of the others", rest),
            ),
            ruled_out=(
                "sizes and late ranks: transfers of one kind are compared, without waiting",
                *(("a slow rank: both are as fast as others elsewhere",) if separable else ()),
                *(("shared cores: nearly every exchange takes as long",) if waits else ()),
            ),
            advice=_advice(link),
            confidence="medium" if separable else "low",
        )

    def _of_groups(self, found: SlowGroups, gain: Saving, run: Measures) -> Finding:
        slow, rest, ratio = found.transfers, found.rest, found.ratio
        named = " and ".join(spoken(run, group) for group in found.groups)
        others = len(rest.coded("communicator").occurring())
        siblings = f"other {counted(others, 'group')}" if others > 1 else "only other group"
        dimension = dimensions_of(run, rest.coded("communicator")).at(0)
        doubt = "" if found.separable else " or rank"
        alone = ", nor whether they alone are on several hosts" if found.hosts is None else ""
        tool = "nvidia-smi nvlink -s and -e" if found.hosts == 1 else "adapters, switches"
        return self.finding(
            slow,
            summary=(
                f"{counted(len(slow), 'operation')} of {named} take {ratio:.3g} times as long as "
                f"the same of the {siblings} of {dimension}; which link{doubt} among them is "
                f"slow, the trace does not show{alone}"
            ),
            ranks=found.ranks,
            streams=streams(slow, run),
            saving=gain,
            evidence=(
                Evidence("time against the other groups", ratio, "x", self.min_ratio),
                *_bandwidth("bus bandwidth", slow),
                *_bandwidth("bus bandwidth of the others", rest),
            ),
            ruled_out=(
                "sizes and late ranks: operations of one kind are compared, without waiting",
                *(("slow ranks: all are as fast in other groups",) if found.separable else ()),
            ),
            advice=(
                f"check the links, ports and slots of {numbered('rank', found.ranks)} "
                f"({tool}, NCCL_DEBUG=INFO), and run nccl-tests on them alone"
            ),
            confidence="medium" if found.separable and found.hosts and others > 1 else "low",
        )

    def _of_network(self, found: BetweenHosts, gain: Saving, run: Measures) -> Finding:
        its, times = found.transfers, found.within_gb_s / found.between_gb_s
        groups = its.coded("communicator").occurring()
        ranks = sorted({rank for group in groups for rank in members(group)})
        on = [
            clean(host)
            for host, its_ranks in ranks_of_hosts(run).items()
            if {*its_ranks} & {*ranks}
        ]
        which = f"the hosts {on[0]} and {on[1]}" if len(on) == 2 else f"{len(on)} hosts"
        finding = self.finding(
            its,
            summary=(
                f"{counted(len(its), 'operation')} between {which} reach "
                f"{rate(found.between_gb_s)} GB/s, those within hosts {rate(found.within_gb_s)}; "
                "whose adapters or what network is slow, the trace does not show"
            ),
            ranks=tuple(ranks),
            streams=streams(its, run),
            saving=gain,
            evidence=(
                Evidence("time against operations within hosts", times, "x", FAR),
                Evidence("bus bandwidth between hosts", found.between_gb_s, "GB/s"),
                Evidence("bus bandwidth within hosts", found.within_gb_s, "GB/s"),
            ),
            ruled_out=("sizes and late ranks: large operations are compared, without waiting",),
            advice=(
                "an adapter for each GPU usually gives a tenth of what links within hosts do; "
                "the saving is held against that: see with NCCL_DEBUG=INFO whether NCCL "
                "uses all adapters, and RDMA (NET/IB, GPUDirect), not sockets; run nccl-tests "
                "between two hosts at a time; check port speeds, cables and switches"
            ),
            confidence="low",
        )
        return replace(finding, behind=True)  # the network may be as it was built

    @staticmethod
    def bad() -> Measures:
        """Four ranks in a ring; 2 → 3 takes twice as long."""
        return _ring({2: 200.0})

    @staticmethod
    def good() -> Measures:
        """All of rank 2's edges take twice as long: a slow rank."""
        return _ring({1: 200.0, 2: 200.0})


def _advice(link: SlowPairs) -> str:
    """What to do about a link; of a rank all of whose slow ones are its own, about these."""
    if link.unit == "rank" and len(link.ranks) == 1:
        return (
            f"check the links of rank {link.ranks[0]}'s GPU (nvidia-smi nvlink -s and -e), its "
            f"cable, port and slot: others reach it more slowly than one another ({link.between})"
        )
    return (
        f"check cable, port and slot between {link.between}, or "
        "order the ranks so that another pair uses this link"
    )


def _bandwidth(name: str, its: Rows) -> tuple[Evidence, ...]:
    """The median bandwidth of operations whose bytes on the links are known; nothing of none."""
    known = its.floats("busbw_gb_s")
    known = known[~np.isnan(known)]
    return (Evidence(name, median(known), "GB/s"),) if known.size else ()


def _ring(took_us: dict[int, float]) -> Measures:
    run = Tiny(4)
    for i in range(12):
        for rank in range(4):
            took = took_us.get(rank, 100.0)
            to, at = (rank + 1) % 4, i * 1000.0 + rank * 220
            run.collective(rank, "send", at, took, size=4_000_000, peer=to)
            run.collective(to, "recv", at, took, size=4_000_000, peer=rank)
    return run.trace()
