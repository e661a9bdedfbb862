"""Jobs that shard their parameters (FSDP2, HSDP) or their layers (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu_jobs.device import Work
from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.job import LATE, STEPS, Job
from benchmarks.gpu_jobs.operations import (
    ADAM,
    ALL_GATHER,
    ALL_REDUCE,
    ATTENTION,
    ELEMENTWISE,
    LOSS,
    REDUCE_SCATTER,
)
from benchmarks.gpu_jobs.rank import COMPUTE, Blocking, Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["SHARDED"]

COPY_IN, REDUCING = 16, 48  # FSDP's own streams
LAYERS = 16
TENSOR_LAYERS = 12


class Sharding(NamedTuple):
    """How one rank's parameters lie: the group they are sharded over, and their replicas'."""

    shards: Group
    replicas: Group | None
    parameters: int
    prefetches: bool

    def gather(self, rank: Rank) -> list[Work]:
        """The all_gather of one layer's parameters."""
        rank.busy(60)
        behind = COPY_IN if self.prefetches else COMPUTE
        rank.kernel(12, ELEMENTWISE, stream=behind)
        return rank.together(self.shards, ALL_GATHER, self.parameters, wait=False, behind=behind)

    def reduce(self, rank: Rank) -> list[Work]:
        """The reduce_scatter of its gradients, and where it has replicas their all_reduce."""
        rank.busy(60)
        rank.follow(REDUCING)
        rank.kernel(15, ELEMENTWISE, stream=REDUCING)
        reduced = rank.together(
            self.shards, REDUCE_SCATTER, self.parameters, wait=False, behind=REDUCING
        )
        if self.replicas is None:
            return reduced
        rank.wait(reduced, REDUCING)
        elements = self.parameters // self.shards.size
        return rank.together(self.replicas, ALL_REDUCE, elements, wait=False, behind=REDUCING)


def _fsdp(
    job: Simulation,
    sharding: Callable[[Rank], Sharding],
    pause: Callable[[Rank], float] = lambda _: 0.0,
) -> Simulation:
    """Sixteen layers; a host may pause for so many µs in the middle of its forward."""

    def program(rank: Rank) -> Blocking:
        how = sharding(rank)
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(250)
                yield from rank.copy_in(2e6)
                rank.follow(COPY_IN)
                for layer in range(LAYERS):
                    if layer == LAYERS // 2:
                        rank.busy(pause(rank))
                    with rank.label(f"FSDP::pre_forward (layers.{layer})"):
                        rank.wait(how.gather(rank))
                        rank.kernel(20, ELEMENTWISE)
                    _layer(rank, 1100)
                rank.kernel(100, LOSS)
                with rank.backward():
                    _fsdp_backward(rank, how)
                with rank.label("Optimizer.step#AdamW.step"):
                    rank.kernel(500, ADAM)
                yield from rank.item()
                rank.busy(100)
        yield from rank.synchronize()

    return job.run(program)


def _fsdp_backward(rank: Rank, how: Sharding) -> None:
    gathered, reduced = how.gather(rank), []
    for left in reversed(range(LAYERS)):
        rank.wait(gathered)
        rank.kernel(20, ELEMENTWISE)
        if left and how.prefetches:
            gathered = how.gather(rank)
        _layer(rank, 2200)
        reduced.append(how.reduce(rank))
        if left and not how.prefetches:
            gathered = how.gather(rank)
    for works in reduced[-2:]:
        rank.wait(works)


def _layer(rank: Rank, us: float) -> None:
    rank.kernel(0.45 * us)
    rank.kernel(0.35 * us, ATTENTION)
    rank.kernel(0.2 * us)


def _healthy(_: bool) -> Simulation:
    job = Simulation(8, seed=40)
    group = job.group()
    return _fsdp(job, lambda _: Sharding(group, None, 200_000_000, True))


def _slow_gpu(faulty: bool) -> Simulation:
    job = Simulation(8, seed=41)
    job.ranks[6].slowness = 1.12 if faulty else 1.0
    group = job.group()
    return _fsdp(job, lambda _: Sharding(group, None, 100_000_000, True))


def _late_host(faulty: bool) -> Simulation:
    job = Simulation(8, seed=42)
    group = job.group()
    return _fsdp(
        job,
        lambda _: Sharding(group, None, 200_000_000, True),
        lambda rank: 25_000 if faulty and rank.number == 2 else 0,
    )


def _no_prefetch(faulty: bool) -> Simulation:
    job = Simulation(8, seed=43)
    group = job.group(gb_s=230)
    return _fsdp(job, lambda _: Sharding(group, None, 200_000_000, not faulty))


def _slow_rail(faulty: bool) -> Simulation:
    job = Simulation(8, seed=44, gpus_per_host=4)
    job.group()
    shards = [job.group(range(host, host + 4), "mesh_shard", gb_s=280) for host in (0, 4)]
    replicas = [
        job.group(
            (index, index + 4),
            "mesh_replicate",
            gb_s=25 / 3.5 if faulty and index == 2 else 25,
            latency_us=30,
        )
        for index in range(4)
    ]

    def sharding(rank: Rank) -> Sharding:
        host, index = divmod(rank.number, 4)
        return Sharding(shards[host], replicas[index], 120_000_000, True)

    return _fsdp(job, sharding)


def _tensor_parallel(job: Simulation, layer_us: float, activations: int) -> Simulation:
    """Pairs of ranks share each layer, four pairs average their gradients."""
    job.group()
    pairs = [job.group((first, first + 1), "mesh_tp", gb_s=220) for first in range(0, 8, 2)]
    data = [job.group(range(odd, 8, 2), "mesh_dp", gb_s=90, latency_us=30) for odd in (0, 1)]

    def program(rank: Rank) -> Blocking:
        pair, replicas = pairs[rank.number // 2], data[rank.number % 2]
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(250)
                yield from rank.copy_in(1e6)
                for _ in range(2 * TENSOR_LAYERS):
                    rank.kernel(0.3 * layer_us)
                    rank.kernel(0.2 * layer_us, ATTENTION)
                    rank.together(pair, ALL_REDUCE, activations)
                reduced = []
                with rank.backward():
                    for half in reversed(range(2 * TENSOR_LAYERS)):
                        rank.kernel(0.6 * layer_us)
                        rank.kernel(0.4 * layer_us)
                        rank.together(pair, ALL_REDUCE, activations)
                        if half % 6 == 0:
                            works = rank.together(replicas, ALL_REDUCE, 60_000_000, wait=False)
                            reduced.append(works)
                    for works in reduced:
                        rank.wait(works)
                rank.kernel(400, ADAM)
                yield from rank.item()
                rank.busy(80)
        yield from rank.synchronize()

    return job.run(program)


def _tensor_parallel_healthy(_: bool) -> Simulation:
    return _tensor_parallel(Simulation(8, seed=45), 900, 8_000_000)


def _tensor_parallel_slow_gpu(faulty: bool) -> Simulation:
    job = Simulation(8, seed=46)
    job.ranks[5].slowness = 1.14 if faulty else 1.0
    return _tensor_parallel(job, 600, 33_000_000)


SHARDED = (
    Job("fsdp-healthy", _healthy),
    Job("fsdp-slow-gpu", _slow_gpu, "GPU 6 computes 12 % slower", LATE, (6,)),
    Job("fsdp-late-host", _late_host, "rank 2's host pauses 25 ms in each forward", LATE, (2,)),
    Job(
        "fsdp-no-prefetch",
        _no_prefetch,
        "all_gathers wait for the compute before them",
        ("exposed-communication",),
    ),
    Job(
        "hsdp-slow-rail",
        _slow_rail,
        "the link between GPUs 2 and 6 is 3.5 times slower than the others",
        ("slow-link",),
        (2, 6),
    ),
    # The next operator does need what tensor parallelism's all_reduces bring.
    Job("tp-dp-healthy", _tensor_parallel_healthy, rules=("exposed-communication",)),
    Job(
        "tp-dp-slow-gpu",
        _tensor_parallel_slow_gpu,
        "GPU 5 computes 14 % slower",
        LATE,
        (5,),
    ),
)
