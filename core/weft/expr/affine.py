"""Affine forms: a formula as Σ coefficient·var + rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.expr.linear import polynomial
from weft.expr.nodes import Broadcast, Cast, Const, Expr, Var, walk


@dataclass(frozen=True)
class Affine:
    """e = Σ coefficients[v]·v + rest; coefficients and rest hold none of the variables, zero coefficients are left
    out."""

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

    Coefficients and rest are sums of products in the order of `weft.expr.simplify`. Casts between integer dtypes are no
    barrier only where no variable is under them.
    """
    if any(isinstance(x, (Broadcast, Cast)) and x.dtype.lanes > 1 for x in walk(e)):
        return None
    parts = polynomial(e).split_variables({v.name if isinstance(v, Var) else v for v in vars})
    if parts is None:
        return None
    rest, factors = parts
    dtype = e.dtype.scalar
    return Affine({name: f.expr(dtype) for name, f in factors.items()}, rest.expr(dtype))
