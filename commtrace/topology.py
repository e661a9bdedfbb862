"""What the manifest and the traces tell of the links between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.expect import (
    LINKS,
    Link,
    link_between,
    link_name,
    links_like,
    nvlinks,
    nvlinks_alike,
    pcie,
)

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "code",
    "device_of",
    "gpu_name",
    "gpu_names",
    "host_link",
    "inferred",
    "link",
    "linked_alike",
    "named",
    "names",
    "uniform_link",
    "usual_link",
]

_ON_BOARD = 4


def gpu_name(run: Measures) -> str:
    """The model of the machines' GPUs; empty if unknown or not one model."""
    models = gpu_names(run)
    return models[0] if len(models) == 1 else ""


def gpu_names(run: Measures) -> tuple[str, ...]:
    """The models of the machines' GPUs, as far as they are known; the manifest may be anybody's."""
    devices = (run.manifest or {}).get("devices")
    each = [gpu for gpu in devices if isinstance(gpu, dict)] if isinstance(devices, list) else []
    recorded = {str(name) for gpu in each if (name := gpu.get("name"))}
    return tuple(sorted(recorded or {*run.rows("ranks").coded("gpu").occurring()}))


def device_of(name: str, run: Measures) -> str | None:
    """The process's name (``cuda:1``) for a GPU of the topology (``GPU3``)."""
    visible = _visible(run)
    if not name.startswith("GPU") or visible is None:
        return None
    number = name[3:]
    if not visible:
        return f"cuda:{number}"
    return f"cuda:{visible.index(number)}" if number in visible else None


def code(source: str, destination: str, run: Measures) -> str | None:
    """The recorded topology's code for the way between two devices; None if unknown.

    The trace counts the devices that the process sees, nvidia-smi those of the machine:
    CUDA_VISIBLE_DEVICES, as recorded, tells one from the other.
    """
    at = {device_of(name, run): place for place, name in enumerate(names(run))}
    links = run.told("topology").get("links")
    if links is None or source not in at or destination not in at:
        return None
    name = links[at[source]][at[destination]]
    return name if isinstance(name, str) else None


def names(run: Measures) -> list[str]:
    """The GPUs of the recorded topology; empty without one."""
    return [str(name) for name in run.told("topology").get("names") or []]


def link(source: str, destination: str, run: Measures) -> Link | None:
    """The figures of the recorded link between two devices; None if unknown."""
    link_code = code(source, destination, run)
    return link_between(link_code, gpu_name(run)) if link_code else None


def named(source: str, destination: str, run: Measures) -> str | None:
    """The recorded link between two devices in words; None if unknown."""
    link_code = code(source, destination, run)
    return link_name(link_code, gpu_name(run)) if link_code else None


def inferred(gb_s: float) -> str:
    """What a bandwidth alone lets one think of a link."""
    links = " or ".join(found.name for found in links_like(gb_s)[:2])
    return f"link not recorded; as fast as {links}" if links else "link not recorded"


def uniform_link(run: Measures) -> Link | None:
    """The link between any two GPUs of the one machine, where all pairs have the same."""
    topology = run.told("topology")
    gpus = [place for place, name in enumerate(names(run)) if name.startswith("GPU")]
    links = topology.get("links")
    if links is None or len(gpus) < 2 or len(run.rows("ranks").coded("host").occurring()) > 1:
        return None
    codes = {links[i][j] for i in gpus for j in gpus if i != j}
    only = codes.pop() if len(codes) == 1 else None
    return link_between(only, gpu_name(run)) if isinstance(only, str) else None


def usual_link(run: Measures, *, one_host: bool) -> Link | None:
    """The link between any two GPUs of a group: as recorded, else as is usual of them on one host.

    The latter is an assumption: all the NVLinks that they have.
    """
    if run.told("topology").get("links") is not None:
        return uniform_link(run)
    return nvlinks(gpu_name(run)) if one_host else None


def host_link(run: Measures) -> tuple[Link, bool]:
    """A GPU's link to its host, by its name, and whether that is known; else assumed."""
    known = pcie(gpu_name(run))
    return known or LINKS["PCIe 3 x16"], known is not None


def linked_alike(gpu: str, ranks: int) -> bool:
    """Whether so many GPUs of one host reach together what all their NVLinks give.

    All that a switch links do; of boards of four, which link every two of them, all four.
    """
    return ranks >= _ON_BOARD and nvlinks_alike(gpu)


def _visible(run: Measures) -> list[str] | None:
    """The GPUs' numbers in the process's order; empty for all of them, None if unreadable."""
    visible = str(run.told("environment").get("CUDA_VISIBLE_DEVICES", ""))
    numbers = [one.strip() for one in visible.split(",") if one.strip()]
    return numbers if all(one.isdigit() for one in numbers) else None
