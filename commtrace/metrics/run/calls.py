"""Operations from their call on: what a call does before its operation starts counts, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.measures import measure
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures
    from commtrace.packed import Packed

__all__ = ["CALLS", "blocked_ns", "called"]

CALLS = Table(
    "calls",
    "one operation of the run, as if it began with its last call: `last_arrival_ns` is that "
    "call, and `transfer_ns` is longer by what it is earlier; indexed by `operation`",
    OPERATIONS.columns[1:],
)


def blocked_ns(rows: pd.DataFrame | Packed) -> pd.Series[Any]:
    """How long before its start each row of ``collectives`` blocked its caller.

    Known of synchronous calls on the CPU, where gloo copies the input first; else 0.
    """
    blocks = (rows["device"] == "cpu") & (rows["asynchronous"] == 0).fillna(False)
    blocked = (rows["start_ns"] - rows["launch_ns"]).where(blocks.astype(bool))
    return blocked.fillna(0).clip(lower=0).astype("int64")


@measure
def called(run: Measures) -> pd.DataFrame:
    """The operations of the run, by number, as if they began with their last call: CALLS."""
    found = matched(run)
    operations = found.operations.frame().set_index("operation")
    blocked = blocked_ns(run.collective_columns).reset_index(drop=True)
    call = (found.waits["arrival_ns"] - blocked).groupby(found.waits["operation"]).max()
    blocked = (operations["last_arrival_ns"] - call).fillna(0).clip(lower=0).astype("int64")
    return operations.assign(
        last_arrival_ns=operations["last_arrival_ns"] - blocked,
        transfer_ns=operations["transfer_ns"] + blocked,
    )
