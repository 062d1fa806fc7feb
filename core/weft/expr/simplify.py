"""Simplification of formulas, and proof of conditions.

int64 formulas are index formulas: they are integers of mathematics (overflow is not meant to happen) and get one normal form, a sum of
products  Σ coefficient · atom · atom …  in a fixed order, where an atom is whatever is no sum or product. Division and remainder are taken
apart by divisibility and by what is known of the parts; no formula divides by zero, so a divisor that is never negative is positive.
Other integers wrap, floats round: they get the exact rules of `rules.RULES` and constant folding only.

What is known: a range per variable, and facts, conditions that hold (`j < n`). Facts become sums known to be ≥ 0; a sum is proved ≥ 0 by its
interval after adding up facts so that terms that may be negative cancel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias

from weft import dtypes as dt
from weft.expr import nodes as n
from weft.expr.nodes import (
    Add,
    And,
    Binary,
    Broadcast,
    Cast,
    Const,
    Div,
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
    Ramp,
    Select,
    ShiftRight,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    size_of,
)  # fmt: skip
from weft.expr.ranges import ANY, Range, Ranges, add_ranges, multiply_ranges, range_of_dtype, scale_range
from weft.expr.rules import apply_rules

Monomial: TypeAlias = "tuple[Expr, ...]"
Sum: TypeAlias = "dict[Monomial, int]"
"""Product of atoms → coefficient, never 0; the empty product is the constant."""

I64 = dt.int64
TRUE, FALSE = Const(True, dt.bool_), Const(False, dt.bool_)
EXPAND_LIMIT = 24
"""Products of sums with more terms than this stay products."""
SIZE_LIMIT = 4096
"""Likewise those of which so many nodes would stand side by side: a product of a hundred sums would double with each."""
PROOF_STEPS = 48
PROOF_DEPTH = 5


def simplify(e: Expr, ranges: Mapping[str, Range] | None = None, facts: Iterable[Expr] = ()) -> Expr:
    """A formula equal to `e` for every assignment within `ranges` that satisfies `facts`; `e` itself if nothing changed.

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


@lru_cache(maxsize=1 << 16)
def order_key(atom: Expr) -> tuple[int, str]:
    """The place of an atom in a product or among equals: variables first, then by text."""
    return (0, atom.name) if isinstance(atom, Var) else (1, str(atom))


# -- sums -------------------------------------------------------------------------------------------------------------


def _combine(a: Sum, b: Sum, k: int = 1) -> Sum:
    """a + k·b, a new sum."""
    out = dict(a)
    for m, v in b.items():
        v = out.get(m, 0) + k * v
        if v:
            out[m] = v
        else:
            out.pop(m, None)
    return out


def _scale(a: Sum, k: int) -> Sum:
    return {m: v * k for m, v in a.items()} if k else {}


def _join(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=order_key)) if a and b else a or b


def _times(a: Sum, m: Monomial, k: int) -> Sum:
    """a · k · m."""
    return {_join(x, m): v * k for x, v in a.items()} if m else _scale(a, k)


def _constant(a: Sum) -> int | None:
    """The value of a sum that is a constant."""
    return 0 if not a else a.get(()) if len(a) == 1 else None


def _quotient(m: Monomial, by: Monomial) -> Monomial | None:
    """m / by, if `by` divides it."""
    if not by:
        return m
    rest = list(m)
    for f in by:
        if f not in rest:
            return None
        rest.remove(f)
    return tuple(rest)


def _common(a: Monomial, b: Monomial) -> Monomial:
    """The greatest product that divides both."""
    rest, out = list(b), []
    for f in a:
        if f in rest:
            rest.remove(f)
            out.append(f)
    return tuple(out)


def _term_key(item: tuple[Monomial, int]) -> tuple[bool, int, int, list[tuple[int, str]]]:
    m, v = item
    return (v < 0, -len(m), -abs(v), [order_key(f) for f in m])


_CONSTS = {k: Const(k, I64) for k in range(-64, 257)}


def _int(k: int) -> Const:
    found = _CONSTS.get(k)
    return Const(k, I64) if found is None else found


def emit(a: Sum) -> Expr:
    """The formula of a sum: positive terms before negative ones, high degrees and large coefficients first, the constant last."""
    if len(a) == 1:
        ((m, v),) = a.items()
        return _product(m, v)
    if not a:
        return _int(0)
    constant = a.get((), 0)
    terms = [t for t in a.items() if t[0]]
    if len(terms) > 1:
        terms.sort(key=_term_key)
    m, v = terms[0]
    if v < 0 and constant > 0:
        result: Expr = _int(constant)
        constant = 0
    else:
        result = _product(m, v)
        terms = terms[1:]
    for m, v in terms:
        result = Add(result, _product(m, v)) if v > 0 else Sub(result, _product(m, -v))
    if constant:
        result = Add(result, _int(constant)) if constant > 0 else Sub(result, _int(-constant))
    return result


def _product(m: Monomial, v: int) -> Expr:
    if not m:
        return _int(v)
    result = m[0]
    for f in m[1:]:
        result = Mul(result, f)
    return result if v == 1 else Sub(_int(0), result) if v == -1 else Mul(result, _int(v))


def _atoms_size(a: Sum) -> int:
    """Of what is no variable."""
    return sum(size_of(f) for m in a for f in m if type(f) is not Var)


def _product_of_sums(a: Sum, b: Sum) -> Sum:
    if not a or not b:
        return {}
    k = _constant(b)
    if k is not None:
        return _scale(a, k)
    k = _constant(a)
    if k is not None:
        return _scale(b, k)
    if len(a) * len(b) > EXPAND_LIMIT or len(a) * _atoms_size(b) + len(b) * _atoms_size(a) > SIZE_LIMIT:
        x, y = (emit(a),) if len(a) > 1 else (), (emit(b),) if len(b) > 1 else ()
        k, m = 1, _join(x, y)
        for s in (a, b):
            if len(s) == 1:
                ((f, v),) = s.items()
                k, m = k * v, _join(m, f)
        return {m: k}
    out: Sum = {}
    for m, v in a.items():
        for p, w in b.items():
            key = _join(m, p)
            total = out.get(key, 0) + v * w
            if total:
                out[key] = total
            else:
                del out[key]
    return out

@lru_cache(maxsize=1 << 15)
def linear(e: Any) -> Sum:
    """The sum that an int64 formula spells, taking nothing apart but sums and products. Not to be changed.

    Proofs look into atoms by it: `Simplifier.sum` proves, and would come back here without end.
    """
    kind = type(e)
    if kind is Const:
        return {(): e.value} if e.value else {}
    if kind is Add or kind is Sub:
        return _combine(linear(e.a), linear(e.b), 1 if kind is Add else -1)
    if kind is Mul:
        return _product_of_sums(linear(e.a), linear(e.b))
    return {(e,): 1}


def _is_index(e: Expr) -> bool:
    d = e.dtype
    return d is I64 or d == I64


class Simplifier:
    """Simplifies under fixed knowledge. Not shared between threads."""

    def __init__(self, ranges: Mapping[str, Range], facts: Iterable[Expr] = (), parent: Simplifier | None = None) -> None:
        self.narrowed: dict[str, Range] = dict(ranges)
        self.ranges = Ranges(self.narrowed)
        self.memo: dict[Expr, Expr] = {}
        self.sums: dict[Expr, Sum] = {}
        self.implied: dict[Expr, list[Sum]] = {}
        self.children: dict[tuple[Expr, bool], Simplifier] = {}
        self.facts: list[Sum] = list(parent.facts) if parent else []
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
            if _constant(s) is None and s not in self.facts:
                self.facts.append(s)
                self._narrow(s)

    def _narrow(self, s: Sum) -> None:
        """A fact about one variable alone narrows its range."""
        terms = [t for t in s.items() if t[0]]
        if len(terms) != 1 or len(terms[0][0]) != 1 or not isinstance(var := terms[0][0][0], Var):
            return
        v, k, name = terms[0][1], s.get((), 0), var.name
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
        if _is_index(e):
            return emit(self.sum(e))
        if kind is Var:
            point = self.ranges.of(e)
            return Const(point.lo, e.dtype) if point.lo is not None and point.lo == point.hi else e
        if e.dtype.is_bool and e.dtype.lanes == 1:
            known = self.known.get(e)
            if known is not None:
                return TRUE if known else FALSE
            method = _CONDITIONS.get(kind)
            if method is not None and (not isinstance(e, Binary) or e.a.dtype.is_bool or _is_index(e.a)):
                result = method(self, e)
                known = self.known.get(result)
                return result if known is None else TRUE if known else FALSE
        if kind is Select:
            return self._select(e)
        return self._generic(e)

    def _generic(self, e: Expr) -> Expr:
        """Children, constant folding, the exact rules, and integers that can only be one."""
        children = e.children()
        if children:
            new = tuple(self.simplify(c) for c in children)
            if any(x is not c for x, c in zip(new, children)):
                folded = e.with_children(new)
                if type(folded) is not type(e):
                    return self.simplify(folded)
                e = folded
            rewritten = _EXACT.get(type(e), _same)(self, e)
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
        a = self.under(cond, True).simplify(a) if not isinstance(a, plain) and cond.dtype.lanes == 1 else self.simplify(a)
        b = self.under(cond, False).simplify(b) if not isinstance(b, plain) and cond.dtype.lanes == 1 else self.simplify(b)
        if a == b:
            return a
        if isinstance(cond, (Eq, Ne)) and _is_index(e) and _is_index(cond.a):
            # select(x == y, y + z, x + z): where the condition holds both are the same.
            apart, by = _combine(self.sum(a), self.sum(b), -1), _combine(self.sum(cond.a), self.sum(cond.b), -1)
            if apart == by or apart == _scale(by, -1):
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
        """What simplifies where `cond` has this value. A condition with a select in it is no fact: what is known where would double with each nested one."""
        found = self.children.get((cond, value))
        if found is None:
            if n.has(cond, Select):
                found = self
            else:
                fact = cond if value else self.simplify(n.not_(cond))
                found = Simplifier(self.narrowed, (fact,), self)
            self.children[cond, value] = found
        return found

    # -- conditions

    def _compare(self, e: Binary) -> Expr:
        s = _combine(self.sum(e.b), self.sum(e.a), -1)
        if type(e) is Lt:
            s = _combine(s, {(): 1}, -1)
        return self.at_least_zero(s)

    def at_least_zero(self, s: Sum) -> Expr:
        """The condition s ≥ 0, decided or in its normal form."""
        while True:
            if self.nonneg(s):
                return TRUE
            if self.nonneg(_combine({(): -1}, s, -1)):
                return FALSE
            g = gcd(*(v for m, v in s.items() if m))
            if g > 1:
                s = {m: v // g for m, v in s.items() if m or v // g}
            coarser = self._coarser(s)
            if coarser is not None:
                s = coarser
                continue
            divided = [(m[0], v) for m, v in s.items() if len(m) == 1 and type(m[0]) is FloorDiv and isinstance(m[0].b, Const) and m[0].b.value > 0]
            if len(divided) != 1 or abs(divided[0][1]) != 1:
                break
            # x//c ≤ r  ⟺  x ≤ c·r + c - 1;   x//c ≥ -r  ⟺  x ≥ -c·r
            q, v = divided[0]
            c = linear(q.children()[1])[()]
            r = _combine(s, {(q,): v}, -1)
            s = _combine(_scale(r, c), self.sum(q.children()[0]), v)
            if v < 0:
                s = _combine(s, {(): c - 1})
        more, less, k = {m: v for m, v in s.items() if m and v > 0}, {m: -v for m, v in s.items() if m and v < 0}, s.get((), 0)
        if not less:
            return Le(_int(-k), emit(more))
        if not more:
            return Lt(emit(less), _int(k + 1))
        if k == 0:
            return Le(emit(less), emit(more))
        return Lt(emit(less), emit(_combine(more, {(): k + 1}))) if k >= -1 else Lt(emit(_combine(less, {(): -k - 1})), emit(more))

    def _coarser(self, s: Sum) -> Sum | None:
        """A sum with fewer terms that is ≥ 0 where `s` is: c·x + r ≥ 0 ⟺ x + ⌊r/c⌋ ≥ 0, where ⌊r/c⌋ is the same for all r."""
        for c in sorted({abs(v) for m, v in s.items() if m}, reverse=True):
            rest = {m: v for m, v in s.items() if not m or v % c}
            if c == 1 or len(rest) == len(s) or not any(rest):
                continue
            lo, hi = self.range_of_sum(rest)
            if lo is not None and hi is not None and lo // c == hi // c:
                return _combine({m: v // c for m, v in s.items() if m not in rest}, {(): lo // c} if lo // c else {})
        return None

    def _equal(self, e: Binary) -> Expr:
        yes, no = (TRUE, FALSE) if type(e) is Eq else (FALSE, TRUE)
        if e.a.dtype.is_bool:
            return self._generic(e)
        s = _combine(self.sum(e.a), self.sum(e.b), -1)
        if not s:
            return yes
        g = gcd(*(v for m, v in s.items() if m))
        k = s.get((), 0)
        if g == 0 or k % g:
            return no
        if g > 1:
            s, k = {m: v // g for m, v in s.items()}, k // g
        if self.nonneg(_combine(s, {(): -1})) or self.nonneg(_combine({(): -1}, s, -1)):
            return no
        if self.facts and self.nonneg(s) and self.nonneg(_scale(s, -1)):
            return yes
        first = min((t for t in s.items() if t[0]), key=lambda t: (-len(t[0]), -abs(t[1]), [order_key(f) for f in t[0]]))
        if first[1] < 0:
            s, k = _scale(s, -1), -k
        more, less = {m: v for m, v in s.items() if m and v > 0}, {m: -v for m, v in s.items() if m and v < 0}
        if less:
            if k:
                more, less = (_combine(more, {(): k}), less) if k > 0 else (more, _combine(less, {(): -k}))
            return type(e)(emit(more), emit(less))
        return type(e)(emit(more), _int(-k))

    def _not(self, e: Not) -> Expr:
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

    def sums_of(self, cond: Expr) -> list[Sum]:
        """The sums that are ≥ 0 where `cond` holds (those that it shows at once)."""
        if isinstance(cond, And):
            return self.sums_of(cond.a) + self.sums_of(cond.b)
        if isinstance(cond, Not):
            flipped = self.simplify(cond)
            return [] if isinstance(flipped, Not) else self.sums_of(flipped)
        if not isinstance(cond, (Lt, Le, Eq)) or not _is_index(cond.a):
            return []
        s = _combine(self.sum(cond.b), self.sum(cond.a), -1)
        if isinstance(cond, Lt):
            return [_combine(s, {(): -1})]
        return [s] if isinstance(cond, Le) else [s, _scale(s, -1)]

    def _and_or(self, e: Binary) -> Expr:
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
            negated = _combine({(): -1}, s, -1)
            others = [x for x in kept if x is not c]
            if conjunction:
                facts = [f for x in others for f in sums[x]]
                if facts and self.nonneg(s, facts):
                    kept = others
                elif facts and self.nonneg(negated, facts):
                    return None
            else:
                # c is idle if some other condition follows from it; all is true if one follows from its opposite.
                aims = [sums[x][0] for x in others if sums[x] and isinstance(x, (Lt, Le))]  # those that are one sum, no more and no less
                if any(self.nonneg(a, [negated]) for a in aims):
                    return None
                if any(self.nonneg(a, [s]) for a in aims):
                    kept = others
        return kept

    # -- proofs

    def range_of_sum(self, s: Sum) -> Range:
        out = Range(0, 0)
        for m, v in s.items():
            out = add_ranges(out, scale_range(self._range_of_product(m), v))
        return out

    def _range_of_product(self, m: Monomial) -> Range:
        if len(m) == 1:
            return self.ranges.of(m[0])
        out = Range(1, 1)
        for f in m:
            out = multiply_ranges(out, self.ranges.of(f))
        if len(m) == 2 and m[0] == m[1] and (out[0] is None or out[0] < 0):
            return Range(0, out[1])
        return out

    def nonneg(self, s: Sum, extra: list[Sum] | None = None) -> bool:
        """Whether s ≥ 0 for certain; `extra` are sums ≥ 0 beside the facts."""
        lo, hi = self.range_of_sum(s)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        facts = self.facts + extra if extra else self.facts
        if not facts and not any(type(f) in _BOUNDED for m in s for f in m):
            return False
        self.steps = PROOF_STEPS
        return self._nonneg(s, facts, PROOF_DEPTH)

    def _nonneg(self, s: Sum, facts: list[Sum], depth: int) -> bool:
        if depth == 0:
            return False
        # Beside the facts, what every //, %, min and max in the sum implies may cancel a term.
        candidates = facts + [f for a in dict.fromkeys(a for m in s for a in m if type(a) in _BOUNDED) for f in self._implied(a)]
        for m, v in s.items():
            if not m:
                continue
            lo = scale_range(self._range_of_product(m), v)[0]
            if lo is not None and lo >= 0:
                continue
            for fact in candidates:
                # What divides an atom alone is the atom: no other term of the fact need be looked at.
                for fm, fv in fact.items() if len(m) > 1 else ((m, fact.get(m, 0)),):
                    if not fm or not fv or (fv < 0) != (v < 0):
                        continue
                    by = _quotient(m, fm)
                    if by is None or not all(self.ranges.of(f).within(0, None) for f in by):
                        continue
                    self.steps -= 1
                    if self.steps < 0:
                        return False
                    # s·k = fact·by·c + rest with k, c > 0 and by ≥ 0
                    g = gcd(v, fv)
                    rest = _combine(s if abs(fv) == g else _scale(s, abs(fv) // g), _times(fact, by, abs(v) // g), -1)
                    lo, hi = self.range_of_sum(rest)
                    if lo is not None and lo >= 0:
                        return True
                    if (hi is None or hi >= 0) and self._nonneg(rest, facts, depth - 1):
                        return True
        return False

    def _implied(self, atom: Expr) -> list[Sum]:
        """Sums ≥ 0 by what an atom means."""
        found = self.implied.get(atom)
        if found is None:
            found = []
            me: Sum = {(atom,): 1}
            if isinstance(atom, (FloorDiv, FloorMod)):
                by = linear(atom.b)
                if self.ranges.of(atom.b).within(0, None):
                    if isinstance(atom, FloorMod):
                        found = [_combine(_combine(by, me, -1), {(): -1})]
                    else:
                        low = _combine(linear(atom.a), _product_of_sums(by, me), -1)
                        found = [low, _combine(_combine(by, low, -1), {(): -1})]
            elif isinstance(atom, (Min, Max)):
                sign = 1 if isinstance(atom, Min) else -1
                found = [_scale(_combine(linear(x), me, -1), sign) for x in (atom.a, atom.b)]
            self.implied[atom] = found
        return found

    # -- the normal form of int64 formulas

    def sum(self, e: Expr) -> Sum:
        """The sum of an int64 formula. Not to be changed."""
        found = self.sums.get(e)
        if found is None:
            found = self.sums[e] = self._sum(e)
        return found

    def _sum(self, e: Any) -> Sum:
        kind = type(e)
        if kind is Const:
            return {(): e.value} if e.value else {}
        if kind is Var:
            point = self.narrowed.get(e.name)
            if point is not None and point[0] is not None and point[0] == point[1]:
                return {(): point[0]} if point[0] else {}
            return {(e,): 1}
        if kind is Add or kind is Sub:
            out: Sum = {}
            stack: list[tuple[Expr, int]] = [(e, 1)]
            while stack:
                x, k = stack.pop()
                if type(x) is Add or type(x) is Sub:
                    stack.append((x.b, k if type(x) is Add else -k))
                    stack.append((x.a, k))
                    continue
                for m, v in self.sum(x).items():
                    v = out.get(m, 0) + k * v
                    if v:
                        out[m] = v
                    else:
                        del out[m]
            return self._recompose(out)
        if kind is Mul:
            return self._recompose(_product_of_sums(self.sum(e.a), self.sum(e.b)))
        if kind is FloorDiv:
            return self._floordiv(self.sum(e.a), self.sum(e.b))
        if kind is FloorMod:
            return self._recompose(self._floormod(self.sum(e.a), self.sum(e.b)))
        if kind is Min or kind is Max:
            return self._minmax(e)
        if kind is TruncDiv or kind is TruncMod:
            a, b = self.sum(e.a), self.sum(e.b)
            if self.nonneg(a) and self.nonneg(b):
                return self._floordiv(a, b) if kind is TruncDiv else self._floormod(a, b)
            divided = TruncDiv(emit(a), emit(b)) if kind is TruncDiv else TruncMod(emit(a), emit(b))
            return self._atom(divided.with_children(divided.children()) if b else divided)
        if kind is ShiftRight and isinstance(e.b, Const) and 0 <= e.b.value < 62:
            return self._floordiv(self.sum(e.a), {(): 1 << e.b.value})
        result = self._select(e) if kind is Select else self._generic(e)
        if type(result) in _ARITHMETIC:
            return self.sum(result)
        return self._atom(result)

    def _atom(self, e: Expr) -> Sum:
        point = self.ranges.of(e)
        if point[0] is not None and point[0] == point[1]:
            return {(): point[0]} if point[0] else {}
        return {(e,): 1}

    def _recompose(self, s: Sum) -> Sum:
        """x % a + (x // a)·a → x, and x % a + (x // a % b)·a → x % (a·b), each times a common factor."""
        for m, v in s.items():
            for at, f in enumerate(m):
                if type(f) is not FloorMod:
                    continue
                others = m[:at] + m[at + 1 :]
                by = self.sum(f.b)
                if len(by) != 1:
                    continue
                ((bm, bv),) = by.items()
                high = self._floordiv(self.sum(f.a), by)
                if len(high) == 1:
                    ((hm, hv),) = high.items()
                    key = _join(_join(hm, bm), others)
                    if s.get(key) == v * bv * hv:
                        out = {k: w for k, w in s.items() if k != m and k != key}
                        return self._recompose(_combine(out, _times(self.sum(f.a), others, v)))
                # The parts of x//a that are multiples of constants stand in the sum by themselves: compare as sums.
                elif high and all(s.get(_join(_join(hm, bm), others)) == v * bv * hv for hm, hv in high.items() if hm):
                    out = _combine(s, {m: 1}, -v)
                    out = _combine(out, _times(high, _join(bm, others), v * bv), -1)
                    return self._recompose(_combine(out, _times(self.sum(f.a), others, v)))
                for m2, v2 in s.items():
                    if m2 is m or v2 != v * bv:
                        continue
                    rest = _quotient(m2, _join(bm, others))
                    if rest is None or len(rest) != 1 or type(rest[0]) is not FloorMod:
                        continue
                    if self.sum(rest[0].a) == high and self.ranges.of(f.b).within(0, None):
                        out = {k: w for k, w in s.items() if k != m and k != m2}
                        whole = self._floormod(self.sum(f.a), _product_of_sums(by, self.sum(rest[0].b)))
                        return self._recompose(_combine(out, _times(whole, others, v)))
        return s

    def _between(self, s: Sum, by: Sum) -> bool:
        """Whether 0 ≤ s < by for certain."""
        return self.nonneg(s) and self.nonneg(_combine(_combine(by, s, -1), {(): -1}))

    def _divide_terms(self, a: Sum, b: Sum) -> tuple[Sum, Sum]:
        """q, r with a = q·b + r, where q takes the terms that b divides."""
        q: Sum = {}
        r: Sum = {}
        if len(b) == 1:
            ((bm, bv),) = b.items()
            for m, v in a.items():
                rest = _quotient(m, bm) if v % bv == 0 else None
                if rest is None:
                    r[m] = v
                else:
                    q[rest] = v // bv
            return q, r
        lead, lv = min(((m, v) for m, v in b.items() if m), key=lambda t: (-len(t[0]), -abs(t[1]), [order_key(f) for f in t[0]]))
        r = a
        for m in a:
            v = r.get(m, 0)
            rest = _quotient(m, lead) if v and v % lv == 0 else None
            if rest is not None:
                less = _combine(r, _times(b, rest, v // lv), -1)
                if len(less) < len(r):
                    q, r = _combine(q, {rest: v // lv}), less
        return q, r

    def _shared_factor(self, r: Sum, b: Sum) -> tuple[Monomial, int]:
        """The greatest monomial that divides every term of both."""
        k, common = gcd(*r.values(), *b.values()), None
        for m in (*r, *b):
            common = m if common is None else _common(common, m)
        return common or (), k

    def _split_by(self, r: Sum, b: Sum) -> tuple[Sum, Sum, Monomial, int] | None:
        """h, s, g with r = h·g + s, g a divisor of the monomial b, 0 ≤ s < g: then r // b = h // (b/g) and r % b = (h % (b/g))·g + s."""
        if len(b) != 1:
            return None
        ((bm, bv),) = b.items()
        tried: list[tuple[Monomial, int]] = []
        for m, v in r.items():
            if not m:
                continue
            g = (_common(m, bm), gcd(v, bv))
            if g == ((), 1) or g in tried:
                continue
            tried.append(g)
            gm, gv = g
            high: Sum = {}
            low: Sum = {}
            for x, w in r.items():
                rest = _quotient(x, gm)
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
            if not low or (self._between(low, {gm: gv}) and all(self.ranges.of(f).within(0, None) for f in gm)):
                return high, low, gm, gv
        return None

    def _floordiv(self, a: Sum, b: Sum) -> Sum:
        c = _constant(b)
        if c == 0:
            return {(FloorDiv(emit(a), _int(0)),): 1}
        if c == 1 or not a:
            return a
        negative = c < 0 if c is not None else len(b) == 1 and next(iter(b.values())) < 0
        if negative:
            a, b = _scale(a, -1), _scale(b, -1)
            if c == -1:
                return a
            c = None if c is None else -c
        if c is not None:
            q: Sum = {}
            r: Sum = {}
            for m, v in a.items():
                if not m:
                    if v // c:
                        q[m] = v // c
                    if v % c:
                        r[m] = v % c
                elif v % c == 0:
                    q[m] = v // c
                else:
                    r[m] = v
            lo, hi = self.range_of_sum(r)
            if lo is not None and hi is not None and lo // c == hi // c:
                return _combine(q, {(): 1}, lo // c)
        else:
            q, r = self._divide_terms(a, b)
        if not r or ((c is None or self.facts or lo is None or lo >= 0) and self._between(r, b)):
            return q
        fm, fk = self._shared_factor(r, b)
        if fm or fk > 1:
            inner = self._floordiv({_quotient(m, fm) or (): v // fk for m, v in r.items()}, {_quotient(m, fm) or (): v // fk for m, v in b.items()})
            return self._recompose(_combine(q, inner)) if q else inner
        split = self._split_by(r, b)
        if split is not None:
            high, _, gm, gv = split
            inner = self._floordiv(high, {_quotient(m, gm) or (): v // gv for m, v in b.items()})
            return self._recompose(_combine(q, inner)) if q else inner
        inner = self._divided(r, b, c)
        return self._recompose(_combine(q, inner)) if q else inner

    def _divided(self, r: Sum, b: Sum, c: int | None) -> Sum:
        """r // b where nothing divides out."""
        atoms = [(m[0], v) for m, v in r.items() if m and len(m) == 1]
        if len(atoms) == 1 and atoms[0][1] == 1 and len(r) == 1 + (() in r):
            x = atoms[0][0]
            if type(x) is FloorDiv and (c is not None or self.nonneg(b)):
                # (x//a + k)//b = (x + k·a)//(a·b) for b > 0
                by = self.sum(x.b)
                if by:
                    return self._floordiv(_combine(self.sum(x.a), by, r.get((), 0)), _product_of_sums(by, b))
            if type(x) is FloorMod and c is not None and len(r) == 1 and isinstance(x.b, Const) and x.b.value > 0 and x.b.value % c == 0:
                return self._floormod(self._floordiv(self.sum(x.a), b), {(): x.b.value // c})
        return self._atom(FloorDiv(emit(r), emit(b)))

    def _floormod(self, a: Sum, b: Sum) -> Sum:
        c = _constant(b)
        if c == 0:
            return {(FloorMod(emit(a), _int(0)),): 1}
        if c == 1 or c == -1 or not a:
            return {}
        if c is not None and c < 0:
            return _scale(self._floormod(_scale(a, -1), {(): -c}), -1)
        if c is not None:
            r: Sum = {}
            pending = list(a.items())
            while pending:
                m, v = pending.pop()
                # The remainder keeps the sign of the coefficient: -i stays -i.
                v = v % c if not m or v > 0 else -(-v % c)
                if not v:
                    continue
                f = m[0] if len(m) == 1 else None
                if type(f) is FloorMod and isinstance(f.b, Const) and f.b.value and (v * f.b.value) % c == 0:
                    pending += [(x, w * v) for x, w in self.sum(f.a).items()]
                    continue
                total = r.get(m, 0) + v
                total = total % c if not m or total > 0 else -(-total % c)
                if total:
                    r[m] = total
                else:
                    r.pop(m, None)
            lo, hi = self.range_of_sum(r)
            if lo is not None and hi is not None and lo // c == hi // c:
                return _combine(r, {(): c}, -(lo // c))
        else:
            _, r = self._divide_terms(a, b)
        if not r or ((c is None or self.facts or lo is None or lo >= 0) and self._between(r, b)):
            return r
        fm, fk = self._shared_factor(r, b)
        if fm or fk > 1:
            inner = self._floormod({_quotient(m, fm) or (): v // fk for m, v in r.items()}, {_quotient(m, fm) or (): v // fk for m, v in b.items()})
            return _times(inner, fm, fk)
        split = self._split_by(r, b)
        if split is not None:
            high, low, gm, gv = split
            inner = self._floormod(high, {_quotient(m, gm) or (): v // gv for m, v in b.items()})
            return _combine(_times(inner, gm, gv), low)
        return self._atom(FloorMod(emit(r), emit(b)))

    def _minmax(self, e: Binary) -> Sum:
        kind = type(e)
        sign = 1 if kind is Min else -1
        items: list[Sum] = []
        stack: list[Expr] = [e.b, e.a]
        while stack:
            x = stack.pop()
            if type(x) is kind:
                stack += [x.b, x.a]
                continue
            s = self.sum(x)
            if len(s) == 1 and (m := next(iter(s))) and len(m) == 1 and type(m[0]) is kind and s[m] == 1:
                stack += [m[0].b, m[0].a]
                continue
            if any(self.nonneg(_scale(_combine(s, k, -1), sign)) for k in items):
                continue
            items = [k for k in items if not self.nonneg(_scale(_combine(k, s, -1), sign))] + [s]
        if len(items) == 1:
            return items[0]
        shared = {m: v for m, v in items[0].items() if all(k.get(m) == v for k in items[1:])}
        if shared:
            items = [_combine(k, shared, -1) for k in items]
        g = gcd(*(v for k in items for v in k.values()))
        if g > 1:
            items = [{m: v // g for m, v in k.items()} for k in items]
        parts = sorted((emit(k) for k in items), key=lambda x: (isinstance(x, Const), order_key(x)))
        result = parts[0]
        for part in parts[1:]:
            result = kind(result, part)
        out = self._atom(result)
        if g > 1:
            out = _scale(out, g)
        return self._recompose(_combine(shared, out)) if shared else out


def _same(_: Simplifier, e: Expr) -> Expr:
    return e


def _exact_div(_: Simplifier, e: Expr) -> Expr:
    """x / 2**k is x * 2**-k to the bit."""
    assert isinstance(e, Div)
    if isinstance(e.b, Const) and e.dtype.name in ("float32", "float64") and e.b.value:
        mantissa, inverse = abs(float(e.b.value)).hex(), 1.0 / e.b.value if abs(e.b.value) > 1e-30 else 0.0
        if mantissa.startswith("0x1.0000000000000p") and 1e-30 < abs(inverse) < 1e30:
            return Mul(e.a, Const(inverse, e.dtype))
    return e


def _cast(s: Simplifier, e: Expr) -> Expr:
    """A cast of a cast, where the inner one loses nothing."""
    assert isinstance(e, Cast)
    inner = e.value
    if not isinstance(inner, Cast) or e.dtype.lanes > 1:
        return e
    source, middle = inner.value.dtype, inner.dtype
    if (source.is_integer or source.is_bool) and middle.is_integer:
        limits = range_of_dtype(middle)
        kept = s.ranges.of(inner.value).within(*limits) if limits is not ANY else source.name != "uint64"
        return n.cast_to(inner.value, e.dtype) if kept and (e.dtype.is_integer or e.dtype.is_float) else e
    if source.is_float and middle.is_float and e.dtype == source and _widens(source.name, middle.name):
        return inner.value
    return e


def _widens(source: str, middle: str) -> bool:
    wide = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",)}
    return middle in wide.get(source, ())


def _vector_divide(s: Simplifier, e: Expr) -> Expr:
    """A ramp divided lane by lane by a constant: again a ramp where the stride divides, one value where no lane crosses."""
    assert isinstance(e, (FloorDiv, FloorMod))
    if not isinstance(e.a, Ramp) or not isinstance(e.b, Broadcast) or not _is_index(e.a.base):
        return e
    by, base, stride, lanes = e.b.value, e.a.base, e.a.stride, e.a.lanes
    if not isinstance(by, Const) or not isinstance(stride, Const) or by.value <= 0:
        return e
    high = isinstance(e, FloorDiv)
    if stride.value % by.value == 0:
        if high:
            return Ramp(s.simplify(FloorDiv(base, by)), _int(stride.value // by.value), lanes)
        return Broadcast(s.simplify(FloorMod(base, by)), lanes)
    low = s.sum(FloorMod(base, by))
    reach = stride.value * (lanes - 1)
    if s.nonneg(_combine(low, {(): min(reach, 0)})) and s.nonneg(_combine({(): by.value - 1 - max(reach, 0)}, low, -1)):
        return Broadcast(s.simplify(FloorDiv(base, by)), lanes) if high else Ramp(emit(low), stride, lanes)
    return e


_EXACT: dict[type, Callable[[Simplifier, Expr], Expr]] = {Div: _exact_div, Cast: _cast, FloorDiv: _vector_divide, FloorMod: _vector_divide}
_CONDITIONS: dict[type, Callable[[Simplifier, Any], Expr]] = {
    Lt: Simplifier._compare, Le: Simplifier._compare, Eq: Simplifier._equal, Ne: Simplifier._equal, Not: Simplifier._not,
    And: Simplifier._and_or, Or: Simplifier._and_or,
}  # fmt: skip
_BOUNDED = frozenset((FloorDiv, FloorMod, Min, Max))
_ARITHMETIC = frozenset((Const, Var, Add, Sub, Mul, FloorDiv, FloorMod, Min, Max))
