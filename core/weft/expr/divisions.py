"""Division, remainder, minimum and maximum of sums, taken apart by divisibility and by what is known of the parts.

No formula divides by zero, so a divisor that is never negative is positive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import gcd

from weft.expr.linear import (
    ZERO,
    Monomial,
    Polynomial,
    bounded_product,
    common,
    int_const,
    join,
    number,
    order_key,
    quotient,
    shared_factor,
    single,
)
from weft.expr.nodes import Const, Expr, FloorDiv, FloorMod, Max, Min
from weft.expr.proofs import Knowledge


class Divisions(Knowledge, ABC):
    """Operations on sums that need what is known."""

    @abstractmethod
    def sum(self, e: Expr) -> Polynomial:
        """The sum of an int64 formula."""

    def atom(self, e: Expr) -> Polynomial:
        """The sum of what is taken no further apart: itself, or the only number that it can be."""
        point = self.ranges.of(e)
        if point[0] is not None and point[0] == point[1]:
            return number(point[0])
        return single((e,))

    def recompose(self, s: Polynomial) -> Polynomial:
        """x % a + (x // a)·a → x, and x % a + (x // a % b)·a → x % (a·b), each times a common factor."""
        for m in s.terms:
            for at, f in enumerate(m):
                if type(f) is FloorMod:
                    found = self._recomposed(s, m, f, m[:at] + m[at + 1 :])
                    if found is not None:
                        return self.recompose(found)
        return s

    def _recomposed(self, s: Polynomial, m: Monomial, f: FloorMod, others: Monomial) -> Polynomial | None:
        """The sum with the term m = f · others put together with what stands for the quotient of f."""
        terms, v, by = s.terms, s.terms[m], self.sum(f.b)
        if len(by) != 1:
            return None
        ((bm, bv),) = by.terms.items()
        high = self.floordiv(self.sum(f.a), by)
        if len(high) == 1:
            ((hm, hv),) = high.terms.items()
            key = join(join(hm, bm), others)
            if terms.get(key) == v * bv * hv:
                out = Polynomial({k: w for k, w in terms.items() if k != m and k != key})
                return out + self.sum(f.a).times(others, v)
        # The parts of x//a that are multiples of constants stand in the sum by themselves: compare as sums.
        elif high and all(terms.get(join(join(hm, bm), others)) == v * bv * hv for hm, hv in high.terms.items() if hm):
            out = s.without(m) - high.times(join(bm, others), v * bv)
            return out + self.sum(f.a).times(others, v)
        for m2, v2 in terms.items():
            if m2 is m or v2 != v * bv:
                continue
            rest = quotient(m2, join(bm, others))
            if rest is None or len(rest) != 1 or type(rest[0]) is not FloorMod:
                continue
            if self.sum(rest[0].a) == high and self.ranges.of(f.b).within(0, None):
                out = Polynomial({k: w for k, w in terms.items() if k != m and k != m2})
                whole = self.floormod(self.sum(f.a), bounded_product(by, self.sum(rest[0].b)))
                return out + whole.times(others, v)
        return None

    def _split_by(self, r: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial, Monomial, int] | None:
        """h, s, g with r = h·g + s, g a divisor of the product b, 0 ≤ s < g.

        Then r // b = h // (b/g) and r % b = (h % (b/g))·g + s.
        """
        if len(b) != 1:
            return None
        ((bm, bv),) = b.terms.items()
        tried: list[tuple[Monomial, int]] = []
        for m, v in r.terms.items():
            if not m:
                continue
            g = (common(m, bm), gcd(v, bv))
            if g == ((), 1) or g in tried:
                continue
            tried.append(g)
            gm, gv = g
            high: dict[Monomial, int] = {}
            low: dict[Monomial, int] = {}
            for x, w in r.terms.items():
                rest = quotient(x, gm)
                if rest is None:
                    low[x] = w
                elif w % gv == 0:
                    high[rest] = w // gv
                elif x == gm:  # the constant, when g is one: its remainder stays below
                    if w // gv:
                        high[rest] = w // gv
                    low[x] = w % gv
                else:
                    low[x] = w
            below = not low or self.between(Polynomial(low), single(gm, gv))
            if below and (not low or all(self.ranges.of(f).within(0, None) for f in gm)):
                return Polynomial(high), Polynomial(low), gm, gv
        return None

    def floordiv(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """a // b."""
        c, lo = b.value, None
        if c == 0:
            return single((FloorDiv(a.expr(), int_const(0)),))
        if c == 1 or not a:
            return a
        if c < 0 if c is not None else len(b) == 1 and next(iter(b.terms.values())) < 0:
            a, b = -a, -b
            if c == -1:
                return a
            c = None if c is None else -c
        if c is not None:
            q, r = a.split(c)
            lo, hi = self.bounds(r)
            if lo is not None and hi is not None and lo // c == hi // c:
                return q + lo // c
        else:
            q, r = a.divide_terms(b)
        if not r or ((c is None or self.facts or lo is None or lo >= 0) and self.between(r, b)):
            return q
        inner = self._divided(r, b, c)
        return self.recompose(q + inner) if q else inner

    def _divided(self, r: Polynomial, b: Polynomial, c: int | None) -> Polynomial:
        """r // b where no term of r is divided alone; `c`: the value of b."""
        m, k = shared_factor(r, b)
        if m or k > 1:
            return self.floordiv(_without_factor(r, m, k), _without_factor(b, m, k))
        split = self._split_by(r, b)
        if split is not None:
            high, _, m, k = split
            return self.floordiv(high, _without_factor(b, m, k))
        atoms = [(m[0], v) for m, v in r.terms.items() if m and len(m) == 1]
        if len(atoms) == 1 and atoms[0][1] == 1 and len(r) == 1 + (() in r.terms):
            x = atoms[0][0]
            if type(x) is FloorDiv and (c is not None or self.nonneg(b)):
                # (x//a + k)//b = (x + k·a)//(a·b) for b > 0
                by = self.sum(x.b)
                if by:
                    return self.floordiv(self.sum(x.a).plus(by, r.constant), bounded_product(by, b))
            if type(x) is FloorMod and c is not None and len(r) == 1 and isinstance(x.b, Const):
                if x.b.value > 0 and x.b.value % c == 0:
                    return self.floormod(self.floordiv(self.sum(x.a), b), number(x.b.value // c))
        return self.atom(FloorDiv(r.expr(), b.expr()))

    def floormod(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """a % b."""
        c, lo = b.value, None
        if c == 0:
            return single((FloorMod(a.expr(), int_const(0)),))
        if c == 1 or c == -1 or not a:
            return ZERO
        if c is not None and c < 0:
            return -self.floormod(-a, number(-c))
        if c is not None:
            r = self._remainders(a, c)
            lo, hi = self.bounds(r)
            if lo is not None and hi is not None and lo // c == hi // c:
                return r - c * (lo // c)
        else:
            _, r = a.divide_terms(b)
        if not r or ((c is None or self.facts or lo is None or lo >= 0) and self.between(r, b)):
            return r
        m, k = shared_factor(r, b)
        if m or k > 1:
            return self.floormod(_without_factor(r, m, k), _without_factor(b, m, k)).times(m, k)
        split = self._split_by(r, b)
        if split is not None:
            high, low, m, k = split
            return self.floormod(high, _without_factor(b, m, k)).times(m, k) + low
        return self.atom(FloorMod(r.expr(), b.expr()))

    def _remainders(self, a: Polynomial, c: int) -> Polynomial:
        """A sum with the same remainder by c > 0, coefficients between -c and c. They keep their signs: -i stays -i."""
        r: dict[Monomial, int] = {}
        pending = list(a.terms.items())
        while pending:
            m, v = pending.pop()
            v = v % c if not m or v > 0 else -(-v % c)
            if not v:
                continue
            f = m[0] if len(m) == 1 else None
            if type(f) is FloorMod and isinstance(f.b, Const) and f.b.value and (v * f.b.value) % c == 0:
                pending += [(x, w * v) for x, w in self.sum(f.a).terms.items()]
                continue
            total = r.get(m, 0) + v
            total = total % c if not m or total > 0 else -(-total % c)
            if total:
                r[m] = total
            else:
                r.pop(m, None)
        return Polynomial(r)

    def extreme(self, e: Min | Max) -> Polynomial:
        """The least or greatest of sums, those left out that others decide, what is common to all added outside."""
        kind = type(e)
        sign = 1 if kind is Min else -1
        items: list[Polynomial] = []
        stack: list[Expr] = [e.b, e.a]
        while stack:
            x = stack.pop()
            if isinstance(x, (Min, Max)) and type(x) is kind:
                stack += [x.b, x.a]
                continue
            s = self.sum(x)
            m, v = next(iter(s.terms.items()), ((), 0)) if len(s) == 1 else ((), 0)
            if v == 1 and len(m) == 1 and isinstance(inner := m[0], (Min, Max)) and type(inner) is kind:
                stack += [inner.b, inner.a]
                continue
            if any(self.nonneg((s - k).scale(sign)) for k in items):
                continue
            items = [k for k in items if not self.nonneg((k - s).scale(sign))] + [s]
        if len(items) == 1:
            return items[0]
        shared = Polynomial({m: v for m, v in items[0].terms.items() if all(k.terms.get(m) == v for k in items[1:])})
        items = [k - shared for k in items]
        g = gcd(*(v for k in items for v in k.terms.values()))
        items = [_without_factor(k, (), g) for k in items]
        parts = sorted((k.expr() for k in items), key=lambda x: (isinstance(x, Const), order_key(x)))
        result = parts[0]
        for part in parts[1:]:
            result = kind(result, part)
        out = self.atom(result).scale(g)
        return self.recompose(shared + out) if shared else out


def _without_factor(a: Polynomial, m: Monomial, k: int) -> Polynomial:
    """a / (k · m), which divides it."""
    found = a.divided(k, m)
    assert found is not None
    return found
