"""A recording of a program full of secrets: none is in its folder, which is its user's alone."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from commtrace.record import folder

torch = pytest.importorskip("torch")
from commtrace.record import profile  # noqa: E402 - it imports torch

DOCS = Path(__file__).parents[2] / "docs" / "recording.md"
ARGUMENTS = [
    *("--auth", "hf_in-auth", "-p", "in-short", "-pin-attached", "--pass=in-pass"),
    *("--header", "Authorization: Bearer in-header", "ghp_in-position", "--pin", "271828"),
    *("https://in-user:in-password@host/x", "key=in-assignment", "--batch-size", "hf_in-odd"),
]
VARIABLES = {
    "TORCH_HUB_AUTH": "ghp_in-torch",
    "NCCL_STORE": "https://in-nccl:x@host",
    "GLOO_ANYTHING": "in-gloo",
    "NCCL_PROTO": "sk-in-known",
    "WANDB_API_KEY": "in-wandb",
}
SECRETS = (
    *("in-auth", "in-short", "in-attached", "in-pass", "in-header", "in-position", "271828"),
    *("in-user", "in-password", "in-assignment", "in-odd"),
    *("in-torch", "in-nccl", "in-gloo", "in-known", "in-wandb"),
)
FAILS = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    weight.grad = torch.ones(64)
    dist.all_reduce(weight.grad)
    optimizer.step()
sys.stdout = sys.stderr = open(os.devnull, "w")  # what it prints is its own
raise ValueError(f"refused: {sys.argv[1:]} with {os.environ['WANDB_API_KEY']}")
"""


@pytest.fixture(params=[0o000, 0o077], ids=["loose", "strict"])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """The permissions of everything in a folder, and its own."""
    found = [path, *path.rglob("*")]
    return {one.name: oct(one.stat().st_mode & 0o777) for one in found}


@pytest.mark.slow
def test_no_secret_is_in_a_recording_and_only_its_user_reads_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    out = tmp_path / "secret-place" / "out"
    words = ["record", "-n", "2", "-o", str(out), "--", str(script), *ARGUMENTS, "--lr", "0.1"]
    before = os.umask(0)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "commtrace", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **VARIABLES},
        )
    finally:
        os.umask(before)
    assert ran.returncode == 2
    files = {"manifest.json", "rank0.json.gz", "rank1.json.gz"}
    assert files <= {file.name for file in out.iterdir()}
    content = {file.name: file.read_bytes() for file in out.iterdir()}
    for name in files:
        plain = content[name] if name == "manifest.json" else gzip.decompress(content[name])
        text = plain.decode()
        assert "refused: " in text
        assert '"0.1"' in text
        assert "train.py" in text
        assert [secret for secret in SECRETS if secret in text] == []
        assert "secret-place" not in text
        told = json.loads(text)
        for field in told if name == "manifest.json" else told["commtrace"]:
            assert f"`{field}`" in DOCS.read_text("utf-8")
    said = ran.stderr + "".join(log.read_text() for log in out.glob("*.log"))
    assert [secret for secret in SECRETS if secret in said] == []
    assert modes(out) == {"out": "0o700", **dict.fromkeys(content, "0o600")}


@pytest.mark.usefixtures("_umask")
def test_what_a_program_records_itself_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import commtrace

    there = tmp_path / "there"
    there.mkdir(0o755)
    there.chmod(0o755)
    for target in (there, tmp_path / "a" / "new"):
        with commtrace.recording(target):
            torch.ones(2)
        for gz in (False, True):
            handler = commtrace.trace_handler(target, use_gzip=gz)
            with torch.profiler.profile(on_trace_ready=handler):
                torch.ones(2)
    (mine, *files) = modes(there).values()
    assert (mine, set(files), len(files)) == ("0o755", {"0o600"}, 3)
    (parent, mine, *files) = modes(tmp_path / "a").values()
    assert (parent, mine, set(files), len(files)) == ("0o700", "0o700", {"0o600"}, 3)
    monkeypatch.setattr(sys, "argv", ["train.py", "--auth", "secret-word"])
    with pytest.raises(ValueError, match="secret-word"), commtrace.recording(tmp_path / "b"):
        raise ValueError("not secret-word")
    (file,) = (tmp_path / "b").iterdir()
    text = gzip.decompress(file.read_bytes()).decode()
    assert '"partial": "ValueError: not ***"' in text
    assert str(tmp_path) not in text
    assert '"traceName": "rank0.json.gz.raw"' in text


class Writes:
    """Stands in for a profiler, whose file everyone may read."""

    def __init__(self, events: int) -> None:
        self.events: list[object] = [{"name": "event", "number": n} for n in range(events)]
        self.mode = 0

    def export_chrome_trace(self, path: str) -> None:
        self.mode = Path(path).parent.stat().st_mode & 0o777
        events = json.dumps(self.events)
        Path(path).write_text(f'{{"traceEvents": {events},"traceName": "{path}" }}')


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("events", [0, 300, 40_000])
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_a_trace_is_whole_and_nobody_else_reads_it_while_it_is_written(
    tmp_path: Path, events: int, name: str
) -> None:
    there, profiler = tmp_path / "a place", Writes(events)
    there.mkdir()
    there.chmod(0o777)
    profile.export(cast("torch.profiler.profile", profiler), there / name, {"rank": 0})
    assert profiler.mode == 0o700
    assert modes(there) == {"a place": "0o777", name: "0o600"}
    data = (there / name).read_bytes()
    assert json.loads(gzip.decompress(data) if name.endswith("gz") else data) == {
        "commtrace": {"partial": None, "rank": 0},
        "traceEvents": profiler.events,
        "traceName": f"{name}.raw",
    }


@pytest.mark.usefixtures("_umask")
def test_the_folder_of_a_recording_is_its_users_alone(tmp_path: Path) -> None:
    named = folder.new_folder(tmp_path / "a" / "b", Path()).path
    default = [folder.new_folder(None, tmp_path / "c" / "d").path for _ in range(2)]
    assert [path.name for path in default] == ["d", "d-2"]
    for path in (named, named.parent, *default, default[0].parent):
        assert path.stat().st_mode & 0o777 == 0o700
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o750)
    assert folder.new_folder(there, Path()).path.stat().st_mode & 0o777 == 0o750
    with folder.create(named / "file") as file:
        file.write(b"mine")
    assert modes(named)["file"] == "0o600"
