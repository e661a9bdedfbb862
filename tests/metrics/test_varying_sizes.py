"""Sizes that vary from step to step are one row of what people read, and rows of the data."""

from __future__ import annotations

import numpy as np

from commtrace.analysis import Analysis
from commtrace.metrics.run.collectives import collectives, collectives_by_dimension
from commtrace.metrics.run.varying_sizes import typical_sizes
from commtrace.reports.formats import text
from commtrace.run import Run
from commtrace.synthetic import Tiny

STEPS = 6


def routed() -> Analysis:
    """In each step two all_to_alls of another size, and gradients in two buckets."""
    run = Tiny(ranks=2)
    for step in range(STEPS):
        for rank in (0, 1):
            begin = 10_000 * step
            run.step(rank, step, begin, 10_000)
            for at in (0, 2_000):
                size = 1_000_000 + 1_000 * step
                run.collective(rank, "all_to_all", begin + at, 1_000, size=size)
            for at, size in ((4_000, 4_000_000), (6_000, 8_000_000)):
                run.collective(rank, "all_reduce", begin + at, 1_000, size=size)
    return Run(run.trace(), "routed").analysis()


def test_the_table_that_people_read_takes_them_together() -> None:
    analysis = routed()
    of_each = collectives(analysis.measures).dicts()
    assert sum(row["op"] == "all_to_all" for row in of_each) == STEPS
    together = {
        (row["op"], row["size_bytes"]): (row["count"], row["sizes"])
        for row in collectives_by_dimension(analysis.measures).dicts()
    }
    assert together == {
        ("all_to_all", 1_002_500): (2 * STEPS, STEPS),
        ("all_reduce", 4_000_000): (STEPS, 1),
        ("all_reduce", 8_000_000): (STEPS, 1),
    }
    shown = text.render(analysis)
    assert "~1.00 MB" in shown
    assert "~ the median of sizes that vary from step to step." in shown


def test_what_is_averaged_every_few_steps_is_as_large_each_time() -> None:
    """A metric in each step, and four parameters in every fourth."""
    sizes, steps = zip(
        *(
            (size, step)
            for step in range(16)
            for size in (1, 40, 80, 160, 400)[: 5 if step % 4 == 0 else 1]
        ),
        strict=True,
    )
    kind = np.zeros(len(sizes), np.int64)
    assert typical_sizes(kind, np.array(sizes), np.array(steps)).tolist() == list(sizes)
