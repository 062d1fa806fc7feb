"""Gradients of elementwise operators, derived from their formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Const, Expr, Select, Var, cast_to, free_vars, select, substitute
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Elementwise, Sample
from weft_ops.activation import Gelu, Sigmoid, Swish
from weft_ops.arithmetic import Cast, Clip, Divide, Multiply, Negative, Power
from weft_ops.examples import floats
from weft_ops.precision import compute_dtype, rounded
from weft_ops.shapes import broadcast, operands

RESULT = "y"
"""What derivatives call the result; operand k is `x<k>`."""


@dataclass(frozen=True)
class GradientOf(Elementwise):
    """gradient · derivative of the elementwise operator `of` by its operand number `operand`, at the elements given;
    computed in float32 for narrower floats and rounded to `dtype`, the operand's, once. Where the derivative's formula
    selects 0 the product is 0, whatever the gradient is: what is not taken has none, not even of NaN.

    Inputs: the gradient by the result, the operands, the result; those that the derivative does not mention may be
    absent. `given`: for each operand whether `of` has it; empty: it has all.
    """

    of: Elementwise
    operand: int
    dtype: DType
    given: tuple[bool, ...] = ()

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for an operator that has no such derivative, or operands that are absent and needed."""
        assumed: list[Assumption] = []
        found = operands([t for t in types if t is not None])
        if len(types) < 3 or types[0] is None or not 0 <= self.operand < len(types) - 2:
            raise GraphError(f"expected the gradient, operands with number {self.operand}, and the result")
        known = [None if t is None else t.dtype for t in operands_or_none(types[1:-1])]
        formula, _ = self._derivative(known, compute_dtype(self.dtype))
        names = self._names(len(types) - 2)
        missing = [n for n, t in zip(names, types[1:]) if t is None and n in free_vars(formula)]
        if missing:
            raise GraphError(f"the derivative needs {', '.join(missing)}, which is absent")
        return Inferred(TensorType(self.dtype, broadcast(*(t.shape for t in found), assumed=assumed)), assumed)

    def _names(self, count: int) -> list[str]:
        return [*(f"x{k}" for k in range(count)), RESULT]

    def _derivative(self, dtypes: Sequence[DType | None], wide: DType) -> tuple[Expr, list[Var]]:
        """The derivative, and the variables of the operands and the result in it; floats are of dtype `wide`."""
        variables: list[Var | None] = []
        for k, dtype in enumerate(dtypes):
            present = not self.given or self.given[k]
            of = wide if dtype is None or dtype.is_float else dtype
            variables.append(Var(f"x{k}", of) if present else None)
        result = Var(RESULT, wide)
        return self.of.derivative(self.operand, variables, result), [*(v for v in variables if v is not None), result]

    def _formula(self, args: Sequence[Expr | None], wide: DType) -> Expr:
        gradient = args[0]
        assert gradient is not None
        derived, variables = self._derivative([None if a is None else a.dtype for a in args[1:-1]], wide)
        named = dict(zip(self._names(len(args) - 2), args[1:]))
        values = {v.name: cast_to(a, v.dtype) for v in variables if (a := named[v.name]) is not None}
        return _product(cast_to(gradient, wide), cast_to(substitute(derived, values), wide))

    def formula(self, *args: Expr | None) -> Expr:
        return cast_to(self._formula(args, compute_dtype(self.dtype)), self.dtype)

    def formula_of(self, operands: Sequence[Expr | None]) -> Expr:
        return self.formula(*operands)

    def reference(self, *arrays: Array | None) -> Array:
        names = ["g", *self._names(len(arrays) - 2)]
        wide = {n: _float64(a) for n, a in zip(names, arrays) if a is not None}
        args = [Var(n, dt.dtype(wide[n].dtype)) if n in wide else None for n in names]
        result = evaluate(self._formula(args, dt.float64), wide)
        return rounded(np.broadcast_to(result, np.broadcast_shapes(*(a.shape for a in wide.values()))), self.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return 32.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        g, x = floats((3, 5)), floats((3, 5), seed=1)
        yield Sample(cls(Sigmoid(), 0, dt.float32), (g, None, floats((3, 5), lo=0, hi=1)), "result")
        yield Sample(cls(Gelu(), 0, dt.float32), (g, x, None), "operand")
        yield Sample(cls(Swish(), 0, dt.float16), (g.astype(np.float16), x.astype(np.float16), None), "float16")
        wide = x.astype(np.float64)
        yield Sample(cls(Divide(), 1, dt.float64), (g.astype(np.float64), None, wide + 5, wide), "second")
        yield Sample(cls(Power(), 1, dt.float32), (g, np.abs(x), x[0], np.abs(x)), "broadcast")
        hi = np.array(1, np.float32)
        yield Sample(cls(Clip(), 0, dt.float32, (True, False, True)), (g, x, None, hi, None), "absent")


def _product(gradient: Expr, derived: Expr) -> Expr:
    """Their product, with what the derivative selects selected last."""
    if isinstance(derived, Select):
        return select(derived.cond, _product(gradient, derived.a), _product(gradient, derived.b))
    if isinstance(derived, Const) and derived.value in (0, 1):
        return gradient if derived.value else derived
    return gradient * derived


def operands_or_none(types: Sequence[Type | None]) -> list[TensorType | None]:
    """The types of operands that may be absent.

    Raises:
        GraphError: one is there and no tensor.
    """
    return [None if t is None else operands([t])[0] for t in types]


def _float64(array: Array) -> Array:
    return array.astype(np.float64) if dt.dtype(array.dtype).is_float else array


def elementwise_gradient(
    builder: GraphBuilder,
    op: Elementwise,
    inputs: Sequence[Value | None],
    output: Value,
    gradient: Value,
    position: int,
) -> Value | None:
    """The gradient by operand number `position` of an elementwise operator, of the result's shape: by the plainest
    operator that gives it."""
    operand = inputs[position]
    assert operand is not None
    wide = compute_dtype(operand.dtype)
    given = tuple(v is not None for v in inputs)
    made = GradientOf(op, position, operand.dtype, () if all(given) else given)
    derived, _ = made._derivative([None if v is None else v.dtype for v in inputs], wide)
    if isinstance(derived, Const) and derived.value in (0, 1, -1):
        if derived.value == 0:
            return None
        signed = gradient if derived.value == 1 else builder.add(Negative(), gradient)
        return signed if signed.dtype == operand.dtype else builder.add(Cast(operand.dtype), signed)
    values: dict[str, Value | None] = {f"x{k}": v for k, v in enumerate(inputs)} | {RESULT: output}
    if isinstance(derived, Var):
        factor = values[derived.name]
        assert factor is not None
        if gradient.dtype == factor.dtype == operand.dtype:
            return builder.add(Multiply(), gradient, factor)
    needed = free_vars(derived)
    return builder.add(made, gradient, *(v if n in needed else None for n, v in values.items()))


__all__ = ["GradientOf"]
