"""One file, one format: ``render(analysis) -> str``."""
