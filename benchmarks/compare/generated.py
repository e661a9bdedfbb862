"""Generated runs: a change whose cost is known, under noise that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

from benchmarks.compare.pairs import Kept, Truth, compared, kept
from benchmarks.compare.programs import Judged
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import data_parallel

__all__ = ["NOISE", "generated"]

NOISE = (0.0, 0.05, 0.1, 0.2)
_SHARE = 0.25  # of a step: what a change adds
_RECORDINGS = 3  # of each side
_RANKS, _STEPS = 2, 8

_Change = Callable[[Loop], Truth]


def _straggler(loop: Loop) -> Truth:
    loop.hooks["backward"].append(lambda: loop.busy(1, _SHARE * loop.step_us))
    return Truth(ranks=(1,))


def _everyone(loop: Loop) -> Truth:
    def busy() -> None:
        for rank in loop.everyone:
            loop.busy(rank, _SHARE * loop.step_us)

    loop.hooks["backward"].append(busy)
    return Truth()


def _operation(loop: Loop) -> Truth:
    size = round(_SHARE * loop.step_us * loop.gb_s * 1e3)
    loop.hooks["end"].append(lambda: loop.together("all_gather", size, wait=True))
    return Truth(op="all_gather")


_CHANGES: dict[str, _Change | None] = {
    "nothing": None,
    "straggler": _straggler,
    "everyone": _everyone,
    "operation": _operation,
}


def generated(seeds: range) -> Iterator[tuple[float, Judged]]:
    """Each change at each noise, several recordings a side and one."""
    for seed in seeds:
        clean, _ = _run(seed, 0.0, "clean", None)
        for noise in NOISE:
            for name, change in _CHANGES.items():
                exact, truth = _run(seed, 0.0, "exact", change)
                its = Truth(truth.ranks, truth.op, _mean(exact) - _mean(clean))
                base, after = (
                    [
                        _run(seed, noise, f"{name} {side} {number}", made)[0]
                        for number in range(_RECORDINGS)
                    ]
                    for side, made in (("base", None), ("candidate", change))
                )
                for count in (1, _RECORDINGS):
                    answer = compared(base[:count], after[:count])
                    yield noise, Judged(f"{name}, {count} a side", its, answer)


def _mean(its: Kept) -> float:
    return float(its.recording.step_ns.mean())


def _run(seed: int, noise: float, name: str, change: _Change | None) -> tuple[Kept, Truth]:
    loop = Loop(seed, ranks=_RANKS, steps=_STEPS, host_leads=False)
    loop.spread = noise
    loop.seed = crc32(f"{seed} {noise} {name}".encode())  # other noise, the same job
    truth = change(loop) if change else Truth()
    data_parallel(loop)
    return kept(loop.trace(), name), truth
