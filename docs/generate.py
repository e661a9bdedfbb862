"""Write what code knows better: columns, rules, workloads and the report's JSON Schema."""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import commtrace
from commtrace import causal, comparing, matching, metrics
from commtrace.diagnosis import Finding
from commtrace.plots.of_run import Plot
from commtrace.record import workloads
from commtrace.reports.comparison.json import schema as compare_schema
from commtrace.reports.content import prose
from commtrace.reports.formats import markdown
from commtrace.reports.formats.json import schema
from commtrace.reports.whatif import schema as whatif_schema
from commtrace.rules import RULES, explanation
from commtrace.table import Table
from commtrace.trace_tables import TABLES

_EXAMPLES = Path(__file__).parent.parent / "examples"
_WIDTH = 90  # of a signature on one line
_NOTE = "<!-- Written by docs/generate.py (`make docs`); change the code, not this page. -->"


def pages() -> dict[str, str]:
    """Each generated page's name, relative to this folder, and text."""
    return {
        "api.md": _api(),
        "columns.md": _columns(),
        "notebooks.md": _notebooks(),
        "rules.md": _rules(),
        **{f"rules/{name}.md": _rule(name) for name in RULES},
        "workloads.md": _workloads(),
        "../commtrace/reports/analysis.schema.json": _schema(schema()),
        "../commtrace/reports/whatif.schema.json": _schema(whatif_schema()),
        "../commtrace/reports/compare.schema.json": _schema(compare_schema()),
    }


def _api() -> str:
    public = {name: getattr(commtrace, name) for name in commtrace.__all__}
    classes = [value for value in public.values() if inspect.isclass(value)]
    errors = [its for its in classes if issubclass(its, Exception)]
    return _page(
        "# Python",
        "What `import commtrace as ct` has. Tables are pandas DataFrames; [columns.md](columns.md) "
        "describes every column. [What the words mean](metrics.md).",
        "## Functions",
        *(_function(f"ct.{name}", f) for name, f in public.items() if inspect.isfunction(f)),
        *(
            part
            for its in classes
            if its not in errors
            for part in _class(f"ct.{its.__name__}", its)
        ),
        *_class("run.plot", Plot),
        "## Errors",
        _grid(("error", "when"), ((f"`ct.{e.__name__}`", _gist_of(e)) for e in errors)),
    )


def _class(name: str, its: type) -> Iterator[str]:
    of = {"ct.Run": "run"}.get(name, name)
    members = {n: value for n, value in vars(its).items() if not n.startswith("_")}
    values = [(n, v) for n, v in members.items() if isinstance(v, property | cached_property)]
    yield f"## {name}"
    yield _linked(inspect.getdoc(its) or "")
    if rows := [*_fields(its), *((f"`{of}.{n}`", _about(v)) for n, v in values)]:
        yield _grid(("", "what it is"), rows)
    for n, value in members.items():
        if inspect.isfunction(value):
            yield _function(f"{of}.{n}", value)


def _fields(its: type) -> Iterator[tuple[str, str]]:
    """The fields that have a description: those that reports write as JSON."""
    if its.__module__ != Finding.__module__:
        return
    for name, hint in get_type_hints(its, include_extras=True).items():
        for about in getattr(hint, "__metadata__", ()):
            yield f"`{name}`", about.description


def _about(its: object) -> str:
    return _linked(" ".join((inspect.getdoc(its) or "").split()))


def _function(name: str, its: Callable[..., Any]) -> str:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(its))).body
    assert isinstance(node, ast.FunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    line = f"{name}({arguments}){returns}"
    if len(line) > _WIDTH:
        within = ",\n".join(f"    {part}" for part in _each_argument(node.args))
        line = f"{name}(\n{within},\n){returns}"
    documented = _linked(inspect.getdoc(its) or "")
    return f"### {name}\n\n```py\n{line}\n```\n\n{documented}"


def _each_argument(its: ast.arguments) -> Iterator[str]:
    """The arguments one by one, without ``self``."""
    defaults = [None] * (len(its.args) - len(its.defaults)) + [*its.defaults]
    for argument, default in zip(its.args, defaults, strict=True):
        if argument.arg != "self":
            yield ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")
    if its.kwonlyargs:
        yield "*"
    for argument, value in zip(its.kwonlyargs, its.kw_defaults, strict=True):
        yield ast.unparse(argument) + (f" = {ast.unparse(value)}" if value else "")


def _linked(text: str) -> str:
    """A docstring with links where it names tables."""

    def link(match: re.Match[str]) -> str:
        its = getattr(import_module(f"commtrace.{match[1]}"), match[2])
        return f"[{its.name}](columns.md#{_anchor(its)})" if isinstance(its, Table) else match[0]

    return re.sub(r"``([a-z_.]+)\.([A-Z_]+)``", link, text)


def _anchor(its: Table) -> str:
    """Where columns.md has it; of two of one name the second has a number."""
    alike = [table for table in (*TABLES, *_measured()) if table.name == its.name]
    return its.name.lower() + (f"-{place}" if (place := alike.index(its)) else "")


def _gist_of(its: type) -> str:
    return prose.first_line(its.__doc__ or "")


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
        "RULE.NAME=VALUE`, or under `[tool.commtrace.rules.RULE]` of `pyproject.toml`. A cost that "
        "reaches 95 % of a share of the steps' time is told: what it is worth is an estimate.",
        _grid(("rule", "what it says"), ((f"[{n}](rules/{n}.md)", _gist(n)) for n in RULES)),
        "```{toctree}\n:hidden:\n:glob:\n\nrules/*\n```",
    )


def _gist(rule: str) -> str:
    return prose.first_line(RULES[rule].__doc__ or "")


def _rule(name: str) -> str:
    return _page(
        f"# {name}",
        markdown.explain(explanation(name)),
        "The example is a tiny trace that has the fault. [All rules](../rules.md)",
    )


def _notebooks() -> str:
    return _page(
        "# Notebooks",
        "Each answers a question from recordings that lie in this repository. The tests run them.",
        *_each_notebook(),
    )


def _each_notebook() -> Iterator[str]:
    for path in sorted(_EXAMPLES.glob("*.ipynb")):
        first = json.loads(path.read_text("utf-8"))["cells"][0]
        title, _, about = "".join(first["source"]).partition("\n")
        yield f"## {title.removeprefix('# ')}"
        yield f"[{path.name}](../examples/{path.name})"
        yield about.strip()


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
