"""Rewrite rules as data: pattern → result, for the nodes that the sum-of-products normal form does not reach.

A variable of a pattern stands for any formula, the same one at each occurrence; a constant for itself in the dtype at
hand. Every rule holds bit for bit: floats with NaN, infinities and signed zeros, integers with wrap-around.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from weft import dtypes as dt
from weft.expr.nodes import Call, Const, Expr, Var

Domain = Literal["float", "int", "bool", "any"]
_DTYPE = {"float": dt.float32, "int": dt.int32, "bool": dt.bool_, "any": dt.float32}


@dataclass(frozen=True)
class RewriteRule:
    """`pattern` → `result`, both as text; `domain` is the dtype of the whole; `c` and `d` are conditions, other names
    are of the domain."""

    domain: Domain
    pattern: str
    result: str

    def parse(self) -> tuple[Expr, Expr]:
        from weft.expr.parser import parse_expr

        dtype = _DTYPE[self.domain]
        variables = {"c": Var("c", dt.bool_), "d": Var("d", dt.bool_), **{v: Var(v, dtype) for v in "xyz"}}
        suffix = {"float": "f32", "int": "i32"}.get(self.domain, "")
        return parse_expr(self.pattern.replace("#", suffix), variables), parse_expr(
            self.result.replace("#", suffix), variables
        )


RULES: tuple[RewriteRule, ...] = (
    # floats: only what IEEE 754 gives exactly (x + 0.0 is not x: it turns -0.0 into 0.0)
    RewriteRule("float", "x*1.0#", "x"),
    RewriteRule("float", "1.0#*x", "x"),
    RewriteRule("float", "x/1.0#", "x"),
    RewriteRule("float", "x - 0.0#", "x"),
    RewriteRule("float", "x + -0.0#", "x"),
    RewriteRule("float", "-0.0# + x", "x"),
    RewriteRule("float", "x*-1.0#*-1.0#", "x"),
    RewriteRule("float", "abs(abs(x))", "abs(x)"),
    RewriteRule("float", "abs(x*-1.0#)", "abs(x)"),
    RewriteRule("float", "floor(floor(x))", "floor(x)"),
    RewriteRule("float", "ceil(ceil(x))", "ceil(x)"),
    RewriteRule("float", "trunc(trunc(x))", "trunc(x)"),
    RewriteRule("float", "round(round(x))", "round(x)"),
    # integers that wrap (int64 has its normal form)
    RewriteRule("int", "x + y - y", "x"),
    RewriteRule("int", "x + y - x", "y"),
    RewriteRule("int", "x - y + y", "x"),
    RewriteRule("int", "min(x, min(x, y))", "min(x, y)"),
    RewriteRule("int", "min(min(x, y), y)", "min(x, y)"),
    RewriteRule("int", "max(x, max(x, y))", "max(x, y)"),
    RewriteRule("int", "max(max(x, y), y)", "max(x, y)"),
    RewriteRule("int", "min(max(x, y), y)", "y"),
    RewriteRule("int", "max(min(x, y), y)", "y"),
    RewriteRule("int", "x & x", "x"),
    RewriteRule("int", "x & 0#", "0#"),
    RewriteRule("int", "x & -1#", "x"),
    RewriteRule("int", "x | x", "x"),
    RewriteRule("int", "x | 0#", "x"),
    RewriteRule("int", "x ^ x", "0#"),
    RewriteRule("int", "x ^ 0#", "x"),
    RewriteRule("int", "x << 0#", "x"),
    RewriteRule("int", "x >> 0#", "x"),
    # conditions
    RewriteRule("bool", "x and not x", "false"),
    RewriteRule("bool", "not x and x", "false"),
    RewriteRule("bool", "x or not x", "true"),
    RewriteRule("bool", "not x or x", "true"),
    RewriteRule("bool", "x and (x or y)", "x"),
    RewriteRule("bool", "x or x and y", "x"),
    RewriteRule("bool", "not (x == y)", "x != y"),
    RewriteRule("bool", "not (x != y)", "x == y"),
    RewriteRule("bool", "x == true", "x"),
    RewriteRule("bool", "x != false", "x"),
    RewriteRule("bool", "x == false", "not x"),
    RewriteRule("bool", "x != true", "not x"),
    RewriteRule("bool", "select(c, true, false)", "c"),
    RewriteRule("bool", "select(c, false, true)", "not c"),
    # any dtype
    RewriteRule("any", "select(not c, x, y)", "select(c, y, x)"),
    RewriteRule("any", "select(c, select(c, x, y), z)", "select(c, x, z)"),
    RewriteRule("any", "select(c, x, select(c, y, z))", "select(c, x, z)"),
)


def _fits(domain: Domain, e: Expr) -> bool:
    if domain == "any":
        return True
    return e.dtype.is_float if domain == "float" else e.dtype.is_integer if domain == "int" else e.dtype.is_bool


def match(pattern: Expr, e: Expr, bound: dict[str, Expr]) -> bool:
    """Whether `e` is an instance of `pattern`; `bound` gets what the variables stand for."""
    if isinstance(pattern, Var):
        known = bound.setdefault(pattern.name, e)
        return known is e or known == e
    if type(pattern) is not type(e):
        return False
    if isinstance(pattern, Const) and isinstance(e, Const):
        return pattern.dtype.kind == e.dtype.kind and repr(pattern.value) == repr(e.value)
    if getattr(pattern, "name", None) != getattr(e, "name", None):
        return False
    return all(match(p, c, bound) for p, c in zip(pattern.children(), e.children()))


def build(result: Expr, bound: dict[str, Expr], like: Expr) -> Expr:
    """`result` with its variables replaced; constants and calls take the dtype of `like`."""
    if isinstance(result, Var):
        return bound[result.name]
    if isinstance(result, Const):
        return Const(result.value, like.dtype)
    children = tuple(build(c, bound, like) for c in result.children())
    return Call(result.name, children, like.dtype) if isinstance(result, Call) else result.with_children(children)


@cache
def _table() -> dict[type, list[tuple[Domain, Expr, Expr]]]:
    table: dict[type, list[tuple[Domain, Expr, Expr]]] = {}
    for rule in RULES:
        pattern, result = rule.parse()
        table.setdefault(type(pattern), []).append((rule.domain, pattern, result))
    return table


def apply_rules(e: Expr) -> Expr:
    """`e` rewritten at its root until no rule applies."""
    again = True
    while again:
        again = False
        rules: Iterable[tuple[Domain, Expr, Expr]] = _table().get(type(e), ())
        if e.dtype.lanes > 1:
            return e
        for domain, pattern, result in rules:
            if _fits(domain, e):
                bound: dict[str, Expr] = {}
                if match(pattern, e, bound):
                    e, again = build(result, bound, e), True
                    break
    return e
