"""A run in Perfetto: written as a timeline (``timeline``), shown in a browser (``opening``)."""

__all__ = ["KEEP", "SUFFIXES"]

SUFFIXES = (".pftrace.gz", ".trace.json.gz")
"""What a timeline's file ends in: Perfetto's own format, Chrome's JSON."""
KEEP = ("kernels", "operators", "everything")
"""How much of the original traces is in a timeline; operators are in addition to kernels."""
