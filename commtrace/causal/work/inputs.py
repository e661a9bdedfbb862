"""Whether late ranks compute on larger inputs than the others, or longer on the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.json import decode

from commtrace.arrays import NULL, Int64, distinct, spread
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.compared_with import compared_with
from commtrace.causal.work.worked_on import Done, What, WorkedOn, holds_sparse, worked_on
from commtrace.comms import canonical_dtype, element_bytes
from commtrace.measures import measure
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Inputs", "inputs", "others_in_turn", "same_in_turn", "uneven_inputs"]

_COMPARED = 3  # of the late ranks, and of the others: each one's file is read once more
_NAMED = 3
_LARGER = 1.02  # times
_MOST_OF = 0.5  # of what they compute longer
_TWICE = 1.5  # rounded
_TURN = 0.25  # of what they take longer for larger inputs: so much others do in other steps
_NEARLY_ALL = 0.95  # of the time, in what all do as often
_LONG = 40  # characters
_BYTES = 4  # of an element whose type is not known


class Inputs(Struct, frozen=True):
    """What ranks compute on, beside others at the same place, in a step in the mean.

    ``larger_ns`` is how much longer they take since inputs of operators are larger: at most as the
    square of their size. ``names`` are those operators, with the most of it first, and ``example``
    an input of the first, and that of the others: ``660×256 float``, empty if they have no such.
    ``time_ns`` and ``usual_ns`` are how long they compute, and the others; ``same`` says that all
    do nearly all as often and on the same.
    """

    larger_ns: float
    names: tuple[str, ...]
    example: tuple[str, str]
    time_ns: float
    usual_ns: float
    same: bool

    @property
    def longer_ns(self) -> float:
        """How much longer they compute than the others."""
        return max(self.time_ns - self.usual_ns, 0.0)

    def is_more(self, longer_ns: float) -> bool:
        """Whether larger inputs are most of what they compute longer in a step."""
        return self.larger_ns > 0 and self.larger_ns >= _MOST_OF * longer_ns

    def is_slower(self, longer_ns: float) -> bool:
        """Whether most of it is that the same takes longer."""
        return self.same and self.time_ns - self.usual_ns >= _MOST_OF * longer_ns


@measure
def inputs(
    run: Measures, ranks: tuple[int, ...], call: int, steps: tuple[int, ...] = ()
) -> Inputs | None:
    """What ranks compute on in all steps or in some, and others that come to a call's place.

    Where the ranks are a pipeline's stage, other stages. ``call`` is one of the graph's, ``steps``
    are numbers of its steps. None where no other comes there, and where shapes are not known
    (``worked_on``).
    """
    its = run_graph(run)
    calls = its.calls
    chosen = np.asarray(its.steps)[list(steps)] if steps else distinct(calls.step)
    compared = compared_with(run, ranks, call)
    late, others = (
        some[spread(some.size, _COMPARED)].tolist() for some in (compared.late, compared.others)
    )
    known = worked_on(run, tuple(sorted([*late, *others])))
    if not others or len(known) < len(late) + len(others):
        return None
    return _compared(*(_mean([known[rank] for rank in some], chosen) for some in (late, others)))


@measure
def uneven_inputs(run: Measures) -> Inputs | None:
    """Of ranks that compute longer in turn the one step in which larger inputs make it longest.

    None where the inputs do not explain most of it, of a few ranks in all steps, and where some
    have none.
    """
    if (run_graph(run).calls.step == NULL).any():
        return None
    found = [max(its.values(), key=lambda its: its.time_ns) for its in _by_step(run)]
    longer_ns = sum(its.longer_ns for its in found)
    if not 0 < _MOST_OF * longer_ns <= sum(its.larger_ns for its in found):
        return None
    return max(found, key=lambda its: its.larger_ns)


def others_in_turn(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether in other steps other ranks work on larger inputs than these, and much longer."""
    mine, theirs = 0.0, 0.0
    for its in _by_step(run):
        larger = {rank: min(each.larger_ns, each.longer_ns) for rank, each in its.items()}
        mine += max((time for rank, time in larger.items() if rank in ranks), default=0.0)
        theirs += max((time for rank, time in larger.items() if rank not in ranks), default=0.0)
    return theirs > _TURN * mine


def same_in_turn(run: Measures, longer_ns: float) -> bool:
    """Whether all ranks always do the same, and in turn take so much longer for it, or half.

    Of a run without steps it is only known whether they do the same in all.
    """
    found = [max(its.values(), key=lambda its: its.time_ns) for its in _by_step(run)]
    took_ns = sum(its.longer_ns for its in found)
    in_turn = took_ns >= _MOST_OF * longer_ns or (run_graph(run).calls.step == NULL).all()
    return bool(found) and all(its.same for its in found) and bool(in_turn)


@measure
def _by_step(run: Measures) -> list[dict[int, Inputs]]:
    """In each step some ranks, each beside the others; of none if one's file does not tell."""
    calls = run_graph(run).calls
    every, steps = distinct(calls.rank), distinct(calls.step)
    ranks = every[spread(every.size, _COMPARED)].tolist()
    known = worked_on(run, tuple(ranks))
    if len(known) < max(len(ranks), 2):
        return []
    found = []
    for number in range(steps.size):
        step = steps[number : number + 1]
        work = {rank: _mean([known[rank]], step) for rank in ranks}
        rest = {rank: [known[other] for other in ranks if other != rank] for rank in ranks}
        found.append({rank: _compared(work[rank], _mean(rest[rank], step)) for rank in ranks})
    return found


def _mean(ranks: Sequence[Mapping[int, WorkedOn]], steps: Int64) -> WorkedOn:
    """What a rank does in these steps in the mean."""
    parts = [its[step] for its in ranks for step in steps.tolist() if step in its]
    every: dict[What, list[Done]] = {}
    for part in parts:
        for what, done in part.items():
            every.setdefault(what, []).append(done)
    count = steps.size * len(ranks)
    return {
        what: Done(*(float(sum(values)) / count for values in zip(*its, strict=True)))
        for what, its in every.items()
    }


def _compared(late: WorkedOn, others: WorkedOn) -> Inputs:
    mine, theirs = _by_operator(late), _by_operator(others)
    larger: dict[str, float] = {}
    for name in mine:
        other = theirs.get(name, {})
        times, usual_ns = _times(mine[name], other), _time_ns(other)
        longer_ns = _time_ns(mine[name]) - usual_ns
        if times >= _LARGER and longer_ns > 0:
            larger[name] = min(longer_ns, usual_ns * (times * times - 1)) if other else longer_ns
    names = sorted(larger, key=lambda name: -larger[name])[:_NAMED]
    all_ns = _time_ns(late)
    same = sum(
        its.time_ns
        for what, its in late.items()
        if _often(others, what) == its.times and not holds_sparse(what.name)
    )
    return Inputs(
        larger_ns=sum(larger.values()),
        names=tuple(names),
        example=_example(mine[names[0]], theirs.get(names[0], {})) if names else ("", ""),
        time_ns=all_ns,
        usual_ns=_time_ns(others),
        same=same >= _NEARLY_ALL * all_ns,
    )


def _by_operator(work: WorkedOn) -> dict[str, dict[What, Done]]:
    found: dict[str, dict[What, Done]] = {}
    for what, its in work.items():
        found.setdefault(what.name, {})[what] = its
    return found


def _time_ns(work: WorkedOn) -> float:
    return sum(its.time_ns for its in work.values())


def _often(work: WorkedOn, what: What) -> float:
    return work[what].times if what in work else 0.0


def _times(mine: WorkedOn, theirs: WorkedOn) -> float:
    """How many times as many bytes one input has, that with the most: others may be weights."""
    if not theirs:
        return inf
    pairs = zip(_bytes(mine), _bytes(theirs), strict=False)
    return max((ours / usual for ours, usual in pairs if usual > 0), default=1.0)


def _bytes(work: WorkedOn) -> list[float]:
    """Of each input of an operator, all that it reads in a step."""
    each = [[size * its.times for size in _sizes(what)] for what, its in work.items()]
    most = max(map(len, each), default=0)
    return [sum(sizes[at] for sizes in each if at < len(sizes)) for at in range(most)]


@lru_cache(maxsize=4096)
def _sizes(what: What) -> tuple[float, ...]:
    """The bytes of each input; 0 of what is no tensor."""
    dims, types = decode(what.shapes), decode(what.types) or ()
    return tuple(
        _elements(its) * _element_bytes(types[at] if at < len(types) else None)
        for at, its in enumerate(dims)
    )


def _elements(dims: Any) -> float:
    """Of a tensor, or of a list of them; sizes are a file's, and may be absurd."""
    if not isinstance(dims, list) or not dims:
        return 0.0
    if all(isinstance(size, int) for size in dims):
        return prod(map(float, dims))
    return sum(map(_elements, dims))


def _element_bytes(kind: str | None) -> int:
    dtype = canonical_dtype(kind or "")
    return element_bytes(dtype) if dtype else _BYTES


def _example(mine: WorkedOn, theirs: WorkedOn) -> tuple[str, str]:
    """What it works on, and what the others in place of that; nothing where they do no such thing.

    Of what it does oftener, that which takes longest. How often, where the others do it as well.
    """
    more = {what: done.time_ns for what, done in mine.items() if done.times > _often(theirs, what)}
    its = max(more, key=lambda what: more[what])
    only = {what: done.time_ns for what, done in theirs.items() if what not in mine}
    if its in theirs or not theirs:
        often, seldom = _often(mine, its), _often(theirs, its)
        times = f"{often:.0f} times" if often >= _TWICE else "once"
        how = f"{_said(its, int(np.argmax(_sizes(its))))}, {times}"
        return how, f"{seldom:.0f}" if seldom else ""
    # In its place is that which has most sizes in common with it, as those of the weights.
    usual = max(only, key=lambda what: (_in_common(its, what), only[what]), default=None)
    if usual is None or not (unlike := _unlike(its, usual)):
        return _said(its, int(np.argmax(_sizes(its)))), ""
    at = max(unlike, key=lambda at: _sizes(its)[at] / (_sizes(usual)[at] or np.inf))
    return _said(its, at), _said(usual, at)


def _in_common(mine: What, theirs: What) -> int:
    """How many sizes of its inputs are the others', too."""
    both = zip(decode(mine.shapes), decode(theirs.shapes), strict=False)
    tensors = ((a, b) for a, b in both if isinstance(a, list) and isinstance(b, list))
    return sum(one == other for a, b in tensors for one, other in zip(a, b, strict=False))


def _unlike(mine: What, theirs: What) -> list[int]:
    """The inputs whose shape or type is not the others'."""
    return [
        at
        for at, _ in enumerate(zip(_sizes(mine), _sizes(theirs), strict=False))
        if _said(mine, at) != _said(theirs, at)
    ]


def _said(what: What, at: int) -> str:
    """One of its inputs in words: its shape and type."""
    dims, types = decode(what.shapes)[at], decode(what.types) or ()
    shape = "×".join(map(str, dims)) if dims and isinstance(dims[0], int) else "tensors"
    return clean(f"{shape} {types[at]}" if at < len(types) and types[at] else shape, _LONG)
