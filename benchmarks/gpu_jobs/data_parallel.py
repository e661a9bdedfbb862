"""Jobs of DistributedDataParallel: gradients are reduced in buckets beside the backward."""

from __future__ import annotations

from collections.abc import Callable, Collection

from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.job import LATE, STEPS, Job
from benchmarks.gpu_jobs.operations import ADAM, ALL_REDUCE, ATTENTION, ELEMENTWISE, LINEAR, LOSS
from benchmarks.gpu_jobs.rank import Blocking, Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["DATA_PARALLEL", "FORWARD", "LOADER", "train"]

FORWARD = "DistributedDataParallel.forward"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#AdamW.step"
LAYERS = 12

Extra = Callable[[Rank, str, int], None]
"""What some ranks do besides, at a place of a step: "loader", "forward", "end" or "logged"."""


def _nothing(rank: Rank, place: str, step: int) -> None:
    """Nothing besides."""


def train(
    job: Simulation,
    group: Group,
    *,
    steps: int = STEPS,
    bucket: int = 30_000_000,
    dtype: str = "BFloat16",
    loader_us: float = 350.0,
    batch: float = 16e6,
    pageable: Collection[int] = (),
    extra: Extra = _nothing,
) -> Simulation:
    """Steps of about 18 ms with four buckets of so many elements."""

    def program(rank: Rank) -> Blocking:
        for step in range(steps):
            with rank.step(step):
                with rank.label(LOADER):
                    rank.busy(loader_us)
                    extra(rank, "loader", step)
                yield from rank.copy_in(batch, pageable=rank.number in pageable)
                with rank.label(FORWARD):
                    for _ in range(LAYERS):
                        rank.kernel(225)
                        rank.kernel(160, ATTENTION)
                        rank.kernel(65, ELEMENTWISE)
                    extra(rank, "forward", step)
                rank.kernel(60, LOSS)
                _backward(rank, group, bucket, dtype)
                with rank.label(OPTIMIZER):
                    rank.kernel(450, ADAM)
                    rank.kernel(450, ADAM)
                extra(rank, "end", step)
                yield from rank.item()
                extra(rank, "logged", step)
                rank.busy(120)
        yield from rank.synchronize()

    return job.run(program)


def _backward(rank: Rank, group: Group, bucket: int, dtype: str) -> None:
    reduced = []
    with rank.backward():
        for layer in reversed(range(LAYERS)):
            rank.kernel(450)
            rank.kernel(270)
            rank.kernel(180, ELEMENTWISE)
            if layer % 3 == 0:
                reduced.append(rank.together(group, ALL_REDUCE, bucket, dtype, wait=False))
        for works in reduced:
            rank.wait(works)


def _healthy(_: bool) -> Simulation:
    job = Simulation(8, seed=1)
    return train(job, job.group())


def _slow_gpu(faulty: bool) -> Simulation:
    job = Simulation(8, seed=2)
    job.ranks[5].slowness = 1.12 if faulty else 1.0
    return train(job, job.group())


def _two_slow_gpus(faulty: bool) -> Simulation:
    job = Simulation(8, seed=3)
    if faulty:
        job.ranks[1].slowness, job.ranks[6].slowness = 1.12, 1.08
    return train(job, job.group())


def _throttled(faulty: bool) -> Simulation:
    job = Simulation(8, seed=4)

    def throttle(rank: Rank, place: str, step: int) -> None:
        if faulty and place == "loader" and rank.number == 5 and step == 4:
            rank.slowness = 1.25

    return train(job, job.group(), steps=8, extra=throttle)


def _jitter(faulty: bool) -> Simulation:
    job = Simulation(8, seed=5)
    turns = (3, 6, 1, 0, 7, 2, 5, 4)

    def long_batch(rank: Rank, place: str, step: int) -> None:
        if faulty and place == "forward" and rank.number == turns[step]:
            for _ in range(LAYERS):
                rank.kernel(333, LINEAR)

    return train(job, job.group(), steps=8, extra=long_batch)


def _clocks(faulty: bool) -> Simulation:
    job = Simulation(8, seed=6, gpus_per_host=4)
    job.clock_us[4:], job.clock_drift[4:] = [3000.0] * 4, [20e-6] * 4
    job.ranks[6].slowness = 1.15 if faulty else 1.0
    return train(job, job.group(gb_s=60, latency_us=30), bucket=20_000_000)


def _float32(faulty: bool) -> Simulation:
    job = Simulation(4, seed=7, gpus_per_host=1)
    group = job.group(gb_s=22, latency_us=40)
    return train(job, group, bucket=60_000_000, dtype="Float" if faulty else "BFloat16")


def _link_degrades(faulty: bool) -> Simulation:
    job = Simulation(8, seed=8, gpus_per_host=4)

    def slower(number: int) -> float:
        return 2.5 if faulty and number >= 16 else 1.0  # four a step

    group = job.group(gb_s=45, latency_us=30, slower=slower)
    return train(job, group, steps=8, bucket=50_000_000)


def _file_missing(faulty: bool) -> Simulation:
    job = Simulation(8, seed=9)
    job.ranks[3].slowness = 1.15 if faulty else 1.0
    return train(job, job.group())


def _no_sync_forgotten(faulty: bool) -> Simulation:
    job = Simulation(8, seed=10, gpus_per_host=4)
    group = job.group(gb_s=30, latency_us=30)

    def micro_batch(rank: Rank, reduces: bool) -> None:
        with rank.label(FORWARD):
            for _ in range(8):
                rank.kernel(200)
        rank.kernel(20, LOSS)
        reduced = []
        with rank.backward():
            for layer in range(8):
                rank.kernel(400)
                if reduces and layer % 4 == 3:
                    reduced.append(rank.together(group, ALL_REDUCE, 30_000_000, wait=False))
            for works in reduced:
                rank.wait(works)

    def program(rank: Rank) -> Blocking:
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(200)
                for number in range(4):
                    micro_batch(rank, faulty or number == 3)
                with rank.label(OPTIMIZER):
                    rank.kernel(400, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


DATA_PARALLEL = (
    Job("ddp-healthy", _healthy),
    Job("ddp-slow-gpu", _slow_gpu, "GPU 5 computes 12 % slower", LATE, (5,)),
    Job(
        "ddp-two-slow-gpus",
        _two_slow_gpus,
        "GPU 1 computes 12 % slower, GPU 6 8 %",
        LATE,
        (1, 6),
    ),
    Job("ddp-throttled", _throttled, "GPU 5 is 25 % slower from step 4 of 8 on", LATE, (5,)),
    Job("ddp-jitter", _jitter, "each step another rank has 4 ms more to do", ("jitter",)),
    Job(
        "ddp-clocks-drift",
        _clocks,
        "GPU 6 is 15 % slower; its host's clock is off by 3 ms and drifts",
        LATE,
        (6,),
    ),
    Job("ddp-float32", _float32, "gradients in float32", ("full-precision-payload",)),
    Job(
        "ddp-link-degrades",
        _link_degrades,
        "all_reduces take 2.5 times as long from step 4 of 8 on",
        ("degraded-link",),
    ),
    Job("ddp-no-sync", _no_sync_forgotten, "no no_sync() in 4 micro-batches", ("redundant",)),
    Job(
        "ddp-file-missing",
        _file_missing,
        "GPU 3 is 15 % slower, and its file is missing",
        ("unfit-trace", "exposed-communication"),  # of those recorded nobody is to blame
        lost=(3,),
    ),
)
