"""How fast the operations of a run were served, once everybody was there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import NULL, Bool, codes, first_rows, integers, nth, quantiles
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook
from commtrace.expect import Model, fit
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.activity import calls_by_device, device_work
from commtrace.metrics.run.group_sizes import group_sizes
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.packed import columns_in
from commtrace.table import Coded, Column, Table

if TYPE_CHECKING:
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
    known, bounds = _served(run)[0] if cold else _warm(run), message_waits(run).late_operations
    if not late and bounds.size:
        known = known[~known["operation"].isin(bounds)]
    if known.empty:
        raise CannotLook("needs sizes: no operation has one")
    return known


@measure
def _warm(run: Measures) -> pd.DataFrame:
    known, first = _served(run)
    return known[~first].reset_index(drop=True)


def _served(run: Measures) -> tuple[pd.DataFrame, Bool]:
    """All whose size is known, and which is its communicator's first."""
    found = matched(run).operations
    its: Any = columns_in(found)
    ranks = integers(group_sizes(run)["group_size"])  # in the same order
    arrival = its["first_arrival_ns"]
    order = np.lexsort((its["operation"], arrival, arrival == NULL))
    first = nth(1 + its["communicator"].codes[order]) == 0
    needed = ("size_bytes", "transfer_ns", "first_arrival_ns", "last_end_ns")
    known = its["op"].where(lambda op: op != "barrier") & ((ranks == NULL) | (ranks > 1))
    known &= np.logical_and.reduce([its[name] != NULL for name in needed])
    known &= (its["size_bytes"] > 0) & (its["transfer_ns"] > 0)
    first, at = first[known[order]], order[known[order]]
    kind = codes(its["op"].codes[at], ranks[at])
    alike = at[first_rows(kind)]
    names = Coded(its["op"].codes[alike], its["op"].names).decoded()
    factors = [
        bus_factor(str(op), n) if n > 0 else None
        for op, n in zip(names, ranks[alike].tolist(), strict=True)
    ]
    factor = np.array([*factors, None], dtype=np.float64)[kind]
    columns = {
        **{one.name: found[one.name].array[at] for one in OPERATIONS.columns},
        **{name: its[name][at] for name in needed},
        "ranks": group_sizes(run)["group_size"].array[at],
        "factor": factor,
        "busbw_gb_s": its["size_bytes"][at] * factor / its["transfer_ns"][at],
    }
    return pd.DataFrame(columns, copy=False), first


def typical_ns(known: pd.DataFrame) -> pd.Series[Any]:
    """Of each operation, the median transfer of its kind."""
    kind = codes(*(known[name] for name in KIND))
    times = quantiles(kind, integers(known["transfer_ns"]), 50, kind.max(initial=-1) + 1)
    return pd.Series(times[kind], known.index)


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
