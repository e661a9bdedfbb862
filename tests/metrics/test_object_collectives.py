"""Which collectives carry pickled objects."""

from __future__ import annotations

import pytest

from commtrace.metrics.run.object_collectives import of_objects
from commtrace.synthetic import Tiny


@pytest.mark.parametrize(
    ("lengths", "content", "expected"),
    [
        ((16, "int64"), (5_000, "uint8"), True),
        ((16, "int64"), (5_000, "float32"), False),
        ((5_000, "int64"), (5_000, "uint8"), False),  # pictures and their labels
    ],
)
def test_bytes_behind_their_lengths(
    lengths: tuple[int, str], content: tuple[int, str], expected: bool
) -> None:
    run = Tiny(2, backend="gloo")
    for step in range(4):
        for rank in range(2):
            for part, (size, dtype) in enumerate((lengths, content)):
                start = 1000 * step + 100 * part
                run.collective(rank, "all_gather", start, 50, size=size, dtype=dtype, step=step)
    assert of_objects(run.trace(), "all_gather") is expected
    assert not of_objects(run.trace(), "broadcast")
