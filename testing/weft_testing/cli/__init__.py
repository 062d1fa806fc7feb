"""The commands `weft conform`, `weft verify` and `weft demo`."""
