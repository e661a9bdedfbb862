"""Pictures of a run's tables: one file, one picture; ``of_run`` is what a Run's ``plot`` is.

Each takes tables and ``ax=`` and returns the Axes. Empty tables give an Axes that says so.
"""
