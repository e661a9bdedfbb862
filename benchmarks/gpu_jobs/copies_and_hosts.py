"""Jobs of DistributedDataParallel whose fault is in the host's code: data, copies, logging."""

from __future__ import annotations

from benchmarks.gpu_jobs.data_parallel import train
from benchmarks.gpu_jobs.job import LATE, STEPS, Job
from benchmarks.gpu_jobs.operations import (
    ADAM,
    ALL_GATHER_LIST,
    ALL_REDUCE,
    BROADCAST,
    ELEMENTWISE,
    LINEAR,
    LOSS,
)
from benchmarks.gpu_jobs.rank import Blocking, Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["COPIES_AND_HOSTS"]


def _loader_now_and_then(faulty: bool) -> Simulation:
    job = Simulation(8, seed=20)

    def late(rank: Rank, place: str, step: int) -> None:
        if faulty and place == "loader" and rank.number == 3 and step % 3 == 1:
            rank.busy(9000)

    return train(job, job.group(), steps=7, extra=late)


def _loaders_slow(faulty: bool) -> Simulation:
    job = Simulation(8, seed=21)
    return train(job, job.group(), loader_us=9000 if faulty else 350)


def _evaluation(faulty: bool) -> Simulation:
    job = Simulation(8, seed=22)

    def evaluate(rank: Rank, place: str, step: int) -> None:
        if faulty and place == "end" and rank.number == 0 and step % 4 == 2:
            for _ in range(12):
                rank.kernel(700, LINEAR)

    return train(job, job.group(), steps=8, extra=evaluate)


def _checkpoint(faulty: bool) -> Simulation:
    job = Simulation(8, seed=23)

    def save(rank: Rank, place: str, step: int) -> None:
        if faulty and place == "logged" and rank.number == 0 and step == 4:
            with rank.label("save_checkpoint"):
                rank.busy(40_000)

    return train(job, job.group(), steps=8, extra=save)


def _pageable_on_one(faulty: bool) -> Simulation:
    job = Simulation(8, seed=24)
    return train(job, job.group(), batch=30e6, pageable=[2] if faulty else [])


def _pageable_on_all(faulty: bool) -> Simulation:
    job = Simulation(8, seed=25)
    return train(job, job.group(), batch=30e6, pageable=range(8) if faulty else [])


def _metrics(faulty: bool) -> Simulation:
    job = Simulation(8, seed=26, gpus_per_host=4)
    group = job.group(gb_s=45, latency_us=30)

    def gather(rank: Rank, place: str, _: int) -> None:
        if faulty and place == "end":
            rank.together(group, ALL_GATHER_LIST, 8 * 12_000_000, "Float")

    return train(job, group, bucket=10_000_000, extra=gather)


def _loss_of_each_micro_batch(faulty: bool) -> Simulation:
    job = Simulation(8, seed=27)
    group = job.group()

    def program(rank: Rank) -> Blocking:
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(200)
                for _ in range(8):
                    _layers(rank, 10, 90, 40)
                    rank.kernel(10, LOSS)
                    if faulty:
                        rank.together(group, ALL_REDUCE, 1, "Float")
                        yield from rank.item()
                    rank.busy(250)
                    with rank.backward():
                        _layers(rank, 10, 180, 80)
                rank.together(group, ALL_REDUCE, 100_000_000)
                rank.kernel(400, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


def _tiny_all_reduces(faulty: bool) -> Simulation:
    job = Simulation(8, seed=28)
    group = job.group(gb_s=200, latency_us=22)
    parameters, elements = 150, 160_000

    def program(rank: Rank) -> Blocking:
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(300)
                yield from rank.copy_in(8e6)
                _layers(rank, 16, 300, 100)
                with rank.backward():
                    _layers(rank, 16, 600, 200)
                for _ in range(parameters if faulty else 1):
                    rank.together(group, ALL_REDUCE, elements * (1 if faulty else parameters))
                rank.kernel(300, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


def _late_root(faulty: bool) -> Simulation:
    job = Simulation(8, seed=29)
    group = job.group()

    def program(rank: Rank) -> Blocking:
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(200)
                if rank.number == 0:
                    with rank.label("tokenize"):
                        rank.busy(7000 if faulty else 300)
                    yield from rank.copy_in(8e6)
                rank.together(group, BROADCAST, 1_000_000, "Long")
                _layers(rank, 12, 300, 100)
                reduced = []
                with rank.backward():
                    for _ in range(3):
                        _layers(rank, 4, 600, 200)
                        reduced.append(rank.together(group, ALL_REDUCE, 30_000_000, wait=False))
                    for works in reduced:
                        rank.wait(works)
                rank.kernel(400, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


def _layers(rank: Rank, count: int, matmul_us: float, elementwise_us: float) -> None:
    for _ in range(count):
        rank.kernel(matmul_us)
        rank.kernel(elementwise_us, ELEMENTWISE)


COPIES_AND_HOSTS = (
    Job(
        "ddp-loader-now-and-then",
        _loader_now_and_then,
        "rank 3's loader is 9 ms late in every third step",
        LATE,
        (3,),
    ),
    Job("ddp-loaders-slow", _loaders_slow, "all loaders take 9 ms", ("input-bound",)),
    Job(
        "ddp-evaluation",
        _evaluation,
        "rank 0 evaluates at the end of 2 of 8 steps",
        LATE,
        (0,),
    ),
    Job("ddp-checkpoint", _checkpoint, "rank 0 saves for 40 ms once", LATE, (0,)),
    Job(
        "ddp-pageable-on-one",
        _pageable_on_one,
        "rank 2 copies its batch from pageable memory",
        (*LATE, "pageable-copy"),
        (2,),
    ),
    Job(
        "ddp-pageable-on-all",
        _pageable_on_all,
        "all copy their batches from pageable memory",
        ("pageable-copy",),
    ),
    Job(
        "ddp-metrics",
        _metrics,
        "all_gather of 48 MB of predictions per rank in each step",
        ("exposed-communication", "byte-inflation", "full-precision-payload"),
    ),
    Job(
        "ddp-item",
        _loss_of_each_micro_batch,
        "all_reduce and item() of the loss of each of 8 micro-batches",
        ("copy-loop", "host-sync"),
    ),
    Job(
        "ddp-tiny-all-reduces",
        _tiny_all_reduces,
        "150 all_reduces of 320 kB instead of one",
        ("latency-bound",),
    ),
    Job("ddp-late-root", _late_root, "rank 0 tokenizes 7 ms for all", ("late-root",), (0,)),
)
