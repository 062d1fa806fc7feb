"""Graph passes: one function Graph → Graph in a file of its own. Their order is `weft.passes.pipeline`."""
