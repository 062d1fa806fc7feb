"""Conditions on sizes under which a program was exported, as PyTorch writes them: `L['x'].size()[0] % 2 == 0`.

They are parsed, never evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft import dtypes as dt
from weft.expr import nodes as e
from weft.expr.nodes import Expr
from weft.tensor.language import Dim
from weft_frontend.operands import Unsupported

Size = Callable[[str, int], Dim]
"""(name of an input, axis) → its size."""
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: e.add, ast.Sub: e.sub, ast.Mult: e.mul, ast.FloorDiv: e.floordiv, ast.Mod: e.floormod,
    ast.Eq: e.eq, ast.NotEq: e.ne, ast.Lt: e.lt, ast.LtE: e.le, ast.Gt: lambda a, b: e.lt(b, a),
    ast.GtE: lambda a, b: e.le(b, a),
}  # fmt: skip
CALLS: dict[str, Callable[[Any, Any], Any]] = {"min": e.minimum, "max": e.maximum, "Min": e.minimum, "Max": e.maximum}


def arguments(program: torch.export.ExportedProgram) -> Mapping[str, str]:
    """The arguments of a program as conditions name them, nested ones joined by "_" → the names of its inputs, which
    PyTorch writes in lower case and numbers where two are the same."""
    inputs = program.graph_signature.user_inputs
    signature = program.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None)
    if signature is None or names is None:
        return {str(name): str(name) for name in inputs}
    given = torch.utils._pytree.tree_unflatten(list(inputs), signature.in_spec)
    found: dict[str, str] = {}
    for path, name in torch.utils._pytree.tree_flatten_with_path(given)[0]:
        kind, first, *rest = (getattr(key, "idx", getattr(key, "key", getattr(key, "name", None))) for key in path)
        outer = names[first] if kind == 0 else first
        found["_".join(map(str, (outer, *rest)))] = str(name)
    return found


def condition(text: str, size: Size) -> Expr:
    """A condition as a formula.

    Raises:
        Unsupported: it is about more than sizes of inputs.
    """
    try:
        return _formula(ast.parse(text, mode="eval").body, size)
    except (SyntaxError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise Unsupported(f"the condition {text[:200]} of its export") from error


def _formula(node: ast.expr, size: Size) -> Expr:
    def of(x: ast.expr) -> Expr:
        return _formula(x, size)

    match node:
        case ast.Constant(value=bool(value)):
            return e.const(value)
        case ast.Constant(value=int(value)):
            return e.wrap(value, dt.int64)
        case ast.BinOp(left, operator, right):
            return e.wrap(OPERATORS[type(operator)](of(left), of(right)))
        case ast.UnaryOp(ast.USub(), operand):
            return 0 - of(operand)
        case ast.UnaryOp(ast.Not(), operand):
            return e.not_(of(operand))
        case ast.BoolOp(operator, values):
            return (e.all_of if isinstance(operator, ast.And) else e.any_of)(map(of, values))
        case ast.Compare(left, operators, others):
            pairs = zip(operators, [left, *others], others)
            return e.all_of(OPERATORS[type(o)](of(a), of(b)) for o, a, b in pairs)
        case ast.Call(ast.Name(name), [first, *others]):
            found = of(first)
            for other in others:
                found = e.wrap(CALLS[name](found, of(other)))
            return found
        case ast.Subscript(ast.Call(ast.Attribute(source, "size"), []), ast.Constant(value=int(axis))):
            return e.wrap(size(_name(source), axis), dt.int64)
    raise ValueError(ast.dump(node)[:100])


def _name(node: ast.expr) -> str:
    """`L['xs'][0]` is the input xs_0."""
    match node:
        case ast.Subscript(ast.Name("L"), ast.Constant(value=str(name))):
            return name
        case ast.Subscript(inner, ast.Constant(value=(str() | int()) as key)):
            return f"{_name(inner)}_{key}"
        case ast.Attribute(inner, name):
            return f"{_name(inner)}_{name}"
    raise ValueError(ast.dump(node)[:100])


__all__ = ["arguments", "condition"]
