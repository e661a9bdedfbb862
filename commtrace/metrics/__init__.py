"""One file, one measure: a function from a Trace to a table, the table's columns beside it."""
