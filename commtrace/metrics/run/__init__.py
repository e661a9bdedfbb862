"""Measures that need the matched operations of all ranks."""
