"""The table of ``benchmarks.scale`` as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale.__main__ import main
from benchmarks.scale.plot import parsed

TABLE = """Measured on two cores:

| ranks | rows | read, s CPU | rules, s CPU | costliest rules, s | parent, MB | named |
|--|--|--|--|--|--|--|
| 64 | 6,400 | 1.5 | 3.0 | jitter 1.0, slow-link 0.5 | 128 | none |
| 1,024 | 102,400 | 24.0 | 48.0 | jitter 16.0 | 2,048 | straggler |

Noisy.
"""


def test_the_columns_of_numbers_of_a_printed_table() -> None:
    assert parsed(TABLE) == {
        "ranks": [64, 1024],
        "read, s CPU": [1.5, 24],
        "rules, s CPU": [3, 48],
        "parent, MB": [128, 2048],
    }


@pytest.mark.parametrize(("suffix", "begins"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_printed_table_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, begins: bytes
) -> None:
    (tmp_path / "table.md").write_text(TABLE)
    file = tmp_path / f"scale{suffix}"
    table = ["--table", str(tmp_path / "table.md")]
    monkeypatch.setattr("sys.argv", ["scale", *table, "--plot", str(file)])
    main()
    assert file.read_bytes().startswith(begins)
    if suffix == ".svg":
        assert "processor time [s]" in file.read_text()


def test_a_table_needs_the_name_of_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scale", "--table", "table.md"])
    with pytest.raises(SystemExit):
        main()
    assert "--plot FILE.svg" in capsys.readouterr().err
