"""An eleventh lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the tenth lot were judged, by somebody who had read neither the rules nor
their pages; of kinds that no earlier lot has.
"""

from __future__ import annotations

from benchmarks.programs.program import COMPUTE, IDLE, LATE, Fault, Program

__all__ = ["ELEVENTH"]

ELEVENTH = (
    Program(
        "sample_sort",
        (Fault("equal-widths", (*LATE, "uneven-all-to-all"), (0,), "all_reduce", COMPUTE),),
    ),
    Program(
        "nerf_occupancy",
        (
            Fault(
                "grid-on-rank-0",
                ("late-root", *LATE),
                (0,),
                "broadcast",
                COMPUTE,
                at=range(3, 16, 4),
            ),
        ),
    ),
    Program(
        "crystal_energy",
        (
            Fault(
                "sum-in-double",
                ("full-precision-payload", "byte-inflation", "exposed-communication"),
                place="all_reduce",
            ),
        ),
    ),
    Program(
        "admm_lasso",
        (
            Fault(
                "gather-then-mean",
                (
                    "decomposed-all-reduce",
                    "wrong-algorithm",
                    "byte-inflation",
                    "exposed-communication",
                ),
                place="all_gather",
            ),
        ),
        world_size=3,
    ),
    Program(
        "bayes_search",
        (
            Fault(
                "refit-scale",
                ("late-root", *LATE),
                (0,),
                "broadcast",
                (*COMPUTE, *IDLE),
                at=range(4, 14, 3),
            ),
        ),
    ),
    Program("moth_traps", (Fault("new-workers", ()),)),
    Program(
        "tabular_tokens",
        (
            Fault(
                "debug-left-on",
                ("redundant", "latency-bound", "exposed-communication"),
            ),
        ),
        always=("emulated-operation",),  # as gloo's reduce_scatter is
    ),
    Program("lattice_mesh", (Fault("statistics-each-step", ()),), world_size=4),
    Program(
        "droplet_potential",
        (Fault("equal-slabs", LATE, (0,), "all_reduce", COMPUTE),),
    ),
    Program(
        "octet_gradients",
        (
            Fault(
                "scale-by-scale",
                ("latency-bound", "exposed-communication"),
                place="all_reduce",
            ),
        ),
    ),
)
