"""What every pass must keep: the meaning, and that the Program prints, parses back and verifies."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs import DIMS, INTRINSICS, arrays

from weft.expr.functions import FUNCTIONS
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.verify import verify
from weft_interpreter.interpret import interpret

ALL = frozenset(FUNCTIONS)


def run(program: Program, inputs: dict[str, Any], dims: dict[str, int]) -> dict[str, np.ndarray]:
    sized = {}
    for b in program.inputs:
        sized[b.name] = inputs[b.name].reshape(-1) if len(b.shape) == 1 else inputs[b.name]
    used = {d.name: dims[d.name] for d in program.dims}
    return {k: v.reshape(-1) for k, v in interpret(program, sized, used, intrinsics=INTRINSICS).items()}


def same(
    before: Program, after: Program, dims: dict[str, int] | None = None, seed: int = 0, exact: bool = True
) -> None:
    """The two give equal outputs on random inputs, and `after` is well-formed."""
    dims = dims or DIMS
    well_formed(after)
    inputs = arrays(before, seed, dims)
    expected, got = run(before, inputs, dims), run(after, inputs, dims)
    for name, value in expected.items():
        if exact:
            np.testing.assert_array_equal(got[name], value, err_msg=str(after))
        else:
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=str(after))


def well_formed(program: Program) -> None:
    verify(program)
    text = str(program)
    assert str(parse_program(text)) == text


__all__ = ["ALL", "DIMS", "run", "same", "well_formed"]
