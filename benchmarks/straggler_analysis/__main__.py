"""``python -m benchmarks.straggler_analysis [PATH]``: beside what StragglerAnalysis published.

ByteDance publishes the operations of pipeline- and data-parallel jobs (``trace-*.parquet``) and
how slow stragglers made them (``result-*.json``). Here the same numbers come from replays of
``commtrace.causal``. PATH is a folder with one trace and its result; needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.straggler_analysis.job import job_of, only, read
from benchmarks.straggler_analysis.slowdowns import Numbers, slowdowns
from commtrace.errors import TraceError

DEFAULT = Path(__file__).parents[3] / "shared" / "traces" / "straggler_analysis_ST"
TOLERANCE = 1e-3


def published(path: Path) -> Numbers:
    """The numbers of ``result-*.json`` in a folder. Raises TraceError for a missing file."""
    result = json.loads(only(path, "result-*.json").read_text())
    del result["job_meta"]
    return dict(_flat(result))


def _flat(tree: dict[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, *above, name)
        elif value is not None:  # not computed there either
            yield (*above, name), float(value)


def compare(ours: Numbers, theirs: Numbers) -> pd.DataFrame:
    """Name, published, replayed and their relative difference, one row a published number.

    Raises TraceError for a published number that is not computed here.
    """
    if unknown := set(theirs) - set(ours):
        raise TraceError(f"published, but not computed here: {' '.join(min(unknown))}")
    both = pd.DataFrame({"name": list(theirs), "published": theirs.values()})
    both["replayed"] = [ours[name] for name in theirs]
    return both.assign(difference=(both["replayed"] / both["published"] - 1).abs())


def summary(both: pd.DataFrame) -> str:
    """The job's numbers one by one; of each kind that has one per step the mean."""
    names = [name[0] if "step" in name[0] else " ".join(name) for name in both["name"]]
    rows = both.groupby(np.array(names, dtype=object), sort=False).agg(
        numbers=("name", "size"),
        published=("published", "mean"),
        replayed=("replayed", "mean"),
        largest_difference=("difference", "max"),
    )
    return rows.to_string(formatters={"largest_difference": "{:.6%}".format})


def main() -> None:
    """Replay, print beside what was published, and fail if it differs by more than 0.1 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=DEFAULT)
    path = parser.parse_args().path
    try:
        both = compare(slowdowns(job_of(read(path))), published(path))
    except TraceError as error:
        sys.exit(str(error))
    print(summary(both))
    largest = both["difference"].max()
    print(f"{len(both)} numbers, at most {largest:.6%} from those published")
    if largest > TOLERANCE:
        sys.exit(f"more than {TOLERANCE:.1%}")


if __name__ == "__main__":
    main()
