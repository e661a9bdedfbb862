"""What a host does while its GPU has nothing to run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import distinct
from commtrace.causal.edits.own_pace import unrecorded_pace
from commtrace.intervals import Intervals, covered, intersect, total, union
from commtrace.kernels import is_launch
from commtrace.metrics.rank.host_meanwhile import (
    HostMeanwhile,
    function_during,
    host_meanwhile,
    slow_view,
)
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.line_looks import line_during
from commtrace.metrics.run.object_collectives import objects_sent
from commtrace.metrics.run.unrecorded_steps import pace
from commtrace.quantiles import median
from commtrace.rules._less import UNUSED
from commtrace.units import clean, cut, duration, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "COMPILES",
    "NAME",
    "ON_CPU",
    "SAVE",
    "SAVE_BY_ALL",
    "at_line",
    "if_unrecorded",
    "known_work",
    "label_in",
    "later_steps",
    "launching_faster",
    "meanwhile",
    "waited_first",
]

NAME = 40
"""Of a label's or an operator's characters so many are shown."""

SAVE = (
    "save checkpoints asynchronously, or sharded over all ranks (torch.distributed.checkpoint), "
    "and less often"
)
"""What to do about a checkpoint that others wait for."""
SAVE_BY_ALL = (
    "save checkpoints asynchronously (torch.distributed.checkpoint.async_save), each rank its own "
    "part, and less often"
)
"""What to do about one that all ranks save."""
COMPILES = (
    "as for inputs of new shapes: pad these to few sizes, or compile with dynamic=True "
    "(TORCH_LOGS=recompiles tells why)"
)
"""Why ``torch.compile`` compiles anew, and what to do."""
_COMPILES_ANEW = f"torch.compile compiles anew, {COMPILES}"
_NAMED = 3
_RESUMES_NS = 50_000  # so soon a host goes on once what it waited for is done
_NEAR_NS = 10_000_000  # of copies to and from the GPU, between pickling and sending
_NS_PER_BYTE = 50  # 20 MB/s: what is pickled more slowly was not there before
_LEAST = 0.01  # of the time: what takes less is not worth a word
_IN_PYTHON = "loading data, printing, compiling, Python outside of torch"
_FUSED = "a fused optimizer (fused=True) launches once"
ON_CPU = "the optimizer runs on the CPU"
"""So begins what is said of a host that computes it while its GPU waits, as offloading has it."""
_OFFLOADED = (
    f"{ON_CPU}: leave optimizer states on the GPU where memory allows (less offloading), or give "
    "each process more threads"
)
_REMEDIES = {
    # Which take a host no time where it only launches them.
    **{f"aten::_fused_{name}": _OFFLOADED for name in ("adam", "sgd", "adagrad")},
    "flatten_dense_tensors": "DDP packs its module's buffers to send rank 0's: "
    "broadcast_buffers=False, if each rank may keep its own (BatchNorm's statistics)",
    "_foreach_": _FUSED,
    "scaled_dot_product": "cuDNN plans attention anew for each new shape, tens of ms each: pad to "
    "few lengths, or torch.backends.cuda.enable_cudnn_sdp(False)",
    "unused_parameters": UNUSED,
    "dynamo": _COMPILES_ANEW,
}
_IN_TORCH = {
    "torch/_dynamo/": _COMPILES_ANEW,
    "torch/serialization.py": SAVE,
    "torch/distributed/checkpoint/": SAVE_BY_ALL,
}
_FUSE = "fuse kernels (torch.compile), capture CUDA graphs, or give each more to do"
_CAPTURE = (
    'capture CUDA graphs (torch.compile\'s mode="reduce-overhead"), or give each kernel more to do'
)
_COMPILED = re.compile(r"CompiledFunction|Torch-Compiled Region")
_IN_GAPS = {
    "copy_bucket_to_grad": "gradient_as_bucket_view=True spares DDP copying its buckets back",
    "aten::zero_": "zero_grad(set_to_none=True) zeroes nothing",
    "_foreach_add": _FUSED,  # addcdiv and addcmul, too; not norms, which clip gradients
}
_USUAL = "usual: 1 to 9 µs"
_SLOW_CPU = (
    "it is slow at everything: look for other processes on its cores, more threads than cores, a "
    "low clock rate, a debug build, and what the profiler costs (with_stack, profile_memory)"
)
_PART = 0.05  # of the gaps' time
_AUTOGRAD = re.compile(r"autograd::engine::evaluate_function: (?:torch::autograd::)?")
_ALLOCATES = re.compile(r"(?:cuda|cu|hip)(?:Mem)?(?:Alloc|Malloc|Free)(?!Host|\w*Async)")
_NO_ROOM = (
    "memory is asked for anew: leave torch.cuda.empty_cache() out of the loop; where it is short "
    "or in pieces (num_alloc_retries in torch.cuda.memory_stats()) set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use inputs of few sizes, smaller batches"
)
_LESS = "do less there, or launch further ahead"


def meanwhile(run: Measures, rank: int, when: Intervals) -> str:
    """What a host does in a merged set of times, as far as its file tells, and what to do then."""
    if said := _allocates(run, rank, when):
        return said
    its = host_meanwhile(run, rank, when)
    return at_line(run, rank, when, _runs(its, when)) + _pickles(run, rank, when)


def at_line(run: Measures, rank: int, when: Intervals, do: str) -> str:
    """What to do, with where in the program a host is at these times, on its own clock.

    What torch does there tells it better. Only what to ``do`` where the line is not known.
    """
    line = line_during(run, rank, when) or function_during(run, rank, when)
    if line is None:
        return do
    better = next((todo for what, todo in _IN_TORCH.items() if what in line), do)
    return f"at {clean(line, 160)}: {better}"


def launching_faster(run: Measures, rank: int, when: Intervals) -> str:
    """What to do about a host that launches too slowly, by the operators that it launches from."""
    if view := slow_view(run, rank):
        took = duration(round(view.time_ns))
        return f"{view.name}, which moves nothing, takes the host {took} ({_USUAL}): {_SLOW_CPU}"
    its = host_meanwhile(run, rank, when)
    least = _PART * total(when)
    many = [(name, time) for name, time in its.operators if time >= least] if its else []
    do = _CAPTURE if any(_COMPILED.search(name) for name, _ in many) else _FUSE
    if not many:
        return do
    ran = ", ".join(f"{_operator(name)} for {ms(time)}" for name, time in many[:_NAMED])
    named = [name for name, _ in many[:_NAMED]]
    todo = [do for what, do in _IN_GAPS.items() if any(what in name for name in named)]
    return ": ".join((f"{do}; in the gaps the host runs {ran}", *["; ".join(todo)] * bool(todo)))


def _operator(name: str) -> str:
    return cut(_AUTOGRAD.sub("", name), NAME)


def _pickles(run: Measures, rank: int, when: Intervals) -> str:
    """That objects are sent right before or behind most of these times, and what to do then.

    Of as many bytes as are pickled in such times.
    """
    sent_ns, size = objects_sent(run, rank)
    order, (begin, end) = np.argsort(sent_ns), when
    sent = sent_ns[order]
    near = np.searchsorted(sent, begin - _NEAR_NS) < np.searchsorted(sent, end + _NEAR_NS)
    near_ns = int((end - begin)[near].sum())
    if 2 * near_ns <= total(when) or near_ns > _NS_PER_BYTE * size.sum():
        return ""
    return "; Python objects are pickled and unpickled there: send tensors in place of these"


def _runs(its: HostMeanwhile | None, when: Intervals) -> str:
    """Which operators it runs, and what to do about these."""
    if its is None or not its.operators:
        return f"look at what the host does meanwhile: {_IN_PYTHON}"
    least = _LEAST * total(when)
    many = [(name, time) for name, time in its.operators[:_NAMED] if time >= least]
    ran = [(_operator(name), ms(time)) for name, time in many or its.operators[:1]]
    runs = ", ".join(f"{name} for {time}" for name, time in ran)
    said = f"meanwhile the host runs {runs}"
    if its.none_ns >= least:
        said += f"{',' * (len(ran) > 1)} and no operator for {ms(its.none_ns)}"
    todo = [do for what, do in _REMEDIES.items() if any(what in name for name, _ in ran)]
    if its.none_ns > total(when) / 2:
        todo = [_IN_PYTHON]
    return f"{said}: {'; '.join(todo)}" if todo else f"{_LESS}: {said}"


def known_work(run: Measures, rank: int, when: Intervals) -> str | None:
    """The same if its file tells of most of the time what the host does, else None."""
    if said := _allocates(run, rank, when):
        return said
    if "dynamo" in (label_in(run, rank, when) or ""):
        return _COMPILES_ANEW
    its = host_meanwhile(run, rank, when)
    known = its is not None and its.operators and its.none_ns < total(when) / 2
    return _runs(its, when) if known else None


def _allocates(run: Measures, rank: int, when: Intervals) -> str | None:
    """That the host allocates the GPU's memory, or frees it, if it does so most of the time."""
    calls = rows_of_rank(run, "blocking_calls", rank)
    calls = calls.take(calls.coded("name").where(lambda name: bool(_ALLOCATES.match(name))))
    start, end = calls.when()
    time = total(intersect(union(start, end), when))
    if 2 * time <= total(when):
        return None
    name = calls.coded("name")
    each = np.bincount(name.codes, covered(start, end, when), len(name.names))
    names = [name.names[code] for code in np.argsort(-each, kind="stable") if each[code]]
    return f"meanwhile the host is in {' and '.join(names)} for {ms(time)}: {_NO_ROOM}"


def waited_first(run: Measures, rank: int, when: Intervals) -> str:
    """That the host waited for its GPU until that ran dry, if it did before most of these times."""
    calls = rows_of_rank(run, "blocking_calls", rank)
    calls = calls.take(~calls.coded("name").where(is_launch))
    order = np.argsort(calls.ints("start_ns"), kind="stable")
    start, name = calls.ints("start_ns")[order], calls.coded("name")
    end = start + calls.ints("duration_ns")[order]
    last = np.searchsorted(start, when[0]) - 1
    if not order.size or 2 * (last >= 0).sum() <= last.size:
        return ""
    soon = (last >= 0) & (end[last] >= when[0]) & (end[last] - when[0] <= _RESUMES_NS)
    codes, idle_ns = name.codes[order][last], when[1] - when[0]
    time = np.bincount(codes[soon], idle_ns[soon], len(name.names))
    if 2 * time.sum() <= idle_ns.sum():
        return ""
    return (
        f"right before, the host waits for the GPU in {name.names[int(time.argmax())]}: leave that "
        "out, or launch what comes next first (for inference: asynchronous scheduling), so that "
        "the GPU works meanwhile"
    )


def label_in(run: Measures, rank: int, when: Intervals, share: float = 0.5) -> str | None:
    """The innermost labelled range that more than a share of the time was spent in, if any."""
    steps = run.rows("steps")
    ranges = steps.take(steps.coded("label").known & (steps.ints("rank") == rank))
    label, length_ns = ranges.coded("label"), ranges.ints("duration_ns")
    opens = ranges.ints("start_ns")
    inside = covered(opens, opens + length_ns, when) > 0
    usual_ns = dict[str, float]()
    for code in distinct(label.codes[inside]).tolist():
        its = inside & (label.codes == code)
        around = union(opens[its], (opens + length_ns)[its])
        if total(intersect(around, when)) > share * total(when):
            usual_ns[label.names[code]] = median(length_ns[its])
    return min(usual_ns, key=lambda name: usual_ns[name], default=None)


def if_unrecorded(run: Measures) -> str:
    """What recording has to do with it."""
    its = pace(run)
    if its is None:
        return "unrecorded, a host launches faster: time a step without the profiler first"
    if not its.is_slowed:
        return "steps took as long when nobody recorded them"
    return later_steps(run) or its.of_saving


def later_steps(run: Measures) -> str:
    """What to do where later steps have far less to do than those that were recorded."""
    its = pace(run)
    if its is None or not its.is_slowed or unrecorded_pace(run) is not None:
        return ""
    return f"later steps take {ms(its.unrecorded_ns)}: record these (--start-step)"
