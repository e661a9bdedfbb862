"""The same on any Executor, be its processes on this machine or on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from typing import Any

from commtrace.engine.attempt import Lost, attempt, place
from commtrace.engine.pool import in_pool

__all__ = ["on_executor"]


def on_executor(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    executor: Executor,
    meanwhile: Callable[[], object],
) -> Iterator[tuple[Any, Any]]:
    """As ``each`` does it on an Executor; whatever that loses is asked for once more."""
    futures = {executor.submit(attempt, function, item): item for item in items}
    again = []
    meanwhile()
    try:
        for future in as_completed(list(futures)):
            item = futures.pop(future)
            if _error(future) is None:
                yield item, future.result()
            else:
                again.append(item)
    finally:
        for future in futures:
            future.cancel()
    for item in again:
        yield item, _once_more(function, item, executor)


def _once_more(function: Callable[[Any], Any], item: Any, executor: Executor) -> Any:
    try:
        future = executor.submit(attempt, function, item)
        error = _error(future)
    except BrokenExecutor as broken:
        error = broken
    if isinstance(error, BrokenExecutor):  # for good, and nobody knows which item it died of
        ((_, result),) = in_pool(function, [item], 1)
        return result
    return Lost(fault=place(error)) if error else future.result()


def _error(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as cancelled:
        return cancelled
