"""Names of dimensions that several axes have.

ONNX says that such axes are of one size. Models are found whose axes of one name differ, and run in ONNX Runtime, which
does not look. So the axes get sizes of their own at first; where an operator needs two of them to be equal, the model
is read again with one size for all axes of that name, which a run verifies. So are axes of a name that more than
`MOST_APART` have: sums of so many sizes would be long formulas.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping

from onnx import GraphProto

from weft.expr.nodes import Expr, Max, Min, Select, free_vars, substitute, walk
from weft.expr.ranges import Range
from weft.expr.simplify import prove
from weft.graph.nodes import Node, TensorType
from weft.graph.rewrite import attribute_symbols
from weft.tensor.language import as_dim
from weft_ops.shapes import simplified

MOST_APART = 64


class Together(Exception):
    """Axes of these names have to be of one size each."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def is_name(text: str) -> bool:
    """Whether a dimension's name is one: "?", "-1" and "None" stand for none."""
    return re.search(r"[^\W\d]", text) is not None and text != "None"


def repeated(graph: GraphProto) -> set[str]:
    """The names that several axes of inputs have, and at most `MOST_APART`."""
    fed = {t.name for t in graph.initializer}
    inputs = (i.type.tensor_type for i in graph.input if i.name not in fed)
    counts = Counter(d.dim_param for t in inputs for d in t.shape.dim if is_name(d.dim_param))
    return {name for name, count in counts.items() if 1 < count <= MOST_APART}


def needed(nodes: Iterable[Node], names: Mapping[str, str]) -> set[str]:
    """The names of which some of the nodes need axes to be of one size; `names` by symbol."""
    found: set[str] = set()
    for node in nodes:
        types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
        dims = [d for t in types if isinstance(t, TensorType) for d in t.shape if isinstance(d, Expr)]
        mentioned = {symbol for d in dims for symbol in free_vars(d)} | set(attribute_symbols(node.op))
        if not _several(mentioned, names):
            continue
        for assumed in node.op.inferred(node.inputs).assumes:
            several = _several(set(free_vars(assumed.holds)), names)
            if several and _certain(_joined(assumed.holds, names, several)) and not _certain(assumed.holds):
                found |= several
        for d in dims:
            several = _several(set(free_vars(d)), names)
            if several and _choices(simplified(as_dim(_joined(d, names, several)))) < _choices(d):
                found |= several
    return found


def warn_of(apart: Iterable[str], names: Mapping[str, str]) -> None:
    """Of names that stand for several sizes; `names` by symbol."""
    for name in sorted(apart):
        symbols = sorted(symbol for symbol, of in names.items() if of == name)
        if not symbols:  # their size was given
            continue
        text = (
            f"the model's inputs have several axes named '{name}', and nothing in it needs them to be of one size:"
            f" they are sizes of their own, {', '.join(symbols)}"
        )
        warnings.warn(text, UserWarning, stacklevel=3)


def _several(symbols: set[str], names: Mapping[str, str]) -> set[str]:
    """The names that more than one of these symbols are of."""
    counts = Counter(names[s] for s in symbols if s in names)
    return {name for name, count in counts.items() if count > 1}


def _joined(formula: Expr, names: Mapping[str, str], several: set[str]) -> Expr:
    """The formula if the axes of a name were of one size."""
    first: dict[str, Expr] = {}
    env: dict[str, Expr] = {}
    for symbol, var in sorted(free_vars(formula).items()):
        if names.get(symbol) in several:
            env[symbol] = first.setdefault(names[symbol], var)
    return substitute(formula, env)


def _certain(condition: Expr) -> bool:
    return prove(condition, {symbol: Range(0, None) for symbol in free_vars(condition)})


def _choices(formula: object) -> int:
    return sum(isinstance(e, (Select, Min, Max)) for e in walk(formula)) if isinstance(formula, Expr) else 0
