"""A command whose values do without pydantic, with which typer would convert texts to texts.

To import it takes longer than to import typer and numpy.
"""

from __future__ import annotations

from typing import Any

import typer.core

__all__ = ["LightCommand"]


class LightCommand(typer.core.TyperCommand):
    """Leaves texts, defaults, and what is not given, as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Convert what has to be converted."""
        for parameter in self.params:
            # Where typer finds its converter once it has one; older ones have no such thing.
            parameter._runtime_param = _Converter()  # type: ignore[attr-defined]
        return super().parse_args(ctx, args)


class _Converter:
    """What typer asks for a parameter's value."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind:
            return value
        if kind == list[str]:
            return list(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
