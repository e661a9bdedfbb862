"""What one event of a trace says about the operation behind it.

Three spellings of the same facts: the arguments of an NCCL kernel or of
``record_param_comms``, an annotation ``nccl:*`` or ``gloo:*``, an operator: ``c10d``'s, or
one of the libraries beside it.
"""

from __future__ import annotations

import re
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from commtrace import comms
from commtrace.reader.json.events import Arguments

__all__ = [
    "Described",
    "annotation",
    "argument_sizes",
    "completed",
    "facts_of",
    "first",
    "operator",
    "parameters",
]

# Where c10d's operators have their arguments (torch/csrc/distributed/c10d/Ops.cpp).
_OUTPUT_THEN_INPUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ROOT_ARGUMENT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
_PEER_ARGUMENT = 2


class _Signature(NamedTuple):
    """Where an operator has its input, its output and its root; None where it has none."""

    source: int | None = 0
    output: int | None = None
    root: int | None = None


# Those of other operators (torch.ops.symm_mem, vLLM's and SGLang's custom all_reduce).
# What all_to_all_vdev sends is known on the device alone: its tensors are mere room.
_SIGNATURES = {
    "symm_mem::multimem_all_gather_out": _Signature(0, 2),
    "symm_mem::multimem_one_shot_reduce_out": _Signature(0, 4, 2),
    "symm_mem::one_shot_all_reduce_copy": _Signature(1),
    "symm_mem::one_shot_all_reduce_copy_out": _Signature(1, 4),
    "symm_mem::reduce_scatter_out": _Signature(0, 3),
    "symm_mem::nvshmem_all_to_all": _Signature(0, 1),
    "symm_mem::nvshmem_broadcast": _Signature(0, None, 1),
    "symm_mem::all_to_all_vdev": _Signature(None),
    "symm_mem::all_to_all_vdev_2d": _Signature(None),
    "symm_mem::all_to_all_vdev_2d_offset": _Signature(None),
    "_C_custom_ar::all_reduce": _Signature(1, 2),
    "sgl_kernel::all_reduce": _Signature(1, 2),
}

facts_of = attrgetter(
    "collective",
    "in_elements",
    "out_elements",
    "group_size",
    "dtype",
    "rank",
    "source",
    "destination",
    "asynchronous",
    "dims",
    "types",
    "inputs",
)
"""What is read of an event's arguments here: two that agree in these tell the same facts."""

_ENDS = re.compile(r" \d+(?:->|<-)(\d+)")  # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
_LARGEST = 2**62
_MOST_DIMENSIONS = 64  # of a tensor, says torch


class Described(NamedTuple):
    """Facts about one operation; None if unknown.

    ``peer`` and ``root`` are group ranks, ``global_peer`` is a global one.
    """

    op: str | None = None
    call: str | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    peer: int | None = None
    global_peer: int | None = None
    root: int | None = None
    asynchronous: bool | None = None


def first(*rungs: Described) -> Described:
    """Each fact from the first rung that tells it."""
    return Described(
        *(next((v for v in facts if v is not None), None) for facts in zip(*rungs, strict=True))
    )


def parameters(args: Arguments) -> Described:
    """Read the arguments of an NCCL kernel or of ``record_param_comms``.

    ``Rank`` is the peer's or the root's rank in the group, where an operation has one;
    ``Src Rank`` and ``Dst Rank`` are global. Newer records have ``Is asynchronized op``,
    which is always so of sends and recvs.
    """
    call = args.collective or ""
    op = comms.canonical_operation(call)
    sends, receives, said = op != "recv", op != "send", args.asynchronous
    return Described(
        op=op,
        call=call,
        dtype=_dtype(args.dtype),
        in_elements=args.in_elements if sends else 0,
        out_elements=args.out_elements if receives else 0,
        group_size=args.group_size,
        peer=args.rank if op in comms.POINT_TO_POINT else None,
        global_peer={"send": args.destination, "recv": args.source}.get(op or ""),
        root=args.rank if op in (*comms.FROM_ROOT, *comms.TO_ROOT) else None,
        asynchronous=None if said is None or op in comms.POINT_TO_POINT else bool(said),
    )


def annotation(name: str, args: Arguments) -> Described:
    """Read an annotation, which lists the tensors that go in (``recv``: come out).

    NCCL's of messages have both ends in the group: ``nccl:send 0->1``, ``nccl:recv 1<-0``.
    """
    op, ends = comms.canonical_operation(name), _ENDS.search(name)
    elements = _elements(_shapes(args.dims, args.types))
    return Described(
        op=op,
        call=name,
        dtype=_dtype(args.types[0]) if isinstance(args.types, list) and args.types else None,
        in_elements=0 if op == "recv" else elements,
        out_elements=elements if op == "recv" else None,
        peer=int(ends[1]) if ends else None,
    )


def operator(name: str, args: Arguments) -> Described:
    """Read an operator: tensors of both sides where they are no lists of lists."""
    op = comms.canonical_operation(name)
    where = _signature(op, name)
    sides = (where.source, where.output)
    return Described(
        op=op,
        call=name,
        dtype=next((d for i in sides if (d := _dtype(_item(args.types, i)))), None),
        in_elements=0 if op == "recv" else _elements(_argument_shapes(args, where.source)),
        out_elements=0 if op == "send" else _elements(_argument_shapes(args, where.output)),
        peer=_peer(op, name, args),
        root=_integer(_item(args.inputs, where.root)),
        asynchronous=_asynchronous(name, args),
    )


def _signature(op: str | None, name: str) -> _Signature:
    if not name.startswith("c10d::"):
        return _SIGNATURES.get(name, _Signature())
    return _Signature(int(op in _OUTPUT_THEN_INPUT), 0, _ROOT_ARGUMENT.get(op or ""))


def completed(facts: Described, group_size: int | None, is_root: bool | None) -> Described:
    """Derive input, output or the group's size from the other two.

    all_gather: output = n × input; reduce_scatter: input = n × output; gather and
    scatter: the root's side is n times the others' part, and the others have none.
    """
    op, ins, outs = facts.op, facts.in_elements, facts.out_elements
    if op in ("all_reduce", "broadcast", "reduce"):
        ins, outs = (ins if ins is not None else outs), (outs if outs is not None else ins)
    elif op == "send":
        outs = 0
    elif op == "all_gather":
        group_size, ins, outs = _scaled(group_size, ins, outs)
    elif op == "reduce_scatter":
        group_size, outs, ins = _scaled(group_size, outs, ins)
    elif op == "gather" and outs is None:
        outs = _root_side(ins, group_size, is_root)
    elif op == "scatter" and ins is None:
        ins = _root_side(outs, group_size, is_root)
    elif op == "barrier":
        ins = outs = None
    return facts._replace(in_elements=ins, out_elements=outs, group_size=group_size)


def _shapes(dims: Any, types: Any) -> list[list[int]] | None:
    """The shapes of the tensors among an annotation's inputs; None where there are none.

    A scalar tensor has the empty shape, like everything that is no tensor: the type decides.
    """
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    tensors = [d for d, t in zip(dims, types, strict=False) if _is_shape(d) and _dtype(t)]
    return tensors or None


def argument_sizes(args: Arguments, index: int) -> list[int]:
    """Elements of each tensor of an operator's argument; empty if they are unknown."""
    return [prod(shape) for shape in _argument_shapes(args, index) or ()]


def _argument_shapes(args: Arguments, index: int | None) -> list[list[int]] | None:
    dims, kind = _item(args.dims, index), _item(args.types, index)
    if kind == "TensorList":
        listed = isinstance(dims, list) and dims and all(_is_shape(d) for d in dims)
        return dims if listed else None
    return [dims] if _is_shape(dims) and _dtype(kind) else None


def _elements(tensors: list[list[int]] | None) -> int | None:
    return None if tensors is None else sum(prod(shape) for shape in tensors)


def _peer(op: str | None, name: str, args: Arguments) -> int | None:
    if op not in comms.POINT_TO_POINT or "any_source" in name:
        return None
    return _integer(_item(args.inputs, _PEER_ARGUMENT))


def _scaled(
    size: int | None, part: int | None, whole: int | None
) -> tuple[int | None, int | None, int | None]:
    if part and whole and size is None and whole % part == 0:
        return whole // part, part, whole
    if size:
        if whole is None and part is not None:
            whole = part * size
        elif part is None and whole is not None:
            part = whole // size
    return size, part, whole


def _root_side(part: int | None, size: int | None, is_root: bool | None) -> int | None:
    if is_root is None or part is None:
        return None
    if not is_root:
        return 0
    return part * size if size is not None else None


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return False
    return all(type(n) is int and 0 <= n < _LARGEST for n in value)


def _asynchronous(name: str, args: Arguments) -> bool | None:
    """c10d's operators have one boolean argument, ``asyncOp``, wherever they have it."""
    inputs = args.inputs if name.startswith("c10d::") and isinstance(args.inputs, list) else []
    flags = [value == "True" for value in inputs if value in ("True", "False")]
    return flags[0] if len(flags) == 1 else None


def _item(values: Any, index: int | None) -> Any:
    there = index is not None and isinstance(values, list) and index < len(values)
    return values[index] if there else None


def _dtype(name: Any) -> str | None:
    return comms.canonical_dtype(name) if isinstance(name, str) else None


def _integer(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 10 else None
