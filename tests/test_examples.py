"""What lies in examples/ runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import commtrace
from commtrace.record import Plan, record_program

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    content = nbformat.read(notebook, as_version=4)
    client = NotebookClient(content, resources={"metadata": {"path": str(EXAMPLES)}}, timeout=120)
    client.execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_a_transformer_is_recorded_unchanged(tmp_path: Path) -> None:
    command = [str(EXAMPLES / "transformer.py"), "fsdp2", "--steps", "5"]
    folder = record_program(command, plan=Plan(first=3, steps=2), world_size=2, out=tmp_path / "a")
    run = commtrace.load(folder)
    assert {"all_gather", "reduce_scatter"} <= set(run.collectives["op"])
    assert sorted(run.steps.loc[run.steps["label"].isna(), "step"].unique()) == [3, 4]
    assert run.manifest is not None
    assert run.manifest["status"] == "complete"
