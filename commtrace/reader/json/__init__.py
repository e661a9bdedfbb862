"""A trace file's bytes -> Scan."""
