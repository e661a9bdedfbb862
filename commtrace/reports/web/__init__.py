"""The report as a page: HTML and SVG made here, so that it reads and prints without scripts.

A part is a function of an analysis that returns its section, or None where it has nothing to
say. Every text goes through ``markup``, which escapes it.
"""
