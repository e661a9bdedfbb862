"""What makes a decomposed all_reduce slower than one: factors, and what they are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commtrace.comms import bus_factor
from commtrace.diagnosis import Evidence
from commtrace.quantiles import median, quantile
from commtrace.units import ms, multiple

if TYPE_CHECKING:
    from commtrace.metrics.run.decompositions import Pair, Reference

__all__ = ["counts", "factors", "in_words", "ruled_out", "source", "spread"]


def factors(pair: Pair, once: Reference) -> dict[str, float]:
    """What the ratio is the product of; medians over the instances."""
    whole, first, gaps, second = map(pair.times.ints, ("time", "first", "gap", "second"))
    time, gap = median(whole), median(gaps)
    waiting = median(whole - first - gaps - second)
    working = max(time - gap, 1.0)
    factors = {
        # Where nothing beside it shows the tensor's size, its bytes are the pair's by assumption.
        **({"bytes": pair.inflation} if pair.tensor_bytes else {}),
        **_algorithm(pair),
        "launch gap": time / working,
        "waiting in between": working / max(working - waiting, 1.0),
    }
    explained = 1.0
    for factor in factors.values():
        explained *= factor
    rest = "unexplained" + (" (the all_reduce ran on a tree)" if once.tree else "")
    return {**factors, rest: time / once.time_ns / explained}


def _algorithm(pair: Pair) -> dict[str, float]:
    """What theory says that the pair takes, by an all_reduce of the same bytes."""
    n = pair.group_size
    if pair.first == "reduce":
        return {"lost pipelining": n / (n - 1)}
    if pair.executed != "all_reduce":
        return {}
    whole, gather = (bus_factor(op, n) or 0.0 for op in ("all_reduce", "all_gather"))
    return {"reduce_scatter ran as all_reduce": (whole + gather) / whole}


def counts(factor: float) -> bool:
    """Whether a factor is worth its place in a sentence."""
    return not 0.95 < factor < 1.05


def in_words(name: str, factor: float) -> str:
    """A factor's place in a sentence.

    >>> in_words("bytes", 4.0), in_words("unexplained", 0.777)
    ('4x bytes', '22 % less than these explain')
    """
    if factor > 1:
        return f"{multiple(factor)} {name}"
    return f"{100 * (1 - factor):.0f} % less than these explain"


def source(once: Reference) -> str:
    """How the all_reduce's time is known, in words."""
    if once.how == "measured":
        return f"median of {once.count}"
    return once.how + (f" to {once.count}" if once.how == "fitted" else " by a ring's steps")


def spread(pair: Pair, once: Reference) -> Iterator[Evidence]:
    """How sure the times are, if there is more than one."""
    time = pair.times.ints("time")
    if time.size > 1:
        yield Evidence("time of the pair, lower quartile", quantile(time, 0.25) / 1e6, "ms")
        yield Evidence("all_reduce, upper quartile", once.upper_ns / 1e6, "ms")
        yield Evidence("cold start: first by median", float(time[0] / median(time)), "x")


def ruled_out(pair: Pair, once: Reference, ranks: int) -> Iterator[str]:
    """What does not explain the excess, with the numbers that say so."""
    yield (
        "only the root needs the sum: the same bytes go to all ranks at once"
        if pair.first == "reduce"
        else "sharding: nothing that could have used the shards ran between the two"
    )
    times, first, gaps, second = map(pair.times.ints, ("time", "first", "gap", "second"))
    time, gap = median(times), median(gaps)
    ratio = time / once.time_ns
    n = pair.group_size
    pipelining = n / (n - 1)
    if pair.first == "reduce_scatter":
        yield "lost pipelining: on a ring the two are an all_reduce, step by step"
    elif ratio > 1.5 * pipelining:
        made = multiple(pipelining)
        yield f"lost pipelining alone: on a ring it makes {made}, not {multiple(ratio)}"
    if pair.inflation == 1 and pair.tensor_bytes:
        yield "bytes: the pair is of the all_reduce's size"
    if gap < 0.05 * (time - once.time_ns):
        share = 100 * gap / (time - once.time_ns)
        yield f"launch gap: {ms(gap)}, {share:.{2 if share < 9.5 else 3}g} % of the excess"
    waiting = time - gap - median(first + second)
    if ranks > 1 and waiting < 0.05 * (time - once.time_ns):
        yield "waiting: the ranks come to the second operation together"
    if len(pair.times) > 2:
        yield f"cold start: medians of {len(pair.times)} pairs, the first of which weighs nothing"
