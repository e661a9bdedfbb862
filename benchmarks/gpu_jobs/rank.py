"""One rank of a job: what its host does, and with it launches on its device.

A job's program is a generator for each rank: it calls these methods, and yields where its
host blocks until the device, and so perhaps other ranks, are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from benchmarks.gpu_jobs.device import Device, Messages, Work
from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.host import LAUNCH_SPREAD, Host
from benchmarks.gpu_jobs.operations import (
    ALL_TO_ALL,
    BYTES,
    MATMUL,
    SEND_RECV,
    Kernel,
    Operation,
    nccl_kernel,
)

__all__ = ["COMPUTE", "Blocking", "Part", "Rank", "StepWork"]

COMPUTE = 7  # the stream that PyTorch computes on
SHAPES = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}

Blocking = Iterator[None]
"""What a host does that may block: it yields until it can go on."""

Part = tuple[Literal["send", "recv"], int]
"""One message of an exchange: which way, and the peer."""


class StepWork(NamedTuple):
    """What a profiler step launched."""

    name: str
    work: list[Work]


class Rank(Host):
    """The host of one rank and its device.

    Its kernels take ``slowness`` times as long as they should.
    """

    def __init__(self, number: int, seed: int, *, shapes: bool) -> None:
        super().__init__(number, seed)
        self.device = Device()
        self.steps: list[StepWork] = []
        self.slowness = 1.0
        self._shapes = shapes

    # ── what it is doing ───────────────────────────────────────────────────────────────────

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step of the profiler."""
        name, before = f"ProfilerStep#{number}", len(self.device.work)
        with self.label(name):
            yield
        self.steps.append(StepWork(name, self.device.work[before:]))
        self.time += 30

    # ── what it does alone ─────────────────────────────────────────────────────────────────

    def kernel(self, us: float, kind: Kernel = MATMUL, *, stream: int = COMPUTE) -> None:
        """An operator that launches one kernel."""
        takes = us * self.slowness * self._noise(kind.operator)
        with self._operator(kind.operator, **(SHAPES if self._shapes else {})) as external:
            self.time += max(0.5, 18 * self._noise("launch", LAUNCH_SPREAD) - 7)
            self._launch("cudaLaunchKernel", kind.name, stream, external, takes_us=takes)
            self.time += 1.5

    def wait(self, works: Sequence[Work], stream: int = COMPUTE) -> None:
        """Let a stream go on when these are done, as ``wait`` of torch.distributed's work does."""
        self._call("cudaStreamWaitEvent", 0.8)
        self.device.wait(stream, works)

    def follow(self, stream: int, other: int = COMPUTE) -> None:
        """Let a stream go on when what is on another by now is done."""
        self._call("cudaEventRecord", 0.9)
        self.wait(self.device.recorded(other), stream)

    def copy_in(self, size: float, *, pageable: bool = False) -> Blocking:
        """A batch goes to the device; from pageable memory it goes slowly, and the host waits."""
        memory, gb_s = ("Pageable", 6.0) if pageable else ("Pinned", 50.0)
        name = f"Memcpy HtoD ({memory} -> Device)"
        with self._operator("aten::copy_") as external:
            self.time += 6
            copy = {"category": "gpu_memcpy", "takes_us": size / gb_s / 1e3 + 1.5}
            called = self.time
            work = self._launch(
                "cudaMemcpyAsync", name, COMPUTE, external, **copy, args=_copied(size, gb_s)
            )
            if pageable:
                while work.end is None:
                    yield
                self.time = max(self.time, work.end - 3)
                self.events[-1] = self.events[-1]._replace(us=self.time - called)
                yield from self._block("cudaStreamSynchronize", COMPUTE)
            self.time += 2

    def item(self) -> Blocking:
        """``Tensor.item``: the host waits for all that computes, and reads a number."""
        name = "Memcpy DtoH (Device -> Pinned)"
        with self._operator("aten::item"):
            self.time += 2
            with self._operator("aten::_local_scalar_dense") as external:
                self.time += 3
                copy = {"category": "gpu_memcpy", "takes_us": 1.9, "args": _copied(4, 0.002)}
                self._launch("cudaMemcpyAsync", name, COMPUTE, external, **copy)
                yield from self._block("cudaStreamSynchronize", COMPUTE)
                self.time += 1
            self.time += 1

    def synchronize(self) -> Blocking:
        """``torch.cuda.synchronize``."""
        yield from self._block("cudaDeviceSynchronize", None)

    # ── what it does with others ───────────────────────────────────────────────────────────

    def together(
        self,
        group: Group,
        operation: Operation,
        elements: int,
        dtype: str = "BFloat16",
        *,
        wait: bool = True,
        behind: int = COMPUTE,
    ) -> list[Work]:
        """A collective on an array of so many elements; what can be waited for.

        It starts behind what is on a stream by now. Its host goes on.
        """
        share = elements // group.size
        sizes = {
            "In msg nelems": share if "gather" in operation.recorded else elements,
            "Out msg nelems": share if "scatter" in operation.recorded else elements,
            "In split size": "[]",
            "Out split size": "[]",
        }
        moved = elements * BYTES[dtype] * operation.wire_share(group.size)
        return self._collective(group, operation, dtype, sizes, moved, wait, behind)

    def all_to_all(
        self, group: Group, sends: Sequence[int], receives: Sequence[int], width: int
    ) -> None:
        """So many rows of a width to each rank, and from each."""
        mine = group.ranks.index(self.number)
        sizes = {
            "In msg nelems": sum(sends) * width,
            "Out msg nelems": sum(receives) * width,
            "In split size": str(list(sends)),
            "Out split size": str(list(receives)),
        }
        rows = max(sum(sends) - sends[mine], sum(receives) - receives[mine])
        moved = rows * width * BYTES["BFloat16"]
        self._collective(group, ALL_TO_ALL, "BFloat16", sizes, moved, True, COMPUTE)

    def exchange(
        self, group: Group, parts: Sequence[Part], elements: int, *, wait: bool = True
    ) -> list[Work]:
        """Messages of so many elements each in one kernel, as ``batch_isend_irecv`` has them."""
        self._behind(group.stream, COMPUTE)
        messages = []
        for way, peer in parts:
            source, to = (self.number, peer) if way == "send" else (peer, self.number)
            size = elements * BYTES["BFloat16"]
            messages.append(group.message(self.number, source, to, size))
            self._message(group, way, peer, elements)
        with self._annotation("nccl:coalesced"):
            self.time += 6
            work = self._launch(
                "cudaLaunchKernelExC",
                nccl_kernel(SEND_RECV),
                group.stream,
                None,
                meeting=Messages(messages),
                annotation="nccl:coalesced",
            )
            self._call("cudaEventRecord", 0.9)
        if wait:
            self.wait([work])
        return [work]

    # ── inside ─────────────────────────────────────────────────────────────────────────────

    def _collective(
        self,
        group: Group,
        operation: Operation,
        dtype: str,
        sizes: dict[str, Any],
        moved: float,
        wait: bool,
        behind: int,
    ) -> list[Work]:
        meeting, wire_us = group.collective(self.number, moved)
        host_us = 45 * self._noise("calls", LAUNCH_SPREAD)
        told = _told(group, operation.recorded, dtype) | sizes
        asked = {"Rank": group.ranks.index(self.number), **_where(group), **told}
        with self._operator(operation.operator):
            self.time += 0.2 * host_us
            with self._operator("record_param_comms", **asked) as external:
                self.time += 0.25 * host_us
                with self._annotation(operation.annotation):
                    self._behind(group.stream, behind)
                    work = self._launch(
                        "cudaLaunchKernelExC",
                        nccl_kernel(operation.kernel, dtype),
                        group.stream,
                        external,
                        meeting=meeting,
                        annotation=operation.annotation,
                        args=told,
                    )
                    tick = abs(self._dice_of("tick").gauss(0, 1))
                    meeting.wire_us[work] = wire_us + tick
                    self._call("cudaEventRecord", 0.9)
                    self.time += 0.15 * host_us
                self.time += 2
            self.time += 0.2 * host_us
        if wait:
            self.wait([work], behind)
        return [work]

    def _message(self, group: Group, way: str, peer: int, elements: int) -> None:
        mine, to = group.ranks.index(self.number), group.ranks.index(peer)
        name, arrow, end = (
            ("c10d::send", "->", "Dst Rank") if way == "send" else ("c10d::recv_", "<-", "Src Rank")
        )
        sizes = {"In msg nelems": elements, "Out msg nelems": elements}
        splits = {"In split size": "[]", "Out split size": "[]"}
        told = {**_where(group), **_told(group, way, "BFloat16"), **sizes, **splits}
        host_us = 40 * self._noise("calls", LAUNCH_SPREAD)
        with self._operator(name):
            self.time += 0.2 * host_us
            with self._operator("record_param_comms", **{"Rank": to, end: peer}, **told):
                self.time += 0.2 * host_us
                with self._annotation(f"nccl:{way} {mine}{arrow}{to}"):
                    self.time += 5
                self.time += 2
            self.time += 0.1 * host_us

    def _behind(self, stream: int, other: int) -> None:
        self._call("cudaEventRecord", 0.9)
        self._call("cudaStreamWaitEvent", 0.9)
        self.device.wait(stream, self.device.recorded(other))

    def _launch(self, call: str, name: str, stream: int, external: int | None, **more: Any) -> Work:
        dice = self._dice_of("launching")
        correlation = self._call(call, (8 if "ExC" in call else 4.2) + dice.random())
        ready = self.time + 1.2 + 0.5 * dice.random()
        args = {} if external is None else {"External id": external}
        args |= more.pop("args", {})
        work = Work(name, stream, ready, correlation, args=args, **more)
        self.device.enqueue(work)
        return work

    def _block(self, call: str, stream: int | None) -> Blocking:
        while (end := self.device.drained(stream)) is None:
            yield
        self._call(call, max(2.5, end + 4 - self.time))


def _told(group: Group, recorded: str, dtype: str) -> dict[str, Any]:
    return {
        "Collective name": recorded,
        "Group size": group.size,
        "dtype": dtype,
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
    }


def _where(group: Group) -> dict[str, int]:
    return {"Global rank start": group.ranks[0], "Global rank stride": group.stride}


def _copied(size: float, gb_s: float) -> dict[str, float]:
    return {"bytes": int(size), "memory bandwidth (GB/s)": gb_s}
