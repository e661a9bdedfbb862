"""A graph and its replay with other lags, many edits at once.

Nothing here knows of ranks or calls: nodes have times, edges have lags. ``graph`` is the face;
the rest makes replays fast and small (chains drawn together, an order level by level).
"""
