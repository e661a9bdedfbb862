"""Commands whose values do without pydantic, with which typer would convert texts to texts.

To import it takes longer than to import typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.core

__all__ = ["LightCommand", "LightGroup", "TyperError"]

# The base of typer's usage errors, in whichever click it uses.
TyperError: Any = typer.BadParameter.__bases__[0]


class _Light:
    """Leaves texts, paths, defaults, and what is not given, as they are."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            # Where typer keeps a converter once it has made one; older ones have no such thing.
            parameter._runtime_param = _Converter()
        return parameters


class LightCommand(_Light, typer.core.TyperCommand):
    """One command."""


class LightGroup(_Light, typer.core.TyperGroup):
    """All of them, with the options before their names."""


class _Converter:
    """What typer asks for a parameter's value."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind:
            return value
        if kind in (list[str], Path):  # of any path: none has to exist
            return kind(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
