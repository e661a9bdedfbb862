"""Which workloads there are, and what can be set. Their source is read, not run."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commtrace.comms import canonical_dtype
from commtrace.errors import UsageError

__all__ = ["Setting", "Value", "Workload", "available", "find", "parse"]

Value = int | float | str
"""A setting's value, bool included; a dtype is torch's name for it."""


@dataclass(frozen=True)
class Setting:
    """Something that ``--set NAME=VALUE`` changes: its type as annotated, and its default."""

    name: str
    type: str
    default: Value

    def value(self, text: str) -> Value:
        """What a user's text means. Raises UsageError."""
        try:
            return _READ[self.type](text)
        except (KeyError, ValueError):
            raise UsageError(f"setting {self.name}: {text!r} is not of type {self.type}") from None


@dataclass(frozen=True)
class Workload:
    """One workload as its file describes it.

    ``question`` is the first paragraph of its docstring. ``answer`` is where the table of
    ranges answers it: a column, and the labels to read it off, the first of which the others
    are held against; empty where the findings do. ``world_size`` is None where the file does
    not say.
    """

    name: str
    path: Path
    question: str
    answer: tuple[str, ...]
    parameters: tuple[Setting, ...]
    world_size: int | None
    iterations: int
    warmup: int

    @property
    def settings(self) -> dict[str, str]:
        """Everything that can be set, with its default as ``--set`` takes it."""
        return {setting.name: str(setting.default) for setting in self._all}

    def values(self, chosen: Mapping[str, str]) -> dict[str, Value]:
        """Every setting's value, the defaults included. Raises UsageError."""
        known = {setting.name: setting for setting in self._all}
        for name in chosen:
            if name not in known:
                near = _near(name, known)
                raise UsageError(
                    f"{self.name} has no setting {name!r}{near}; it has {', '.join(known)}"
                )
        values = {name: setting.default for name, setting in known.items()}
        values |= {name: known[name].value(text) for name, text in chosen.items()}
        for name, least in (("iterations", 1), ("warmup", 0)):
            if int(values[name]) < least:
                raise UsageError(f"setting {name}: at least {least}, not {values[name]}")
        return values

    @property
    def _all(self) -> tuple[Setting, ...]:
        return (
            *self.parameters,
            Setting("iterations", "int", self.iterations),
            Setting("warmup", "int", self.warmup),
        )


def available() -> list[Workload]:
    """The workloads that come with commtrace, by name."""
    return [parse(path) for path in sorted(_folder().glob("*.py"))]


def find(name_or_path: str) -> Path:
    """The file of a shipped workload by its name, or anyone's by its path. Raises UsageError."""
    path = Path(name_or_path)
    if path.suffix == ".py" or len(path.parts) > 1:
        if not path.is_file():
            raise UsageError(f"{name_or_path}: no such file; a workload is a name or a Python file")
        return path.resolve()
    names = {path.stem: path for path in sorted(_folder().glob("*.py"))}
    if name_or_path not in names:
        raise UsageError(
            f"no workload {name_or_path!r}{_near(name_or_path, names)}; "
            "`commtrace workloads` lists them, and a path to a Python file works too"
        )
    return names[name_or_path]


def parse(path: Path) -> Workload:
    """Read a workload's file. Raises UsageError where it does not keep to the protocol."""
    try:
        module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as Python: {error}") from None
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for name in ("setup", "step", "check"):
        if name not in functions:
            raise UsageError(
                f"{path}: a workload defines setup, step and check; {name} is missing; "
                f"a program is recorded with commtrace record -- {path}"
            )
    constants = dict(_constants(module, path))
    return Workload(
        name=path.stem,
        path=path,
        question=" ".join((ast.get_docstring(module) or "").split("\n\n")[0].split()),
        answer=_answer(module, path),
        parameters=tuple(_parameters(functions["setup"], path)),
        world_size=constants.get("WORLD_SIZE"),
        iterations=constants.get("ITERATIONS", 5),
        warmup=constants.get("WARMUP", 2),
    )


def _folder() -> Path:
    package = Path(__file__).parent.parent
    shipped = package / "workloads"
    return shipped if shipped.is_dir() else package.parent / "workloads"


def _near(name: str, names: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _constants(module: ast.Module, path: Path) -> Iterator[tuple[str, int]]:
    for name, node in _assigned(module):
        if name in ("WORLD_SIZE", "ITERATIONS", "WARMUP"):
            value = _literal(node)
            if type(value) is not int:
                raise UsageError(f"{path}: {name} must be a literal integer")
            yield name, value


def _answer(module: ast.Module, path: Path) -> tuple[str, ...]:
    node = dict(_assigned(module)).get("ANSWER")
    parts = [_literal(part) for part in node.elts] if isinstance(node, ast.Tuple) else []
    texts = tuple(part for part in parts if isinstance(part, str))
    if node is not None and (len(texts) < 2 or len(texts) < len(parts)):
        raise UsageError(f"{path}: ANSWER must be a tuple of literals: a column, then labels")
    return texts


def _assigned(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Names of the module, and what they are set to."""
    for node in module.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            yield target.id, getattr(node, "value", None)


def _parameters(setup: ast.FunctionDef, path: Path) -> Iterator[Setting]:
    named = setup.args.args[1:]
    required = [None] * (len(named) - len(setup.args.defaults))
    defaults = [*required, *setup.args.defaults[-len(named) or len(named) :]]
    pairs = [*zip(named, defaults, strict=True)]
    pairs += zip(setup.args.kwonlyargs, setup.args.kw_defaults, strict=True)
    for argument, node in pairs:
        kind = ast.unparse(argument.annotation) if argument.annotation else "nothing"
        if kind not in _READ:
            raise UsageError(
                f"{path}: setting {argument.arg} is annotated {kind}; "
                f"it must be one of {', '.join(_READ)}"
            )
        default = _literal(node)
        if default is None:
            raise UsageError(f"{path}: setting {argument.arg} needs a literal as its default")
        yield Setting(argument.arg, kind, default)


def _literal(node: ast.AST | None) -> Value | None:
    if isinstance(node, ast.Attribute):  # torch.float32
        return canonical_dtype(node.attr)
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.expr) else None
    except ValueError:
        return None
    return value if isinstance(value, int | float | str) else None


def _bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words[text.lower()]


def _dtype(text: str) -> str:
    name = canonical_dtype(text)
    if name is None:
        raise ValueError
    return name


_READ: dict[str, Callable[[str], Value]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": _bool,
    "torch.dtype": _dtype,
}
