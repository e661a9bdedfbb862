"""One file, one format; see ``commtrace.reports``."""
