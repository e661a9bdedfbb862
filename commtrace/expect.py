"""What an operation should cost: a fitted model, a table of links, physical floors.

``t = latency + S x factor / B``. Latency and B are fitted from the trace where its sizes
vary enough; else they come from the table of links, and NCCL's own tuning constants.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.quantiles import median

__all__ = [
    "LINKS",
    "PROTOCOL_BANDWIDTH",
    "Link",
    "Model",
    "fit",
    "link_between",
    "link_name",
    "links_like",
    "nccl_latency_ns",
    "nvlinks",
    "nvlinks_alike",
    "pcie",
]

Float = npt.NDArray[np.float64]


class Model(Struct, frozen=True):
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


def fit(sizes: npt.ArrayLike, times_ns: npt.ArrayLike, *, spread: float = 4.0) -> Model | None:
    """Fit the model to (size in bytes, time in ns) points; None where sizes vary too little.

    Robust and scale-free: the line minimises the absolute relative error by iteratively
    reweighted least squares, on the median time of each size. Needs at least three sizes
    that differ by a factor of ``spread``.
    """
    size = np.asarray(sizes, dtype=np.float64)
    time = np.asarray(times_ns, dtype=np.float64)
    real = (size > 0) & (time > 0)
    order = np.lexsort((time[real], size[real]))
    size, time = size[real][order], time[real][order]
    distinct, first, count = np.unique(size, return_index=True, return_counts=True)
    if distinct.size < 3 or distinct[-1] < spread * distinct[0]:
        return None
    usual = (time[first + (count - 1) // 2] + time[first + count // 2]) / 2
    latency, per_byte = _line(distinct, usual, count.astype(np.float64))
    if per_byte <= 0:
        return None
    residual = median(np.abs(time / (latency + size * per_byte) - 1))
    return Model(latency, 1 / per_byte, residual, int(size.size))


def _line(x: Float, y: Float, count: Float) -> tuple[float, float]:
    """Intercept (not below zero) and slope of the least relative absolute error."""
    weight = np.sqrt(count) / y
    intercept = slope = 0.0
    for _ in range(20):
        columns = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
        (intercept, slope), *_ = np.linalg.lstsq(columns, y * weight, rcond=None)
        if intercept < 0:
            return 0.0, median(y / x)
        relative = np.abs(y - intercept - slope * x) / y
        weight = np.sqrt(count / np.maximum(relative, 0.01)) / y
    return float(intercept), float(slope)


class Link(Struct, frozen=True):
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
        Link("across CPU sockets", 63, 8),
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
"""Links by name. Vendors' peaks; the usual figures are published measurements.

Copies between GPUs on different CPU sockets usually reach 6-10 GB/s; they can be no faster
than the fastest PCIe that leads there.
"""

_NVLINK = {  # by GPU: generation, GB/s of one link, its links, what they all usually reach
    "P100": (1, 20.0, 4, 74.0),
    "V100": (2, 25.0, 6, 140.0),
    "A100": (3, 25.0, 12, 235.0),
    "A800": (3, 25.0, 8, 186.0),
    "H100": (4, 25.0, 18, 370.0),
    "H200": (4, 25.0, 18, 370.0),
    "H800": (4, 25.0, 8, 186.0),
    "B200": (5, 50.0, 18, 770.0),
}
_PCIE = {
    **dict.fromkeys(("P100", "V100", "T4"), "PCIe 3 x16"),
    **dict.fromkeys(("A100", "A800", "A10", "L4", "L40", "L40S"), "PCIe 4 x16"),
    **dict.fromkeys(("H100", "H200", "H800", "B200", "MI300X"), "PCIe 5 x16"),
}
_SWITCHED = 3  # the generation since which a host's GPUs are linked alike
_FEW_LINKS = 0.93  # of the peak: 23 of 25, 47 of 50, 93 of 100 GB/s
_CODES = {
    "SYS": "across CPU sockets",
    "NODE": "PCIe, across host bridges",
    "PHB": "PCIe, through the CPU",
    "PXB": "PCIe, several switches",
    "PIX": "PCIe, one switch",
}


def link_between(code: str, gpu: str) -> Link | None:
    """The link that ``nvidia-smi topo -m`` writes as ``NV4``, ``SYS``, ``PIX``, … for a GPU.

    None where neither the code nor the GPU's name tells a bandwidth.

    >>> link_between("NV2", "Tesla V100-SXM2-32GB")
    Link(name='NVLink2 x2', peak_gb_s=50.0, usual_gb_s=46.5)
    """
    model = next((name for name in _NVLINK if name in gpu), None)
    if count := _nvlinks(code):
        if model is None:
            return None
        generation, each, every, usual = _NVLINK[model]
        usual = usual if count == every else _FEW_LINKS * each * count
        return Link(f"NVLink{generation} x{count}", each * count, usual)
    if code == "SYS":
        return LINKS["across CPU sockets"]
    return pcie(gpu) if code in _CODES else None


def nvlinks(gpu: str) -> Link | None:
    """All the NVLinks of a GPU, by its name; None for one without, or with few of them.

    >>> nvlinks("NVIDIA H100 80GB HBM3"), nvlinks("NVIDIA H100 PCIe")
    (Link(name='NVLink4 x18', peak_gb_s=450.0, usual_gb_s=370.0), None)
    """
    model = next((name for name in _NVLINK if name in gpu), None)
    if model is None or any(card in gpu.upper() for card in ("PCIE", "NVL", "MIG")):
        return None
    return link_between(f"NV{_NVLINK[model][2]}", gpu)


def nvlinks_alike(gpu: str) -> bool:
    """Whether GPUs of that name have as many NVLinks to any other of their host.

    >>> nvlinks_alike("NVIDIA H100 80GB HBM3"), nvlinks_alike("Tesla V100-SXM2-32GB")
    (True, False)
    """
    return any(name in gpu for name, its in _NVLINK.items() if its[0] >= _SWITCHED)


def pcie(gpu: str) -> Link | None:
    """A GPU's link to its host, by its name; None for an unknown one."""
    words = gpu.replace("-", " ").split()
    return next((LINKS[link] for name, link in _PCIE.items() if name in words), None)


def link_name(code: str, gpu: str = "") -> str:
    """The same link in words; the code itself where it is unknown.

    >>> link_name("NV4"), link_name("NV4", "Tesla V100-SXM2-32GB"), link_name("SYS")
    ('NV4: 4 NVLinks', 'NV4: NVLink2 x4', 'SYS: across CPU sockets')
    """
    if count := _nvlinks(code):
        link = link_between(code, gpu)
        return f"{code}: {link.name if link else f'{count} NVLinks'}"
    return f"{code}: {_CODES[code]}" if code in _CODES else code


def links_like(gb_s: float, tolerance: float = 0.15) -> list[Link]:
    """Links inside a machine that usually reach about this, the nearest first."""
    near = [
        link
        for link in LINKS.values()
        if abs(gb_s / link.usual_gb_s - 1) <= tolerance and not link.name.startswith("Infini")
    ]
    return sorted(near, key=lambda link: abs(gb_s / link.usual_gb_s - 1))


def _nvlinks(code: str) -> int:
    return int(code[2:]) if code.startswith("NV") and code[2:].isdigit() else 0


# Of NCCL's src/graph/tuning.cc: microseconds for an operation, and for each of its steps.
_BASE_US = {
    "Ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4},
    "Tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4},
}
_HOP_US = {
    "Ring": {
        "nvlink": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4},
        "pcie": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
        "network": {"LL": 2.7, "LL128": 4.0, "Simple": 14.0},
    },
    "Tree": {
        "nvlink": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0},
        "pcie": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0},
        "network": {"LL": 5.0, "LL128": 8.5, "Simple": 14.0},
    },
}
PROTOCOL_BANDWIDTH = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
"""Share of a link's bandwidth that carries data: LL moves half its bytes as flags."""


def nccl_latency_ns(
    op: str,
    ranks: int,
    *,
    nodes: int = 1,
    algorithm: str = "Ring",
    protocol: str = "LL",
    hop: str = "nvlink",
) -> float:
    """Latency by NCCL's tuning constants; ``hop`` is the link within a node.

    A ring takes 2(n-1) steps for all_reduce and n-1 for any other operation, a tree one up
    and one down through each node's ranks and the tree of nodes (NCCL: ``tuning.cc``).
    """
    inside = _HOP_US[algorithm][hop][protocol]
    between = _HOP_US[algorithm]["network"][protocol]
    if algorithm == "Tree":
        steps = 2 * ((ranks // nodes - 1) * inside + (nodes.bit_length() - 1) * between)
    else:
        rounds = 2 if op == "all_reduce" else 1
        steps = rounds * ((ranks - nodes) * inside + (nodes - 1) * between)
    return 1e3 * (_BASE_US[algorithm][protocol] + steps)
