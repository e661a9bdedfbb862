"""Compute that takes time and no processor, as a GPU's does for its host.

The ranks share few cores: what they compute in earnest would delay the others' communication.
"""

import time

import torch

_LIBRARY = torch.library.Library("recorded", "DEF")
_LIBRARY.define("work(float ms) -> ()")
_LIBRARY.impl("work", lambda ms: time.sleep(ms / 1e3), "CompositeExplicitAutograd")


def work(ms: float) -> None:
    """Do nothing for so long, as an operator that the profiler sees."""
    torch.ops.recorded.work(ms)
