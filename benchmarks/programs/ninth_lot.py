"""A ninth lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the eighth lot were judged, by somebody who had read neither the rules nor
their pages; of kinds that no earlier lot has.
"""

from __future__ import annotations

from benchmarks.programs.program import COMPUTE, IDLE, LATE, Fault, Program

__all__ = ["NINTH"]

NINTH = (
    Program(
        "dp_sgd_noise",
        (Fault("central-noise", ("late-root", *LATE), (0,), "broadcast", IDLE),),
    ),
    Program(
        "store_roll_call",
        (Fault("ask-again", LATE, (1,), "all_reduce", IDLE, 30),),
    ),
    Program(
        "sign_votes",
        (
            Fault(
                "float-signs",
                ("byte-inflation", "full-precision-payload", "exposed-communication"),
                place="all_reduce",
            ),
        ),
    ),
    Program(
        "sparse_user_table",
        (Fault("dense-gradient", ("exposed-communication", "byte-inflation"), place="all_reduce"),),
    ),
    Program("vmc_walkers", (Fault("tiny-chunks", ()),)),
    Program("maml_sines", (Fault("stale-profile", LATE, (1,), "all_reduce", COMPUTE),)),
    Program("step_in_backward", (Fault("states-in-double", LATE, (1,), "all_reduce", COMPUTE),)),
)
