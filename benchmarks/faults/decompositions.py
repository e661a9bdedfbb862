"""The wrong operations, or too many bytes."""

from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import gloo, plain, size_for

__all__ = ["FAULTS"]


def decomposed(loop: Loop, share: float, present: bool) -> Truth:
    """A reduce and a broadcast, or two halves with a pause of the host, for an all_reduce.

    In most runs an all_reduce of the same size runs beside it.
    """
    halves = loop.dice.random() < 0.5
    beside = loop.dice.random() < 0.7
    excess = share * loop.step_us
    n = loop.ranks
    # On a ring the pair is n/(n-1) of an all_reduce; the halves are no more than one.
    size = size_for(loop, "all_reduce", excess * (0.8 if halves else n - 1))

    def reduces() -> None:
        if beside:
            loop.together("all_reduce", size, wait=True)
        if not present:
            loop.together("all_reduce", size, wait=True)
        elif halves:
            loop.together("reduce_scatter", size, wait=True)
            loop.drain()
            for rank in loop.everyone:
                loop.stall(rank, excess)
            loop.together("all_gather", size, wait=True)
        else:
            loop.together("reduce", size, wait=True, root=0)
            loop.together("broadcast", size, wait=True, root=0)

    loop.hooks["end"].append(reduces)
    says = "reduce_scatter + all_gather" if halves else "reduce + broadcast"
    also = ("exposed-communication", "host-sync", "launch-gap")
    return Truth("decomposed-all-reduce", (), says, also)


def inflated(loop: Loop, share: float, present: bool) -> Truth:
    """A reduce_scatter whose output is as large as the tensor, then an all_gather of it."""
    size = size_for(loop, "all_reduce", share * loop.step_us / (loop.ranks - 1))
    moved = size * (loop.ranks if present else 1)

    def pair() -> None:
        loop.together("reduce_scatter", moved, wait=True)
        loop.together("all_gather", moved, wait=True)

    loop.hooks["end"].append(lambda: loop.together("all_reduce", size, wait=True))
    loop.hooks["end"].append(pair)
    also = ("decomposed-all-reduce", "exposed-communication")
    return Truth("byte-inflation", also=also)


def emulated(loop: Loop, share: float, present: bool) -> Truth:
    """On gloo there is no reduce_scatter: it runs an all_reduce, twice the bytes."""
    size = size_for(loop, "reduce_scatter", share * loop.step_us)
    runs = "all_reduce" if present else "reduce_scatter"

    def scatters() -> None:
        us = loop.wire_us(runs, size, loop.ranks)
        loop.together("reduce_scatter", size, us=us, wait=True, executed=runs)

    loop.hooks["end"].append(scatters)
    return Truth("emulated-operation", also=("exposed-communication",))


def full_precision(loop: Loop, share: float, present: bool) -> Truth:
    """Matrix products in bfloat16, gradients in float32, reduced behind the backward pass."""
    loop.kernel_name = "ampere_bf16_s16816gemm_bf16_128x64"
    size = size_for(loop, "all_reduce", 2 * share * loop.step_us)
    small = size_for(loop, "all_reduce", 0.2 * share * loop.step_us)

    def reduces() -> None:
        dtype = "float32" if present else "bfloat16"
        for each in (size, small):
            bytes_each = each if present else each // 2
            loop.together("all_reduce", bytes_each, wait=True, dtype=dtype)

    loop.hooks["end"].append(reduces)
    return Truth("full-precision-payload", also=("exposed-communication",))


def small_messages(loop: Loop, share: float, present: bool) -> Truth:
    """Many small all_reduces in a row. Without: one of all their bytes."""
    loop.latency_us = loop.dice.uniform(25, 60)
    count = max(2, round(share * loop.step_us / loop.latency_us))
    sizes = [loop.dice.randrange(1, 32) * 4096 for _ in range(count)]

    def reduces() -> None:
        for size in sizes if present else [sum(sizes)]:
            loop.together("all_reduce", size, wait=True)

    loop.hooks["end"].append(reduces)
    return Truth("latency-bound", also=("exposed-communication",))


FAULTS = (
    Fault("decomposed-all-reduce", decomposed),
    Fault("byte-inflation", inflated, job=lambda seed: Loop(seed, ranks=8 if seed % 8 < 2 else 4)),
    Fault("emulated-operation", emulated, gloo, lambda seed: Loop(seed, backend="gloo")),
    Fault("full-precision-payload", full_precision, plain),
    Fault("latency-bound", small_messages),
)
