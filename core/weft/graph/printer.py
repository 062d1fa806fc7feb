"""Graphs as text; `parser` reads it back.

graph   := "graph" name "(" (value ":" type),* ")" "symbols" "(" (symbol "=" value "[" index "]"),* ")" "{" line*
        return "}"
line    := value ":" type "=" "const" (number)?                                   one-element constants show their
    value
         | (value ":" type),+ "=" Operator "(" (name "=" attribute),* ")" "(" (value | "_"),* ")" ("# " names)?
return  := "return" (value ("as" string)?),*
value   := "%" word | "%" string
attribute := none | true | false | number | string | dtype | formula | "@" layout | "(" attribute,* ")" | graph
           | "operator" Operator "(" (name "=" attribute),* ")"
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr.nodes import Expr
from weft.expr.printer import print_name as print_symbol
from weft.graph.layout import Layout
from weft.graph.nodes import Graph, TensorType, Value

if TYPE_CHECKING:
    from weft.graph.operator import Operator

BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


def print_name(name: str) -> str:
    """A value's name as in the text, with its %; quoted where it holds unusual characters."""
    return f"%{name}" if BARE.fullmatch(name) and name != "_" else f"%{json.dumps(name)}"


def print_attribute(value: Any, indent: str = "") -> str:
    """One attribute's value.

    Raises:
        GraphError: its type has no text.
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return print_attribute(value.item(), indent)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (DType, Expr)):
        return str(value)
    if isinstance(value, Layout):
        return f"@{value}"
    if isinstance(value, tuple):
        items = [print_attribute(v, indent) for v in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, Graph):
        return _print(value, indent)
    if hasattr(value, "operator_name"):  # an Operator, whose module imports this one
        return f"operator {print_operator(value, indent)}"
    hint = "numbers, strings, dtypes, formulas, layouts, tuples, graphs, operators"
    raise GraphError(f"an attribute of type {type(value).__name__} has no text", where=repr(value), hint=hint)


def print_operator(op: Operator, indent: str = "") -> str:
    """An operator with all its attributes: `Conv(strides=(2, 2), groups=1)`."""
    return f"{op.operator_name}({', '.join(f'{k}={print_attribute(v, indent)}' for k, v in op.attributes().items())})"


def print_graph(graph: Graph) -> str:
    """The whole graph; data of constants of more than one element travels apart (see `constant_data`)."""
    return _print(graph, "") + "\n"


def _scalar_text(value: Value) -> str:
    data = value.constant
    assert data is not None
    if (
        data.size != 1
        or not isinstance(value.type, TensorType)
        or value.type.dtype.kind not in ("bool", "int", "uint", "float")
    ):
        return ""
    number = data.reshape(-1)[0]
    kind = value.type.dtype.kind
    return " " + print_attribute(bool(number) if kind == "bool" else float(number) if kind == "float" else int(number))


def _print(graph: Graph, indent: str) -> str:
    inner = indent + "  "
    inputs = ", ".join(f"{print_name(v.name)}: {v.type}" for v in graph.inputs)
    symbols = ", ".join(
        f"{print_symbol(name)} = {print_name(s.value.name)}[{s.index}]" for name, s in graph.symbols.items()
    )
    name = graph.name if BARE.fullmatch(graph.name) else json.dumps(graph.name)
    lines = [f"graph {name}({inputs}) symbols({symbols}) {{"]
    for value in all_constants(graph):
        lines.append(f"{inner}{print_name(value.name)}: {value.type} = const{_scalar_text(value)}")
    for node in graph.nodes:
        outputs = ", ".join(f"{print_name(o.name)}: {o.type}" for o in node.outputs)
        operands = ", ".join("_" if v is None else print_name(v.name) for v in node.inputs)
        comment = "  # " + ", ".join(json.dumps(n) for n in sorted(node.names)) if node.names else ""
        lines.append(f"{inner}{outputs} = {print_operator(node.op, inner)}({operands}){comment}")
    names = graph.output_names or [v.name for v in graph.outputs]
    results = ", ".join(
        print_name(v.name) + ("" if n == v.name else f" as {json.dumps(n)}") for v, n in zip(graph.outputs, names)
    )
    lines.append(f"{inner}return {results}".rstrip())
    lines.append(f"{indent}}}")
    return "\n".join(lines)


def all_constants(graph: Graph) -> list[Value]:
    """The constants of nodes and outputs, and those that only a data symbol mentions."""
    constants = graph.constants()
    known = {id(v) for v in constants}
    for source in graph.symbols.values():
        if source.value.constant is not None and id(source.value) not in known:
            known.add(id(source.value))
            constants.append(source.value)
    return constants


def subgraphs(op: Operator) -> dict[str, Graph]:
    """The graphs among an operator's attributes: `name` or `name.index` for tuples of them."""
    found: dict[str, Graph] = {}
    for name, value in op.attributes().items():
        if isinstance(value, Graph):
            found[name] = value
        elif isinstance(value, tuple):
            found.update({f"{name}.{k}": v for k, v in enumerate(value) if isinstance(v, Graph)})
    return found


def constant_data(graph: Graph, prefix: str = "") -> Mapping[str, np.ndarray[Any, Any]]:
    """The data that the text leaves out, by name; a sub-graph's names are prefixed by `node output/attribute/`."""
    data = {prefix + v.name: v.constant for v in all_constants(graph) if v.constant is not None}
    for node in graph.nodes:
        for name, inner in subgraphs(node.op).items():
            data.update(constant_data(inner, f"{prefix}{node.outputs[0].name}/{name}/"))
    return data
