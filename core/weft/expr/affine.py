"""Affine forms: a formula as Σ coefficient·var + rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.expr import nodes as n
from weft.expr.nodes import Broadcast, Cast, Const, Expr, Var, free_vars, walk


@dataclass(frozen=True)
class Affine:
    """e = Σ coefficients[v]·v + rest; coefficients and rest hold none of the variables, zero coefficients are left out."""

    coefficients: dict[str, Expr]
    rest: Expr

    def coefficient(self, name: str) -> int | None:
        """The coefficient of a variable if it is a constant (0 if the variable is absent), else None."""
        found = self.coefficients.get(name)
        if found is None:
            return 0
        return int(found.value) if isinstance(found, Const) else None


def affine(e: Expr, vars: Iterable[str | Var]) -> Affine | None:
    """`e` as an affine form in `vars` (names or variables), or None if it is not one; `e` an integer formula.

    Casts between integer dtypes are no barrier only where no variable is under them.
    """
    names = frozenset(v.name if isinstance(v, Var) else v for v in vars)
    parts = _parts(e, names)
    if parts is None:
        return None
    rest = parts.pop("", None)
    zero = Const(0, e.dtype.scalar)
    return Affine({k: v for k, v in parts.items() if not (isinstance(v, Const) and v.value == 0)}, rest if rest is not None else zero)


def _parts(e: Expr, names: frozenset[str]) -> dict[str, Expr] | None:
    """Name → coefficient, "" → rest; absent is zero."""
    if isinstance(e, Var):
        return {e.name: Const(1, e.dtype)} if e.name in names else {"": e}
    if isinstance(e, Const):
        return {"": e}
    if isinstance(e, (n.Add, n.Sub)):
        a = _parts(e.a, names)
        b = _parts(e.b, names) if a is not None else None
        if a is None or b is None:
            return None
        result = dict(a)
        combine = n.add if isinstance(e, n.Add) else n.sub
        for k, v in b.items():
            result[k] = combine(result[k], v) if k in result else v if isinstance(e, n.Add) else n.sub(Const(0, v.dtype), v)
        return result
    if isinstance(e, n.Mul):
        a, b = _parts(e.a, names), _parts(e.b, names)
        if a is None or b is None:
            return None
        if len(b) > 1 or (b and "" not in b):
            a, b = b, a
        if len(b) > 1 or (b and "" not in b):
            return None
        factor = b.get("")
        return {} if factor is None else {k: n.mul(v, factor) for k, v in a.items()}
    if names.isdisjoint(free_vars(e)) and not any(isinstance(x, (Broadcast, Cast)) and x.dtype.lanes > 1 for x in walk(e)):
        return {"": e}
    return None
