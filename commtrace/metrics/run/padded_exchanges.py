"""All_to_alls of buffers that rows were put into, most of which stay empty: padding."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.json import decode

from commtrace.arrays import NULL, Float64, among
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.first_operators import FirstOperators, first_operators, numbers_in

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["PaddedExchanges", "exchanges", "padded_exchanges"]

_PUTS = {
    **dict.fromkeys(("aten::index_put", "aten::index_put_"), 2),
    **dict.fromkeys(
        (f"aten::{name}" for name in ("index_copy", "index_copy_", "index_add", "index_add_")), 3
    ),
}
"""Which input has the rows that an operator puts into its first."""


class PaddedExchanges(NamedTuple):
    """All_to_alls, rows of ``called``: of each the share that is ``filled`` with rows."""

    operations: Rows
    filled: Float64


def exchanges(run: Measures) -> Rows:
    """The all_to_alls of known size, rows of ``called``."""
    every = called(run)
    sized = every.coded("op").being("all_to_all") & (every.ints("size_bytes") != NULL)
    return every.take(sized & (every.ints("expected") != NULL))


def padded_exchanges(run: Measures) -> PaddedExchanges | None:
    """Those as large as what the first rank puts fewer rows into, as its file's shapes tell it.

    None where no operator does so, or the file cannot be read again.
    """
    its = exchanges(run)
    operators = first_operators(run) if len(its) else None
    if operators is None:
        return None
    filled, many = _filled(operators), elements(its)
    some = among(many, np.sort(np.array([*filled], dtype=np.int64)))
    share = np.array([filled[one] for one in many[some].tolist()])
    return PaddedExchanges(its.take(some), share) if some.any() else None


def _filled(its: FirstOperators) -> dict[int, float]:
    """Of each number of elements that rows are put into the share of them that these are."""
    size, put = Counter[int](), Counter[int]()
    for at in np.flatnonzero(its.name.where(_PUTS.__contains__)).tolist():
        dims, count = decode(str(its.shapes.at(at))), int(its.count[at])
        match dims[:1] + dims[_PUTS[str(its.name.at(at))] :]:
            case [[_, *_, int(width)] as into, [*_, int(row)] as rows, *_] if width == row > 1:
                size[numbers_in(into)] += count * numbers_in(into)
                put[numbers_in(into)] += count * numbers_in(rows)
    return {whole: min(put[whole] / each, 1.0) for whole, each in size.items() if whole}
