"""Collectives that carry Python objects, as torch.distributed's ``…_object`` ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.metrics.run.decompositions import sequences

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["of_objects"]

_LENGTH_BYTES = 8
_MOSTLY = 0.5  # of the operations


def of_objects(run: Measures, op: str) -> bool:
    """Whether most of these operations carry pickled objects, or their lengths.

    Objects are bytes (uint8), behind an operation of their group that has an int64 length for each
    (https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object).
    """
    called = run.collective_columns
    if not (called["op"] == op).any() or not (called["dtype"] == "uint8").any():
        return False
    rows = sequences(run)
    small = rows["size_bytes"].astype(float) <= _LENGTH_BYTES * rows["group_size"].astype(float)
    lengths = (small & (rows["dtype"] == "int64")).shift(fill_value=False)
    lengths &= rows["sequence"] == rows["sequence"].shift()
    objects = lengths & (rows["dtype"] == "uint8")
    carries = objects | objects.shift(-1, fill_value=False)
    return bool(carries[rows["op"] == op].mean() > _MOSTLY)
