"""A job in the making: hosts launch, streams run in order, operations wait for their ranks.

Times are microseconds from the job's start. Nothing is written down as late or slow: it
comes out so, because a stream was busy, a host had not launched yet, or a rank was missing.
So a job without a fault tells what the fault cost.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from commtrace.comms import bus_factor
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, COMMUNICATION, COMPUTE, Tiny

__all__ = ["Loop", "log_uniform"]

LOOK_US = 100  # how often a thread is looked at that is seen at a line
LAUNCH_US = 4.0  # what one launch takes the host, and how long it is on its way


def log_uniform(dice: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform between those of the two."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))


class Loop:
    """``dice`` are for what the job is, ``noise`` for what varies from step to step.

    Noise is drawn afresh in each step and for each place, so that the same job with and
    without a fault meets the same noise.
    """

    def __init__(
        self,
        seed: int,
        *,
        ranks: int | None = None,
        steps: int = 12,
        backend: str = "nccl",
        hosts: tuple[str, ...] = ("host",),
        manifest: dict[str, Any] | None = None,
        host_leads: bool | None = None,
    ) -> None:
        self.seed, self.steps = seed, steps
        self.dice = random.Random(f"{seed}")
        drawn = self.dice.choice([2, 2, 4, 4, 8])
        self.ranks = ranks or drawn
        self.run = Tiny(self.ranks, backend=backend, hosts=hosts, manifest=manifest)
        self.gloo = backend == "gloo"
        self.gb_s = self.dice.uniform(80, 300)
        self.latency_us = self.dice.uniform(8, 20)
        self.step_us = self.dice.uniform(8_000, 14_000)
        self.spread = self.dice.uniform(0.005, 0.02)
        self.host_leads = self.dice.random() < 0.3 if host_leads is None else host_leads
        self.kernel_name = "sgemm"
        self.host = [0.0] * self.ranks
        self.clock_us = [0.0] * self.ranks
        self.speed = [1.0] * self.ranks
        self.free: dict[tuple[int, int], float] = defaultdict(float)
        self.beside = 1.0  # how much longer kernels take beside communication
        self.wire: Callable[[str, float], float] = lambda _, us: us
        self.hooks: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self.edits: list[Callable[[Measures], Measures]] = []
        self.micro_batches = 1
        self.number = 0
        self._noise: dict[tuple[object, ...], random.Random] = {}

    # ── the job ────────────────────────────────────────────────────────────────────────────

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.ranks))

    def at(self, place: str) -> None:
        """What faults have put at a place of the step, each followed by what uses it."""
        for hook in self.hooks[place]:
            hook()
            for rank in self.everyone:
                self.compute(rank, 10, place="uses", name="elementwise_uses")

    @contextmanager
    def step(self) -> Iterator[None]:
        """One profiler step. Its host ends with the device, or runs one step ahead of it."""
        self.number += 1
        begun = list(self.host)
        before = [self._device(rank) for rank in self.everyone]
        yield
        for rank in self.everyone:
            self.host[rank] += 5
            if self.host_leads:
                self._blocks(rank, before[rank], "cudaEventSynchronize", recorded=begun[rank])
            else:
                self._blocks(rank, self._device(rank))
            at = begun[rank] + self.clock_us[rank]
            self.run.step(rank, self.number, at, self.host[rank] - begun[rank])

    def noise(self, *place: object) -> float:
        """A factor near one, the same with and without a fault."""
        key = (self.number, *place)
        if key not in self._noise:
            self._noise[key] = random.Random(f"{self.seed}:{key}")
        return max(1 + self._noise[key].gauss(0, self.spread), 0.5)

    def name(self, place: str) -> str:
        """The kernel that runs at a place of the step."""
        shape = {"forward": "nn", "backward": "nt"}.get(place)
        return f"{self.kernel_name}_{shape}" if shape else f"elementwise_{place}"

    def elapsed_us(self) -> float:
        """From the job's start to the end of all that it ran."""
        return max(*self.host, *self.free.values())

    def trace(self) -> Measures:
        """What was recorded, and survived."""
        trace = self.run.trace()
        for edit in self.edits:
            trace = edit(trace)
        return trace

    # ── what a rank does ───────────────────────────────────────────────────────────────────

    def stall(
        self, rank: int, us: float, label: str | None = None, line: str | None = None
    ) -> None:
        """The host does something else, under a label if it has one, or seen at a line."""
        for look in range(LOOK_US, int(us) + 1, LOOK_US) if line else ():
            at = self.host[rank] + self.clock_us[rank] + look
            self.run.look(rank, at, line or "", LOOK_US)
        if us > 0 and label:
            self.run.step(rank, self.number, *self._when(rank, self.host[rank], us), label)
        elif us > 0:
            self._idles(rank, us)
        self.host[rank] += us

    def compute(
        self,
        rank: int,
        us: float,
        *,
        place: str = "compute",
        name: str = "gemm",
        launch_us: float = LAUNCH_US,
    ) -> None:
        """One kernel, or on gloo one operator."""
        us *= self.noise(place, rank) * self.speed[rank]
        if self.gloo:
            self.run.op(rank, self.host[rank] + self.clock_us[rank], us, step=self.number)
            self.host[rank] += us + 2
            return
        self.host[rank] += launch_us
        start = max(self.free[rank, COMPUTE] + 1, self.host[rank] + LAUNCH_US)
        us = self._beside(us, start, self.free[rank, COMMUNICATION])
        self.run.kernel(rank, *self._when(rank, start, us), name=name, **self._launch(rank))
        self.free[rank, COMPUTE] = start + us

    def copy(self, rank: int, us: float, *, blocks: bool = False, **more: Any) -> None:
        """One copy on ``stream``, the compute stream unless given."""
        us *= self.noise("copy", rank, more.get("destination"))
        stream = more.setdefault("stream", COMPUTE)
        self.host[rank] += LAUNCH_US
        start = max(self.free[rank, stream] + 1, self.host[rank] + LAUNCH_US)
        self.run.copy(rank, *self._when(rank, start, us), **self._launch(rank), **more)
        self.free[rank, stream] = start + us
        if blocks:
            self._blocks(rank, start + us, "cudaMemcpyAsync")

    def busy(self, rank: int, us: float, place: str = "more") -> None:
        """Compute of that length, in kernels of a usual size."""
        count = max(1, round(us / 400))
        for _ in range(count if us > 0 else 0):
            self.compute(rank, us / count, place=place, name=self.name(place))

    # ── what ranks do together ─────────────────────────────────────────────────────────────

    def wire_us(self, op: str, size: int, ranks: int) -> float:
        """What the bytes take, by latency and bandwidth."""
        return self.latency_us + size * (bus_factor(op, ranks) or 0) / self.gb_s / 1e3

    def together(
        self,
        op: str,
        size: int | None,
        *,
        ranks: Sequence[int] | None = None,
        stream: int = COMMUNICATION,
        wait: bool = False,
        us: float | None = None,
        root: int | None = None,
        place: str = "wire",
        own: Mapping[int, dict[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        """One operation on its ranks: everybody it needs has to be there, then it moves.

        ``own`` is what some ranks call instead: columns of theirs, or ``op``.
        """
        members = list(self.everyone if ranks is None else ranks)
        took = self.wire_us(op, size or 0, len(members)) if us is None else us
        took = self.wire(op, took) * self.noise(place, op)
        arrivals = {rank: self._arrives(rank, stream) for rank in members}
        if self.gloo:
            more.setdefault("asynchronous", int(not wait))
        for rank in members:
            end = self._done(op, rank, root, arrivals, took) + self.noise("tick", rank)
            asked = {**self._launch(rank), **more, **(own or {}).get(rank, {})}
            called = asked.pop("op", op)
            start, lasts = self._when(rank, arrivals[rank], end - arrivals[rank])
            where = {"stream": stream, "root": root}
            self.run.collective(rank, called, start, lasts, size=size, **where, **asked)
            self.free[rank, stream] = end
            self._waits(rank, end, wait)

    def exchange(self, sizes: dict[int, int], *, wait: bool = True) -> None:
        """An all_to_all in which each rank sends and receives so much."""
        took = self.wire_us("all_to_all", max(sizes.values()), len(sizes))
        took = self.wire("all_to_all", took) * self.noise("wire", "all_to_all")
        arrivals = {rank: self._arrives(rank, COMMUNICATION) for rank in sizes}
        end = max(arrivals.values()) + took
        for rank, size in sizes.items():
            done = end + self.noise("tick", rank)
            start, lasts = self._when(rank, arrivals[rank], done - arrivals[rank])
            own = {"in_bytes": size, "out_bytes": size, **self._launch(rank)}
            self.run.collective(rank, "all_to_all", start, lasts, **own)
            self.free[rank, COMMUNICATION] = done
            self._waits(rank, done, wait)

    def message(
        self,
        source: int,
        to: int,
        size: int,
        *,
        us: float = 0.0,
        stream: int = 30,
        wait: bool = True,
    ) -> None:
        """A send and its recv, ``us`` longer than usual; neither goes on before both are there."""
        took = (self.wire_us("send", size, 2) + us) * self.noise("message", source, to)
        arrivals = {rank: self._arrives(rank, stream) for rank in (source, to)}
        for rank, op, peer in ((source, "send", to), (to, "recv", source)):
            end = took + max(arrivals.values())
            start, lasts = self._when(rank, arrivals[rank], end - arrivals[rank])
            asked = {"peer": peer, "stream": stream, **self._launch(rank)}
            self.run.collective(rank, op, start, lasts, size=size, **asked)
            self.free[rank, stream] = end
            self._waits(rank, end, wait)

    def drain(self) -> None:
        """Every host waits for its device."""
        for rank in self.everyone:
            self._blocks(rank, self._device(rank))

    def synchronise(self, stream: int = COMMUNICATION) -> None:
        """Compute goes on when communication is done."""
        for rank in self.everyone:
            self._waits(rank, self.free[rank, stream], wait=True)

    # ── inside ─────────────────────────────────────────────────────────────────────────────

    def _blocks(
        self,
        rank: int,
        until: float,
        call: str = "cudaDeviceSynchronize",
        recorded: float | None = None,
    ) -> None:
        """The host waits in a call of CUDA, or of gloo's in none, until something is done.

        For an event that was ``recorded`` at a time, that is known, as commtrace records it.
        """
        took = max(until - self.host[rank], 0.0)
        if not self.gloo:
            when = self._when(rank, self.host[rank], took)
            more = {"step": self.number}
            if recorded is not None:
                more["correlation"] = self.number
                at = BASE_NS + round(1e3 * (recorded + self.clock_us[rank]))
                self.run.synchronisation(rank, "Event Sync", when[0], recorded_ns=at, **more)
            self.run.blocking_call(rank, call, *when, **more)
        self.host[rank] += took

    def _device(self, rank: int) -> float:
        return max((end for (of, _), end in self.free.items() if of == rank), default=0.0)

    def _when(self, rank: int, start: float, us: float) -> tuple[float, float]:
        return start + self.clock_us[rank], us

    def _launch(self, rank: int) -> dict[str, Any]:
        launched = BASE_NS + round(1e3 * (self.host[rank] + self.clock_us[rank]))
        thread = {"thread": 1} if self.gloo else {}
        return {"launch_ns": launched, "step": self.number, **thread}

    def _idles(self, rank: int, us: float) -> None:
        """A host that communicates itself runs no operator for a while."""
        if self.gloo and us > 0:
            self.run.gap(rank, *self._when(rank, self.host[rank], us))

    def _beside(self, us: float, start: float, communicating: float) -> float:
        inside = max(communicating - start, 0.0)
        return (
            us * self.beside if us * self.beside <= inside else us + inside - inside / self.beside
        )

    def _arrives(self, rank: int, stream: int) -> float:
        """When its inputs are there, the stream is free and the host has called."""
        self.host[rank] += LAUNCH_US
        if self.gloo:
            at = self.host[rank] - LAUNCH_US + self.clock_us[rank]
            call = {"kind": "communication", "name": "c10d::allreduce_", "step": self.number}
            self.run.op(rank, at, LAUNCH_US, **call)
            return max(self.free[rank, stream] + 5, self.host[rank] + 20)
        inputs = max(self.free[rank, COMPUTE], self.free[rank, stream]) + 2
        return max(inputs, self.host[rank] + LAUNCH_US)

    @staticmethod
    def _done(
        op: str, rank: int, root: int | None, arrivals: dict[int, float], took: float
    ) -> float:
        if root is not None and op == "broadcast":
            return max(arrivals[rank], arrivals[root]) + took
        if root is not None and op == "reduce" and rank != root:
            return arrivals[rank] + took
        return max(arrivals.values()) + took

    def _waits(self, rank: int, end: float, wait: bool) -> None:
        if wait and self.gloo:
            self._idles(rank, end - self.host[rank])
            self.host[rank] = max(self.host[rank], end)
        elif wait:
            self.free[rank, COMPUTE] = max(self.free[rank, COMPUTE], end)
