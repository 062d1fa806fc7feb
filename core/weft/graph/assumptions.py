"""Assumptions of a graph about sizes known only at run time. Type rules return them (`weft.graph.inferred`); a compiled
segment checks them before it computes.

Add of `a` and `b` elements infers `a` and assumes `a == b`. Without the check a kernel would read beyond the shorter
operand."""

from __future__ import annotations

from collections.abc import Container, Iterable

from weft import dtypes as dt
from weft.errors import literal, shown
from weft.expr.nodes import Expr, Var, all_of, free_vars, le, maximum, mul, wrap
from weft.expr.ranges import Range
from weft.expr.simplify import prove, simplify
from weft.graph.group import Group
from weft.graph.inferred import Assumption, brief
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import attribute_symbols
from weft.tensor.language import Dim, factors
from weft_runtime.abi import ERROR_ARGS, LARGEST

LONGEST = 200
"""Characters of a node's names in a text: archives keep it."""


ONE = wrap(1, dt.int64)


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


def _of_node(node: Node, judged: Container[Expr]) -> list[Assumption]:
    """What a node takes for granted, but conditions that are judged already."""
    result = []
    for a in node.op.inferred(node.inputs).assumes:
        if a.holds not in judged:
            name = _named(node)
            names = name.removeprefix(node.op.operator_name)
            result.append(Assumption(a.holds, a.args, f"{a.of + names if a.of else name}: {a.what}", a.hint))
    for value in node.outputs:
        for axis, d in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            if isinstance(d, Expr) and (holds := le(wrap(0, dt.int64), d)) not in judged:
                what = f"{_named(node)}: its output would have size {{0}} on axis {axis}, expected 0 … {LARGEST}"
                result.append(Assumption(holds, (d,), what, f"it is {brief(d)}"))
    return result


def _named(node: Node) -> str:
    """A node in an error's template: its operator, and what the framework called it."""
    return node.op.operator_name + (
        literal(f" '{shown(', '.join(sorted(node.names)), LONGEST)}'") if node.names else ""
    )
