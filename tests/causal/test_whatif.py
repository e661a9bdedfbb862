"""Edits, asked for in words, on runs whose answer is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from commtrace.causal.edit_names import EDITS
from commtrace.causal.whatif import replayed_steps, whatif
from commtrace.diagnosis import CannotLook
from commtrace.errors import UsageError
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

Make = Callable[..., Measures]
MS = 1_000_000


def steady(rank: int, step: int) -> float:
    return 4_000


def late(rank: int, step: int) -> float:
    return 6_000 * (rank == 1)


@pytest.fixture(scope="module")
def slow(training: Make) -> Measures:
    """Rank 1 of three, on the second of two hosts, sleeps for 6 ms in each of six steps."""
    return training(steady, ranks=3, sleep_us=late, hosts=("a", "b"), cores=64)


def saved(run: Measures, *edits: str) -> list[int | None]:
    return [its.saved_ns for its in whatif(run, edits).edits]


def test_a_typical_rank_saves_what_it_was_late(slow: Measures) -> None:
    (its,) = whatif(slow, ["rank=1:typical"]).edits
    assert its.saved_ns == its.alone_ns == pytest.approx(36 * MS, rel=0.01)
    assert its.step_ns == pytest.approx(5.06 * MS, rel=0.01)
    assert its.refused is None


def test_so_does_its_host_and_even_saves_to_the_mean(slow: Measures) -> None:
    host = next(str(host) for host in slow.ranks.set_index("rank")["host"][[1]])
    others = int((slow.ranks["host"] == host).sum())
    assert others in (1, 2)
    assert saved(slow, f"host={host}:typical") == [pytest.approx(36 * MS, rel=0.01)]
    assert saved(slow, "even") == [pytest.approx(24 * MS, rel=0.01)]


def test_edits_on_top_start_from_what_those_before_left(slow: Measures) -> None:
    """What is typical after ``even`` is the mean, not what the slow rank did."""
    _, second = whatif(slow, ["even", "rank=0:typical"]).edits
    assert abs(second.saved_ns or 0) <= 10, "all are alike: roundings remain"
    assert second.alone_ns == pytest.approx(0, abs=MS // 10)
    assert saved(slow, "rank=1:typical", "rank=1:typical")[1] == 0
    assert whatif(slow, ["remove:all_reduce", "all_reduce:dtype=float16"]).edits[1].saved_ns == 0


def test_removing_what_all_wait_for_leaves_the_slowest_ranks_work(slow: Measures) -> None:
    (its,) = whatif(slow, ["remove:all_reduce"]).edits
    assert its.saved_ns == pytest.approx(6 * 1.05 * MS, rel=0.02)


def test_a_smaller_type_halves_what_is_bandwidth(training: Make) -> None:
    # 1, 2 and 4 MiB at 1 byte per ns.
    run = training(steady, transfer_us=lambda rank, step: (1 << (20 + step % 3)) / 1e3)
    assert saved(run, "all_reduce:dtype=bfloat16") == [pytest.approx(7 * (1 << 20), rel=0.02)]
    assert saved(run, "all_reduce:dtype=float64") == [0]


def test_a_message_at_another_bandwidth() -> None:
    run = Tiny(2, backend="gloo")
    for step in range(4):
        at = step * 10_000
        for rank, op in enumerate(("send", "recv")):
            run.op(rank, at, 1_000)
            run.collective(
                rank,
                op,
                at + 1_000,
                4_000,
                size=2_000_000,
                peer=1 - rank,
                thread=1,
                stream=50,
                asynchronous=0,
                launch_ns=BASE_NS + (at + 1_000) * 1_000,
            )
            run.gap(rank, at + 1_000, 4_000)
            run.op(rank, at + 5_000, 5_000)
            run.step(rank, step, at, 10_000)
    # 2 MB at 1 GB/s take 2 ms instead of 4.
    answer = saved(run.trace(), "link=1-0:1GB/s")
    assert answer == [pytest.approx(4 * 2 * MS, rel=0.01)]


def test_waits_do_not_move_where_the_cores_are_full(training: Make) -> None:
    for cores, refused in ((64, False), (2, True)):
        run = training(steady, ranks=4, cores=cores)
        (its,) = whatif(run, ["no-wait:all_reduce"]).edits
        assert (its.refused is not None) == refused
    assert "of the CPU cores that the ranks share" in (its.refused or "")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("remove:barrier", "the run has no barrier"),
        ("no-wait:send", "the run has no send"),
        ("link=0-1:5GB/s", "no message of known size between the ranks 0 and 1"),
    ],
)
def test_what_the_run_lacks_is_refused_and_the_rest_answered(
    slow: Measures, edit: str, reason: str
) -> None:
    answer = whatif(slow, [edit, "even"])
    assert answer.edits[0].refused == reason
    assert answer.edits[0].saved_ns is None
    assert answer.edits[1].saved_ns
    assert len(answer.lags_ns) == 2


@pytest.mark.parametrize(
    "edit",
    [
        *("", "evens", "rank=7:typical", "rank=1", "host=c:typical", "remove:everything"),
        *(
            "link=0-1:0GB/s",
            "link=0-1:-5GB/s",
            "even:1",
            "link=0-1:1.2.3GB/s",
            "all_reduce:dtype=quarter",
        ),
    ],
)
def test_what_is_no_edit_is_an_error_that_names_it(slow: Measures, edit: str) -> None:
    with pytest.raises(UsageError, match=edit or "''"):
        whatif(slow, [edit])


def test_one_rank_is_not_typical_of_itself(training: Make) -> None:
    (its,) = whatif(training(steady, ranks=1), ["rank=0:typical"]).edits
    assert its.refused == "no other ranks to compare with"


def test_a_run_that_no_graph_holds_is_not_replayed() -> None:
    run = Tiny(2)
    for rank in range(2):
        run.kernel(rank, 0, 10)
    with pytest.raises(CannotLook, match="needs"):
        whatif(run.trace(), ["even"])


def test_every_step_as_measured_and_after_each_edit(slow: Measures) -> None:
    table = replayed_steps(slow, ["rank=1:typical", "remove:barrier"])
    sums = Counter[str | None]()
    for row in table.dicts():
        sums[row["edit"]] += row["duration_ns"]
    answer = whatif(slow, ["rank=1:typical"])
    assert sums == {
        None: answer.run_ns,
        "rank=1:typical": answer.run_ns - answer.edits[0].saved_ns,
    }


def test_each_edit_is_documented_by_one_that_is_understood(slow: Measures) -> None:
    written = {
        "rank=R:typical": "rank=1:typical",
        "host=H:typical": "host=a:typical",
        "link=A-B:50GB/s": "link=0-1:50GB/s",
        "OP:dtype=bfloat16": "all_reduce:dtype=bfloat16",
        "no-wait:OP": "no-wait:all_reduce",
        "remove:OP": "remove:all_reduce",
    }
    whatif(slow, [written.get(edit, edit) for edit in EDITS])
