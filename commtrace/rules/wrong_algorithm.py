"""NCCL is held to an algorithm or a protocol that is slower here than its own choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import Float64, codes, first_rows
from commtrace.causal.delays import felt_ns
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.expect import PROTOCOL_BANDWIDTH, nccl_latency_ns
from commtrace.metrics.run.bandwidth import served, streams
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny, one_machine
from commtrace.table import Rows
from commtrace.topology import uniform_link
from commtrace.units import counted, mb, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

ALGORITHMS = ("Ring", "Tree")
PROTOCOLS = ("LL", "LL128", "Simple")
UNASKED = ("LL", "Simple")  # LL128 is on only where NCCL trusts the hardware
_MODELLED = ("all_reduce", "all_gather", "reduce_scatter")
Choice = tuple[str, str]


class WrongAlgorithm(Rule, frozen=True):
    """NCCL_ALGO or NCCL_PROTO pins a choice that the model finds slower than NCCL's own.

    What it detects
        The recorded environment limits NCCL's algorithms or protocols, and for operations of
        this trace the best of those left takes, by NCCL's tuning constants, more than
        ``min_ratio`` times as long as the best of all; and that is worth ``min_step_share`` of
        the step. The bandwidth in the model is the recorded link's, else the least that the
        trace itself proves.

    Why it costs time
        LL and LL128 save latency for small operations and waste bandwidth on large ones,
        Simple the other way round; a ring over many ranks takes many more hops than a tree.

    What to do
        Unset the variable: NCCL chooses for each operation and size.

    Blind spots
        Only Ring and Tree are modelled, and LL128 never as the better choice. The name of a
        kernel does not show what ran, and is not used. On two machines a tree can beat
        its model. Someone may have had a reason: a bug, or results that repeat.
    """

    explains: ClassVar[tuple[str, ...]] = ("below-link-speed", "exposed-communication")

    min_ratio: float = 1.2
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding, for all operations that suffer."""
        environment = (run.manifest or {}).get("environment")
        if not isinstance(environment, Mapping):
            raise CannotLook("needs the recorded environment")
        pinned = {n: str(environment[n]) for n in ("NCCL_ALGO", "NCCL_PROTO") if environment.get(n)}
        if not pinned:
            return
        allowed = list(
            product(
                _left(pinned.get("NCCL_ALGO"), ALGORITHMS, ALGORITHMS),
                _left(pinned.get("NCCL_PROTO"), PROTOCOLS, UNASKED),
            )
        )
        if not allowed:
            raise CannotLook(f"needs an algorithm that is modelled: {_pins(pinned)} leaves none")
        known = served(run)
        modelled = known.coded("op").where(_MODELLED.__contains__)
        known = known.take(modelled & ~np.isnan(known.floats("busbw_gb_s")))
        ratio = _ratios(known, allowed, run)
        suffering, ratio = known.take(ratio > self.min_ratio), ratio[ratio > self.min_ratio]
        if not len(suffering):
            return
        saved = suffering.ints("transfer_ns") * (1 - 1 / ratio)
        estimate = felt_ns(suffering, saved, run)
        gain = of_transfers(run, suffering, saved, estimate, self.min_step_share)
        if worth_reporting(gain.cost_ns, run, self.min_step_share):
            yield self._finding(suffering, ratio, saved, gain, pinned, run)

    def _finding(
        self,
        suffering: Rows,
        ratio: Float64,
        saved: Float64,
        gain: Saving,
        pinned: Mapping[str, str],
        run: Measures,
    ) -> Finding:
        worst = int((suffering.ints("transfer_ns") * ratio).argmax())
        times, size = float(ratio[worst]), float(suffering.ints("size_bytes")[worst])
        total = float(suffering.ints("transfer_ns").sum())
        return self.finding(
            suffering,
            summary=(
                f"{_pins(pinned)} keeps NCCL from a faster choice for "
                f"{counted(len(suffering), 'operation')}: by NCCL's own model "
                f"{suffering.coded('op').at(worst)} of {mb(size)} takes {times:.2f} times as long"
            ),
            streams=streams(suffering, run),
            saving=gain,
            evidence=(
                Evidence("modelled time against the best", times, "x", self.min_ratio),
                Evidence("time of these operations", total / 1e6, "ms"),
            ),
            ruled_out=("late ranks: only the time after the last arrival counts",),
            advice=(
                f"unset {' and '.join(pinned)} unless there is a known reason; these operations "
                f"then take about {ms(total - float(saved.sum()))}, not {ms(total)}"
            ),
        )

    @staticmethod
    def bad() -> Measures:
        """NCCL_PROTO=LL with all_reduces of 256 MB."""
        return _pinned("LL", 2400)

    @staticmethod
    def good() -> Measures:
        """NCCL_PROTO=Simple with the same."""
        return _pinned("Simple", 1220)


def _left(value: str | None, every: tuple[str, ...], unasked: tuple[str, ...]) -> list[str]:
    """What a list as NCCL reads it (``Ring,Tree``, ``^LL``) leaves of those modelled."""
    if value is None:
        return list(unasked)
    listed = {one.strip().lower() for one in value.lstrip("^").split(",")}
    return [one for one in every if (one.lower() in listed) != value.startswith("^")]


def _ratios(known: Rows, allowed: list[Choice], run: Measures) -> Float64:
    """Of each operation: modelled time of the best choice left, over that of the best of all."""
    link = uniform_link(run)
    proven = known.floats("busbw_gb_s").max(initial=0.0)
    proven /= max(PROTOCOL_BANDWIDTH[protocol] for _, protocol in allowed)
    gb_s = max(link.usual_gb_s if link else 0.0, proven)
    nodes = max(len(run.rows("ranks").coded("host").occurring()), 1)
    moved = known.ints("size_bytes") * known.floats("factor")
    kind = codes(known.coded("op"), known.ints("ranks"), known.ints("size_bytes"))
    its = first_rows(kind)
    each = zip(
        known.coded("op").take(its).decoded(),
        known.ints("ranks")[its].tolist(),
        moved[its].tolist(),
        strict=True,
    )
    ratios = [_ratio(str(op), n, size, allowed, gb_s, nodes) for op, n, size in each]
    return np.asarray(ratios, np.float64)[kind]


def _ratio(
    op: str, ranks: int, size: float, allowed: list[Choice], gb_s: float, nodes: int
) -> float:
    """The same of one that moves so many bytes."""

    def best(choices: list[Choice]) -> float:
        return min(
            nccl_latency_ns(op, ranks, nodes=min(nodes, ranks), algorithm=a, protocol=p)
            + size / (gb_s * PROTOCOL_BANDWIDTH[p])
            for a, p in choices
        )

    trees = op == "all_reduce" and nodes != 2
    if op != "all_reduce":
        allowed = [("Ring", protocol) for protocol in dict.fromkeys(p for _, p in allowed)]
    every = list(product(ALGORITHMS if trees else ("Ring",), UNASKED))
    return best(allowed) / min(best(every), best(allowed))


def _pins(pinned: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in pinned.items())


def _pinned(protocol: str, took_us: float) -> Measures:
    run = Tiny(8, manifest={**one_machine(8), "environment": {"NCCL_PROTO": protocol}})
    for i in range(12):
        for rank in range(8):
            run.collective(rank, "all_reduce", i * 3000, took_us, size=256_000_000)
    return run.trace()
