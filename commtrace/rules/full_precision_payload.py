"""Large float32 payloads where the model computes in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from commtrace.causal.savings import of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.rows_of import blocks
from commtrace.metrics.run.bandwidth import fitted, hidden, served, streams
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

MATRIX = r"(?<!fb)gemm|conv(?!ert)|fprop|dgrad|wgrad|attention|attn|flash|fmha|nvjet"
HALF = r"bf16|f16|fp16|float16|half|hgemm|[hs]884|[hs]16816|e4m3|e5m2|fp8"
SINGLE = r"sgemm|s1688|f32|fp32|float"


class FullPrecisionPayload(Rule, frozen=True):
    """Operations carry float32 although the model computes in half precision.

    What it detects
        float32 operations of at least ``min_bytes`` in a run whose matrix kernels, as far as
        their names show a precision, spend at least ``min_half_share`` of their time in half or
        lower precision; where sending two bytes for each element would save ``min_step_share`` of
        the step. The saving is by a model fitted from the trace, else half the transfer; only
        what no compute hides counts.

    Why it costs time
        Twice the bytes, for digits that the forward and backward pass never had.

    What to do
        Send gradients compressed (DDP's ``bf16_compress_hook`` or ``fp16_compress_hook``), or
        let FSDP reduce in the parameters' type (``MixedPrecision(reduce_dtype=...)``).

    Blind spots
        Some gradients need float32: sums over many ranks or micro-batches, small losses
        without scaling. Compare the loss curves. Without kernels, on the CPU, the precision
        of the compute is not known.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_bytes: int = 1_000_000
    min_half_share: float = 0.5
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding, for all float32 operations."""
        share = _half_share(run)
        if share is None:
            raise CannotLook("needs kernels whose names show the precision of the model's compute")
        known = served(run)
        exposed = 1 - known["operation"].map(hidden(run))
        less = _gain_ns(known)
        full = (known["dtype"] == "float32") & (known["size_bytes"] >= self.min_bytes)
        some = known[full]
        estimate = wall_ns(some["last_end_ns"], (less * exposed)[full])
        if share < self.min_half_share:
            return
        gain = of_transfers(run, some, less[full], estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        taken = float(some["transfer_ns"].sum())
        yield self.finding(
            some,
            summary=(
                f"{counted(len(some), 'operation')} "
                f"{'carries' if len(some) == 1 else 'carry'} "
                f"{mb(float(some['size_bytes'].sum()))} of float32, "
                f"while {percent(share, 1)} of the matrix kernels' time is in half precision: two "
                f"bytes for each element would save up to {ms(gain.cost_ns)}"
            ),
            streams=streams(some, run),
            cost_ns=gain.cost_ns,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            evidence=(
                Evidence("matrix kernels in half", 100 * share, "%", 100 * self.min_half_share),
                Evidence("transfer of float32", taken / 1e6, "ms"),
                Evidence("of it not under compute", 100 * float(exposed[full].mean()), "%"),
                *gain.evidence,
            ),
            ruled_out=(f"small operations: only those of {mb(self.min_bytes)} or more count",),
            advice=(
                "try a compression hook (DDP) or reduce_dtype (FSDP), and compare the loss: "
                "gradients can need float32"
            ),
            confidence="medium" if some["exact"].all() else "low",
        )

    @staticmethod
    def bad() -> Measures:
        """64 MB of float32 gradients beside bfloat16 matrix products."""
        return _training("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn")

    @staticmethod
    def good() -> Measures:
        """The same beside float32 ones."""
        return _training("ampere_sgemm_128x64_nn")


def _half_share(run: Measures) -> float | None:
    """The share of half precision in the matrix kernels' time, None if no name shows it."""
    times = (
        some[some["kind"] == "compute"].groupby("name", observed=True)["duration_ns"].sum()
        for some in blocks(run, "kernels")
    )
    time = pd.concat(times).groupby(level=0, observed=True).sum()
    names = time.index.astype(str)
    half = names.str.contains(HALF, case=False)
    matrix = names.str.contains(MATRIX, case=False)
    named = matrix & (half | names.str.contains(SINGLE, case=False))
    known = int(time[named].sum())
    return int(time[matrix & half].sum()) / known if known else None


def _gain_ns(known: pd.DataFrame) -> pd.Series[float]:
    """What each operation would save with half the bytes."""
    gain = known["transfer_ns"].astype("float64") / 2
    for _, some in known.groupby(["communicator", "op", "dtype"], observed=True, dropna=False):
        if model := fitted(some):
            saved = some["size_bytes"] / 2 / model.gb_s
            gain[some.index] = np.minimum(saved, some["transfer_ns"] / 2)
    return gain


def _training(kernel: str) -> Measures:
    run = Tiny(2)
    for i in range(12):
        for rank in range(2):
            run.kernel(rank, i * 2000, 900, name=kernel)
            run.collective(rank, "all_reduce", i * 2000 + 1000, 800, size=64_000_000)
    return run.trace()
