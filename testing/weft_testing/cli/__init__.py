"""The commands `weft bench`, `weft conform`, `weft verify` and `weft demo`."""
