"""Who is late, why, and what it costs the run.

The run is a graph of moments and of what each had to wait for; with its lags edited it is replayed.
Here stands what is asked of it: the critical path, what edits save, how efficient the run is.
The folders are what answers, from the bottom up: ``replay`` and ``rank``, ``run``, ``work``,
``edits``, ``blame``.
"""
