"""Scalar formulas: nodes, functions, printer, parser, evaluate, simplify, ranges."""
