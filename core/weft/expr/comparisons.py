"""Comparisons, conjunctions and disjunctions: decided, or in their normal forms."""

from __future__ import annotations

from abc import abstractmethod
from math import gcd

from weft import dtypes as dt
from weft.expr import nodes as n
from weft.expr.divisions import Divisions
from weft.expr.linear import Polynomial, int_const, number
from weft.expr.nodes import And, Binary, Const, Eq, Expr, FloorDiv, Le, Lt, Ne, Not, Or
from weft.expr.rules import apply_rules

I64 = dt.int64
TRUE, FALSE = Const(True, dt.bool_), Const(False, dt.bool_)


def is_index(e: Expr) -> bool:
    """Whether it is an index formula: one whose integers are those of mathematics."""
    d = e.dtype
    return d is I64 or d == I64


class Comparisons(Divisions):
    """Conditions of index formulas."""

    @abstractmethod
    def simplify(self, e: Expr) -> Expr:
        """A formula equal to `e` within what is known."""

    @abstractmethod
    def generic(self, e: Expr) -> Expr:
        """The formula by the rules that hold of every dtype."""

    def compare(self, e: Lt | Le) -> Expr:
        """a < b or a ≤ b."""
        s = self.sum(e.b) - self.sum(e.a)
        return self.at_least_zero(s - 1 if type(e) is Lt else s)

    def at_least_zero(self, s: Polynomial) -> Expr:
        """The condition s ≥ 0, decided or in its normal form."""
        while True:
            if self.nonneg(s):
                return TRUE
            if self.nonneg(number(-1) - s):
                return FALSE
            g = gcd(*(v for m, v in s.terms.items() if m))
            if g > 1:
                s = s.split(g)[0]
            coarser = self._coarser(s)
            if coarser is None:
                coarser = self._without_quotient(s)
            if coarser is None:
                break
            s = coarser
        (more, less), k = s.sides(), s.constant
        if not less:
            return Le(int_const(-k), more.expr())
        if not more:
            return Lt(less.expr(), int_const(k + 1))
        if k == 0:
            return Le(less.expr(), more.expr())
        if k >= -1:
            return Lt(less.expr(), (more + (k + 1)).expr())
        return Lt((less - (k + 1)).expr(), more.expr())

    def _coarser(self, s: Polynomial) -> Polynomial | None:
        """A sum with fewer terms that is ≥ 0 where `s` is: c·x + r ≥ 0 ⟺ x + ⌊r/c⌋ ≥ 0, if ⌊r/c⌋ is the same for all
        r."""
        for c in sorted({abs(v) for m, v in s.terms.items() if m}, reverse=True):
            rest = Polynomial({m: v for m, v in s.terms.items() if not m or v % c})
            if c == 1 or len(rest) == len(s) or not any(rest.terms):
                continue
            lo, hi = self.bounds(rest)
            if lo is not None and hi is not None and lo // c == hi // c:
                return Polynomial({m: v // c for m, v in s.terms.items() if m not in rest.terms}) + lo // c
        return None

    def _without_quotient(self, s: Polynomial) -> Polynomial | None:
        """x//c ≤ r  ⟺  x ≤ c·r + c - 1;   x//c ≥ -r  ⟺  x ≥ -c·r; None if it has no quotient by a constant or
        several."""
        found = [
            (m[0], m[0].b.value, v)
            for m, v in s.terms.items()
            if len(m) == 1 and isinstance(m[0], FloorDiv) and isinstance(m[0].b, Const) and m[0].b.value > 0
        ]
        if len(found) != 1 or abs(found[0][2]) != 1:
            return None
        q, c, v = found[0]
        s = s.without((q,)).scale(c).plus(self.sum(q.a), v)
        return s + (c - 1) if v < 0 else s

    def equal(self, e: Eq | Ne) -> Expr:
        """a == b or a != b."""
        yes, no = (TRUE, FALSE) if type(e) is Eq else (FALSE, TRUE)
        if e.a.dtype.is_bool:
            return self.generic(e)
        s = self.sum(e.a) - self.sum(e.b)
        if not s:
            return yes
        g = gcd(*(v for m, v in s.terms.items() if m))
        if g == 0 or s.constant % g:
            return no
        if g > 1:
            s = s.split(g)[0]
        if self.nonneg(s - 1) or self.nonneg(number(-1) - s):
            return no
        if self.facts and self.nonneg(s) and self.nonneg(-s):
            return yes
        if s.leading()[1] < 0:
            s = -s
        (more, less), k = s.sides(), s.constant
        if not less:
            return type(e)(more.expr(), int_const(-k))
        return type(e)((more + max(k, 0)).expr(), (less + max(-k, 0)).expr())

    def negation(self, e: Not) -> Expr:
        """not a."""
        a = e.a
        flipped: Expr | None = None
        if isinstance(a, (And, Or)):
            flipped = (Or if isinstance(a, And) else And)(n.not_(a.a), n.not_(a.b))
        elif isinstance(a, (Lt, Le)) and a.a.dtype.is_integer:
            flipped = (Le if isinstance(a, Lt) else Lt)(a.b, a.a)
        elif isinstance(a, (Eq, Ne)):
            # Exact on floats too: NaN == NaN is false, NaN != NaN is true.
            flipped = (Ne if isinstance(a, Eq) else Eq)(a.a, a.b)
        elif isinstance(a, Not):
            flipped = a.a
        if flipped is not None:
            return self.simplify(flipped)
        inner = self.simplify(a)
        return e if inner is a else self.simplify(n.not_(inner))

    def sums_of(self, cond: Expr) -> list[Polynomial]:
        """The sums that are ≥ 0 where `cond` holds (those that it shows at once)."""
        if isinstance(cond, And):
            return self.sums_of(cond.a) + self.sums_of(cond.b)
        if isinstance(cond, Not):
            flipped = self.simplify(cond)
            return [] if isinstance(flipped, Not) else self.sums_of(flipped)
        if not isinstance(cond, (Lt, Le, Eq)) or not is_index(cond.a):
            return []
        s = self.sum(cond.b) - self.sum(cond.a)
        if isinstance(cond, Lt):
            return [s - 1]
        return [s] if isinstance(cond, Le) else [s, -s]

    def and_or(self, e: Binary) -> Expr:
        """a and b, or a or b."""
        kind = type(e)
        conjunction = kind is And
        neutral, absorbing = (TRUE, FALSE) if conjunction else (FALSE, TRUE)
        parts: dict[Expr, None] = {}
        stack = [e.b, e.a]
        while stack:
            part = stack.pop()
            if type(part) is kind:
                stack += [part.b, part.a]
                continue
            part = self.simplify(part)
            if type(part) is kind:
                stack += [part.b, part.a]
            elif part == absorbing:
                return absorbing
            elif part != neutral:
                parts[part] = None
        for part in parts:
            if isinstance(part, Not) and part.a in parts:
                return absorbing
        items = list(parts)
        if 1 < len(items) <= 8:
            reduced = self._drop_implied(items, conjunction)
            if reduced is None:
                return absorbing
            items = reduced
        if not items:
            return neutral
        result = items[0]
        for part in items[1:]:
            result = kind(result, part)
        return apply_rules(result)

    def _drop_implied(self, items: list[Expr], conjunction: bool) -> list[Expr] | None:
        """Without the conditions that the others decide; None if they contradict (disjunction: exhaust) each other."""
        sums = {c: self.sums_of(c) for c in items}
        kept = list(items)
        for c in items:
            if not sums[c] or not isinstance(c, (Lt, Le)):
                continue
            s = sums[c][0]
            negated = number(-1) - s
            others = [x for x in kept if x is not c]
            if conjunction:
                facts = [f for x in others for f in sums[x]]
                if facts and self.nonneg(s, facts):
                    kept = others
                elif facts and self.nonneg(negated, facts):
                    return None
            else:
                # c is idle if some other condition follows from it; all is true if one follows from its opposite.
                # Only of what is one sum, no more and no less.
                aims = [sums[x][0] for x in others if sums[x] and isinstance(x, (Lt, Le))]
                if any(self.nonneg(a, [negated]) for a in aims):
                    return None
                if any(self.nonneg(a, [s]) for a in aims):
                    kept = others
        return kept
