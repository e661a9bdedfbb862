"""A twelfth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had read neither the rules nor their pages: searches, samplers and solvers
beside training, and some faults that are two at once.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    LATE,
    MESSAGE,
    NEEDLESS,
    PYTHON,
    STAGE,
    Fault,
    Program,
)

__all__ = ["TWELFTH"]


TWELFTH = (
    Program("boosted_trees", (Fault("quantise-each-tree", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "bpe_merges",
        # Two at once: rank 1 counts all words anew, and rank 2 waits for a disk.
        (Fault("recount-and-journal", LATE, (1, 2), "all_gather", PYTHON),),
        world_size=3,
    ),
    Program("curriculum_service", (Fault("slow-planner", ()),)),
    Program(
        "docking_queue",
        (Fault("cluster-on-arrival", (*MESSAGE, *LATE), (0,), "", COMPUTE),),
        world_size=3,
        always=MESSAGE,  # who hands out work waits for those who do it
    ),
    Program("dpo_fsdp2", (Fault("chosen-then-rejected", NEEDLESS, place="all_gather"),)),
    Program(
        "duties_split",
        # Two at once: rank 0 saves and rank 1 listens, two steps apart.
        (
            Fault(
                "each-its-duty",
                ("jitter",),
                place="all_reduce",
                at=range(2, 16, 2),
                turns=(range(2, 16, 4), range(4, 16, 4)),
            ),
        ),
    ),
    Program("ffjord_moons", (Fault("exact-trace", ()),)),
    Program("grpo_judge", (Fault("remote-judge", ()),)),
    Program(
        "hmc_chains",
        (Fault("no-mass-matrix", LATE, (2,), "all_reduce", COMPUTE),),
        world_size=3,
    ),
    Program(
        "lora_frozen",
        # Two at once: gradients that nobody uses are reduced, and tables are broadcast.
        (Fault("only-in-optimizer", (*NEEDLESS, "byte-inflation")),),
    ),
    Program(
        "pipe_looped",
        (Fault("collect-by-hand", STAGE, (1,), "", ("garbage-collection",), at=EVERY_THIRD),),
    ),
    Program("selfplay_mcts", (Fault("tracemalloc", LATE, (0,), "all_reduce", PYTHON),)),
    Program("sp_prepare_input", (Fault("each-projection-gathers", NEEDLESS, place="all_gather"),)),
    Program("split_step_waves", (Fault("natural-order", NEEDLESS, place="all_to_all"),)),
)
"""By name."""
