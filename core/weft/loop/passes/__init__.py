"""Loop passes: one function Program → Program in a file of its own. Their order is `weft.loop.pipeline`."""
