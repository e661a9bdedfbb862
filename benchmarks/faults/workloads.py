"""What jobs do when nothing is wrong: what the clean runs are, and what faults are put into.

No run loses 5 % of its steps to anything: what cannot be hidden is short. A real job whose
communication is exposed by nature, and longer, is no clean run: see ``exposed_by_nature``.
"""

from __future__ import annotations

from benchmarks.faults.loop import Loop
from commtrace.comms import bus_factor

__all__ = [
    "all_to_all",
    "copies",
    "data_parallel",
    "fully_sharded",
    "gloo",
    "pipeline",
    "plain",
    "size_for",
    "tensor_parallel",
]


def data_parallel(loop: Loop) -> None:
    """Gradients are reduced in buckets under the backward pass; the last is small."""
    buckets = bucket_sizes(loop)
    for _ in range(loop.steps):
        with loop.step():
            loop.at("input")
            everyone_computes(loop, 0.33, kernels=4)
            loop.at("backward")
            for size in buckets:
                everyone_computes(loop, 0.2, kernels=3, place="backward")
                loop.at("bucket")
                loop.together("all_reduce", size)
            loop.synchronise()
            everyone_computes(loop, 0.05, kernels=1, place="update")
            loop.at("end")


def bucket_sizes(loop: Loop) -> list[int]:
    """Three gradient buckets: two that the next layers' backward pass hides, and a small one."""
    share = [loop.dice.uniform(0.5, 0.8), loop.dice.uniform(0.5, 0.8), loop.dice.uniform(0.04, 0.1)]
    return [size_for(loop, "all_reduce", 0.2 * loop.step_us * one) for one in share]


def size_for(loop: Loop, op: str, us: float, ranks: int | None = None) -> int:
    """The bytes that take an operation so long, a multiple of the ranks."""
    factor = bus_factor(op, ranks or loop.ranks) or 1.0
    each = max(us - loop.latency_us, 1.0) * loop.gb_s * 1e3 / factor
    return max(round(each / loop.ranks / 4), 256) * loop.ranks * 4


def everyone_computes(loop: Loop, share: float, *, kernels: int, place: str = "forward") -> None:
    """That share of a step, on every rank."""
    for rank in loop.everyone:
        for _ in range(kernels):
            loop.compute(rank, loop.step_us * share / kernels, place=place, name=loop.name(place))


def pipeline(loop: Loop) -> None:
    """Two stages with so many micro-batches that hardly anybody waits."""
    micro, part = 24, 2 * loop.step_us / 24
    for _ in range(loop.steps):
        with loop.step():
            for _ in range(micro):
                loop.compute(0, part)
                loop.message(0, 1, 200_000)
                loop.compute(1, part)


def fully_sharded(loop: Loop) -> None:
    """Parameters are gathered one layer ahead, gradients scattered one behind."""
    layers = 4
    size = size_for(loop, "all_gather", 0.5 * loop.step_us * 0.3 / layers)
    first = size_for(loop, "all_gather", 0.01 * loop.step_us)
    for _ in range(loop.steps):
        with loop.step():
            loop.together("all_gather", first, stream=21, wait=True)
            for layer in range(layers):
                if layer + 1 < layers:
                    loop.together("all_gather", size, stream=21)
                everyone_computes(loop, 0.3 / layers, kernels=2)
                loop.synchronise(21)
            for layer in range(layers):
                if layer + 1 < layers:
                    loop.together("all_gather", size, stream=21)
                everyone_computes(loop, 0.6 / layers, kernels=2)
                loop.together("reduce_scatter", size if layer + 1 < layers else first)
                loop.synchronise(21)
            loop.synchronise()
            everyone_computes(loop, 0.05, kernels=1, place="update")


def all_to_all(loop: Loop) -> None:
    """Mixture of experts: tokens go to their experts and back, about as many everywhere."""
    for _ in range(loop.steps):
        with loop.step():
            for _ in range(2):
                everyone_computes(loop, 0.2, kernels=3)
                size = size_for(loop, "all_to_all", 0.004 * loop.step_us)
                for _ in range(2):
                    loop.exchange(
                        {r: round(size * loop.noise("tokens", r) / 4) * 4 for r in loop.everyone}
                    )
                    everyone_computes(loop, 0.2, kernels=2)
            loop.synchronise()


def tensor_parallel(loop: Loop) -> None:
    """Pairs of ranks share each layer, and the pairs reduce their gradients among each other."""
    pairs = [(first, first + 1) for first in range(0, loop.ranks, 2)]
    across = [tuple(range(side, loop.ranks, 2)) for side in range(2)]
    for members in (*pairs, *across):
        loop.run.groups[f"{members}"] = members
    size = size_for(loop, "all_reduce", 0.005 * loop.step_us + loop.latency_us, 2)
    gradients = size_for(loop, "all_reduce", 0.1 * loop.step_us)
    for _ in range(loop.steps):
        with loop.step():
            for layer in range(3):
                everyone_computes(loop, 0.3, kernels=3)
                for members in pairs:
                    loop.together("all_reduce", size, ranks=members, group=f"{members}", wait=True)
                for members in across:
                    if len(members) > 1:
                        last = layer == 2
                        some = gradients // 8 if last else gradients
                        where = {"ranks": members, "group": f"{members}", "stream": 22}
                        loop.together("all_reduce", some, **where)  # type: ignore[arg-type]
            loop.synchronise(22)
            everyone_computes(loop, 0.05, kernels=1, place="update")


_BATCHES = 9  # a stream


def copies(loop: Loop) -> None:
    """One process: batches from pinned memory, tensors to its neighbours over equal links.

    Batches are copied while the one before computes: else that would be a fault.
    """
    size = loop.dice.randrange(20, 60) * 1_000_000
    loop.spread = 0.003
    for _ in range(loop.steps):
        with loop.step():
            host = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "memory": "pinned"}
            loop.copy(0, size / 25e3, size=size, stream=_BATCHES, **host)
            everyone_computes(loop, 0.9, kernels=10)
            for to in range(1, 4):
                loop.copy(0, size / 90e3, kind="PtoP", size=size, destination=f"cuda:{to}")
            loop.at("end")


def gloo(loop: Loop) -> None:
    """Ranks on CPUs: calls are enqueued, and run on a thread of their own."""
    buckets = bucket_sizes(loop)
    for _ in range(loop.steps):
        with loop.step():
            loop.at("input")
            everyone_computes(loop, 0.35, kernels=4)
            for size in buckets:
                everyone_computes(loop, 0.2, kernels=3)
                loop.together("all_reduce", size, asynchronous=1)
            loop.synchronise()
            everyone_computes(loop, 0.05, kernels=1, place="update")
            loop.at("end")


def plain(loop: Loop) -> None:
    """Compute, and what faults add to it."""
    for _ in range(loop.steps):
        with loop.step():
            loop.at("input")
            everyone_computes(loop, 0.9, kernels=8)
            loop.at("end")
