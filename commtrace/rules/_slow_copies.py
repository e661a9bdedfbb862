"""What to do about copies that make ranks late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comms import POINT_TO_POINT, members
from commtrace.metrics.rank.copies import copies
from commtrace.quantiles import median
from commtrace.rules._between_hosts import large_operations
from commtrace.units import rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["PIN", "of_copies"]

PIN = "prefetch, and copy from pinned memory"
"""What helps copies from pageable memory, and such of which that is not known."""
_PIN_TO_HOST = (
    "copy into pinned memory that is kept, with non_blocking=True, on a stream of its own, and let "
    "the host go on meanwhile; or copy less, or less often"
)
_SLOWER = 1.25
_ALIKE = 1.3  # times as fast
_BESIDE = "copy less, or while it computes, on a stream of its own"
_SLOW_LINK = (
    "look at its PCIe link (nvidia-smi -q: Link Width), and on which CPU socket its process and "
    "its memory are (nvidia-smi topo -m, numactl --cpunodebind --membind)"
)


def of_copies(run: Measures, ranks: tuple[int, ...]) -> str:
    """What to do about those that take these ranks longest, by how fast the others' alike are."""
    every = copies(run).dicts()
    its = max(
        (row for row in every if row["rank"] in ranks),
        key=lambda row: row["duration_ns_total"],
        default=None,
    )
    if its is None or (its["kind"] in ("HtoD", "DtoH") and its["memory"] != "pinned"):
        return _PIN_TO_HOST if its is not None and its["kind"] == "DtoH" else PIN
    if its["memory"] != "pinned":
        return _BESIDE
    alike = (row for row in every if all(row[name] == its[name] for name in ("kind", "memory")))
    rates = [row["gb_s_busy"] for row in alike if row["rank"] not in ranks]
    known = [gb_s for gb_s in (its["gb_s_busy"], *rates) if gb_s is not None]
    if len(known) < 1 + len(rates) or not rates or median(rates) < _SLOWER * known[0]:
        return _BESIDE if its["kind"] == "DtoH" else f"prefetch, or {_BESIDE}"
    return (
        f"its {its['kind']} copies, pinned, make {rate(known[0])} GB/s, the others' "
        f"{rate(median(rates))} GB/s: {_SLOW_LINK}{_collectives_too(run, ranks, known[0])}"
    )


def _collectives_too(run: Measures, ranks: tuple[int, ...], gb_s: float) -> str:
    """That their collectives are about as slow, in words: without NVLink they take the same link.

    Their saving is not told: what else they would have is unknown.
    """
    every = large_operations(run)
    if every is None:
        return ""
    of_ranks = every.coded("communicator").where(lambda its: not {*ranks}.isdisjoint(members(its)))
    of_ranks &= every.coded("op").where(lambda op: op not in POINT_TO_POINT)
    speed = every.floats("busbw_gb_s")[of_ranks]
    if not speed.size or not 1 / _ALIKE <= median(speed) / gb_s <= _ALIKE:
        return ""
    return (
        f"; its collectives, at {rate(median(speed))} GB/s, seem to take the same link: they save "
        "as well then"
    )
