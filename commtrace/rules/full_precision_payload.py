"""Large payloads of more precision than the model computes in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, codes, grouped
from commtrace.causal.savings import of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.exposed_calls import most_exposed
from commtrace.metrics.run.bandwidth import fitted, hidden, on_gpus, served, streams
from commtrace.metrics.run.double_products import double_products_ns, double_share
from commtrace.metrics.run.joined_rows import rows_of_operations
from commtrace.metrics.run.master_gathers import master_gathers
from commtrace.metrics.run.whole import trains, wall_ns, worth_reporting
from commtrace.quantiles import median, quantile
from commtrace.rules._late_reductions import in_one_bucket, starts_late
from commtrace.rules._latency import by_constants_ns
from commtrace.rules._less import sharded
from commtrace.rules._precision import DOUBLE, HALF, of_matrices, share_in
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows


class FullPrecisionPayload(Rule, frozen=True):
    """Operations carry more precision than the model computes in.

    What it detects
        float32 operations of at least ``min_bytes`` in a run whose matrix kernels, as far as their
        names show a precision, spend at least ``min_half_share`` of their time in half or lower
        precision; and float64 ones, of a tenth as many bytes where an optimizer steps, in a run
        whose matrix kernels are not known to spend as much of it in double precision. On CPUs,
        whose operators show no precision, float32 all_gathers of as many elements as their group
        reduces in half precision, if what they bring is copied at once: masters that become
        parameters of that type. Half the bytes for each element have to save ``min_step_share`` of
        the step, of float32 that is only summed, as gradients are, ``large_step_share``. The saving
        is by a model fitted from the trace, or by what larger operations take longer than smaller
        ones, else half the transfer, replayed; where no replay tells, only what no compute hides
        counts. Broadcasts of fewer bytes than their group reduces are buffers, which need their
        precision.

    Why it costs time
        Twice the bytes, for digits that the forward and backward pass never had.

    What to do
        Send gradients compressed (DDP's ``bf16_compress_hook`` or ``fp16_compress_hook``), or
        let FSDP reduce in the parameters' type (``MixedPrecision(reduce_dtype=...)``), and gather
        them in half precision (``param_dtype``). Convert what else is sent before, if half
        precision is enough for its use. Make float64 tensors float32 before they are sent: what
        comes from NumPy is float64, and on CPUs a model takes twice as long in it. Convert masters
        to the parameters' type before they are gathered.

    Blind spots
        Some gradients need float32: sums over many ranks or micro-batches, small losses
        without scaling. Compare the loss curves. Without kernels, on the CPU, and without
        shapes the precision of the compute is not known: float64 is named with low confidence,
        since few models compute in it; with shapes a solver that computes in it is left alone.
        Masters are named with low confidence, since the trace does not say what type they are
        copied to: float32 parameters with compressed gradients look the same.
    """

    may_be_needed: ClassVar[bool] = True
    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_bytes: int = 1_000_000
    min_half_share: float = 0.5
    min_step_share: float = 0.02
    large_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding for all float32 operations, or masters, and one for all float64."""
        time = of_matrices(run)
        half, double = (share_in(time, pattern) for pattern in (HALF, DOUBLE))
        is_double = run.rows("collectives").coded("dtype").being("float64").any()
        masters = master_gathers(run) if half is None else np.empty(0, np.int64)
        if half is None and not is_double and not masters.size:
            raise CannotLook("needs kernels whose names show the precision of the model's compute")
        if half is not None and half >= self.min_half_share:
            yield from self._of(run, _single(half, self.min_half_share))
        if masters.size:
            yield from self._of(run, _MASTERS, masters)
        if is_double:
            yield from self._in_double(run, double)

    def _in_double(self, run: Measures, of_kernels: float | None) -> Iterator[Finding]:
        """What is sent in float64, unless it is known to be what is computed in.

        Without kernels by operators; there a model that trains may compute in it by mistake.
        """
        of, double, most = "matrix kernels", of_kernels, self.min_half_share
        if of_kernels is None:
            of, double, most = "operators", double_share(run), _HARDLY
        by_mistake = of_kernels is None and trains(run)
        if (double or 0.0) < self.min_half_share or by_mistake:
            payload = _double(double, most, of, trains=trains(run))
            its = (*self._of(run, payload), *self._computed(run))
            yield from sorted(its, key=lambda one: -one.cost_ns)[:1]

    def _computed(self, run: Measures) -> Iterator[Finding]:
        """Of gradients in float64 on CPUs, what multiplying in that takes longer."""
        known = served(run)
        wide = known.coded("dtype").being("float64") & known.coded("op").where(_REDUCING)
        some = known.take(wide & (known.ints("size_bytes") >= self.min_bytes))
        if not len(some) or on_gpus(some, run).any():
            return
        cost_ns = double_products_ns(run) // _TIMES_AS_LONG
        if not worth_reporting(cost_ns, run, self.large_step_share):
            return
        yield self.finding(
            some,
            summary=(
                f"{counted(len(some), 'operation')} of {mb(float(some.ints('size_bytes').sum()))} "
                f"reduce float64, in which the model computes: its matrix products take "
                f"{ms(_TIMES_AS_LONG * cost_ns)}, of float32 about half"
            ),
            streams=streams(some, run),
            cost_ns=cost_ns,
            evidence=(Evidence("matrix products in float64", _TIMES_AS_LONG * cost_ns, "ns"),),
            advice=_IN_SINGLE,
            confidence="low",
        )

    def _of(self, run: Measures, payload: _Payload, only: Int64 | None = None) -> Iterator[Finding]:
        known, least = served(run), round(self.min_bytes * payload.of_least)
        full = _carry(known, payload.dtype, least, only)
        some, less = known.take(full), _gain_ns(run, known)[full]
        exposed = 1 - hidden(some, run)
        end_ns = some.ints("last_end_ns")
        estimate = wall_ns(end_ns, less * exposed)
        summed = payload.advice is None and some.coded("op").where(_REDUCING).all()
        share = self.large_step_share if summed else self.min_step_share
        # What is behind them on their stream waits for them, too, hidden as they may be.
        gain = of_transfers(run, some, less, estimate, share, wall_ns(end_ns, less))
        if not worth_reporting(gain.cost_ns, run, share):
            return
        taken = float(some.ints("transfer_ns").sum())
        late = served(run, late=True)  # how long what was noted late took is not known
        every = late.take(_carry(late, payload.dtype, least, only))
        its = self.finding(
            some,
            summary=(
                f"{counted(len(every), 'operation')} "
                f"{'carries' if len(every) == 1 else 'carry'} "
                f"{mb(float(every.ints('size_bytes').sum()))} of {payload.dtype}, "
                f"{payload.compute}: {payload.enough} bytes for each element would save up to "
                f"{ms(gain.cost_ns)}"
            ),
            streams=streams(some, run),
            saving=gain,
            evidence=(
                *payload.evidence,
                Evidence(f"transfer of {payload.dtype}", taken / 1e6, "ms"),
                Evidence("of it not under compute", 100 * float(exposed.mean()), "%"),
            ),
            ruled_out=(f"small operations: only those of {mb(least)} or more count",),
            advice=payload.advice or _advice(some, run),
            explains=() if not payload.advice and _not_of_bytes(some, run) else None,
            confidence="medium" if payload.evidence and some.flags("exact").all() else "low",
        )
        yield replace(its, behind=bool(summed))  # many mean to sum gradients in float32

    @staticmethod
    def bad() -> Measures:
        """64 MB of float32 gradients beside bfloat16 matrix products."""
        return _training("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn")

    @staticmethod
    def good() -> Measures:
        """The same beside float32 ones."""
        return _training("ampere_sgemm_128x64_nn")


class _Payload(Struct, frozen=True):
    """What is sent, what the model computes in, and how many bytes would be enough.

    Operations count from a part ``of_least`` of the rule's least size on.
    """

    dtype: str
    compute: str
    enough: str
    evidence: tuple[Evidence, ...]
    advice: str | None  # none where it is by the operations
    of_least: float = 1.0


_MASTERS = _Payload(
    "float32",
    "which is copied at once, while as many elements are reduced in half precision",
    "two",
    (),
    "convert the masters to the parameters' type before they are gathered, if that is what they "
    "are copied to: the trace does not say it",
)


def _single(half: float, least: float) -> _Payload:
    return _Payload(
        "float32",
        f"while {percent(half, 1)} of the matrix kernels' time is in half precision",
        "two",
        (Evidence("matrix kernels in half", 100 * half, "%", 100 * least),),
        None,
    )


_HARDLY = 0.05  # of the operators' time: who computes more in float64 may mean it
_OF_TRAINING = 0.1  # of the bytes: hardly any float64 is meant there; solvers need their digits
_TIMES_AS_LONG = 2  # as in float32: a vector register holds half as many
_IN_SINGLE = (
    "train in float32, unless float64 is needed: what comes from NumPy is float64 "
    "(torch.from_numpy(x).float()), and a model that is made to fit it, too"
)

_REDUCING = frozenset(("all_reduce", "reduce", "reduce_scatter")).__contains__


def _not_of_bytes(some: Rows, run: Measures) -> bool:
    """Whether what is exposed is not for their bytes.

    But for when they are called, so that half the bytes are exposed, too, or it is another
    operation that is most exposed.
    """
    if most_exposed(run)[0] not in some.coded("op").occurring():
        return True
    one_call = any(in_one_bucket(run, op) for op in some.coded("op").occurring())
    return _of_program(some, run) or one_call or starts_late(run, rows_of_operations(run, some))


def _of_program(some: Rows, run: Measures) -> bool:
    """Whether these are neither gradients nor parameters, which libraries send."""
    return not some.coded("op").where(_REDUCING).any() and not _of_parameters(some, run)


def _of_parameters(some: Rows, run: Measures) -> bool:
    return bool(some.coded("op").being("all_gather").any()) and sharded(run)


def _advice(some: Rows, run: Measures) -> str:
    """What to do about float32, by what is sent."""
    if _of_program(some, run):
        return "convert what is sent to half precision before, if that is enough for its use"
    if not _of_parameters(some, run):
        how = "a compression hook (DDP) or reduce_dtype (FSDP)"
    elif some.coded("op").where(_REDUCING).any():
        how = "param_dtype and reduce_dtype (FSDP's mixed precision)"
    else:
        return "gather parameters in half precision: param_dtype (FSDP's mixed precision)"
    return f"try {how}, and compare the loss: gradients can need float32"


def _double(double: float | None, most: float, of: str, *, trains: bool) -> _Payload:
    advice = "make the tensors float32 before they are sent, unless the model computes in float64"
    least = _OF_TRAINING if trains else 1.0
    if double is None or double >= most:
        return _Payload("float64", "in which few models compute", "four", (), advice, least)
    return _Payload(
        "float64",
        f"while {percent(double, 1)} of the {of}' time is in double precision",
        "four",
        (Evidence(f"{of} in double", 100 * double, "%", 100 * most),),
        advice,
        least,
    )


def _gain_ns(run: Measures, known: Rows) -> Float64:
    """What each operation would save with half the bytes: nothing of its latency.

    Where sizes do not tell it, that is of GPUs' operations what NCCL's constants say at least.
    """
    gain, by_nccl = known.ints("transfer_ns") / 2, on_gpus(known, run)
    for some in grouped(*(known.coded(name) for name in ("communicator", "op", "dtype"))):
        its = known.take(some)
        model = fitted(its)
        gb_s = model.gb_s if model else _between_two(its)
        if gb_s:
            gain[some] = np.minimum(known.ints("size_bytes")[some] / 2 / gb_s, gain[some])
        elif by_nccl[some].all():
            op, group = str(its.coded("op").at(0)), its.coded("communicator").at(0)
            ways = ("Ring", "Tree") if op == "all_reduce" else ("Ring",)
            latency_ns = by_constants_ns(run, op, group, "LL", ways)
            gain[some] -= np.minimum(latency_ns / 2, gain[some])
    return gain


def _between_two(some: Rows) -> float | None:
    """The bandwidth by what the largest size takes longer than the smallest, in the median.

    None if that is within what operations of one size differ by.
    """
    size, time = some.ints("size_bytes"), some.ints("transfer_ns")
    few, many = (time[size == its] for its in (size.min(), size.max()))
    apart = quantile(few, 0.75) < quantile(many, 0.25)
    return float(np.ptp(size) / (median(many) - median(few))) if apart else None


def _carry(known: Rows, dtype: str, least_bytes: int, only: Int64 | None) -> Bool:
    """Which are large and of that type, and parameters or gradients as far as is known."""
    full = known.coded("dtype").being(dtype) & (known.ints("size_bytes") >= least_bytes)
    full &= ~_of_other_tensors(known)
    return full if only is None else full & np.isin(known.ints("operation"), only)


def _of_other_tensors(known: Rows) -> Bool:
    """Broadcasts of fewer bytes than their group reduces: no parameters, nor gradients.

    But buffers, as batch norm's statistics, which need their precision.
    """
    group, size = known.coded("communicator").codes, known.ints("size_bytes")
    sent, reduced = known.coded("op").being("broadcast"), known.coded("op").where(_REDUCING)
    place = codes(group)
    less = np.bincount(place, size * sent) < np.bincount(place, size * reduced)
    return np.asarray(sent & less[place])


def _training(kernel: str) -> Measures:
    run = Tiny(2)
    for i in range(12):
        for rank in range(2):
            run.kernel(rank, i * 2000, 900, name=kernel)
            run.collective(rank, "all_reduce", i * 2000 + 1000, 800, size=64_000_000)
    return run.trace()
