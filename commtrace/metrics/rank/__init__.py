"""Measures that need one rank only."""
