"""What to do about copies that make ranks late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.metrics.rank.copies import copies
from commtrace.quantiles import median
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
        f"{rate(median(rates))} GB/s: {_SLOW_LINK}"
    )
