"""What lies in examples/ runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import commtrace
from commtrace.record import Plan, record_program

EXAMPLES = Path(__file__).parent.parent / "examples"


NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel, which takes longer to start than most of them to run."""
    from matplotlib import pyplot as plt

    monkeypatch.chdir(EXAMPLES)
    plt.switch_backend("agg")
    names: dict[str, object] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, notebook.name, "exec"), names)
    assert plt.get_fignums()
    plt.close("all")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_printed(notebook: Path) -> None:
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code" and "import commtrace" not in cell.source:
            assert cell.outputs or cell.source.startswith("def "), cell.source
        for output in cell.get("outputs", ()):
            assert output.get("name") != "stderr"
            assert "/home/" not in str(output.get("data", {}).get("text/html"))


def test_a_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    content = nbformat.read(EXAMPLES / "decomposed_all_reduce.ipynb", as_version=4)
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
