"""What is known of variables, and proofs that sums are not negative.

A sum is proved ≥ 0 by its interval after adding up facts, sums known to be ≥ 0, so that terms that may be negative
cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from weft.expr.linear import Polynomial, bounded_product, polynomial, quotient, range_of_product, single
from weft.expr.nodes import Expr, FloorDiv, FloorMod, Max, Min
from weft.expr.ranges import Range, Ranges, scale_range

PROOF_STEPS = 48
PROOF_DEPTH = 5
_BOUNDED = frozenset((FloorDiv, FloorMod, Min, Max))


class Knowledge:
    """Ranges of variables, by name, and facts. Not shared between threads."""

    def __init__(self, ranges: Mapping[str, Range], facts: list[Polynomial]) -> None:
        self.narrowed: dict[str, Range] = dict(ranges)
        self.ranges = Ranges(self.narrowed)
        self.facts = facts
        self.implied: dict[Expr, list[Polynomial]] = {}
        self.steps = 0

    def bounds(self, s: Polynomial) -> Range:
        """The interval of a sum, facts left aside."""
        return s.bounds(self.ranges.of)

    def nonneg(self, s: Polynomial, extra: list[Polynomial] | None = None) -> bool:
        """Whether s ≥ 0 for certain; `extra` are sums ≥ 0 beside the facts."""
        lo, hi = self.bounds(s)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        facts = self.facts + extra if extra else self.facts
        if not facts and not any(type(f) in _BOUNDED for m in s.terms for f in m):
            return False
        self.steps = PROOF_STEPS
        return self._nonneg(s, facts, PROOF_DEPTH)

    def between(self, s: Polynomial, by: Polynomial) -> bool:
        """Whether 0 ≤ s < by for certain."""
        return self.nonneg(s) and self.nonneg(by - s - 1)

    def _nonneg(self, s: Polynomial, facts: list[Polynomial], depth: int) -> bool:
        if depth == 0:
            return False
        # Beside the facts, what every //, %, min and max in the sum implies may cancel a term.
        bounded = dict.fromkeys(a for m in s.terms for a in m if type(a) in _BOUNDED)
        candidates = facts + [f for a in bounded for f in self._implied(a)]
        for m, v in s.terms.items():
            if not m:
                continue
            lo = scale_range(range_of_product(m, self.ranges.of), v)[0]
            if lo is not None and lo >= 0:
                continue
            for fact in candidates:
                # What divides an atom alone is the atom: no other term of the fact need be looked at.
                for fm, fv in fact.terms.items() if len(m) > 1 else ((m, fact.terms.get(m, 0)),):
                    if not fm or not fv or (fv < 0) != (v < 0):
                        continue
                    by = quotient(m, fm)
                    if by is None or not all(self.ranges.of(f).within(0, None) for f in by):
                        continue
                    self.steps -= 1
                    if self.steps < 0:
                        return False
                    # s·k = fact·by·c + rest with k, c > 0 and by ≥ 0
                    g = gcd(v, fv)
                    rest = (s if abs(fv) == g else s.scale(abs(fv) // g)) - fact.times(by, abs(v) // g)
                    lo, hi = self.bounds(rest)
                    if lo is not None and lo >= 0:
                        return True
                    if (hi is None or hi >= 0) and self._nonneg(rest, facts, depth - 1):
                        return True
        return False

    def _implied(self, atom: Expr) -> list[Polynomial]:
        """Sums ≥ 0 by what an atom means.

        It looks into atoms by `polynomial`: a sum that is simplified is proved, and would come back here without end.
        """
        found = self.implied.get(atom)
        if found is None:
            found = []
            me = single((atom,))
            if isinstance(atom, (FloorDiv, FloorMod)):
                by = polynomial(atom.b)
                if self.ranges.of(atom.b).within(0, None):
                    if isinstance(atom, FloorMod):
                        found = [by - me - 1]
                    else:
                        low = polynomial(atom.a) - bounded_product(by, me)
                        found = [low, by - low - 1]
            elif isinstance(atom, (Min, Max)):
                sign = 1 if isinstance(atom, Min) else -1
                found = [(polynomial(x) - me).scale(sign) for x in (atom.a, atom.b)]
            self.implied[atom] = found
        return found
