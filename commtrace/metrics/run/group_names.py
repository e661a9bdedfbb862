"""How programs name the process groups of a mesh's dimensions."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["named_dimension", "spoken_names"]

_UNNAMED = re.compile(r"(?:undefined|default_pg|mesh_default|mesh(?:_dim_\d+)+|\d*)(?::.*)?")
_MESH = re.compile(r"mesh_([^:]+)")  # torch's DeviceMesh
_WORD = re.compile(r"[a-z]+")
_DIMENSIONS = {
    "dp": "dp",
    "data": "dp",
    "fsdp": "dp",
    "tp": "tp",
    "tensor": "tp",
    "pp": "pp",
    "pipeline": "pp",
    "ep": "ep",
    "expert": "ep",
    "cp": "cp",
    "context": "cp",
}
_OTHERS = {"and", "model", "parallel", "embedding", "hybrid", "non", "optimizer", "world"}
"""Words of groups that are no single dimension, as Megatron's MODEL_PARALLEL_GROUP."""


@lru_cache(maxsize=4096)
def named_dimension(description: str) -> str | None:
    """The dimension that a group's description, or its name, gives it.

    The names of a DeviceMesh are kept verbatim. None where it is of no dimension, the
    empty name where it is of something else.

    >>> named_dimension("mesh_dp_replicate"), named_dimension("tp:0")
    ('dp_replicate', 'tp')
    >>> named_dimension("EXPERT_DATA_PARALLEL_GROUP"), named_dimension("MODEL_PARALLEL_GROUP")
    ('dp', '')
    >>> named_dimension("default_pg"), named_dimension("37")
    (None, None)
    """
    if _UNNAMED.fullmatch(description):
        return None
    if mesh := _MESH.fullmatch(description):
        return mesh[1]
    # Context parallel ranks reduce the same gradients: Megatron's data parallel groups hold them.
    words = set(_WORD.findall(description.lower().replace("_with_cp", "")))
    found = {_DIMENSIONS[word] for word in words & _DIMENSIONS.keys()}
    if len(found) > 1:
        found -= {"ep"}  # the data or tensor parallel ranks of the experts
    if len(found) == 1 and not words & (_OTHERS - {"model", "parallel"}):
        return found.pop()
    return "" if found or words & _OTHERS else None


def spoken_names(groups: Rows) -> dict[str, str]:
    """The description that stands for the name of each of ``groups`` that is a mere number.

    Where all ranks give a group of that name the same, and no other group has it.
    """
    found: dict[str, set[str | None]] = {}
    names, descriptions = (groups.coded(column).decoded() for column in ("group", "description"))
    for name, description in zip(names, descriptions, strict=True):
        if name is not None and name.isdigit():
            found.setdefault(name, set()).add(description)
    often = Counter(description for its in found.values() for description in its)
    return {
        name: description
        for name, (description, *others) in found.items()
        if description and not others and often[description] == 1
        if not _UNNAMED.fullmatch(description)
    }
