"""What an operation should cost: a fitted model, a table of links, physical floors.

``t = latency + S x factor / B``. Latency and B are fitted from the trace where its sizes
vary enough; else they come from the table of links, and NCCL's own tuning constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commtrace.comms import bus_factor

__all__ = ["LINKS", "Link", "Model", "fit", "floor_ns", "link_between", "ring_latency_ns"]

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """Time by size: ``latency_ns + size_bytes / gb_s``; GB/s are bytes per ns.

    ``residual`` is the median of |measured / modelled - 1| over the points behind it.
    """

    latency_ns: float
    gb_s: float
    residual: float
    points: int

    def time_ns(self, size_bytes: float) -> float:
        """Modelled time of one operation."""
        return self.latency_ns + size_bytes / self.gb_s

    def latency_share(self, size_bytes: float) -> float:
        """Share of the modelled time that does not depend on the size."""
        return self.latency_ns / self.time_ns(size_bytes)


def fit(sizes: npt.ArrayLike, times_ns: npt.ArrayLike, *, spread: float = 4.0) -> Model | None:
    """Fit the model to (size in bytes, time in ns) points; None where sizes vary too little.

    Robust and scale-free: the line minimises the absolute relative error by iteratively
    reweighted least squares, on the median time of each size. Needs at least three sizes
    that differ by a factor of ``spread``.
    """
    size = np.asarray(sizes, dtype=np.float64)
    time = np.asarray(times_ns, dtype=np.float64)
    real = (size > 0) & (time > 0)
    size, time = size[real], time[real]
    distinct = np.unique(size)
    if distinct.size < 3 or distinct[-1] < spread * distinct[0]:
        return None
    median = np.array([np.median(time[size == one]) for one in distinct])
    count = np.array([(size == one).sum() for one in distinct])
    latency, per_byte = _line(distinct, median, count.astype(np.float64))
    if per_byte <= 0:
        return None
    modelled = latency + size * per_byte
    residual = float(np.median(np.abs(time / modelled - 1)))
    return Model(latency, 1 / per_byte, residual, int(size.size))


def _line(x: Float, y: Float, count: Float) -> tuple[float, float]:
    """Intercept (not below zero) and slope of the least relative absolute error."""
    weight = np.sqrt(count) / y
    for _ in range(20):
        columns = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
        (intercept, slope), *_ = np.linalg.lstsq(columns, y * weight, rcond=None)
        if intercept < 0:
            intercept, slope = 0.0, float(np.median(y / x))
            break
        relative = np.abs(y - intercept - slope * x) / y
        weight = np.sqrt(count / np.maximum(relative, 0.01)) / y
    return float(intercept), float(slope)


@dataclass(frozen=True)
class Link:
    """One direction of a link, per GPU: peak, and what is usually reached, in GB/s."""

    name: str
    peak_gb_s: float
    usual_gb_s: float


LINKS = {
    link.name: link
    for link in (
        Link("PCIe 3 x16", 15.8, 12),
        Link("PCIe 4 x16", 31.5, 25),
        Link("PCIe 5 x16", 63, 52),
        Link("across CPU sockets", 20, 8),
        Link("NVLink2 x1", 25, 23),
        Link("NVLink2 x2", 50, 47),
        Link("NVLink2 x4", 100, 93),
        Link("NVLink2 x6", 150, 140),
        Link("NVLink3 x12", 300, 235),
        Link("NVLink4 x18", 450, 370),
        Link("NVLink5 x18", 900, 770),
        Link("InfiniBand HDR", 25, 24),
        Link("InfiniBand NDR", 50, 47),
    )
}
"""Links by name. Vendors' peaks; the usual figures are published measurements."""

_NVLINKS = {"V100": (25.0, 2), "P100": (20.0, 1), "A100": (25.0, 3), "A800": (25.0, 3)}
_WHOLE = (("H100", 450, 370, 4), ("H200", 450, 370, 4), ("B200", 900, 770, 5))


def link_between(topology: str, gpu: str) -> Link | None:
    """The link that ``nvidia-smi topo -m`` writes as ``NV4``, ``SYS``, ``PIX``, ... for a GPU.

    None where neither the code nor the GPU's name tells a bandwidth.

    >>> link_between("NV2", "Tesla V100-SXM2-32GB")
    Link(name='NVLink2 x2', peak_gb_s=50.0, usual_gb_s=46.5)
    """
    if topology.startswith("NV") and topology[2:].isdigit():
        count = int(topology[2:])
        for name, peak, usual, generation in _WHOLE:
            if name in gpu:
                share = count / 18
                return Link(f"NVLink{generation} x{count}", peak * share, usual * share)
        for name, (each, generation) in _NVLINKS.items():
            if name in gpu:
                return Link(f"NVLink{generation} x{count}", each * count, each * count * 0.93)
        return None
    return LINKS["across CPU sockets"] if topology in ("SYS", "NODE") else None


_RING_BASE_US = {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}
_HOP_US = {
    "nvlink": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4},
    "pcie": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
    "network": {"LL": 2.7, "LL128": 4.0, "Simple": 14.0},
}


def ring_latency_ns(op: str, group_size: int, hop: str, protocol: str = "LL") -> float:
    """Latency of a ring by NCCL's tuning constants (its ``tuning.cc``).

    2(n-1) steps for all_reduce, n-1 for all_gather and reduce_scatter, and for the others.
    """
    steps = (2 if op == "all_reduce" else 1) * (group_size - 1)
    return 1e3 * (_RING_BASE_US[protocol] + steps * _HOP_US[hop][protocol])


def floor_ns(op: str, size_bytes: float, group_size: int, gb_s: float) -> float | None:
    """The time that no algorithm beats on links of ``gb_s``; None for barrier.

    S x factor / B, with nccl-tests' factor. In-network reduction halves all_reduce's
    traffic at best, so its floor is that of S / B where such hardware may be at work.
    """
    factor = bus_factor(op, group_size)
    return None if factor is None else size_bytes * factor / gb_s
