"""The direct way between two GPUs is slower than a way around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.arrays import distinct
from commtrace.causal.savings import Saving, of_copies
from commtrace.diagnosis import Evidence, Finding
from commtrace.intervals import total
from commtrace.metrics.run.detours import Detour, Hops, detours
from commtrace.metrics.run.peer_copies import DevicePair, pairs, too_few_copies
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.topology import named
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures


class DetourBeatsDirect(Rule, frozen=True):
    """Copies between two GPUs would be faster over a detour.

    What it detects
        A pair of GPUs, with ``min_copies`` copies of at least ``min_bytes``, whose bandwidth a
        way around exceeds by ``min_ratio``, where that is worth ``min_step_share`` of the step.
        The way around leads over a third GPU, its hops measured in this trace or known from the
        recorded topology, or through pinned host memory, as fast as pinned copies in the trace,
        else as the GPU's PCIe usually is, else as PCIe 3, which is then an assumption. The time
        in which other copies used it is taken off.

    Why it costs time
        Peer access across CPU sockets often reaches less than a PCIe link can carry, and a
        fraction of what NVLinks do, even twice in a row. The driver does not look for the
        way around: it copies the way it was asked to.

    What to do
        Relay over the named GPU in chunks, so that both hops work at the same time; or stage
        through a pinned buffer in chunks. NCCL finds such ways itself for send and recv.

    Blind spots
        A way through the host is judged by usual figures unless the trace has pinned copies.
        Collectives may use the detour's links unnoticed. A relay needs memory on the GPU between.
    """

    of_single_events: ClassVar[bool] = True

    min_bytes: int = 16_000_000
    min_copies: int = 3
    min_ratio: float = 1.25
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per pair, with its fastest detour."""
        known = pairs(run, self.min_bytes, self.min_copies)
        if not known:
            raise too_few_copies(run, self.min_bytes, self.min_copies)
        for rank in sorted({pair.rank for pair in known}):
            hops = Hops([pair for pair in known if pair.rank == rank], run)
            for pair in hops.measured.values():
                best = max(detours(pair, hops), key=lambda way: way.gb_s)
                cost = round(total(pair.busy) - pair.size_bytes / max(best.gb_s, 1e-9))
                faster = best.gb_s >= self.min_ratio * pair.at_most_gb_s
                if not (faster and worth_reporting(cost, run, self.min_step_share)):
                    continue
                gain = of_copies(run, [(pair.copies, best.gb_s)], cost, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    yield self._finding(pair, best, gain, hops)

    def _finding(self, pair: DevicePair, best: Detour, gain: Saving, hops: Hops) -> Finding:
        link = named(pair.source, pair.destination, hops.run)
        relay = _possible_relay(pair, best, hops)
        return self.finding(
            (pair.busy[0], pair.busy[1]),
            summary=(
                f"{pair.ends} copies at {pair.gb_s:.3g} GB/s{f' ({link})' if link else ''}; "
                f"over {best.over} they would reach {best.gb_s:.3g} GB/s ({best.known_from}): "
                f"{ms(pair.size_bytes / best.gb_s)} instead of {ms(total(pair.busy))}"
            ),
            ranks=(pair.rank,),
            streams=tuple(distinct(pair.copies.ints("stream")).tolist()),
            saving=gain,
            evidence=(
                Evidence("direct bandwidth", pair.gb_s, "GB/s"),
                Evidence(f"over {best.over}, in chunks", best.gb_s, "GB/s"),
                Evidence(f"over {best.over}, one tensor at a time", best.whole_gb_s, "GB/s"),
                Evidence("ratio", best.gb_s / pair.gb_s, "x", self.min_ratio),
                *relay[0],
            ),
            ruled_out=_ruled_out(pair, best),
            advice=_advice(pair, best) + relay[1],
            confidence=best.confidence,
        )

    @staticmethod
    def bad() -> Measures:
        """7.5 GB/s from 0 to 2; 89 from 0 to 1 and 44 from 1 to 2."""
        return _copies(5300)

    @staticmethod
    def good() -> Measures:
        """40 GB/s from 0 to 2."""
        return _copies(1000)


def _ruled_out(pair: DevicePair, best: Detour) -> tuple[str, ...]:
    alone = f"{counted(pair.alone, 'copy')} ran while no other peer copy did"
    beside = f"all that ran beside it makes only {pair.at_most_gb_s:.3g} GB/s"
    taken = f"other copies used it in {best.busy_pct:.0f} % of the time, and that is taken off"
    return (
        f"contention on the direct way: {alone if pair.alone else beside}",
        f"contention on the detour: {taken}",
    )


def _advice(pair: DevicePair, best: Detour) -> str:
    if best.over.startswith("cuda"):
        return (
            f"copy {pair.source} → {best.over} → {pair.destination} in chunks of a few MB, the "
            "two hops on streams of their own"
        )
    return (
        f"stage {pair.ends} through a pinned buffer on the host in chunks of a few MB, the way "
        "there and the way on at the same time"
    )


def _possible_relay(pair: DevicePair, best: Detour, hops: Hops) -> tuple[tuple[Evidence, ...], str]:
    """A relay that would be faster still, if its second hop is what nobody recorded."""
    open_hops = {
        via: gb_s
        for via in hops.devices
        if via not in (pair.source, pair.destination)
        and hops.unknown(via, pair.destination)
        and (gb_s := hops.gb_s(pair.source, via)) > best.gb_s
    }
    if not open_hops or best.over in hops.devices:
        return (), ""
    first, second = max(open_hops.values()), min(open_hops.values())
    whole = 1 / (1 / first + 1 / second)
    some = " or ".join(open_hops)
    evidence = Evidence(f"over {some}, with a second hop of {second:.3g} GB/s", whole, "GB/s")
    advice = (
        f"; better, if {some} has NVLinks to {pair.destination} (neither copied nor recorded "
        f"here; nvidia-smi topo -m shows it): a relay whose second hop makes {second:.3g} GB/s "
        f"reaches {whole:.3g} GB/s one tensor at a time, up to {second:.3g} GB/s in chunks, "
        f"{whole / pair.gb_s:.2g} to {second / pair.gb_s:.2g} times the direct copy"
    )
    return (evidence,), advice


def _copies(direct_us: float) -> Measures:
    run = Tiny()
    for i in range(10):
        for at, source, destination, took in (
            (0, 0, 1, 450.0),
            (1000, 1, 2, 900.0),
            (2000, 0, 2, direct_us),
        ):
            run.copy(
                0,
                i * 8000 + at,
                took,
                kind="PtoP",
                size=40_000_000,
                source=f"cuda:{source}",
                destination=f"cuda:{destination}",
                stream=20 + 2 * source + destination,
            )
    return run.trace()
