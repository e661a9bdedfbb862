"""Whether a rank that sleeps before each all_reduce is named, and its delay measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.recorded.measure import progress, recording

__all__ = ["delays"]

DELAYS_MS = (1, 3, 10)
WORLD_SIZES = (2, 4)
SLOW = 1
STEPS = 40

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """The all_reduces of recordings: one row per step, one column per rank, times in µs.

    ``called`` is what the ranks noted themselves when they called; ``last`` and ``caused`` are
    what the analysis says, ``error`` its own of the clocks.
    """

    called: Numbers
    last: Numbers
    caused: Numbers
    error: float

    def late(self, delay_ms: float) -> npt.NDArray[np.bool_]:
        """Steps that the slow rank called last by at least half of its delay."""
        others = np.delete(self.called, SLOW, axis=1)
        late: npt.NDArray[np.bool_] = self.called[:, SLOW] - others.max(axis=1) > 500 * delay_ms
        return late

    def true(self) -> Numbers:
        """What all others waited, by the ranks' own notes."""
        waited: Numbers = (self.called[:, [SLOW]] - self.called).sum(axis=1)
        return waited


def delays(rounds: int) -> None:
    """Record each delay in every round, and print the table."""
    kinds = [(n, delay) for n in WORLD_SIZES for delay in DELAYS_MS]
    seen: dict[tuple[int, int], list[Seen]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for n, delay in kinds:
            progress(f"round {number + 1} of {rounds}: {n} ranks, {delay} ms")
            seen[n, delay].append(_recorded(n, delay))
    print(
        "| ranks | delay | steps | clearly last by its own note | named in these "
        "| wait caused, against the notes | against the delay | clock error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (n, delay), parts in seen.items():
        print(f"| {' | '.join(_row(n, delay, parts))} |")


def _row(n: int, delay_ms: int, parts: list[Seen]) -> Iterator[str]:
    one = Seen(
        np.concatenate([part.called for part in parts]),
        np.concatenate([part.last for part in parts]),
        np.concatenate([part.caused for part in parts]),
        max(part.error for part in parts),
    )
    late = one.late(delay_ms)
    named = one.last[late] == SLOW
    injected = 1000 * delay_ms * (n - 1)
    yield from (str(n), f"{delay_ms} ms", str(late.size))
    yield f"{late.sum()} ({late.mean():.0%})"
    yield f"{named.sum()} ({named.mean():.1%})" if late.any() else ""
    for off in (one.caused - one.true(), one.caused - injected):
        each = off[late] / (n - 1)
        low, half, high = np.percentile(each, (5, 50, 95)) if late.any() else (np.nan,) * 3
        yield f"{half:+.0f} µs ({low:+.0f} to {high:+.0f})"
    yield f"{one.error:.0f} µs"


def _recorded(n: int, delay_ms: int) -> Seen:
    settings = {"delay_ms": str(delay_ms), "work_ms": "0", "iterations": str(STEPS)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "recording")
        run = recording("late_rank", settings, n, out)
        called = np.stack([_calls(out / f"rank{rank}.log") for rank in range(n)], axis=1)
    operations = run.operations.set_index("operation")
    sums = operations.index[operations["op"] == "all_reduce"]
    waits = run.waits[run.waits["rank"] == SLOW].set_index("operation")
    return Seen(
        called,
        _numbers(operations.loc[sums, "last_rank"]),
        _numbers(waits.loc[sums, "caused_wait_ns"]) / 1e3,
        float(run.clock["error_ns"].max()) / 1e3,
    )


def _calls(log: Path) -> Numbers:
    """When the rank called, in µs; the clock of one host is everybody's."""
    lines = [line.split() for line in log.read_text("utf-8").splitlines()]
    times = np.array([int(line[1]) for line in lines if line[:1] == ["calls"]][-STEPS:])
    # Nanoseconds since 1970 are more than a double holds.
    return (times - 1_700_000_000_000_000_000) / 1e3


def _numbers(column: Any) -> Numbers:
    numbers: Numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers
