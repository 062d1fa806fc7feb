"""Sign assumptions, and comparison of integer forms under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from weft.expr.linear import Conversion, Monomial, Polynomial, polynomial
from weft.expr.nodes import Add, Const, Expr, FloorDiv, FloorMod, Max, Min, Mul, Var


@dataclass(frozen=True)
class Signs:
    """What is assumed of signs.

    `least`: by name, what a variable is never below; `others`: what every other integer variable is never below, None
    where nothing is known of them. `divisors`: every divisor of // and % is positive; else one is where it cannot be
    negative, as none is 0.
    """

    least: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    others: int | None = None
    divisors: bool = False

    def least_of(self, e: Expr) -> int | None:
        """A number ≥ 0 that an integer formula is never below; None if it may be negative for all that is known."""
        found: int | None = None
        if isinstance(e, Var):
            found = self.least.get(e.name, self.others) if e.dtype.is_integer else None
        elif isinstance(e, Const):
            found = int(e.value)
        elif isinstance(e, FloorMod):
            found = 0 if self.divisors or self.least_of(e.b) is not None else None
        elif isinstance(e, (Add, Mul, FloorDiv, Min, Max)):
            found = self._least_of_both(e)
        return None if found is None or found < 0 else found

    def _least_of_both(self, e: Add | Mul | FloorDiv | Min | Max) -> int | None:
        a, b = self.least_of(e.a), self.least_of(e.b)
        if isinstance(e, Max):
            return max((x for x in (a, b) if x is not None), default=None)
        if a is None or b is None:
            return None
        return a + b if isinstance(e, Add) else a * b if isinstance(e, Mul) else min(a, b) if isinstance(e, Min) else 0

    def positive(self, divisor: Monomial) -> bool:
        """Whether a product that is not 0, as something is divided by it, is ≥ 1."""
        return self.divisors or all(self.least_of(a) is not None for a in divisor)

    def at_least_zero(self, p: Polynomial, of: Conversion = polynomial) -> bool:
        """Whether a form is certainly not negative.

        Args:
            of: makes forms of the operands of quotients.
        """
        low, bounded = 0, True
        for m, v in p.terms.items():
            least = v
            for a in m:
                known = self.least_of(a)
                if known is None:
                    return False
                least *= known
            low, bounded = low + least, bounded and (v > 0 or not m)
        return (bounded and low >= 0) or self._covered(p, of)

    def _covered(self, p: Polynomial, of: Conversion) -> bool:
        """Whether it is ≥ 0 as a quotient makes up for what it covers: d·((n + d − 1)//d) ≥ n."""
        for m, v in p.terms.items():
            if v > 0 and len(m) == 1 and isinstance(m[0], FloorDiv):
                by = of(m[0].b).value
                if by is not None and by > 0 and v % by == 0:
                    covered = of(m[0].a).plus(1 - by).scale(v // by)
                    if self.at_least_zero(p.without(m) + covered, of):
                        return True
        return False
