"""Jobs with experts on every rank, and with attention in a ring of ranks."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.job import MESSAGE, STEPS, Job
from benchmarks.gpu_jobs.operations import ADAM, ALL_REDUCE, ATTENTION, Kernel
from benchmarks.gpu_jobs.rank import Blocking, Part, Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["EXPERTS_AND_RINGS"]

RANKS = 8
EXPERTS = Kernel("aten::_grouped_mm", "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNT")
TOKENS, WIDTH = 8192, 4096


def _uneven_experts(faulty: bool) -> Simulation:
    """Each rank sends its tokens where their experts are, and gets them back."""
    job = Simulation(RANKS, seed=80)
    group = job.group()
    experts = job.group(description="mesh_ep", gb_s=40, latency_us=25)
    popular = [2.6 if faulty and rank == 3 else 1.0 for rank in range(RANKS)]
    share = [each / sum(popular) for each in popular]
    sends = [int(TOKENS * each) for each in share]

    def layers(rank: Rank, times: float) -> None:
        receives = [sends[rank.number]] * RANKS
        for _ in range(8):
            rank.kernel(900 * times)
            rank.kernel(500 * times, ATTENTION)
            rank.all_to_all(experts, sends, receives, WIDTH)
            rank.kernel(1200 * times * share[rank.number] * RANKS, EXPERTS)
            rank.all_to_all(experts, receives, sends, WIDTH)

    return _trained(job, group, layers, 80_000_000, 500)


def _trained(
    job: Simulation,
    group: Group,
    layers: Callable[[Rank, float], None],
    gradients_bytes: int,
    update_us: float,
) -> Simulation:
    """Layers forward, and backward in twice the time; gradients are reduced behind these."""

    def program(rank: Rank) -> Blocking:
        for step in range(STEPS):
            with rank.step(step):
                rank.busy(200)
                layers(rank, 1)
                with rank.backward():
                    layers(rank, 2)
                rank.together(group, ALL_REDUCE, gradients_bytes)
                rank.kernel(update_us, ADAM)
                yield from rank.item()
        yield from rank.synchronize()

    return job.run(program)


def _ring(job: Simulation, links: dict[tuple[int, int], float]) -> Simulation:
    """Keys and values go round once a layer, each hop beside the attention to the last ones."""
    group = job.group()
    ring = job.group(description="mesh_cp", message_gb_s=60, links=links)

    def layers(rank: Rank, times: float) -> None:
        before, after = (rank.number - 1) % RANKS, (rank.number + 1) % RANKS
        for _ in range(6):
            rank.kernel(500 * times)
            for _ in range(RANKS - 1):
                parts: list[Part] = [("send", after), ("recv", before)]
                moving = rank.exchange(ring, parts, 8_000_000, wait=False)
                rank.kernel(420 * times, ATTENTION)
                rank.wait(moving)
            rank.kernel(420 * times, ATTENTION)

    return _trained(job, group, layers, 60_000_000, 300)


def _ring_slow_gpu(faulty: bool) -> Simulation:
    job = Simulation(RANKS, seed=81, shapes=True)
    job.ranks[4].slowness = 1.18 if faulty else 1.0
    return _ring(job, {})


def _ring_slow_link(faulty: bool) -> Simulation:
    job = Simulation(RANKS, seed=82, shapes=True)
    return _ring(job, {(4, 5): 18.0} if faulty else {})


EXPERTS_AND_RINGS = (
    Job(
        "moe-uneven-experts",
        _uneven_experts,
        "rank 3's experts get 2.6 times the tokens of others",
        ("uneven-all-to-all",),
        (3,),
    ),
    Job("ring-slow-gpu", _ring_slow_gpu, "GPU 4 computes 18 % slower", MESSAGE, (4,)),
    Job(
        "ring-slow-link",
        _ring_slow_link,
        "the link from GPU 4 to 5 moves 18 GB/s instead of 60",
        ("slow-link",),
        (4, 5),
    ),
)
