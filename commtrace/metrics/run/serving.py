"""Whether a model generates in the processes that train it, as in reinforcement learning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["serves"]

_ENGINES = re.compile(r"paged_attention|\bvllm::|\bsglang::|\bsgl_kernel|flashinfer|tensorrt_llm")


def serves(run: Measures) -> bool:
    """Whether kernels of an inference engine ran: the names are vLLM's, SGLang's and the like."""
    return any(map(_ENGINES.search, run.rows("kernels").coded("name").occurring()))
