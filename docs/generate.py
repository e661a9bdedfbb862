"""Write what code knows better: columns, rules, workloads and the report's JSON Schema."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from commtrace import causal, comparing, matching, metrics
from commtrace.record import workloads
from commtrace.reports.comparison.json import schema as compare_schema
from commtrace.reports.content import prose
from commtrace.reports.formats import markdown
from commtrace.reports.formats.json import schema
from commtrace.reports.whatif import schema as whatif_schema
from commtrace.rules import RULES, explanation
from commtrace.table import Table
from commtrace.trace_tables import TABLES

_NOTE = "<!-- Written by docs/generate.py (`make docs`); change the code, not this page. -->"


def pages() -> dict[str, str]:
    """Each generated page's name, relative to this folder, and text."""
    return {
        "columns.md": _columns(),
        "rules.md": _rules(),
        **{f"rules/{name}.md": _rule(name) for name in RULES},
        "workloads.md": _workloads(),
        "../commtrace/reports/analysis.schema.json": _schema(schema()),
        "../commtrace/reports/whatif.schema.json": _schema(whatif_schema()),
        "../commtrace/reports/compare.schema.json": _schema(compare_schema()),
    }


def _columns() -> str:
    return _page(
        "# Columns",
        "Times are integer nanoseconds, GB is 1e9 bytes. `int64` is never null, `Int64` can be; "
        "a `category` is a string, and can be null.",
        "## What a trace holds",
        *_tables(TABLES),
        "## What is measured",
        *_tables(_measured()),
    )


def _measured() -> Iterator[Table]:
    """The tables that the modules of ``metrics`` and the floors above it define."""
    seen = set(TABLES)
    names = [
        module.name
        for package in (metrics, matching, causal, comparing)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    for module in map(import_module, names):
        for value in vars(module).values():
            if isinstance(value, Table) and value not in seen:
                seen.add(value)
                yield value


def _tables(tables: Iterable[Table]) -> Iterator[str]:
    for table in tables:
        yield f"### {table.name}"
        yield f"One row is {table.row}."
        yield _grid(
            ("column", "type", "unit", "meaning"),
            ((f"`{c.name}`", c.dtype, c.unit or "", c.about) for c in table.columns),
        )


def _rules() -> str:
    return _page(
        "# Rules",
        "What `commtrace analyze` looks for. A threshold is changed with `--threshold "
        "RULE.NAME=VALUE`, or under `[tool.commtrace.rules.RULE]` of `pyproject.toml`.",
        _grid(("rule", "what it says"), ((f"[{n}](rules/{n}.md)", _gist(n)) for n in RULES)),
    )


def _gist(rule: str) -> str:
    return prose.first_line(RULES[rule].__doc__ or "")


def _rule(name: str) -> str:
    return _page(
        f"# {name}",
        markdown.explain(explanation(name)),
        "The example is a tiny trace that has the fault. [All rules](../rules.md)",
    )


def _workloads() -> str:
    return _page(
        "# Workloads",
        "`commtrace record NAME` runs one and records it; `--set KEY=VALUE` changes a setting.",
        *_each_workload(),
    )


def _each_workload() -> Iterator[str]:
    for workload in workloads.available():
        yield f"## {workload.name}"
        yield workload.question
        yield _grid(("setting", "default"), ((f"`{k}`", v) for k, v in workload.settings.items()))


def _schema(its: dict[str, Any]) -> str:
    return json.dumps(its, indent=2, ensure_ascii=False) + "\n"


def _grid(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((title, _NOTE, *parts)) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "rules").mkdir(exist_ok=True)
    for name, text in pages().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
