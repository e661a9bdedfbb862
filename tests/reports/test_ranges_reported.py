"""The labels of a program stand side by side, and answer what its workload asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import commtrace as ct
from commtrace.analysis import Analysis, Question
from commtrace.measures import Measures
from commtrace.reports import Look
from commtrace.reports.formats import json as json_report
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.run import Run

Make = Callable[..., Measures]

MEDIANS = {
    "all_gather/gloo-4": "list 7.92 ms, tensor 6.92 ms (0.87x)",
    "all_reduce/gloo-4": "SUM 19.9 ms, PRODUCT 19.6 ms (0.99x), MIN 25.7 ms (1.29x), MAX",
    "all_to_all/gloo-4": "tensor 17.4 ms, uneven 14.2 ms (0.81x)",
    "barrier/gloo-4": "default_group 10.1 ms, subgroup 6.18 ms (0.61x)",
    "broadcast/gloo-4": "default_group 3.89 ms, subgroup 3.40 ms (0.87x)",
    "broadcast_precision/gloo-4": "float32 4.73 ms, float16 3.60 ms (0.76x), bfloat16 3.35 ms",
    "cold_start/gloo-4": "second_all_reduce 10.4 ms, first_all_reduce 5.38 ms (0.52x), new_group",
    "decomposed_all_reduce/gloo-4": "all_reduce 10.6 ms, reduce + broadcast 11.8 ms (1.11x), red",
    "decomposed_all_reduce/gloo-4-full-output": "all_reduce 15.7 ms, reduce + broadcast 12.7 ms",
    "host_device_copies/puzzles-reconstructed": "blocking, pageable 183 ms, non-blocking, pinned",
    "gather/gloo-4": "default_group 7.04 ms, subgroup 3.36 ms (0.48x)",
    "isend_irecv/gloo-4": "separate 4.92 ms, batched 6.20 ms (1.26x)",
    "reduce/gloo-4": "default_group 12.8 ms, subgroup 6.03 ms (0.47x)",
    "reduce_scatter/gloo-4": "list 18.8 ms, tensor 12.9 ms (0.69x), subgroup 4.79 ms (0.25x)",
    "scatter/gloo-4": "default_group 1.41 ms, subgroup 1.55 ms (1.10x)",
    "send_recv/gloo-4": "ping 2.26 ms, pong 3.94 ms (1.74x)",
    "all_gather/nccl-4": "list 563 µs, tensor 304 µs (0.54x)",
    "all_reduce/nccl-4": "SUM 483 µs, PRODUCT 317 µs (0.66x), MIN 318 µs (0.66x), MAX 316 µs",
    "all_to_all/nccl-4": "tensor 208 µs, uneven 486 µs (2.33x)",
    "barrier/nccl-4": "default_group 6.51 ms, subgroup 3.48 ms (0.53x)",
    "broadcast/nccl-4": "default_group 232 µs, subgroup 159 µs (0.69x)",
    "broadcast_precision/nccl-4": "float32 16.1 ms, float16 8.07 ms (0.50x), bfloat16 8.08 ms",
    "cold_start/nccl-4": "second_all_reduce 307 µs, first_all_reduce 124 ms (403x), new_group",
    "decomposed_all_reduce/nccl-4": "all_reduce 324 µs, reduce + broadcast 384 µs (1.18x), redu",
    "decomposed_all_reduce/nccl-4-full-output": "all_reduce 322 µs, reduce + broadcast 378 µs",
    "gather/nccl-4": "default_group 285 µs, subgroup 186 µs (0.65x)",
    "host_device_copies/nccl-1": "pageable, blocking 4.47 ms, pinned, blocking 858 µs (0.19x)",
    "isend_irecv/nccl-4": "separate 414 µs, batched 337 µs (0.81x)",
    "reduce/nccl-4": "default_group 279 µs, subgroup 219 µs (0.78x)",
    "reduce_scatter/nccl-4": "list 681 µs, tensor 387 µs (0.57x), subgroup 244 µs (0.36x)",
    "scatter/nccl-4": "default_group 338 µs, subgroup 206 µs (0.61x)",
    "send_recv/nccl-4": "ping 298 µs, pong 209 µs (0.70x)",
}
ANSWERS = {
    **{folder: f"Median time: {answer}" for folder, answer in MEDIANS.items()},
    "ddp_training/gloo-4": "Bytes communicated: sync_always 4.19 MB, no_sync 1.05 MB (0.25x).",
    "overlap/gloo-4": "Overlapped communication: synchronous 0, overlapped 7.97 ms, waited_too_e",
    "p2p_copies/hypercube-reconstructed": "cuda:0 → cuda:2 copies at 7.5 GB/s even alone",
    "pipeline/gloo-4": "4 pipeline stages wait 52 % of the time for their neighbours",
    "straggler/gloo-4": "rank 1 delays every step by 5.83 ms",
    "ddp_training/nccl-4": "Bytes communicated: sync_always 33.6 MB, no_sync 8.39 MB (0.25x).",
    "overlap/nccl-4": "Overlapped communication: synchronous 0, overlapped 315 µs, waited_too_ea",
    "pipeline/nccl-4": "4 pipeline stages wait 43 % of the time for their neighbours",
    "straggler/nccl-4": "rank 1 delays every step by 9.24 ms",
}
RULES = {
    "p2p_copies/hypercube-reconstructed": "uneven-p2p-bandwidth",
    "pipeline/gloo-4": "pipeline-bubble",
    "straggler/gloo-4": "straggler",
    "pipeline/nccl-4": "pipeline-bubble",
    "straggler/nccl-4": "straggler",
}


def test_every_shipped_recording_is_asked(recorded: Path) -> None:
    folders = {
        file.parent.relative_to(recorded)
        for file in recorded.rglob("manifest.json")
        if "workload" in json.loads(file.read_text("utf-8"))
    }
    assert ANSWERS.keys() == {folder.as_posix() for folder in folders}


@pytest.mark.parametrize("folder", ANSWERS)
def test_the_first_three_lines_answer_the_workloads_question(
    measured: Callable[[Path], Run], recorded: Path, folder: str
) -> None:
    analysis = measured(recorded / folder).analysis(select=[RULES.get(folder, "desync")])
    assert analysis.question is not None
    first = " ".join(terminal.render(analysis, Look(width=100)).splitlines()[:3])
    assert f"{analysis.question.text} {ANSWERS[folder]}" in first


def analysed(make_trace: Make, labels: list[tuple[str, int, int]], **more: Any) -> Analysis:
    steps = [
        {"label": name, "start_ns": start, "duration_ns": end - start}
        for name, start, end in labels
    ]
    run = make_trace(steps=steps, ranks=[{"file": "rank0.json"}], **more)
    return Run(run, "run").analysis(select=["desync"])


def table(shown: str) -> list[str]:
    lines = shown[shown.index("\nLabelled ranges") :].split("\n\n")[0].splitlines()
    footers = ("x best:", "On a GPU")
    return lines[4 : next(i for i, line in enumerate(lines) if line.startswith(footers))]


def test_nested_labels_are_indented_and_pytorchs_own_left_to_the_json(make_trace: Make) -> None:
    labels = [
        ("gathered", 0, 60_000),
        ("DistributedDataParallel.forward", 0, 50_000),
        ("layer", 1_000, 31_000),
        ("reduced", 60_000, 90_000),
    ]
    analysis = analysed(make_trace, labels)
    lines = table(terminal.render(analysis, Look(width=80)))
    assert [line[:10].rstrip() for line in lines] == ["gathered", "  layer", "reduced"]
    assert [line.split()[4] for line in lines] == ["60.0", "30.0", "30.0"]
    assert " 2.00x " in lines[0]
    assert "| gathered | 1 | 60.0 µs | 60.0 µs | 2.00x |" in markdown.render(analysis)
    document = json.loads(json_report.render(analysis))
    assert len(document["ranges"]) == 4


def test_phases_of_training_are_not_compared(make_trace: Make) -> None:
    labels = [("## forward ##", 0, 60_000), ("## backward ##", 60_000, 90_000), ("x", 0, 9_000)]
    analysis = analysed(make_trace, labels)
    shown = terminal.render(analysis, Look(width=100))
    assert "best" not in shown[shown.index("\nLabelled ranges") :]
    document = json.loads(json_report.render(analysis))
    assert {row["ratio_to_fastest"] for row in document["ranges"]} == {None}


def test_only_pytorchs_labels_are_no_table(make_trace: Make) -> None:
    analysis = analysed(make_trace, [("DistributedDataParallel.forward", 0, 50_000)])
    assert "Labelled ranges" not in terminal.render(analysis)


def test_of_many_labels_the_longest_are_shown(make_trace: Make) -> None:
    labels = [(f"part {i}", 1_000 * i, 1_000 * i + 10 + i) for i in range(20)]
    shown = terminal.render(analysed(make_trace, labels), Look(width=100))
    assert "part 19" in shown
    assert "part 7 " not in shown
    assert "8 more are not shown." in shown


def test_names_are_cut_before_numbers(recorded: Path) -> None:
    run = ct.load(recorded / "decomposed_all_reduce/gloo-4", workers=1)
    lines = table(terminal.render(run.analysis(select=["desync"]), Look(width=80)))
    assert [line.split()[-1] for line in lines] == ["0.549", "–", "0.337"]


@pytest.mark.parametrize("name", ["\x1b[2J", "a|b\n# c", "<script>", "x" * 5_000, "[red]a[/]"])
def test_labels_are_no_markup(make_trace: Make, name: str) -> None:
    analysis = analysed(make_trace, [(name, 0, 50)])
    asked = Question(name, "duration_ns_p50", (name,))
    analysis = replace(analysis, question=asked)
    shown = terminal.render(analysis, Look(width=80))
    assert all(c.isprintable() for c in shown.replace("\n", ""))
    assert max(map(len, shown.splitlines())) <= 80
    assert "<script>" not in markdown.render(analysis)


@pytest.mark.parametrize("column", ["", "label", "no such column"])
def test_an_answer_that_the_table_lacks_is_left_to_the_findings(
    make_trace: Make, column: str
) -> None:
    analysis = analysed(make_trace, [("a", 0, 50)])
    asked = Question("Which is faster?", column, ("a", "b"))
    shown = terminal.render(replace(analysis, question=asked))
    assert "Which is faster?" not in shown
