"""Who delays a run, how surely, by how much, and what for.

``suspects`` are found by replay (``search``), ``weighed`` against chance, and those who stay are
``culprits``, with their ``causes``.
"""
