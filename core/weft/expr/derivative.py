"""Derivatives of formulas by a variable, as formulas.

Where a function has a corner, the derivative is the mean of those of both sides; where it jumps, as rounding does, that
of the pieces, zero. So |x| has 0 at 0, max(x, 0) has ½, and a smooth function that is composed of such parts has its
own derivative there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.errors import ExprError
from weft.expr import nodes as n
from weft.expr.functions import call
from weft.expr.nodes import Call, Cast, Const, Expr, Select, Var, and_, cast_to, const, eq, le, lt, or_, select


def derivative(e: Expr, x: Var) -> Expr:
    """∂e/∂x as a formula of the dtype of `e`, which is a float's.

    Raises:
        ExprError: `e` has a node that no derivative is known of, as one of the loop IR.
    """
    found = _Derivative(x).of(e)
    return const(0.0, e.dtype) if found is None else found


class _Derivative:
    """Of formulas by one variable. None is zero; parts that formulas share are differentiated once."""

    def __init__(self, x: Var) -> None:
        self.x = x
        self._known: dict[Expr, Expr | None] = {}

    def of(self, e: Expr) -> Expr | None:
        if e not in self._known:
            self._known[e] = self._of(e)
        return self._known[e]

    def _of(self, e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return const(1.0, e.dtype) if e == self.x else None
        if isinstance(e, Const) or not e.dtype.is_float:
            return None
        if isinstance(e, Cast):
            inner = self.of(e.value) if e.value.dtype.is_float else None
            return None if inner is None else cast_to(inner, e.dtype)
        if isinstance(e, Select):
            a, b = self.of(e.a), self.of(e.b)
            return None if a is None and b is None else select(e.cond, _or_zero(a, e), _or_zero(b, e))
        if isinstance(e, n.Binary):
            return self._binary(e)
        if isinstance(e, Call):
            return self._call(e)
        if self.x.name not in n.free_vars(e):
            return None
        raise ExprError(f"no derivative is known of {type(e).__name__}", where=str(e))

    def _binary(self, e: n.Binary) -> Expr | None:
        a, b = self.of(e.a), self.of(e.b)
        if a is None and b is None:
            return None
        if isinstance(e, n.Add):
            return _sum(a, b)
        if isinstance(e, n.Sub):
            return _difference(a, b)
        if isinstance(e, n.Mul):
            return _sum(_times(a, e.b), _times(b, e.a))
        if isinstance(e, n.Div):
            top = _difference(a, _times(b, e))
            return None if top is None else top / e.b
        if isinstance(e, n.FloorMod):
            return _difference(a, _times(b, call("floor", e.a / e.b)))
        if isinstance(e, n.TruncMod):
            return _difference(a, _times(b, call("trunc", e.a / e.b)))
        if isinstance(e, (n.Min, n.Max)):
            da, db = _or_zero(a, e), _or_zero(b, e)
            first, second = (da, db) if isinstance(e, n.Min) else (db, da)
            return select(lt(e.a, e.b), first, select(lt(e.b, e.a), second, (da + db) * 0.5))
        if isinstance(e, (n.FloorDiv, n.TruncDiv)):
            return None
        raise ExprError(f"no derivative is known of '{e.symbol}'", where=str(e))

    def _call(self, e: Call) -> Expr | None:
        partials = _PARTIALS.get(e.name)
        if partials is None:
            raise ExprError(f"no derivative is known of the function {e.name}", where=str(e))
        total: Expr | None = None
        for argument, partial in zip(e.args, partials):
            inner = self.of(argument)
            factor = None if inner is None else partial(e)
            total = _sum(total, None if factor is None else _times(inner, factor))
        return total


def _or_zero(d: Expr | None, like: Expr) -> Expr:
    return const(0.0, like.dtype) if d is None else d


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a + b


def _difference(a: Expr | None, b: Expr | None) -> Expr | None:
    return a if b is None else -b if a is None else a - b


def _times(d: Expr | None, factor: Expr) -> Expr | None:
    """`d` · `factor`, written without factors of 1."""
    if d is None or (isinstance(factor, Const) and factor.value == 1):
        return d
    return factor if isinstance(d, Const) and d.value == 1 else d * factor


Partial = Callable[[Call], Expr | None]
"""The derivative of a call by one of its arguments, made of the call: None is zero."""


def _zero(e: Call) -> None:
    return None


def _reciprocal(of: Callable[[Expr], Expr]) -> Partial:
    return lambda e: const(1.0, e.dtype) / of(e.args[0])


def _sign(x: Expr) -> Expr:
    return select(lt(0.0, x), const(1.0, x.dtype), select(lt(x, 0.0), const(-1.0, x.dtype), const(0.0, x.dtype)))


def _base(e: Call) -> Expr:
    """b · a^(b - 1), also where a is 0 and b is: there a^b is 1 whatever a is."""
    a, b = e.args
    return select(eq(b, 0.0), const(0.0, e.dtype), b * call("pow", a, b - 1.0))


def _exponent(e: Call) -> Expr:
    """a^b · log a, and its limit 0 where a is 0."""
    a, b = e.args
    return select(and_(eq(a, 0.0), le(0.0, b)), const(0.0, e.dtype), e * call("log", a))


def _copied_sign(e: Call) -> Expr:
    a, b = e.args
    one = const(1.0, e.dtype)
    same = or_(and_(lt(a, 0.0), lt(call("copysign", one, b), 0.0)), and_(lt(0.0, a), lt(0.0, call("copysign", one, b))))
    return select(eq(a, 0.0), const(0.0, e.dtype), select(same, one, const(-1.0, e.dtype)))


_PARTIALS: dict[str, tuple[Partial, ...]] = {
    "exp": (lambda e: e,),
    "exp2": (lambda e: e * math.log(2),),
    "expm1": (lambda e: call("exp", e.args[0]),),
    "log": (_reciprocal(lambda x: x),),
    "log2": (_reciprocal(lambda x: x * math.log(2)),),
    "log1p": (_reciprocal(lambda x: x + 1.0),),
    "sin": (lambda e: call("cos", e.args[0]),),
    "cos": (lambda e: -call("sin", e.args[0]),),
    "tan": (lambda e: e * e + 1.0,),
    "asin": (_reciprocal(lambda x: call("sqrt", (1.0 - x) * (x + 1.0))),),
    "acos": (lambda e: const(-1.0, e.dtype) / call("sqrt", (1.0 - e.args[0]) * (e.args[0] + 1.0)),),
    "atan": (_reciprocal(lambda x: x * x + 1.0),),
    "sinh": (lambda e: call("cosh", e.args[0]),),
    "cosh": (lambda e: call("sinh", e.args[0]),),
    "tanh": (lambda e: 1.0 - e * e,),
    "asinh": (_reciprocal(lambda x: call("sqrt", x * x + 1.0)),),
    "acosh": (_reciprocal(lambda x: call("sqrt", (x - 1.0) * (x + 1.0))),),
    "atanh": (_reciprocal(lambda x: (1.0 - x) * (x + 1.0)),),
    "erf": (lambda e: call("exp", -(e.args[0] * e.args[0])) * (2 / math.sqrt(math.pi)),),
    "pow": (_base, _exponent),
    "sqrt": (lambda e: const(0.5, e.dtype) / e,),
    "floor": (_zero,),
    "ceil": (_zero,),
    "trunc": (_zero,),
    "round": (_zero,),
    "abs": (lambda e: _sign(e.args[0]),),
    "copysign": (_copied_sign, _zero),
    "fma": (lambda e: e.args[1], lambda e: e.args[0], lambda e: const(1.0, e.dtype)),
}
