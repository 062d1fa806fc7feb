"""Assumptions of a graph about sizes that only a run knows. Type rules return them; a compiled segment checks them
before it computes.

Add of `a` and `b` elements infers `a` and assumes `a == b`. Without the check a kernel would read beyond the shorter
operand."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from weft import dtypes as dt
from weft.errors import literal, shown
from weft.expr.nodes import Expr, Var, all_of, eq, free_vars, le, maximum, mul, wrap
from weft.expr.ranges import Range
from weft.expr.simplify import prove, simplify
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Type, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import attribute_symbols
from weft.tensor.language import Dim, factors
from weft_runtime.abi import ERROR_ARGS, LARGEST

LONGEST = 200
"""Characters of a node's names in a text: archives keep it."""
BRIEF = 60
"""Characters of a formula in a hint."""


@dataclass(frozen=True)
class Assumption:
    """A condition `holds` over symbols. `what` and `hint` are the texts of the error if it is false, with the values of
    `args` for {0}, {1}; names in them are written by `literal`, since they may contain braces."""

    holds: Expr
    args: tuple[Expr, ...]
    what: str
    hint: str
    of: str = ""
    """The operator that it is of, where that is not the one whose type rule says it."""


ONE = wrap(1, dt.int64)
_heard: ContextVar[list[Assumption] | None] = ContextVar("heard", default=None)


def assume(holds: Expr, args: tuple[Expr, ...], what: str, hint: str, of: str = "") -> None:
    """For type rules: a condition over sizes that only a run knows; see `Assumption`."""
    heard = _heard.get()
    if heard is not None:
        heard.append(Assumption(holds, args, what, hint, of))


def assume_equal(a: Dim, b: Dim, what: str) -> None:
    """For type rules: `a` and `b`, which only a run knows, have to be equal."""
    x, y = wrap(a, dt.int64), wrap(b, dt.int64)
    assume(
        eq(x, y), (x, y), f"{literal(what)}: expected {{0}}, got {{1}}", f"{_brief(a)} and {_brief(b)} must be equal"
    )


def assume_at_most(a: Dim, most: Dim, what: str) -> None:
    """For type rules: `a`, which only a run knows, may not exceed `most`."""
    x, y = wrap(a, dt.int64), wrap(most, dt.int64)
    assume(
        le(x, y),
        (x, y),
        f"{literal(what)}: expected at most {{1}}, got {{0}}",
        f"{_brief(a)} must not exceed {_brief(most)}",
    )


def _brief(d: Dim) -> str:
    """A formula in an error's template; of a long one its ends."""
    return literal(shown(d, BRIEF))


def assumptions(graph: Graph) -> list[Assumption]:
    """Every assumption of the graph's nodes that is not certain, each once; the nodes' names are in their texts.
    Sub-graphs have their own."""
    sizes = {
        d.name: Range(0, None)
        for v in graph.inputs
        if isinstance(v.type, TensorType)
        for d in v.shape
        if isinstance(d, Expr) and hasattr(d, "name")
    }
    found: dict[Expr, Assumption] = {}
    judged: set[Expr] = set()
    for node in graph.nodes:
        for a in _of_node(node, judged):
            if a.holds in judged:
                continue
            judged.add(a.holds)
            ranges = {name: sizes.get(name, Range(None, None)) for name in free_vars(a.holds)}
            if ranges and not prove(a.holds, ranges):
                found.setdefault(simplify(a.holds, ranges), a)
    return list(found.values())


def limits(graph: Graph) -> list[Assumption]:
    """What kernels count on whenever they compute an index, of a graph after all passes: each symbol that a type or an
    operator uses lies in 0 … LARGEST, and so do the bytes of each value. Sizes of 0 count as 1 there, for the sake of
    what is computed of some of the sizes alone.
    """
    symbols: dict[str, Assumption] = {}
    sizes: dict[
        tuple[Expr, ...], tuple[int, Assumption]
    ] = {}  # the symbolic factors of a product of dimensions → bytes beside them

    def use(names: Iterable[str], by: str) -> None:
        for name in names:
            if name not in symbols:
                x, source = Var(name, dt.int64), graph.symbols.get(name)
                what = name if source is None else f"element {source.index} of '{source.value.name}'"
                symbols[name] = Assumption(
                    _up_to(x, LARGEST),
                    (x,),
                    f"{by}: {literal(shown(what, LONGEST))} is {{0}}, expected 0 … {LARGEST}",
                    "",
                )

    def hold(value: Value, by: str) -> None:
        if not isinstance(value.type, TensorType):
            return
        shape = value.type.shape
        use([name for d in shape if isinstance(d, Expr) for name in free_vars(d)], by)
        number, symbolic = factors(shape)
        key, count = tuple(sorted(symbolic.elements(), key=str)), max(1, number) * value.type.dtype.bytes
        if not key or sizes.get(key, (0,))[0] >= count:
            return
        product: Expr = key[0]
        if len(key) > 1:
            product = maximum(product, ONE)
            for d in key[1:]:
                product = mul(product, maximum(d, ONE))
        counted = tuple(_without_zeros(d) for d in shape[:ERROR_ARGS])
        sides = " × ".join(str(d) if isinstance(d, int) else f"{{{k}}}" for k, d in enumerate(counted)) + (
            " × …" if len(shape) > ERROR_ARGS else ""
        )
        what = f"{by}: {sides} elements of {value.type.dtype} are more than memory can hold"
        args = tuple(wrap(d, dt.int64) for d in counted)
        sizes[key] = (
            count,
            Assumption(_up_to(product, LARGEST // count), args, what, "give smaller sizes; one of 0 counts as 1 here"),
        )

    for value in graph.inputs:
        hold(value, literal(f"input '{shown(value.name, LONGEST)}'"))
    for outer in graph.nodes:
        for node in outer.op.body.nodes if isinstance(outer.op, Group) else (outer,):
            by = _named(node)
            if not node.op.states:
                use(attribute_symbols(node.op), by)
            for value in node.outputs:
                hold(value, by)
    alone = {key[0].name for key in sizes if len(key) == 1 and isinstance(key[0], Var)}  # whose values' bytes say more
    return [*(a for name, a in symbols.items() if name not in alone), *(a for _, a in sizes.values())]


def _without_zeros(d: Dim) -> Dim:
    """A dimension whose factors of 0 count as 1."""
    number, symbolic = factors([d])
    product: Expr | None = None
    for factor in symbolic.elements():
        product = maximum(factor, ONE) if product is None else mul(product, maximum(factor, ONE))
    return max(1, number) if product is None else mul(product, wrap(max(1, number), dt.int64))


def _up_to(x: Expr, most: int) -> Expr:
    """0 ≤ x ≤ most."""
    return all_of([le(wrap(0, dt.int64), x), le(x, wrap(most, dt.int64))])


def inferred(op: Operator, inputs: Sequence[Value | None]) -> tuple[tuple[Type, ...], list[Assumption]]:
    """What an operator's type rule gives, and what it takes for granted, certain or not."""
    heard: list[Assumption] = []
    token = _heard.set(heard)
    try:
        return op.infer_checked(inputs), heard
    finally:
        _heard.reset(token)


def _of_node(node: Node, judged: Container[Expr]) -> list[Assumption]:
    """What a node takes for granted, but conditions that are judged already."""
    _, heard = inferred(node.op, node.inputs)
    result = []
    for a in heard:
        if a.holds not in judged:
            name = _named(node)
            names = name.removeprefix(node.op.operator_name)
            result.append(Assumption(a.holds, a.args, f"{a.of + names if a.of else name}: {a.what}", a.hint))
    for value in node.outputs:
        for axis, d in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            if isinstance(d, Expr) and (holds := le(wrap(0, dt.int64), d)) not in judged:
                what = f"{_named(node)}: its output would have size {{0}} on axis {axis}, expected 0 … {LARGEST}"
                result.append(Assumption(holds, (d,), what, f"it is {_brief(d)}"))
    return result


def _named(node: Node) -> str:
    """A node in an error's template: its operator, and what the framework called it."""
    return node.op.operator_name + (
        literal(f" '{shown(', '.join(sorted(node.names)), LONGEST)}'") if node.names else ""
    )
