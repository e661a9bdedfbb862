"""Traces of any size in Kineto's exact layout: a training loop with Python stacks.

One step of one rank is 24 layers, each a few Python frames, operators, launches and
kernels, and every fourth layer an all_reduce with its full metadata, on a stream of its
own. Names, sizes and times vary with a seed, so that the text does not compress better
than a real trace's.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TextIO

__all__ = ["write_run", "write_trace"]

BASE_NS = 1_700_000_000_000_000_000
PID, MAIN, BACKWARD = 4242, 4242, 4301
COMPUTE_STREAM, COMM_STREAM = 7, 20
KERNELS = (
    "ampere_bf16_s16816gemm_bf16_{a}x{b}_ldg8_f2f_stages_64x{c}_nn",
    "void at::native::vectorized_elementwise_kernel<{c}, MulFunctor<float>, Array<char*, 3> >(int)",
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, {c}, false>(float*)",
)
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_run(folder: Path, ranks: int, megabytes: float) -> list[Path]:
    """Write one gzip trace per rank of about ``megabytes`` MB of JSON; existing ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}.json.gz" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        if not path.exists():
            write_trace(path, rank, ranks, megabytes)
    return paths


def write_trace(path: Path, rank: int, world_size: int, megabytes: float) -> None:
    """Write one rank's trace."""
    part = path.with_suffix(".part")
    with gzip.open(part, "wt", compresslevel=4, encoding="utf-8") as out:
        Writer(out, rank, world_size).write(int(megabytes * 1e6))
    part.rename(path)


class Writer:
    """Writes events in the order in which Kineto does: host first, then the device's."""

    def __init__(self, out: TextIO, rank: int, world_size: int) -> None:
        self.out = out
        self.rank = rank
        self.world_size = world_size
        self.random = random.Random(rank)
        self.now_us = 4_000_000_000.0
        self.gpu_us = self.comm_us = self.now_us + 500
        self.ids = 1
        self.size = 0

    def write(self, size: int) -> None:
        self._text(self._head())
        step = 1
        while self.size < size:
            self._step(step)
            step += 1
        self._text('\n  ],\n  "traceName": "trace.json",\n')
        self._text(f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS}\n}}\n')

    def _head(self) -> str:
        info = {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.world_size,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": self.world_size,
                    "ranks": list(range(self.world_size)),
                }
            ],
            "nccl_version": "2.27.5",
        }
        device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}
        head = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": info}
        text = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in head.items())
        process = f'"name": "process_name", "ph": "M", "ts": 0.0, "pid": {PID}, "tid": 0'
        return f'{{\n{text},\n  "traceEvents": [\n  {{\n    {process}, "args": {{}}\n  }}'

    def _text(self, text: str) -> None:
        self.out.write(text)
        self.size += len(text)

    def _event(self, category: str, name: str, tid: int, at: float, long: float, args: str) -> None:
        pid = 0 if category in ("kernel", "gpu_memcpy") else PID
        self._text(
            f',\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, '
            f'"tid": {tid},\n    "ts": {at:.3f}, "dur": {long:.3f},\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )

    def _flow(self, ph: str, number: int, pid: int, tid: int, at: float) -> None:
        end = ', "bp": "e"' if ph == "f" else ""
        self._text(
            f',\n  {{\n    "ph": "{ph}", "id": {number}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {at:.3f},\n    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
        )

    def _step(self, number: int) -> None:
        start = self.now_us
        for layer in range(24):
            self._layer(layer)
        args = f'"External id": {self._id()},"Record function id": 0, "Ev Idx": {self.ids}'
        self._event(
            "user_annotation", f"ProfilerStep#{number}", MAIN, start, self.now_us - start, args
        )
        self.now_us = max(self.now_us, self.gpu_us, self.comm_us) + 50

    def _layer(self, layer: int) -> None:
        for depth in range(60):
            line, took = self.random.randrange(2000), self.random.random() * 90
            name = f"torch/nn/modules/module{layer}.py({line}): _call_impl_{depth % 7}"
            parent = f'"Python parent id": {self.ids}, "Python id": {self._id()}, '
            ids = f'{parent}"Python module id": {depth}, "Ev Idx": {self.ids}'
            self._event("python_function", name, MAIN, self.now_us + depth * 0.731, took, ids)
        for _ in range(4):
            self._operator()
        if layer % 4 == 3:
            self._all_reduce()

    def _operator(self) -> None:
        rows, took = 64 << self.random.randrange(6), 8 + self.random.random() * 20
        dims = f"[[{rows}, 4096], [4096, {rows}], []]"
        types = '["c10::BFloat16", "c10::BFloat16", "Scalar"]'
        inputs = f'"Concrete Inputs": ["", "", "1"], "Input type": {types}'
        ids = f'"External id": {self._id()},"Record function id": 0, "Sequence number": {self.ids}'
        args = f'{ids}, {inputs}, "Input Dims": {dims}, "Ev Idx": {self.ids}'
        for name in ("aten::linear", "aten::addmm"):
            self._event("cpu_op", name, MAIN, self.now_us, took, args)
        template = self.random.choice(KERNELS)
        a, b, c = (2 ** self.random.randrange(2, 8) for _ in range(3))
        kernel = template.format(a=a, b=b, c=c)
        long = self.random.expovariate(1 / 30) + 1.5
        self.gpu_us = self._launch(kernel, MAIN, COMPUTE_STREAM, self.gpu_us, long, "")
        self.now_us += took + self.random.random() * 4

    def _all_reduce(self) -> None:
        elements = self.random.randrange(1 << 16, 1 << 24)
        ranks = str(list(range(min(self.world_size, 30))))
        args = (
            f'"Collective name": "allreduce", "In msg nelems": {elements}, '
            f'"Out msg nelems": {elements}, "Group size": {self.world_size}, "dtype": "BFloat16", '
            f'"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": "{ranks}"'
        )
        at, ids = self.now_us, f'"External id": {self._id()},"Record function id": 0'
        self._event("cpu_op", "c10d::allreduce_", BACKWARD, at, 80, ids)
        self._event("cpu_op", "record_param_comms", BACKWARD, at + 5, 70, f"{ids}, {args}")
        self._event("user_annotation", "nccl:all_reduce", BACKWARD, at + 8, 60, ids)
        self.now_us += 20
        ready = max(self.comm_us, self.gpu_us)
        long = elements / 150e3 * (1 + self.random.random())
        self.comm_us = self._launch(NCCL, BACKWARD, COMM_STREAM, ready, long, f", {args}")

    def _launch(
        self, kernel: str, tid: int, stream: int, ready: float, long: float, more: str
    ) -> float:
        number = self._id()
        start = max(ready + 0.8, self.now_us + 6)
        grid = f"[{self.random.randrange(1, 4096)}, 1, 1]"
        args = (
            f'"External id": {number},      "queued": 0, "device": 0, "context": 1,      '
            f'"stream": {stream}, "correlation": {number},      "registers per thread": 96,      '
            f'"shared memory": 49152,      "blocks per SM": 3.515625,      '
            f'"warps per SM": 28.125,      "grid": {grid},      "block": [256, 1, 1],      '
            f'"est. achieved occupancy %": 38{more}'
        )
        self._event("kernel", kernel, stream, start, long, args)
        self._flow("f", number, 0, stream, start)
        host = f'"External id": {number},      "cbid": 211, "correlation": {number}'
        self._event("cuda_runtime", "cudaLaunchKernel", tid, self.now_us + 1, 4.2, host)
        self._flow("s", number, PID, tid, self.now_us + 1)
        return start + long

    def _id(self) -> int:
        self.ids += 1
        return self.ids
