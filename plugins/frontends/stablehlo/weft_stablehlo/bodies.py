"""What regions compute on scalars: the reduction that a region is, and regions applied to whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft_stablehlo.context import Complex, Context

REDUCTIONS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min", "and": "and", "or": "or"}
"""By operation the reduction that a region of it alone is."""
ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "and",
        "atan2",
        "bitcast_convert",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "complex",
        "constant",
        "convert",
        "cosine",
        "count_leading_zeros",
        "divide",
        "exponential",
        "exponential_minus_one",
        "floor",
        "imag",
        "is_finite",
        "log",
        "log_plus_one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "popcnt",
        "power",
        "real",
        "reduce_precision",
        "remainder",
        "round_nearest_afz",
        "round_nearest_even",
        "rsqrt",
        "select",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sine",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
        "return",
        "func.return",
    ]
)
"""Operations that mean the same of scalars as of the elements of tensors."""


def operations(block: Any) -> list[Any]:
    return [view.operation for view in block.operations]


def reduction(block: Any) -> str | None:
    """add, mul, max, min, and, or, where a block of two arguments returns that of both; else None."""
    found = operations(block)
    if len(found) != 2 or len(block.arguments) != 2 or len(found[0].operands) != 2:
        return None
    name = REDUCTIONS.get(found[0].name.removeprefix("stablehlo."))
    first, second = block.arguments
    a, b = found[0].operands
    both = (a == first and b == second) or (a == second and b == first)
    returned = len(found[1].operands) == 1 and found[1].operands[0] == found[0].results[0]
    if name is None or not both or not returned:
        return None
    if str(first.type).endswith("xi1>") or str(first.type) == "tensor<i1>":
        return {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(name, name)
    return name


def passed_on(block: Any) -> tuple[int, ...] | None:
    """The numbers of the arguments that a block returns, if it does nothing else."""
    found = operations(block)
    if len(found) != 1:
        return None
    arguments = list(block.arguments)
    numbers = []
    for operand in found[0].operands:
        at = [k for k, a in enumerate(arguments) if a == operand]
        if not at:
            return None
        numbers.append(at[0])
    return tuple(numbers)


def on_tensors(c: Context, k: int, operands: Sequence[Any]) -> list[Any]:
    """Region k, which is written for scalars, on all elements of tensors of one shape.

    Raises:
        Unsupported: it does what is not element by element.
    """
    block = c.block(k)
    expect_elementwise(c, block, 0)
    found = c.importer.put_scalars(block, operands, c.values_here, f"{c.name}/")
    first = operands[0][0] if isinstance(operands[0], Complex) else operands[0]
    return [_shaped(c, o, first.shape) for o in found]


def _shaped(c: Context, operand: Any, shape: Sequence[Any]) -> Any:
    """What a region gives of all elements: a scalar, where it does not depend on them."""
    if isinstance(operand, Complex):
        return Complex([c.broadcast(c.importer.as_value(p), shape) for p in operand])
    return c.broadcast(c.importer.as_value(operand), shape)


def expect_elementwise(c: Context, block: Any, depth: int) -> None:
    """That a region, and the functions that it calls, does nothing but operations element by element."""
    for op in operations(block):
        if op.name == "func.call" and depth < 8:
            function = c.importer.functions.get(op.attributes["callee"].value)
            if function is not None and len(function.regions[0].blocks):
                expect_elementwise(c, function.regions[0].blocks[0], depth + 1)
                continue
        if op.name.removeprefix("stablehlo.") not in ELEMENTWISE and not op.name.startswith("chlo."):
            raise c.unsupported(f"a region with {op.name}")


__all__ = ["ELEMENTWISE", "on_tensors", "operations", "passed_on", "reduction"]
