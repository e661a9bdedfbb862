"""What a user sets: kernels that commtrace does not know, and rules' thresholds.

In the ``pyproject.toml`` of the current folder, or in the file that the environment
variable ``COMMTRACE_CONFIG`` names::

    [tool.commtrace.communication]
    kernels = { "my_fast_allreduce" = "all_reduce", "my_put_kernel" = "" }

    [tool.commtrace.rules.straggler]
    min_step_share = 0.1

A kernel communicates if its name holds what the regular expression on the left finds; on
the right is the operation that it runs, empty where it is none of the known ones. Kernels
are read once per process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from commtrace.comms import OPERATIONS
from commtrace.errors import UsageError

__all__ = ["Patterns", "kernel_patterns", "rule_thresholds"]

Patterns = tuple[tuple[re.Pattern[str], str | None], ...]

_FILE = "COMMTRACE_CONFIG"
_KERNELS = ("tool", "commtrace", "communication", "kernels")
_RULES = ("tool", "commtrace", "rules")
_KEY = ".".join(_KERNELS)


@lru_cache(maxsize=1)
def kernel_patterns() -> Patterns:
    """The user's patterns with their operations, in their order.

    Raises UsageError, which names the file and the key, where they cannot be used.
    """
    file, kernels = _table(_KERNELS, '"regular expression" = "operation"')
    return tuple(_pattern(file, *item) for item in kernels.items())


def rule_thresholds() -> tuple[Path, dict[str, dict[str, Any]]]:
    """The file, and the user's thresholds in it, as {rule: {field: value}}.

    Raises UsageError, which names the file and the key, if it holds no tables; which rules
    and fields there are it does not know.
    """
    file, rules = _table(_RULES, "rules")
    for name, values in rules.items():
        if not isinstance(values, Mapping):
            raise UsageError(f"{file}: {'.'.join(_RULES)}.{name} must be a table of thresholds")
    return file, {name: dict(values) for name, values in rules.items()}


def _table(keys: tuple[str, ...], of: str) -> tuple[Path, Mapping[str, Any]]:
    """The file, and the table of those keys in it; empty where there is none."""
    named = os.environ.get(_FILE)
    file = Path(named) if named else Path("pyproject.toml")
    try:
        text = file.read_bytes()
    except OSError as error:
        if not named:
            return file, {}
        problem = f"cannot be read: {error.strerror}; {_FILE} names it"
        raise UsageError(f"{file}: {problem}") from None
    # Most projects' file is not about us, and parsing it would cost every start.
    settings: Any = _parsed(file, text) if b"commtrace" in text else {}
    for key in keys:
        settings = settings.get(key, {}) if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping):
        raise UsageError(f"{file}: {'.'.join(keys)} must be a table of {of}")
    return file, settings


def _parsed(file: Path, text: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        settings: dict[str, Any] = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: is not TOML: {error}") from None
    return settings


def _pattern(file: Path, expression: str, operation: Any) -> tuple[re.Pattern[str], str | None]:
    if operation not in ("", *OPERATIONS):
        known = ", ".join(OPERATIONS)
        raise UsageError(
            f'{file}: {_KEY}: "{expression}" = {operation!r} is no operation: '
            f'give one of {known}, or "" for another'
        )
    try:
        return re.compile(expression), operation or None
    except re.error as error:
        raise UsageError(
            f'{file}: {_KEY}: "{expression}" is no regular expression: {error}'
        ) from None
