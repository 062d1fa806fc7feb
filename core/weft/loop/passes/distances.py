"""The possible values of the difference of two indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import Expr, FloorMod, has
from weft.expr.ranges import Range, range_of
from weft.loop.nodes import IntrinsicCall, Load, int_const

MOST_VALUES = 1 << 14
"""So many values of what two indices differ by are written out; what may have more is any multiple of its step."""


def reach(term: Expr, ranges: Mapping[str, Range]) -> Range | None:
    """The range of a term, if it is known at both ends."""
    known = range_of(term, ranges)
    return known if known.lo is not None and known.hi is not None else None


def distances(form: Polynomial, ranges: Mapping[str, Range]) -> tuple[Any, int]:
    """The values that a sum may have, but for multiples of a step (0: there are none)."""
    values = np.array([form.constant], np.int64)
    step = 0
    terms = form.atoms
    for group in _remainders(terms, ranges):
        values = np.unique(values[:, None] + group[None, :])
    for term, factor in sorted(terms.items(), key=lambda t: -abs(t[1])):
        known = None if has(term, (Load, IntrinsicCall)) else reach(term, ranges)
        if (
            known is None
            or known.lo is None
            or known.hi is None
            or len(values) * (known.hi - known.lo + 1) > MOST_VALUES
        ):
            step = math.gcd(step, factor)
            continue
        values = np.unique(values[:, None] + factor * np.arange(known.lo, known.hi + 1)[None, :])
    return values, step


def _remainders(terms: dict[Expr, int], ranges: Mapping[str, Range]) -> list[Any]:
    """Takes pairs c·(x % m) − c·(y % m) where x − y is a number out of the terms; what each may be. What is below m
    already is its own remainder."""
    found = []
    for a, b in itertools.permutations(list(terms), 2):
        if a not in terms or b not in terms or not isinstance(a, FloorMod) or terms[a] != -terms[b]:
            continue
        m, other = int_const(a.b), b
        if isinstance(b, FloorMod):
            other = b.a if a.b == b.b else a
        elif m is not None and not has(b, (Load, IntrinsicCall)):
            known = range_of(b, ranges)
            other = b if known.lo is not None and known.lo >= 0 and known.hi is not None and known.hi < m else a
        distance = (linear(a.a) - linear(other)).value
        if m is None or m < 1 or other is a or distance is None:
            continue
        factor, shift = terms.pop(a), distance % m
        del terms[b]
        found.append(factor * np.unique(np.array([shift, shift - m if shift else 0])))
    return found


def overlaps(values: Any, step: int, more: int, n: int, m: int) -> bool:
    """Whether a piece of a dimension that is n elements long and one of m may have an element in common: the first
    begins so much behind, by `distances`, and some more."""
    values = values + more  # they have one if -n < values < m
    if step:
        return bool((((values + n - 1) % step) <= n + m - 2).any())
    return bool(((values > -n) & (values < m)).any())
