"""Copies between GPUs, and between them and the host."""

from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import LAUNCH_US, Loop
from benchmarks.faults.workloads import copies, plain

__all__ = ["FAULTS"]

_FAST_GB_S, _PINNED_GB_S = 90.0, 24.0
_LAYERS, _LEAST_US = 6, 50.0  # in which 1.2 MB are copied


def uneven_peers(loop: Loop, share: float, present: bool) -> Truth:
    """Beside three equal ways one that is slower."""
    loop.spread = 0.003
    size = loop.dice.randrange(20, 60) * 1_000_000
    us = size / _FAST_GB_S / 1e3 + share * loop.step_us * present
    slow = {"kind": "PtoP", "size": size, "destination": "cuda:4"}
    loop.hooks["end"].append(lambda: loop.copy(0, us, **slow))
    says = "cuda:0 → cuda:4 copies at"
    return Truth("uneven-p2p-bandwidth", (0,), says, also=("detour-beats-direct",))


def detour(loop: Loop, share: float, present: bool) -> Truth:
    """0 → 2 is slow, 0 → 1 and 1 → 2 are fast. Without: relayed over 1, in chunks."""
    loop.spread = 0.003
    size = loop.dice.randrange(20, 60) * 1_000_000
    second = loop.dice.uniform(40, 90)
    relayed = size / second / 1e3
    direct = relayed + share * loop.step_us

    def both() -> None:
        for source, to, us in (
            (0, 1, size / _FAST_GB_S / 1e3),
            (1, 2, relayed),
            (0, 2, direct if present else relayed),
        ):
            ends = {"source": f"cuda:{source}", "destination": f"cuda:{to}"}
            loop.copy(0, us, kind="PtoP", size=size, **ends)

    loop.hooks["end"].append(both)
    says = "cuda:0 → cuda:2 copies at"
    return Truth("detour-beats-direct", (0,), says, also=("uneven-p2p-bandwidth",))


def pageable(loop: Loop, share: float, present: bool) -> Truth:
    """Each step's batch comes from pageable memory; another comes from pinned."""
    gb_s = loop.dice.uniform(3, 8)
    saved_us_per_mb = 1e3 / gb_s - 1e3 / _PINNED_GB_S
    size = max(round(share * loop.step_us / saved_us_per_mb), 1) * 1_000_000
    to_device = {"kind": "HtoD", "source": "host", "destination": "cuda:0"}

    def loads() -> None:
        for rank in loop.everyone:
            pinned_us = size / _PINNED_GB_S / 1e3
            loop.copy(rank, pinned_us, size=size, memory="pinned", **to_device)
            us = size / gb_s / 1e3 if present else pinned_us
            memory = "pageable" if present else "pinned"
            loop.copy(rank, us, size=size, memory=memory, blocks=present, **to_device)

    loop.hooks["input"].append(loads)
    return Truth("pageable-copy")


def layer_by_layer(loop: Loop, share: float, present: bool) -> Truth:
    """Weights are copied when their layer is next. Without: on a stream of their own, ahead."""
    us = max(share * loop.step_us / _LAYERS, _LEAST_US)
    way = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "memory": "pinned"}
    stream = {} if present else {"stream": 9}

    def layers() -> None:
        for rank in loop.everyone:
            for _ in range(_LAYERS):
                loop.copy(rank, us, size=round(us * 1e3 * _PINNED_GB_S), **way, **stream)
                loop.compute(rank, 1.5 * us, place="layer", name=loop.name("forward"))

    loop.hooks["input"].append(layers)
    return Truth("exposed-copy")


def copy_loop(loop: Loop, share: float, present: bool) -> Truth:
    """Results are read one by one, each when the one before it has come. Without: at once."""
    stall = loop.dice.uniform(10, 40)
    count = max(2, round(share * loop.step_us / (stall + 2 * LAUNCH_US + 2)))

    def reads() -> None:
        for rank in loop.everyone:
            for _ in range(count if present else 1):
                loop.copy(rank, 2, kind="DtoH", size=4, memory="pageable", blocks=True)
                loop.stall(rank, stall)

    loop.hooks["end"].append(reads)
    return Truth("copy-loop")


def _alone(seed: int) -> Loop:
    return Loop(seed, ranks=1)


FAULTS = (
    Fault("uneven-p2p-bandwidth", uneven_peers, copies, _alone),
    Fault("detour-beats-direct", detour, plain, _alone),
    Fault("pageable-copy", pageable),
    Fault("exposed-copy", layer_by_layer),
    Fault("copy-loop", copy_loop),
)
