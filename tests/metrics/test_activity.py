"""Parts of a stream's or a device's work put together; times by hand."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.intervals import union
from commtrace.measures import Measures
from commtrace.metrics.rank.activity import Activity, Stream, Times, _together, stream_activity
from commtrace.metrics.rank.devices import devices
from commtrace.synthetic import Tiny


def test_two_tables_of_one_kind_on_a_stream(make_trace: Callable[..., Measures]) -> None:
    """A kernel that communicates, and an operation of a copy engine."""
    where = {"stream": 20, "duration_ns": 3}
    run = make_trace(
        kernels=[{**where, "kind": "communication", "start_ns": start} for start in (5, 7)],
        collectives=[{**where, "name": "Memcpy PtoP (Device -> Device)", "start_ns": 0}],
    )
    its = stream_activity(run)[Stream(0, "cuda:0", 20)]
    assert (its.events, its.start_ns, its.end_ns) == ({"communication": 3}, 0, 10)
    assert [side.tolist() for side in its.communication] == [[0, 5], [3, 10]]


def test_a_device_of_which_one_stream_tells_no_compute_tells_none() -> None:
    unknown = Activity({"compute": 1}, 5, 9, {})
    told = Activity({"compute": 2}, 0, 3, {"compute": Times.of(*union([0], [3]))})
    for streams in ([unknown, told], [told, unknown]):
        device = _together(streams)
        assert device.compute is None
        assert (device.start_ns, device.end_ns, device.events["compute"]) == (0, 9, 3)


def test_an_operator_that_waits_for_communication_within_does_not_compute_then() -> None:
    """As a torch.autograd.Function that gathers: 10 ms, of which 6 ms are the wait within."""
    run = Tiny(2, backend="gloo")
    for rank in range(2):
        run.step(rank, 0, 0, 12_000)
        run.op(rank, 0, 10_000)
        run.collective(rank, "all_gather", 2_000, 6_000, size=1 << 20, thread=1, stream=50)
        run.gap(rank, 2_000, 6_000)
    for by_step in (False, True):
        table = devices(run.trace(), by_step=by_step)
        assert table.ints("compute_ns").tolist() == [4_000_000] * 2
        assert table.ints("exposed_communication_ns").tolist() == [6_000_000] * 2
