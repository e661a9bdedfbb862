"""What recordings repeat of arguments, variables and errors, and what they hide."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from commtrace.record import conceal, harmless
from commtrace.record.job import Plan, Program
from commtrace.record.report import one_line

DOCS = Path(__file__).parents[2] / "docs" / "recording.md"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--auth X", "--auth ***"),
        ("-p X", "-p ***"),
        ("-pX", "-p***"),
        ("-p=X", "-p=***"),
        ("-secret=X", "-s***"),
        ("--pat=X --pass X", "--pat=*** --pass ***"),
        ("--header 'Authorization: Bearer X'", "--header ***"),
        ("--header Authorization: Bearer X", "--header *** *** ***"),
        ("hf_abc ghp_abc sk-abc https://user:pw@host", "*** *** *** ***"),
        ("--pin 1234 --port 80", "--pin *** --port ***"),
        ("--offset -5", "--offset ***"),
        ("key=X KEY=X QWxhZGRpbg== a=b", "*** *** *** ***"),
        ("--fast --fast extra", "--fast --fast ***"),
        ("-- train --x", "-- *** --x"),
        ("--hf_abc --sk-abc=1", "*** ***"),
        ("'--with space=X' -- '' =", "*** -- *** ***"),
    ],
)
def test_arguments_that_are_not_known_to_be_harmless_are_hidden(given: str, kept: str) -> None:
    assert conceal.arguments(shlex.split(given)) == kept.split()


@pytest.mark.parametrize(
    "given",
    [
        "--lr 1e-4 --learning-rate=3 --learning_rate .1 --lr=-0.5 -lr 0.1",
        "--bs 8 -b 8 -bs 8 --batch-size 8 --batch_size=8 --per-device-train-batch-size 8",
        "--epochs 3 --num_train_epochs 3 --max-steps 10 -e 1 --warmup-steps 2 --seed -1",
        "--gradient_accumulation_steps 4 --num-workers 2 -j 4 --weight-decay 0.01",
        "--hidden-size 64 --num_layers 2 --n-heads 4 --d_model 8 --seq-len 512 --vocab-size 99",
        "--dtype bf16 --precision float32 --dtype=torch.bfloat16 --mixed-precision fp16 --amp true",
        "--backend gloo --strategy fsdp2 --optimizer AdamW --tp 2 --pipeline-parallel-size 2",
        "lr=1e-3 trainer.max_epochs=2 +model.hidden_size=8 ++train.dtype=bf16 --model.num_layers=2",
    ],
)
def test_harmless_options_keep_their_values(given: str) -> None:
    assert conceal.arguments(given.split()) == given.split()


@pytest.mark.parametrize("odd", ["hf_abc", "8x", "4111111111111111", "8 ", "0x1f", "/data", ""])
def test_an_odd_value_of_a_harmless_option_is_hidden(odd: str) -> None:
    assert conceal.arguments(["--batch-size", odd]) == ["--batch-size", "***"]
    assert conceal.arguments([f"--lr={odd}", f"lr={odd}"]) == ["--lr=***", "lr=***"]


def test_only_what_follows_an_option_is_its_value() -> None:
    assert conceal.arguments(["--lr", "1", "2"]) == ["--lr", "1", "***"]
    assert conceal.arguments(["--lr", "x", "2"]) == ["--lr", "***", "***"]
    assert conceal.arguments(["--bf16", "--lr", "--", "2"]) == ["--bf16", "--lr", "--", "***"]


def test_variables_keep_harmless_values_and_else_their_names() -> None:
    kept = {
        "NCCL_ALGO": "allreduce:ring,tree;allgather:ring",
        "NCCL_IB_HCA": "^=mlx5_0:1,mlx5_1:1",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX",
    }
    hidden = {
        "TORCH_HUB_AUTH": "ghp_abc",
        "TORCH_LOGS": "+dynamo",
        "NCCL_DEBUG_FILE": "/home/me/log",
        "NCCL_ANYTHING": "1",
        "GLOO_STORE": "https://user:pw@host",
        "NCCL_PROTO": "hf_abc",
        "NCCL_NET": "user:pw@host",
    }
    other = {"HOME": "/home/me", "HF_TOKEN": "hf_abc", "MY_NCCL_X": "1", "TORCHELASTIC_RUN_ID": "x"}
    told = conceal.environment({**kept, **hidden, **other})
    assert told == {**kept, **dict.fromkeys(hidden, "***")}


def test_a_program_is_known_by_its_file_name() -> None:
    program = Program("/home/me/client/train.py", False, ["--auth", "X"], Plan(), "out", 1.0)
    assert program.described() == {"script": "train.py", "arguments": ["--auth", "***"]}


def test_errors_do_not_repeat_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    given = [
        *("--auth", "hunter2", "--header", "Authorization: Bearer abc123", "-pshort"),
        *("--lr", "1000", "https://me:word@host/data", "me"),
    ]
    error = ValueError(
        "no hunter2, 'hunter2' or x=abc123 short, lr 1000, word@host some from-the-environment, "
        "http://you:your@host, Bearer 8c1, hf_abcdefghijklmnopqr"
    )
    assert one_line(error, given) == (
        "ValueError: no ***, '***' or x=*** ***, lr 1000, ***@*** some ***, "
        "http://***@***, *** ***, ***"
    )


def test_an_error_is_not_cut_within_a_secret() -> None:
    secret = "s3cret" * 10
    told = one_line(ValueError("x" * 480 + " " + secret), ["--auth", secret])
    assert "s3cret" not in told


@pytest.mark.parametrize(("steps", "said"), [(1, "1 step from"), (2, "2 steps from")])
def test_a_plan_counts_its_steps(steps: int, said: str) -> None:
    assert str(Plan(steps=steps)) == f"{said} step 5 on"


def test_everything_that_keeps_its_value_is_documented() -> None:
    words = set(DOCS.read_text("utf-8").replace("`", " ").replace(",", " ").split())
    for known in (harmless.NAMES, harmless.VALUES, harmless.VARIABLES):
        assert sorted(known - words) == []
