"""The waits with what they were for: one groupby says where and when a rank waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.measures import measure
from commtrace.metrics.run.group_dimensions import DIMENSION, dimensions_of
from commtrace.metrics.run.waits import WAITS, matched
from commtrace.table import Rows, Table
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["WAIT_ROWS", "wait_rows"]

_OWN = ("op", "step", "group")

WAIT_ROWS = Table(
    "wait_rows",
    "one row of `collectives`, in the same order",
    (*WAITS.columns, *COLLECTIVES.only(_OWN), DIMENSION[0]),
)


@measure
def wait_rows(run: Measures) -> Rows:
    """Arrival and wait of every rank in every operation, and what it was: WAIT_ROWS."""
    found, called = matched(run), run.rows("collectives").columns
    dimension = dimensions_of(run, found.matches.coded("communicator"))
    own = {name: called[name] for name in _OWN}
    return WAIT_ROWS.rows({**found.waits.columns(), **own, "dimension": dimension})
