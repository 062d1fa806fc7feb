"""Simplification of formulas, and proof of conditions.

int64 formulas are index formulas: they are integers of mathematics (overflow is not meant to happen) and get one normal
form, a sum of products  Σ coefficient · atom · atom …  in a fixed order, where an atom is whatever is no sum or product
(`weft.expr.linear`). Division and remainder are taken apart by divisibility and by what is known of the parts
(`divisions`), conditions are decided or brought to their normal forms (`comparisons`). Other integers wrap, floats
round: they get the exact rules of `rules.RULES` and `exact`, and constant folding only.

What is known (`proofs`): a range per variable, and facts, conditions that hold (`j < n`), which become sums known to
be ≥ 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.expr import nodes as n
from weft.expr.comparisons import FALSE, TRUE, Comparisons, is_index
from weft.expr.exact import EXACT
from weft.expr.linear import Polynomial, bounded_product, number, single
from weft.expr.nodes import (
    Add,
    And,
    Binary,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    ShiftRight,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
)
from weft.expr.ranges import ANY, Range
from weft.expr.rules import apply_rules


def simplify(e: Expr, ranges: Mapping[str, Range] | None = None, facts: Iterable[Expr] = ()) -> Expr:
    """A formula equal to `e` for every assignment within `ranges` that satisfies `facts`; `e` itself if nothing
    changed.

    Args:
        ranges: by variable name; others are unbounded (or as wide as their dtype).
        facts: conditions that hold wherever `e` is evaluated.
    """
    return _simplifier(ranges or {}, tuple(facts)).simplify(e)


def prove(cond: Expr, ranges: Mapping[str, Range] | None = None, facts: Iterable[Expr] = ()) -> bool:
    """True only if the condition certainly holds within `ranges` under `facts`; False is "not known"."""
    result = _simplifier(ranges or {}, tuple(facts)).simplify(cond)
    return isinstance(result, Const) and bool(result.value)


_LOCAL = threading.local()


def _simplifier(ranges: Mapping[str, Range], facts: tuple[Expr, ...]) -> Simplifier:
    """One per thread and knowledge: what it has simplified once it remembers."""
    known: dict[Any, Simplifier] | None = getattr(_LOCAL, "known", None)
    if known is None:
        known = _LOCAL.known = {}
    key = (tuple(ranges.items()), facts)
    found = known.get(key)
    if found is None:
        if len(known) >= 256:
            known.pop(next(iter(known)))
        found = known[key] = Simplifier(ranges, facts)
    elif len(found.memo) + len(found.sums) > 20000:
        found.forget()
    return found


class Simplifier(Comparisons):
    """Simplifies under fixed knowledge. Not shared between threads."""

    def __init__(
        self, ranges: Mapping[str, Range], facts: Iterable[Expr] = (), parent: Simplifier | None = None
    ) -> None:
        super().__init__(ranges, list(parent.facts) if parent else [])
        self.memo: dict[Expr, Expr] = {}
        self.sums: dict[Expr, Polynomial] = {}
        self.children: dict[tuple[Expr, bool], Simplifier] = {}
        self.known: dict[Expr, bool] = dict(parent.known) if parent else {}
        facts = tuple(facts)
        for fact in facts:
            self._learn(fact)
        if facts:
            self.forget()

    def forget(self) -> None:
        for table in (self.memo, self.sums, self.implied, self.children, self.ranges.known):
            table.clear()

    def _learn(self, fact: Expr) -> None:
        if isinstance(fact, And):
            self._learn(fact.a)
            self._learn(fact.b)
            return
        for form in (fact, self.simplify(fact)):
            if not isinstance(form, Const):
                self.known[form] = True
                negation = n.not_(form)
                self.known[negation] = False
                opposite = self.simplify(negation)
                if not isinstance(opposite, Const):
                    self.known[opposite] = False
        for s in self.sums_of(fact):
            if s.value is None and s not in self.facts:
                self.facts.append(s)
                self._narrow(s)

    def _narrow(self, s: Polynomial) -> None:
        """A fact about one variable alone narrows its range."""
        terms = [t for t in s.terms.items() if t[0]]
        if len(terms) != 1 or len(terms[0][0]) != 1 or not isinstance(var := terms[0][0][0], Var):
            return
        v, k, name = terms[0][1], s.constant, var.name
        lo, hi = self.narrowed.get(name, ANY)
        if v > 0:  # v·x + k ≥ 0: x ≥ ⌈-k / v⌉
            bound = -(k // v)
            lo = bound if lo is None else max(lo, bound)
        else:
            bound = k // -v
            hi = bound if hi is None else min(hi, bound)
        if lo is None or hi is None or lo <= hi:
            self.narrowed[name] = Range(lo, hi)
            self.forget()

    # -- formulas

    def simplify(self, e: Expr) -> Expr:
        found = self.memo.get(e)
        if found is not None:
            return e if found == e else found
        result = self._simplify(e)
        if result is not e and result == e:
            result = e
        self.memo[e] = result
        if result is not e:
            self.memo[result] = result
        return result

    def _simplify(self, e: Any) -> Expr:
        kind: Any = type(e)
        if isinstance(e, Const):
            return e
        if is_index(e):
            return self.sum(e).expr()
        if kind is Var:
            point = self.ranges.of(e)
            return Const(point.lo, e.dtype) if point.lo is not None and point.lo == point.hi else e
        if e.dtype.is_bool and e.dtype.lanes == 1:
            known = self.known.get(e)
            if known is not None:
                return TRUE if known else FALSE
            method = _CONDITIONS.get(kind)
            if method is not None and (not isinstance(e, Binary) or e.a.dtype.is_bool or is_index(e.a)):
                result = method(self, e)
                known = self.known.get(result)
                return result if known is None else TRUE if known else FALSE
        if kind is Select:
            return self._select(e)
        return self.generic(e)

    def generic(self, e: Expr) -> Expr:
        """Children, constant folding, the exact rules, and integers that can only be one."""
        children = e.children()
        if children:
            new = tuple(self.simplify(c) for c in children)
            if any(x is not c for x, c in zip(new, children)):
                folded = e.with_children(new)
                if type(folded) is not type(e):
                    return self.simplify(folded)
                e = folded
            rewritten = EXACT[type(e)](self, e) if type(e) in EXACT else e
            rewritten = apply_rules(rewritten)
            if rewritten is not e:
                return self.simplify(rewritten)
        if (e.dtype.is_integer or e.dtype.is_bool) and e.dtype.lanes == 1:
            point = self.ranges.of(e)
            if point.lo is not None and point.lo == point.hi:
                return Const(point.lo, e.dtype)
        return e

    def _select(self, e: Select) -> Expr:
        cond = self.simplify(e.cond)
        if isinstance(cond, Const):
            return self.simplify(e.a if cond.value else e.b)
        a, b = e.a, e.b
        if isinstance(cond, Not):
            cond, a, b = cond.a, b, a
        plain = (Const, Var)
        a = (
            self.under(cond, True).simplify(a)
            if not isinstance(a, plain) and cond.dtype.lanes == 1
            else self.simplify(a)
        )
        b = (
            self.under(cond, False).simplify(b)
            if not isinstance(b, plain) and cond.dtype.lanes == 1
            else self.simplify(b)
        )
        if a == b:
            return a
        if isinstance(cond, (Eq, Ne)) and is_index(e) and is_index(cond.a):
            # select(x == y, y + z, x + z): where the condition holds both are the same.
            apart, by = self.sum(a) - self.sum(b), self.sum(cond.a) - self.sum(cond.b)
            if apart == by or apart == -by:
                return b if type(cond) is Eq else a
        if type(cond) in (Eq, Ne) and e.dtype.is_integer and cond.dtype.lanes == 1:
            # select(x == 1, 1, x): where the condition says that both are the same, the other one is always it.
            if type(cond) is Eq and self.under(cond, True).simplify(b) == a:
                return b
            if type(cond) is Ne and self.under(cond, False).simplify(a) == b:
                return a
        result = apply_rules(Select(cond, a, b))
        return result if isinstance(result, Select) else self.simplify(result)

    def under(self, cond: Expr, value: bool) -> Simplifier:
        """What simplifies where `cond` has this value.

        A condition with a select in it is no fact: what is known where would double with each nested one.
        """
        found = self.children.get((cond, value))
        if found is None:
            if n.has(cond, Select):
                found = self
            else:
                fact = cond if value else self.simplify(n.not_(cond))
                found = Simplifier(self.narrowed, (fact,), self)
            self.children[cond, value] = found
        return found

    # -- the normal form of int64 formulas

    def sum(self, e: Expr) -> Polynomial:
        """The sum of an int64 formula. Not to be changed."""
        found = self.sums.get(e)
        if found is None:
            found = self.sums[e] = self._sum(e)
        return found

    def _sum(self, e: Any) -> Polynomial:
        kind = type(e)
        if kind is Const:
            return number(e.value)
        if kind is Var:
            point = self.narrowed.get(e.name)
            if point is not None and point[0] is not None and point[0] == point[1]:
                return number(point[0])
            return single((e,))
        if kind is Add or kind is Sub:
            return self.recompose(self._total(e))
        if kind is Mul:
            return self.recompose(bounded_product(self.sum(e.a), self.sum(e.b)))
        if kind is FloorDiv:
            return self.floordiv(self.sum(e.a), self.sum(e.b))
        if kind is FloorMod:
            return self.recompose(self.floormod(self.sum(e.a), self.sum(e.b)))
        if kind is Min or kind is Max:
            return self.extreme(e)
        if kind is TruncDiv or kind is TruncMod:
            a, b = self.sum(e.a), self.sum(e.b)
            if self.nonneg(a) and self.nonneg(b):
                return self.floordiv(a, b) if kind is TruncDiv else self.floormod(a, b)
            divided = TruncDiv(a.expr(), b.expr()) if kind is TruncDiv else TruncMod(a.expr(), b.expr())
            return self.atom(divided.with_children(divided.children()) if b else divided)
        if kind is ShiftRight and isinstance(e.b, Const) and 0 <= e.b.value < 62:
            return self.floordiv(self.sum(e.a), number(1 << e.b.value))
        result = self._select(e) if kind is Select else self.generic(e)
        return self.sum(result) if type(result) in _ARITHMETIC else self.atom(result)

    def _total(self, e: Expr) -> Polynomial:
        """The sum of a chain of additions and subtractions, however long."""
        out: dict[tuple[Expr, ...], int] = {}
        stack: list[tuple[Expr, int]] = [(e, 1)]
        while stack:
            x, k = stack.pop()
            if isinstance(x, (Add, Sub)):
                stack.append((x.b, k if type(x) is Add else -k))
                stack.append((x.a, k))
                continue
            for m, v in self.sum(x).terms.items():
                v = out.get(m, 0) + k * v
                if v:
                    out[m] = v
                else:
                    del out[m]
        return Polynomial(out)


_CONDITIONS: dict[type, Callable[[Simplifier, Any], Expr]] = {
    Lt: Simplifier.compare,
    Le: Simplifier.compare,
    Eq: Simplifier.equal,
    Ne: Simplifier.equal,
    Not: Simplifier.negation,
    And: Simplifier.and_or,
    Or: Simplifier.and_or,
}
_ARITHMETIC = frozenset((Const, Var, Add, Sub, Mul, FloorDiv, FloorMod, Min, Max))
