"""Formulas over sizes as a manifest writes them: `batch*4096 + min(n, 16)//4`. Read without the compiler, every word checked.

    formula := integer | true | false | name | a.dotted.name | `any name` | formula op formula | -formula | not formula | min(…) | max(…) | select(c, a, b)
    op      := + - * // % < <= > >= == != and or          as Python has them; // and % round down
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from weft_runtime.errors import ArchiveError

Formula: TypeAlias = Callable[[Mapping[str, int]], int]
LONGEST = 4000
_NAME = r"`[^`]*`|[^\W\d]\w*(?:\.\w+)*"
_WORDS = re.compile(rf"(?<!\w)(?:{_NAME})")
_RESERVED = {"and", "or", "not", "true", "false"}
_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def formula(text: int | str) -> Formula:
    """The function from the symbols' values to the formula's.

    Raises:
        ArchiveError: the text is no such formula.
    """
    if isinstance(text, int):
        return lambda env: text
    names: list[str] = []

    def known(found: re.Match[str]) -> str:
        # Python never sees a name: it has reserved words, and takes letters that look alike for the same.
        word = found[0]
        if word in _RESERVED or (word in ("min", "max", "select") and text[found.end() : found.end() + 1] == "("):
            return {"true": "1", "false": "0"}.get(word, word)
        names.append(word.strip("`"))
        return f" v{len(names) - 1} "

    if len(text) > LONGEST:
        raise ArchiveError(f"a formula has {len(text)} characters", why=f"the longest that is read has {LONGEST}")
    try:
        tree = ast.parse(_WORDS.sub(known, text).strip(), mode="eval").body
        return _compile(tree, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArchiveError(f"'{text[:80]}' is no formula over sizes", why=str(error) or type(error).__name__) from None


def symbol_of(text: int | str) -> str | None:
    """The symbol that is the whole formula, if it is one."""
    if isinstance(text, str) and re.fullmatch(_NAME, text) and text not in _RESERVED:
        return text.strip("`")
    return None


def _compile(node: ast.expr, names: list[str]) -> Formula:
    match node:
        case ast.Constant(value=int() as value):
            return lambda env: value
        case ast.Name(id=name):
            known = names[int(name[1:])]
            return lambda env: env[known]
        case ast.UnaryOp(op=ast.USub(), operand=a):
            inner = _compile(a, names)
            return lambda env: -inner(env)
        case ast.UnaryOp(op=ast.Not(), operand=a):
            inner = _compile(a, names)
            return lambda env: not inner(env)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
            return _apply(_BINARY[type(op)], _compile(a, names), _compile(b, names))
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _BINARY:
            return _apply(_BINARY[type(op)], _compile(a, names), _compile(b, names))
        case ast.BoolOp(op=op, values=values):
            parts, test = [_compile(v, names) for v in values], all if isinstance(op, ast.And) else any
            return lambda env: test(p(env) for p in parts)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[*values], keywords=[]) if values:
            parts, pick = [_compile(v, names) for v in values], min if name == "min" else max
            return lambda env: pick(p(env) for p in parts)
        case ast.Call(func=ast.Name(id="select"), args=[c, a, b], keywords=[]):
            cond, yes, no = (_compile(v, names) for v in (c, a, b))
            return lambda env: yes(env) if cond(env) else no(env)
    raise ValueError(f"{type(node).__name__} is no part of a formula")


def _apply(f: Callable[[int, int], Any], a: Formula, b: Formula) -> Formula:
    return lambda env: f(a(env), b(env))
