"""Pipelines: micro-batches go through stages, one forward and one backward in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.job import MESSAGE, STEPS, Job
from benchmarks.gpu_jobs.operations import ADAM, ALL_REDUCE
from benchmarks.gpu_jobs.rank import Blocking, Part, Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["PIPELINES"]


def _schedule(
    rank: Rank,
    group: Group,
    micro_batches: int,
    elements: int,
    forward: Callable[[], None],
    backward: Callable[[], None],
) -> None:
    """One step of 1F1B on one stage."""
    stage, last = group.ranks.index(rank.number), group.size - 1
    warm_up = min(last - stage, micro_batches)
    steady = micro_batches - warm_up
    before = group.ranks[stage - 1] if stage > 0 else None
    after = group.ranks[stage + 1] if stage < last else None

    def exchange(sends: int | None = None, receives: int | None = None) -> None:
        parts: list[Part] = [("send", sends)] if sends is not None else []
        parts += [("recv", receives)] if receives is not None else []
        if parts:
            rank.exchange(group, parts, elements)

    for _ in range(warm_up):
        exchange(receives=before)
        forward()
        exchange(sends=after)
    if steady:
        exchange(receives=before)
    for left in reversed(range(steady)):
        forward()
        exchange(sends=after, receives=after)
        backward()
        exchange(sends=before, receives=before if left else None)
    for _ in range(warm_up):
        exchange(receives=after)
        backward()
        exchange(sends=before)


def _pipeline(
    job: Simulation,
    micro_batches: int,
    *,
    forward_us: float = 2000.0,
    elements: int = 16_000_000,
    message_gb_s: float = 150.0,
    links: Mapping[tuple[int, int], float] | None = None,
    steps: int = STEPS,
    clips: bool = False,
) -> Simulation:
    """Each rank is a stage; where gradients are clipped all meet at the step's end."""
    group = job.group(message_gb_s=message_gb_s, links=links or {})

    def program(rank: Rank) -> Blocking:
        def forward() -> None:
            for _ in range(4):
                rank.kernel(forward_us / 4)

        def backward() -> None:
            with rank.backward():
                for _ in range(4):
                    rank.kernel(forward_us / 2)

        for step in range(steps):
            with rank.step(step):
                rank.busy(200)
                _schedule(rank, group, micro_batches, elements, forward, backward)
                if clips:
                    rank.together(group, ALL_REDUCE, 1, "Float")  # the gradients' norm
                rank.kernel(600, ADAM)
                yield from rank.item()
                rank.busy(80)
        yield from rank.synchronize()

    return job.run(program)


def _many_micro_batches(_: bool) -> Simulation:
    job = Simulation(4, seed=60, shapes=True)
    return _pipeline(job, 32, forward_us=1200, elements=8_000_000, steps=5)


def _heavy_stage(faulty: bool) -> Simulation:
    job = Simulation(4, seed=61, shapes=True)
    job.ranks[2].slowness = 1.25 if faulty else 1.0
    return _pipeline(job, 16)


def _few_micro_batches(faulty: bool, clips: bool = False) -> Simulation:
    job = Simulation(4, seed=62, shapes=True)
    if faulty:
        return _pipeline(job, 4, clips=clips)
    return _pipeline(job, 16, forward_us=500, elements=4_000_000, clips=clips)


def _slow_link(faulty: bool) -> Simulation:
    job = Simulation(6, seed=63, gpus_per_host=1, shapes=True)
    links = {(2, 3): 10.0, (3, 2): 10.0} if faulty else {}
    return _pipeline(job, 12, message_gb_s=40, links=links, clips=True)


def _slow_between_hosts(faulty: bool) -> Simulation:
    job = Simulation(4, seed=66, gpus_per_host=2, shapes=True)
    gb_s = 8.0 if faulty else 45.0
    return _pipeline(job, 12, links={(1, 2): gb_s, (2, 1): gb_s})


def _megatron(job: Simulation) -> Simulation:
    """Two stages of two replicas of two tensor ranks: rank = 4 stage + 2 replica + tensor."""
    job.group()
    tensor = [
        job.group((first, first + 1), "TENSOR_MODEL_PARALLEL_GROUP", gb_s=220, latency_us=10)
        for first in range(0, 8, 2)
    ]
    stages = [job.group((first, first + 4), "PIPELINE_MODEL_PARALLEL_GROUP") for first in range(4)]
    data = [
        job.group((first, first + 2), "DATA_PARALLEL_GROUP", gb_s=100) for first in (0, 1, 4, 5)
    ]

    def program(rank: Rank) -> Blocking:
        shares = tensor[rank.number // 2]
        passes, averages = stages[rank.number % 4], data[rank.number // 4 * 2 + rank.number % 2]

        def layers(us: float) -> None:
            for part in (0.5, 0.3) * 4:
                rank.kernel(part * us)
                rank.together(shares, ALL_REDUCE, 16_000_000)

        def backward() -> None:
            with rank.backward():
                layers(2000)

        for step in range(4):
            with rank.step(step):
                rank.busy(200)
                _schedule(rank, passes, 8, 8_000_000, lambda: layers(1000), backward)
                rank.together(averages, ALL_REDUCE, 100_000_000)
                rank.kernel(500, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


def _three_ways_healthy(_: bool) -> Simulation:
    return _megatron(Simulation(8, seed=64, shapes=True))


def _three_ways_slow_gpu(faulty: bool) -> Simulation:
    job = Simulation(8, seed=65, shapes=True)
    job.ranks[3].slowness = 1.15 if faulty else 1.0
    return _megatron(job)


BUBBLE = ("pipeline-bubble",)  # of which every pipeline has some

PIPELINES = (
    Job("pp-many-micro-batches", _many_micro_batches, rules=BUBBLE),
    Job("pp-heavy-stage", _heavy_stage, "stage 2 takes 25 % longer", MESSAGE, (2,)),
    Job(
        "pp-few-micro-batches",
        _few_micro_batches,
        "4 micro-batches for 4 stages, where a quarter as large 16 would do",
        BUBBLE,
    ),
    Job(
        "pp-few-clipped",
        lambda faulty: _few_micro_batches(faulty, clips=True),
        "the same, and the gradients' norm is all_reduced",
        BUBBLE,
    ),
    Job(
        "pp-slow-link",
        _slow_link,
        "the link between stages 2 and 3 moves 10 GB/s instead of 40",
        ("slow-link",),
        (2, 3),
    ),
    Job(
        "pp-slow-between-hosts",
        _slow_between_hosts,
        "the only link between hosts, of stages 1 and 2, moves 8 GB/s instead of 45",
        ("slow-link",),
        (1, 2),
    ),
    # And the next operator needs what tensor parallelism's all_reduces bring, as in tp-dp-healthy.
    Job("tp-pp-dp-healthy", _three_ways_healthy, rules=(*BUBBLE, "exposed-communication")),
    Job("tp-pp-dp-slow-gpu", _three_ways_slow_gpu, "GPU 3 computes 15 % slower", MESSAGE, (3,)),
)
