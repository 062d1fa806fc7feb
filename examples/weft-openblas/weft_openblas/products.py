"""Products of matrices: which nodes of a graph OpenBLAS takes, which loops are one, and the loop pass that calls the
library in their place.

The pass writes `@openblas.sgemm(A, whether it lies transposed, its distance of rows, the same of B, C, its distance of
rows, rows, columns, terms)` instead of three loops; what is left of the nest, a batch, stays around it. Where matrices
lie is read off the indices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft import dtypes as dt
from weft.expr.affine import affine
from weft.expr.nodes import Add, Const, Expr, Mul, Var, add, const, mul, substitute
from weft.graph.nodes import Node
from weft.loop.nodes import Block, Evaluate, For, IntrinsicCall, Load, Program, Stmt, Store
from weft.machine import Machine
from weft.passes.place import Refuse, Take
from weft.rates import CPU_HZ
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in
from weft.target import Target
from weft_openblas.device import flops_per_cycle
from weft_openblas.instructions import PREFIX
from weft_ops import MatMul

GEMM = {dt.float32: "sgemm", dt.float64: "dgemm"}
START, CALL = 60e-6, 3e-6
"""Seconds in Python: a step of the plan, and each call of the library. Measured on an AMD Zen 3."""
TYPICAL = 128
"""What a size known only at run time counts as."""


def offer(node: Node, target: Target) -> Take | Refuse:
    """Whether OpenBLAS takes a node, and how long that takes in seconds; or why not."""
    if not isinstance(node.op, MatMul):
        return Refuse(node, "operator", f"OpenBLAS has no {type(node.op).__name__}")
    left, right, result = (v.tensor for v in (*node.inputs, *node.outputs) if v is not None)
    strange = [t.dtype for t in (left, right, result) if t.dtype not in GEMM]
    if strange:
        return Refuse(node, "dtype", f"OpenBLAS multiplies float32 and float64, not {strange[0]}")
    if target.options.always:
        return Take((node,))
    rate = CPU_HZ * target.options.threads * flops_per_cycle() * 4 / result.dtype.bytes
    calls = _size(result.shape[:-2]) if right.rank > 2 else 1
    return Take((node,), START + CALL * calls + 2 * _size(result.shape) * _size(left.shape[-1:]) / rate)


def _size(shape: Sequence[object]) -> int:
    return math.prod(d if isinstance(d, int) else TYPICAL for d in shape)


class OneProduct(Rule):
    """One product of matrices of float32 or float64, or a batch of them. Its loops stay: `call_library` replaces
    them."""

    name = "one_product"

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        found = as_calls(program)
        if isinstance(found, Decline):
            return found
        return Offer(CALL + of_blocks(program, machine, tiled=[b.name for b in blocks_in(program.body)]))

    def apply(self, schedule: Schedule) -> None:
        pass


def call_library(program: Program) -> Program:
    """The loop pass."""
    found = as_calls(program)
    return program if isinstance(found, Decline) else program.with_body(found)


def as_calls(program: Program) -> Stmt | Decline:
    """The program's body as calls, or why it is none."""
    for block in blocks_in(program.body):
        if block.annotation("op") != "MatMul":
            return Decline("operator", f"OpenBLAS has no {block.annotation('composite') or block.annotation('op')}")
    loops, body = {}, program.body
    while isinstance(body, For):
        loops[body.var.name] = body.extent
        body = body.body
    match body:
        case Block(body=Store(c, place, Add(a=held, b=Mul(a=Load() as left, b=Load() as right)), None)) if held == Load(
            c, place
        ):
            values = {i.var.name: x for i, x in zip(body.iters, body.bindings, strict=True)}
        case _:
            return Decline("no_product", "its loops are not those of one product of matrices")
    if c.dtype not in GEMM:
        return Decline("dtype", f"OpenBLAS multiplies float32 and float64, not {c.dtype}")
    elements = [Load(x.buffer, tuple(substitute(i, values) for i in x.indices)) for x in (left, right, Load(c, place))]
    steps = [_steps(x, loops) for x in elements]
    if None in steps:
        return Decline("strides", "a matrix is not walked in even steps")
    a, b, result = (s or {} for s in steps)
    if any(
        step == const(1) and v in a and v not in b for v, step in result.items()
    ):  # it moves along rows of the result, so it is the right operand
        elements[:2], steps[:2] = elements[1::-1], steps[1::-1]
    moves = {v: tuple(v in s for s in steps if s is not None) for v in loops}
    rows, columns = (
        next((v for v in reversed(loops) if moves[v] == role), "")
        for role in ((True, False, True), (False, True, True))
    )
    summed = [v for v in loops if not moves[v][2] and loops[v] != const(1)] or [""]
    if len(summed) > 1:
        return Decline("sum", "it sums over several loops")
    m, n, k = (loops.get(v, const(1)) for v in (rows, columns, summed[0]))
    lie = [
        _matrix(s or {}, *axes)
        for s, axes in zip(steps, ((rows, summed[0], k), (summed[0], columns, n), (rows, columns, n)), strict=True)
    ]
    if None in lie or lie[2][0] == const(1):  # type: ignore[index]
        return Decline("strides", "neither the rows nor the columns of a matrix lie side by side")
    first = {v: const(0) for v in (rows, columns, summed[0])}
    args = [a for x, how in zip(elements, lie, strict=True) for a in (substitute(x, first), *(how or ()))]
    del args[7]  # the result is never transposed
    call: Stmt = Evaluate(IntrinsicCall(PREFIX + GEMM[c.dtype], (*args, m, n, k)))
    for v, extent in reversed(loops.items()):
        call = call if v in first else For(Var(v, dt.int64), extent, call)
    return call


def _steps(element: Load, loops: Mapping[str, Expr]) -> dict[str, Expr] | None:
    """By how many elements each loop moves it; None if not evenly, or backwards."""
    flat: Expr = const(0)
    for i, n in zip(element.indices, element.buffer.shape, strict=True):
        flat = add(mul(flat, n if n != const(0) else const(1)), i)  # an empty matrix moves as any other
    found = affine(flat, loops)
    backwards = found is None or any(isinstance(s, Const) and s.value < 0 for s in found.coefficients.values())
    return None if found is None or backwards or element.predicate is not None else found.coefficients


def _matrix(steps: Mapping[str, Expr], down: str, across: str, width: Expr) -> tuple[Expr, Expr] | None:
    """Whether a matrix lies transposed (0, 1), and its distance of rows as it lies; `width`: its columns. None if it
    does neither way."""
    row, column = steps.get(down), steps.get(across)
    if column in (None, const(1)):
        return const(0), row if row is not None else width
    return (const(1), column) if row in (None, const(1)) and column is not None else None
