"""Weft's frontend for StableHLO and JAX: see `weft_stablehlo.plugin`."""
