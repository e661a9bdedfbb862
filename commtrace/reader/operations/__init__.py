"""What a call says of its operation -> a row of the table of collectives."""
