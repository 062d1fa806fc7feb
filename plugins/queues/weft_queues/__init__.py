"""Waits for instructions that a chip begins and does not wait for: those whose `Intrinsic` names a queue."""
