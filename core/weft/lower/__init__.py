"""From groups of operators to naive loop programs."""
