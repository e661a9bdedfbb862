"""The table of ``benchmarks.scale`` as a picture: what grows with ranks is a straight line."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

__all__ = ["drawn", "parsed"]

_CPU, _MEMORY = ", s CPU", "parent, MB"
_COLOURS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#DDCC77", "#CC6677")


def parsed(table: str) -> dict[str, list[float]]:
    """The columns of numbers of a printed table, by their names; other lines count for nothing."""
    lines = [line.strip() for line in table.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names, *rows = [row for row in cells if set("".join(row)) - set("-:")]
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {
        name: [float(value.replace(",", "")) for value in values]
        for name, values in columns
        if name in ("ranks", _MEMORY) or name.endswith(_CPU)
    }


def drawn(columns: dict[str, list[float]], file: Path) -> None:
    """Write it as a picture, of the kind that the file's name ends in."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (cpu, memory) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    ranks = columns["ranks"]
    stages = [name for name in columns if name.endswith(_CPU)]
    for name, colour in zip(stages, _COLOURS, strict=False):
        cpu.plot(ranks, columns[name], "o-", color=colour, label=name.removesuffix(_CPU))
    memory.plot(ranks, columns[_MEMORY], "o-", color=_COLOURS[0])
    cpu.legend(frameon=False, fontsize="small")
    for ax, label in ((cpu, "processor time [s]"), (memory, "memory of the parent [MB]")):
        ax.set_xlim(0)
        ax.set_ylim(0)
        ax.set_xlabel("ranks")
        ax.set_ylabel(label)
        ax.grid(color="#E5E5E5")
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
    plt.close(figure)
