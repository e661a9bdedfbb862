"""Operations that reach a fraction of what their link gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, codes, first_rows, grouped
from commtrace.causal.delays import felt_ns
from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import members
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.rank.hosts import one_host
from commtrace.metrics.run.bandwidth import hidden, on_gpus, served, streams
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._link_speed import ALONE, LinkSpeed, link_speed
from commtrace.rules._rule import Rule
from commtrace.synthetic import on_links
from commtrace.topology import uniform_link
from commtrace.units import clean, counted, mb, ms, numbered, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows


class _Slow(Struct, frozen=True, eq=False):
    """Rows of operations of one dimension, what each usually takes, and the link of most.

    ``most`` are the operations of the most frequent kind in one group, ``rest`` those of the
    dimension's groups that are not slow.
    """

    operations: Rows
    expected_ns: Float64
    speed: LinkSpeed
    most: int
    rest: Rows

    @property
    def less_ns(self) -> Float64:
        """What each would take less."""
        return np.asarray((self.operations.ints("transfer_ns") - self.expected_ns).clip(min=0))

    @property
    def ranks(self) -> list[int]:
        """Those of its groups."""
        groups = self.operations.coded("communicator").occurring()
        return sorted({rank for group in groups for rank in members(group)})


class BelowLinkSpeed(Rule, frozen=True):
    """Large operations reach far less bandwidth than their link usually gives.

    What it detects
        ``min_count`` operations or more of one kind, of at least ``min_bytes``, recorded on every
        rank, whose bus bandwidth after the last rank's arrival is under ``max_share`` of what the
        recorded link usually reaches, where that is worth ``min_step_share`` of the step; what
        compute hides does not count. All groups of one dimension of the job's mesh are told
        together, with the ranks of the slow ones. Without a recorded topology a group on one host
        whose GPUs have NVLinks by their name is held against these and NCCL's latency, and the
        finding says that it assumes them: four GPUs or more that are linked alike (A100 and newer)
        with next to no compute beside it; others only if their PCIe usually reaches more, too; none
        whose ranks are all fast in others, as where bridges link pairs. Then
        only all_reduces, all_gathers and reduce_scatters count: what else is slow may be so for a
        busy rank, or between two GPUs without a link.

    Why it costs time
        The bytes take a slower way than they could: through the host instead of NVLink or
        peer access, over fewer channels, or with a protocol that halves the bandwidth.

    What to do
        See what NCCL chose (``NCCL_DEBUG=INFO``: ``via P2P`` or ``via SHM``, the channels); look
        for NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_MAX_NCHANNELS, NCCL_ALGO and NCCL_PROTO in the
        environment, and for
        access control (ACS), an IOMMU or a container that forbids peer access. ``nvidia-smi topo
        -m`` shows whether the GPUs have NVLinks, and ``nvidia-smi nvlink -s`` whether these are up.

    Blind spots
        Skipped where the GPUs of the machine are recorded not to be all linked alike, across
        machines, and without a recorded topology of GPUs that have no NVLinks by their name, as
        those on PCIe cards, or too few between two of them, as AMD's. What other jobs send is not
        in the trace.
    """

    of_single_events: ClassVar[bool] = True
    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_bytes: int = 16_000_000
    min_count: int = 10
    max_share: float = 0.5
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding for all groups of a dimension."""
        several_ranks(run)
        known = served(run)
        large = known.flags("exact") & (known.ints("size_bytes") >= self.min_bytes)
        known = known.take(large & ~np.isnan(known.floats("busbw_gb_s")) & on_gpus(known, run))
        found = []
        for slow in self._slow(known, run):
            estimate = felt_ns(slow.operations, slow.less_ns, run)
            gain = of_transfers(run, slow.operations, slow.less_ns, estimate, self.min_step_share)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((slow.most, (slow, gain)))
        for slow, gain in enough(found, self.min_count, "operation", "of one kind in one group"):
            yield self._finding(slow, gain, run)

    def _slow(self, known: Rows, run: Measures) -> Iterator[_Slow]:
        """The groups of each dimension that are too slow, or each that is of none known."""
        looked = uniform_link(run) is not None
        group = known.coded("communicator")
        dimension = dimensions_of(run, group)
        kinds: dict[str, list[tuple[Int64, LinkSpeed]]] = defaultdict(list)
        linked: set[int] = set()
        for at in grouped(group, known.coded("op")):
            some = known.take(at)
            speed = link_speed(run, some, self.max_share)
            looked |= speed is not None
            if speed is not None and speed.is_slow(some, run):
                kinds[dimension.at(at[0]) or group.at(at[0]) or ""].append((at, speed))
            elif speed is not None and speed.is_fast(some):
                linked.update(members(group.at(at[0]) or ""))
        if not looked:
            raise CannotLook("needs a recorded topology with one kind of link between all GPUs")
        for name, its in kinds.items():
            at = np.concatenate([rows for rows, _ in its])
            most, speed = max(its, key=lambda one: len(one[0]))
            expected = np.concatenate(
                [its_way.expected_ns(known.take(rows)) for rows, its_way in its]
            )
            others = dimension.being(name) & ~np.isin(group.codes, group.codes[at])
            slow = _Slow(known.take(at), expected, speed, len(most), known.take(others))
            # Ranks that all are fast with others have their links, and to each other they may lack.
            if speed.pcie is None or not linked.issuperset(slow.ranks):
                yield slow

    def _finding(self, slow: _Slow, gain: Saving, run: Measures) -> Finding:
        its, speed, link = slow.operations, slow.speed, slow.speed.link
        busbw, share, size_bytes = (
            median(each)
            for each in (its.floats("busbw_gb_s"), hidden(its, run), its.ints("size_bytes"))
        )
        usually = ms(float(slow.expected_ns.sum()))
        alone, assumed = share < ALONE, speed.assumed(busbw)
        ranks = () if len(slow.ranks) == len(run.rows("ranks")) else tuple(slow.ranks)
        usual = median(slow.rest.floats("busbw_gb_s")) if len(slow.rest) else None
        beside = "" if usual is None else f"; others like them reached {usual:.3g} GB/s"
        return self.finding(
            its,
            summary=(
                f"{_counted(its)} of {mb(size_bytes)}{_among(ranks, run)} "
                f"reached {busbw:.3g} GB/s bus bandwidth, {percent(busbw, link.usual_gb_s)} of the "
                f"{link.usual_gb_s:.3g} GB/s that {link.name} usually reaches{assumed}{beside}"
            ),
            ranks=ranks,
            streams=streams(its, run),
            saving=gain,
            evidence=(
                Evidence("bus bandwidth", busbw, "GB/s", speed.most_gb_s),
                Evidence(f"{link.name} usually reaches", link.usual_gb_s, "GB/s"),
                *(() if usual is None else (Evidence("others like them", usual, "GB/s"),)),
                Evidence("of it under compute", 100 * share, "%"),
            ),
            ruled_out=(
                "skew: only the time after the last rank's arrival counts",
                *(("contention: next to no compute ran at the same time",) if alone else ()),
            ),
            advice=(
                "see with NCCL_DEBUG=INFO which transport and channels NCCL chose, and "
                f"{speed.where_to_look(busbw)}; at the usual speed they take "
                f"{usually}, not {ms(float(its.ints('transfer_ns').sum()))}"
            ),
            confidence="high" if alone and not assumed else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """256 MB all_reduces at 130 GB/s over NVLink4."""
        return on_links(3500)

    @staticmethod
    def good() -> Measures:
        """The same at 210 GB/s."""
        return on_links(2130)


def _counted(operations: Rows) -> str:
    """How many there are of each kind, the most first."""
    op = operations.coded("op")
    kind = codes(op)
    counts, names = np.bincount(kind).tolist(), op.take(first_rows(kind)).decoded()
    most = sorted(zip(counts, names, strict=True), reverse=True)
    return " and ".join(counted(count, str(name)) for count, name in most)


def _among(ranks: tuple[int, ...], run: Measures) -> str:
    """Between which ranks, if these are not all."""
    if not ranks:
        return ""
    host = one_host(run, ranks)
    return f" among {numbered('rank', ranks)}" + (f", all of host {clean(host)}," if host else "")
