"""Measurements: engines in turns, times of kernels, and what the processor can do at most."""
