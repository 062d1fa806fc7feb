"""Integer forms: sums of products of atoms with integer coefficients.

A form is Σ coefficient · atom · atom …, where an atom is an integer formula that is taken no further apart. Forms are
integers of mathematics: nothing overflows, and // and % round downwards. They are divided and compared by what their
terms say and by sign assumptions that the caller states (`weft.expr.signs`): without one no variable is taken for
non-negative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import (
    Add,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Mul,
    Sub,
    Var,
    cast_to,
    free_vars,
    size_of,
    wrap_integer,
)
from weft.expr.ranges import Range, add_ranges, multiply_ranges, scale_range

if TYPE_CHECKING:
    from weft.expr.signs import Signs

Monomial: TypeAlias = tuple[Expr, ...]
"""A product of atoms in the order of `order_key`; the empty product is 1."""

I64 = dt.int64
EXPAND_LIMIT = 24
"""Products of sums with more terms than this stay products (`bounded_product`)."""
SIZE_LIMIT = 4096
"""Likewise those of which so many nodes would stand side by side: products of many sums double with each."""


@lru_cache(maxsize=1 << 16)
def order_key(atom: Expr) -> tuple[str, str]:
    """The place of an atom among others: variables, then by kind, so that no name is compared with a function's."""
    return ("", atom.name) if isinstance(atom, Var) else (type(atom).__name__, str(atom))


def join(a: Monomial, b: Monomial) -> Monomial:
    """The product of two products."""
    return tuple(sorted(a + b, key=order_key)) if a and b else a or b


def quotient(m: Monomial, by: Monomial) -> Monomial | None:
    """m / by, if `by` divides it."""
    if not by:
        return m
    rest = list(m)
    for f in by:
        if f not in rest:
            return None
        rest.remove(f)
    return tuple(rest)


def common(a: Monomial, b: Monomial) -> Monomial:
    """The greatest product that divides both."""
    rest, out = list(b), []
    for f in a:
        if f in rest:
            rest.remove(f)
            out.append(f)
    return tuple(out)


def range_of_product(m: Monomial, of: Callable[[Expr], Range]) -> Range:
    """The interval of a product, atoms in the intervals that `of` gives."""
    if len(m) == 1:
        return of(m[0])
    out = Range(1, 1)
    for f in m:
        out = multiply_ranges(out, of(f))
    if len(m) == 2 and m[0] == m[1] and (out[0] is None or out[0] < 0):
        return Range(0, out[1])
    return out


# -- forms -------------------------------------------------------------------------------------------------------------


class Polynomial:
    """Σ coefficient · product of atoms. Immutable; equal where coefficients are, in whatever order the terms stand.

    `terms`: product → coefficient, none of them 0; the empty product has the constant. Not to be changed.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms

    @staticmethod
    def linear(atoms: Mapping[Expr, int], constant: int = 0) -> Polynomial:
        """Σ coefficient · atom + constant."""
        terms: dict[Monomial, int] = {(a,): k for a, k in atoms.items() if k}
        if constant:
            terms[()] = constant
        return Polynomial(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __len__(self) -> int:
        return len(self.terms)

    def __repr__(self) -> str:
        return f"Polynomial({self.expr()})"

    @property
    def value(self) -> int | None:
        """The number that it is, if it has no atom."""
        terms = self.terms
        return 0 if not terms else terms.get(()) if len(terms) == 1 else None

    @property
    def constant(self) -> int:
        """The term without atoms."""
        return self.terms.get((), 0)

    @property
    def atoms(self) -> dict[Expr, int]:
        """Atom → coefficient, of a form whose products have one atom each; the constant is left out.

        Raises:
            ValueError: a product has several atoms.
        """
        if any(len(m) > 1 for m in self.terms):
            raise ValueError(f"{self} is not linear in its atoms")
        return {m[0]: k for m, k in self.terms.items() if m}

    def names(self) -> set[str]:
        """The variables in its atoms."""
        return {v for m in self.terms for a in m for v in free_vars(a)}

    def expr(self, dtype: DType = I64) -> Expr:
        """The formula: positive terms before negative ones, high degrees and large coefficients first, constant last.

        Args:
            dtype: of the formula; atoms of other integer dtypes are cast.
        """
        terms = self.terms
        if len(terms) == 1:
            ((m, v),) = terms.items()
            return _product(m, v, dtype)
        if not terms:
            return int_const(0, dtype)
        constant = terms.get((), 0)
        order = [t for t in terms.items() if t[0]]
        if len(order) > 1:
            order.sort(key=_term_key)
        m, v = order[0]
        if v < 0 and constant > 0:
            result: Expr = int_const(constant, dtype)
            constant = 0
        else:
            result = _product(m, v, dtype)
            order = order[1:]
        for m, v in order:
            result = Add(result, _product(m, v, dtype)) if v > 0 else Sub(result, _product(m, -v, dtype))
        if constant:
            kind = Add if constant > 0 else Sub
            result = kind(result, int_const(abs(constant), dtype))
        return result

    # -- arithmetic

    def plus(self, other: Polynomial | int, times: int = 1) -> Polynomial:
        """self + times · other."""
        out = dict(self.terms)
        for m, v in other.terms.items() if isinstance(other, Polynomial) else (((), other),):
            v = out.get(m, 0) + times * v
            if v:
                out[m] = v
            else:
                out.pop(m, None)
        return Polynomial(out)

    __add__ = plus

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self.plus(other, -1)

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -v for m, v in self.terms.items()})

    def scale(self, k: int) -> Polynomial:
        return Polynomial({m: v * k for m, v in self.terms.items()}) if k else ZERO

    def times(self, m: Monomial, k: int = 1) -> Polynomial:
        """self · k · m."""
        return Polynomial({join(x, m): v * k for x, v in self.terms.items()}) if m and k else self.scale(k)

    def __mul__(self, other: Polynomial) -> Polynomial:
        """The product, multiplied out however many terms it has."""
        out: dict[Monomial, int] = {}
        for m, v in self.terms.items():
            for p, w in other.terms.items():
                key = join(m, p)
                total = out.get(key, 0) + v * w
                if total:
                    out[key] = total
                else:
                    del out[key]
        return Polynomial(out)

    # -- parts

    def without(self, m: Monomial) -> Polynomial:
        """All terms but that of one product."""
        return Polynomial({p: v for p, v in self.terms.items() if p != m})

    def collect(self, atom: Expr) -> tuple[Polynomial, Polynomial] | None:
        """factor, rest with self = factor · atom + rest, both without the atom; None if a power is above one."""
        factor: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for m, v in self.terms.items():
            if atom not in m:
                rest[m] = v
                continue
            others = quotient(m, (atom,))
            if others is None or atom in others:
                return None
            factor[others] = v
        return Polynomial(factor), Polynomial(rest)

    def split_variables(self, names: Collection[str]) -> tuple[Polynomial, dict[str, Polynomial]] | None:
        """rest, factors with self = Σ factors[v] · v + rest, free of the variables; None if not linear in them."""
        rest: dict[Monomial, int] = {}
        factors: dict[str, dict[Monomial, int]] = {}
        for m, v in self.terms.items():
            inside = [a for a in m if not free_vars(a).keys().isdisjoint(names)]
            if not inside:
                rest[m] = v
                continue
            others = quotient(m, (inside[0],))
            if len(inside) > 1 or not isinstance(inside[0], Var) or others is None:
                return None
            factors.setdefault(inside[0].name, {})[others] = v
        return Polynomial(rest), {name: Polynomial(terms) for name, terms in factors.items()}

    def sides(self) -> tuple[Polynomial, Polynomial]:
        """p and q with self = p − q + constant, both with positive coefficients and without constants."""
        more = {m: v for m, v in self.terms.items() if m and v > 0}
        less = {m: -v for m, v in self.terms.items() if m and v < 0}
        return Polynomial(more), Polynomial(less)

    # -- division

    def split(self, by: int) -> tuple[Polynomial, Polynomial]:
        """q and r with self = q·by + r, for `by` ≥ 1; so self // by = q + r // by, and self % by = r % by.

        q has the terms that `by` divides; the constant of r is in 0 … by − 1.
        """
        q: dict[Monomial, int] = {}
        r: dict[Monomial, int] = {}
        for m, v in self.terms.items():
            if not m:
                if v // by:
                    q[m] = v // by
                if v % by:
                    r[m] = v % by
            elif v % by == 0:
                q[m] = v // by
            else:
                r[m] = v
        return Polynomial(q), Polynomial(r)

    def divided(self, by: int, m: Monomial = ()) -> Polynomial | None:
        """self / (by · m), if `by`, which is not 0, divides every coefficient and `m` every product."""
        out: dict[Monomial, int] = {}
        for x, v in self.terms.items():
            rest = quotient(x, m)
            if rest is None or v % by:
                return None
            out[rest] = v // by
        return Polynomial(out)

    def divide_terms(self, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        """q and r with self = q·by + r, where q takes the terms that `by`, which is not 0, divides."""
        if len(by) == 1:
            ((bm, bv),) = by.terms.items()
            high: dict[Monomial, int] = {}
            low: dict[Monomial, int] = {}
            for m, v in self.terms.items():
                rest = quotient(m, bm) if v % bv == 0 else None
                if rest is None:
                    low[m] = v
                else:
                    high[rest] = v // bv
            return Polynomial(high), Polynomial(low)
        lead, lv = by.leading()
        q, r = ZERO, self
        for m in self.terms:
            v = r.terms.get(m, 0)
            rest = quotient(m, lead) if v and v % lv == 0 else None
            if rest is not None:
                less = r.plus(by.times(rest, v // lv), -1)
                if len(less) < len(r):
                    q, r = q + single(rest, v // lv), less
        return q, r

    def floordiv(self, by: Polynomial, signs: Signs) -> Polynomial | None:
        """self // by, if it is certainly a form wherever `by` is not 0; else None.

        Every term has to divide, but for a constant, which rounds down or is within one step of zero.
        """
        if len(by) != 1:
            return None
        ((divisor, factor),) = by.terms.items()
        if factor <= 0:
            return None
        out: dict[Monomial, int] = {}
        for m, v in self.terms.items():
            rest = quotient(m, divisor)
            if m and (rest is None or v % factor):
                return None
            if rest is not None:  # a constant divided by a number rounds down on its own once all else divides
                step = v // factor
            else:
                rest, step = (), -1 if v < 0 else 0
                if not -factor <= v < factor or not signs.positive(divisor):
                    return None
            if total := out.get(rest, 0) + step:
                out[rest] = total
            else:
                out.pop(rest, None)
        return Polynomial(out)

    def floormod(self, by: Polynomial, signs: Signs) -> Polynomial | None:
        """self % by, if self // by is a form for certain."""
        found = self.floordiv(by, signs)
        return None if found is None else self.plus(found * by, -1)

    def leading(self) -> tuple[Monomial, int]:
        """The term of the highest degree, of those the one with the largest coefficient. The form has an atom."""
        terms = ((m, v) for m, v in self.terms.items() if m)
        return min(terms, key=lambda t: (-len(t[0]), -abs(t[1]), [order_key(f) for f in t[0]]))

    # -- what is known

    def bounds(self, of: Callable[[Expr], Range]) -> Range:
        """An interval of its values, atoms in the intervals that `of` gives."""
        out = Range(0, 0)
        for m, v in self.terms.items():
            out = add_ranges(out, scale_range(range_of_product(m, of), v))
        return out


ZERO = Polynomial({})
"""The polynomial 0."""


def single(m: Monomial, k: int = 1) -> Polynomial:
    """k · m, for k other than 0."""
    return Polynomial({m: k})


def number(value: int) -> Polynomial:
    """The constant polynomial `value`."""
    return Polynomial({(): value}) if value else ZERO


def shared_factor(*forms: Polynomial) -> tuple[Monomial, int]:
    """The greatest product and number that divide every term of all forms."""
    k, shared = gcd(*(v for f in forms for v in f.terms.values())), None
    for f in forms:
        for m in f.terms:
            shared = m if shared is None else common(shared, m)
    return shared or (), k


def bounded_product(a: Polynomial, b: Polynomial, dtype: DType = I64) -> Polynomial:
    """The product, multiplied out within `EXPAND_LIMIT` terms and `SIZE_LIMIT` nodes; beyond, sums are atoms of it."""
    if not a or not b:
        return ZERO
    if (k := b.value) is not None:
        return a.scale(k)
    if (k := a.value) is not None:
        return b.scale(k)
    if len(a) * len(b) <= EXPAND_LIMIT and len(a) * _atoms_size(b) + len(b) * _atoms_size(a) <= SIZE_LIMIT:
        return a * b
    k, m = 1, join(*((f.expr(dtype),) if len(f) > 1 else () for f in (a, b)))
    for f in (a, b):
        if len(f) == 1:
            ((p, v),) = f.terms.items()
            k, m = k * v, join(m, p)
    return single(m, k)


def _atoms_size(a: Polynomial) -> int:
    """Of what is no variable."""
    return sum(size_of(f) for m in a.terms for f in m if type(f) is not Var)


# -- formulas ----------------------------------------------------------------------------------------------------------

_CONSTS = {k: Const(k, I64) for k in range(-64, 257)}


def int_const(k: int, dtype: DType = I64) -> Const:
    """A constant; common ones are made once."""
    found = _CONSTS.get(k) if dtype is I64 else None
    return Const(k if dtype == I64 else wrap_integer(k, dtype), dtype) if found is None else found


def _term_key(item: tuple[Monomial, int]) -> tuple[bool, int, int, list[tuple[str, str]]]:
    m, v = item
    return (v < 0, -len(m), -abs(v), [order_key(f) for f in m])


def _product(m: Monomial, v: int, dtype: DType) -> Expr:
    if not m:
        return int_const(v, dtype)
    result = cast_to(m[0], dtype) if m[0].dtype is not dtype else m[0]
    for f in m[1:]:
        result = Mul(result, cast_to(f, dtype) if f.dtype is not dtype else f)
    return result if v == 1 else Sub(int_const(0, dtype), result) if v == -1 else Mul(result, int_const(v, dtype))


class Conversion:
    """From formulas to forms; what it has converted once it remembers.

    Args:
        products: which are taken apart: `all`, `bounded` ones (`bounded_product`), or those by a `constant`, where any
            other product is an atom.
        casts: casts to an integer dtype of as many bits or more are taken as exact and looked through; else they are
            atoms.
        signs: quotients and remainders that are forms under these assumptions are taken apart; without, all are atoms.
        remembered: so many formulas.
    """

    def __init__(
        self,
        products: Literal["all", "bounded", "constant"],
        casts: bool = False,
        signs: Signs | None = None,
        remembered: int = 1 << 14,
    ) -> None:
        self.products, self.casts, self.signs = products, casts, signs
        self.of: Callable[[Expr], Polynomial] = lru_cache(remembered)(self._of)

    def __call__(self, e: Expr) -> Polynomial:
        """The form that equals `e`, an integer formula, wherever nothing is divided by zero."""
        return self.of(e)

    def _of(self, e: Any) -> Polynomial:
        kind, of = type(e), self.of
        if kind is Const:
            return number(int(e.value))
        if kind is Add:
            return of(e.a).plus(of(e.b))
        if kind is Sub:
            return of(e.a).plus(of(e.b), -1)
        if kind is Mul:
            return self._product(e)
        if self.casts and kind is Cast and _widens(e):
            return of(e.value)
        if self.signs is not None and (kind is FloorDiv or kind is FloorMod):
            a, b = of(e.a), of(e.b)
            found = a.floordiv(b, self.signs) if kind is FloorDiv else a.floormod(b, self.signs)
            if found is not None:
                return found
        return single((e,))

    def _product(self, e: Mul) -> Polynomial:
        if self.products == "constant":
            for x, k in ((e.a, e.b), (e.b, e.a)):
                if isinstance(k, Const):
                    return self.of(x).scale(int(k.value))
            return single((e,))
        a, b = self.of(e.a), self.of(e.b)
        return a * b if self.products == "all" else bounded_product(a, b, e.dtype)


def _widens(e: Cast) -> bool:
    return e.dtype.is_integer and e.value.dtype.is_integer and e.value.dtype.bits <= e.dtype.bits


polynomial = Conversion("bounded", remembered=1 << 15)
"""Sums and products are taken apart, nothing else."""
linear = Conversion("constant")
"""Sums and multiples are taken apart, nothing else: a product of two variables is an atom."""
