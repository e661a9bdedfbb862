"""A Dask cluster as an Executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commtrace.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["on_dask"]

_PATIENCE_S = 10


@contextmanager
def on_dask(address: str | None) -> Iterator[Executor | None]:
    """The workers of the scheduler at an address, or None without one.

    Raises UsageError without Dask, and where nothing answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            f"--scheduler {address}: Dask is not installed: pip install 'commtrace[dask]'"
        ) from None
    try:
        client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--scheduler {address}: no scheduler answers there: {error}") from None
    with client:
        yield client.get_executor()
