"""How fast the operations of a run were served, once everybody was there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Bool
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook
from commtrace.expect import Model, fit
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.activity import calls_by_device, device_work
from commtrace.metrics.run.group_sizes import group_sizes
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.table import Column, Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["KIND", "SERVED", "fitted", "hidden", "served", "streams", "typical_ns"]

_MAX_RESIDUAL = 0.3
KIND = ["communicator", "op", "dtype", "size_bytes"]

SERVED = Table(
    "served",
    "one operation of the run whose size and transfer are known, by its first arrival",
    (
        *OPERATIONS.columns,
        Column("ranks", "Int64", "Ranks in the group, known or deduced; null if neither.", "ranks"),
        Column("factor", "float64", "What makes bus bandwidth of algorithm bandwidth."),
        Column("busbw_gb_s", "float64", "size × factor / transfer.", "GB/s"),
    ),
)


@measure
def served(run: Measures, *, cold: bool = False, late: bool = False) -> pd.DataFrame:
    """The operations whose size is known, in the order of their arrival: SERVED.

    Each communicator's first, which sets it up, only if ``cold``; messages that gloo noted late,
    whose transfer is an upper bound, only if ``late``. CannotLook if there is none.
    """
    known, first = _served(run)
    if not cold:
        known = known[~first].reset_index(drop=True)
    if not late:
        known = known[~known["operation"].isin(message_waits(run).late_operations)]
    if known.empty:
        raise CannotLook("needs sizes: no operation has one")
    return known


@measure
def _served(run: Measures) -> tuple[pd.DataFrame, Bool]:
    """All whose size is known, and which is its communicator's first."""
    found = matched(run).operations
    known = found.assign(ranks=group_sizes(run)["group_size"].array)  # in the same order
    known = known.sort_values(["first_arrival_ns", "operation"], kind="stable")
    place = known.groupby("communicator", observed=True, dropna=False).cumcount()
    needed = ["op", "size_bytes", "transfer_ns", "first_arrival_ns", "last_end_ns"]
    known = known[known[needed].notna().all(axis=1) & (known["op"] != "barrier")]
    known = known[(known["size_bytes"] > 0) & (known["transfer_ns"] > 0)]
    known = known[known["ranks"].fillna(2) > 1]
    first = place[known.index].to_numpy() == 0
    known = known.astype(dict.fromkeys(needed[1:], "int64")).reset_index(drop=True)
    kinds = list(zip(known["op"], known["ranks"].fillna(0), strict=True))
    factors = {kind: bus_factor(*kind) if kind[1] else None for kind in set(kinds)}
    known = known.assign(factor=np.array([factors[kind] for kind in kinds], dtype=np.float64))
    busbw = known["size_bytes"] * known["factor"] / known["transfer_ns"]
    return known.assign(busbw_gb_s=busbw), first


def typical_ns(known: pd.DataFrame) -> pd.Series[Any]:
    """Of each operation, the median transfer of its kind."""
    times = known.groupby(KIND, observed=True, dropna=False)["transfer_ns"]
    return times.transform("median")


def fitted(known: pd.DataFrame) -> Model | None:
    """The model of operations of one kind but for their sizes, if it fits well."""
    model = fit(known["size_bytes"].to_numpy(), known["transfer_ns"].to_numpy())
    return model if model is not None and model.residual <= _MAX_RESIDUAL else None


def hidden(run: Measures) -> pd.Series[Any]:
    """By operation, the share of it during which its devices computed: the ranks' mean."""
    called = run.collective_columns[["start_ns", "duration_ns"]]
    start = called["start_ns"].to_numpy()
    end = start + called["duration_ns"].to_numpy()
    share: npt.NDArray[np.float64] = np.zeros(len(called))
    for place, done in device_work(run).items():
        at = calls_by_device(run)[place]
        if done.compute is not None:
            share[at] = covered(start[at], end[at], done.compute) / np.maximum(
                end[at] - start[at], 1
            )
    return called[[]].assign(share=share)["share"].groupby(_operation(run)).mean()


def streams(known: pd.DataFrame, run: Measures) -> tuple[int, ...]:
    """The streams that these operations ran on."""
    ran = np.isin(_operation(run), known["operation"])
    return tuple(sorted({int(stream) for stream in run.collective_columns["stream"][ran]}))


def _operation(run: Measures) -> npt.NDArray[np.int64]:
    return matched(run).waits["operation"].to_numpy()
