"""Tables are built whole, typed, and with nulls that stay nulls."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from commtrace.arrays import NULL
from commtrace.table import Coded
from commtrace.trace_tables import STEPS, TABLES


def test_parts_are_joined_and_dictionaries_unified() -> None:
    def part(rank: int, labels: Coded, step: int) -> dict[str, object]:
        n = len(labels.codes)
        numbers = np.arange(n, dtype=np.int64)
        return {
            "rank": np.full(n, rank),
            "step": np.full(n, step),
            "label": labels,
            "thread": numbers,
            "start_ns": numbers,
            "duration_ns": numbers,
        }

    frame = STEPS.rows(
        part(0, Coded.of(["a", None, "b"]), 7),  # type: ignore[arg-type]
        part(1, Coded.of(["b", "c"]), NULL),  # type: ignore[arg-type]
    ).frame()
    assert frame["label"].tolist()[0] == "a"
    assert frame["label"].isna().tolist() == [False, True, False, False, False]
    assert frame["label"].astype(object).tolist()[2:] == ["b", "b", "c"]
    assert frame["step"].isna().tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_an_empty_table_has_every_column_and_type(table: object) -> None:
    frame = table.rows().frame()  # type: ignore[attr-defined]
    described = {c.name: c.dtype for c in table.columns}  # type: ignore[attr-defined]
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == described
    assert len(frame) == 0


def test_a_missing_column_is_an_error() -> None:
    with pytest.raises(KeyError, match="duration_ns"):
        STEPS.of_dicts([{c.name: None for c in STEPS.columns if c.name != "duration_ns"}])


def test_importing_the_package_loads_no_library() -> None:
    code = "import commtrace, sys; print({'numpy', 'pandas', 'torch'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
