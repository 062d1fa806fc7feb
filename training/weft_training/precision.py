"""Mixed precision: products in 16 bits, everything else in float32.

Parameters, the optimiser, normalisations, softmax, losses and sums stay float32. A product reads its operands rounded
to the narrow type, sums in float32 and rounds its result; so do the products of its gradients. The range of float16
ends at 2⁻²⁴, below which gradients would vanish: the loss is multiplied by a scale, by which the gradients are divided
again.

Sources: Micikevicius et al., Mixed Precision Training, 2018; the scale's formulas and numbers are those of PyTorch's
GradScaler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import InputError, nearest
from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft_ops import Conv, ConvTranspose, Equal, LogicalAnd, MatMul, ScaledDotProductAttention, Where
from weft_ops.composing import Composer

Precision: TypeAlias = Literal["bfloat16", "float16"]
"""The dtype of products; see `weft_training.compile_training`."""
NARROW: dict[str, DType] = {"bfloat16": dt.bfloat16, "float16": dt.float16}
PRODUCTS = {MatMul: 2, Conv: 2, ConvTranspose: 2, ScaledDotProductAttention: 3}
"""The operators whose operands are narrowed: how many of them are factors. Recurrences are none of them: their sums go
on over all steps."""
SCALE, GOOD = "loss_scale", "good_steps"
"""The states of a step with float16: what the loss is multiplied by, float32, and the steps since it last changed,
int32."""
START, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""GradScaler's init_scale, growth_factor, backoff_factor and growth_interval."""


def narrow_dtype(precision: str | None) -> DType | None:
    """The dtype of products; None: that of their operands.

    Raises:
        InputError: it is none.
    """
    if precision is None:
        return None
    if precision not in NARROW:
        close = nearest(str(precision), NARROW)
        raise InputError(
            f"precision: expected 'bfloat16', 'float16' or None, got {precision!r}",
            hint=f"did you mean '{close}'?" if close else None,
        )
    return NARROW[precision]


def narrowed(graph: Graph, dtype: DType) -> Graph:
    """A copy in which products of float32 have operands and a result that are rounded to `dtype`. Their sums stay
    float32. A product that names its dtype stays as it is."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        count = PRODUCTS.get(type(node.op))
        if count is None or node.op.attributes().get("dtype") is not None:
            return None
        if any(v is None or v.dtype != dt.float32 for v in inputs[:count]):
            return None
        c = Composer(r.builder_for_rule())
        factors = [c.cast(v, dtype) for v in inputs[:count] if v is not None]
        return c.cast(c(node.op, *factors, *inputs[count:]), dt.float32)

    return rewrite(graph, rule, on_subgraph=lambda body: narrowed(body, dtype), rounds=1)


def all_finite(c: Composer, values: Sequence[Value]) -> Value:
    """Whether all elements of all values are finite: a bool scalar."""
    total: Value | None = None
    for v in values:
        # The difference of infinities is NaN, and NaN stays in a sum.
        zero = c.cast(c.sum(c.sub(v, v), tuple(range(len(v.shape))), False), dt.float32)
        total = zero if total is None else c.add(total, zero)
    assert total is not None
    return c(Equal(), total, 0.0)


def next_scale(c: Composer, scale: Value, good: Value, holds: Value) -> tuple[Value, Value]:
    """The scale and the number of good steps behind a step, whose gradients are finite if `holds`: halved if not,
    doubled, as far as it stays finite, behind `INTERVAL` good steps."""
    count = c.add(good, 1)
    due = c(Equal(), count, INTERVAL)
    larger = c.mul(scale, GROWTH)
    fits = c(Equal(), c.sub(larger, larger), 0.0)
    grown = c(Where(), c(LogicalAnd(), due, fits), larger, scale)
    none = c.number(0, good.dtype)
    return c(Where(), holds, grown, c.mul(scale, BACKOFF)), c(Where(), holds, c(Where(), due, none, count), none)
