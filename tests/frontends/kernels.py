"""The kernels of models side by side: `python -m tests.frontends.kernels MODEL MODEL …`.

The same net in several formats should become the same kernels. A kernel is named by the operators that it computes, in
the order of the alphabet, and by the types of its results, without axes of one element and without names of symbols.
What differs is printed with a count for each model.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence

import weft
from weft.compilation import Compilation
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, TensorType, Type
from weft.graph.rewrite import substitute_symbols
from weft.resolve import resolve_target
from weft_ops import Transpose

TARGET = "llvm -mcpu=x86-64-v3"


def kernel_list(graph: Graph, target: str = TARGET) -> Counter[str]:
    """How many calls of each kernel a graph becomes; views, which compute nothing, are none. What is no group is named
    by its operator."""
    return Counter(_name(node) for node in _calls(graph, target))


def transposes(graph: Graph, target: str = TARGET) -> list[str]:
    """The kernels, one for each call, that transpose and contract nothing: a contraction may read what it needs in any
    order."""
    return [
        _name(node)
        for node in _calls(graph, target)
        if isinstance(node.op, Group)
        and any(isinstance(n.op, Transpose) for n in node.op.body.nodes)
        and not any(n.op.kind == "contraction" for n in node.op.body.nodes)
    ]


def _calls(graph: Graph, target: str) -> list[Node]:
    grouped = Compilation(resolve_target(target), cache=False).optimize(graph)
    return [n for n in grouped.nodes if not (isinstance(n.op, Group) and n.op.view)]


def _name(node: Node) -> str:
    if not isinstance(node.op, Group):
        return type(node.op).__name__
    operators = sorted(type(n.op).__name__ for n in node.op.body.nodes)
    return f"{' '.join(operators)} -> {', '.join(_shown(o.type) for o in node.op.body.outputs)}"


def differences(lists: Mapping[str, Counter[str]]) -> list[str]:
    """Lines for the kernels that the models call unequally often: the counts, in the order of the models, and the
    kernel."""
    names = sorted({name for found in lists.values() for name in found})
    lines = []
    for name in names:
        counts = [found[name] for found in lists.values()]
        if len(set(counts)) > 1:
            lines.append(" ".join(f"{count:4}" for count in counts) + f"  {name}")
    return lines


def loaded(path: str, batch: int | None = None) -> Graph:
    """A model's graph; with every symbol of its inputs' first axes replaced by `batch`, if given."""
    graph = weft.load(path)
    if batch is None:
        return graph
    symbols = [v.shape[0] for v in graph.inputs if isinstance(v.type, TensorType) and v.tensor.rank]
    return substitute_symbols(graph, {d.name: batch for d in symbols if hasattr(d, "name")})


def _shown(type: Type) -> str:
    if not isinstance(type, TensorType):
        return str(type)
    dims = ", ".join(str(d) if isinstance(d, int) else "_" for d in type.shape if d != 1)
    return f"{type.dtype}[{dims}]" + ("" if type.layout is None else " in blocks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--batch", type=int, help="the size of the inputs' first axis, where it is open")
    parser.add_argument("--all", action="store_true", help="equal kernels as well")
    args = parser.parse_args(arguments)
    lists = {path: kernel_list(loaded(path, args.batch), args.target) for path in args.models}
    for path, found in lists.items():
        print(f"{found.total():4} calls of {len(found)} kernels: {path}")
    lines = differences(lists)
    if args.all:
        lines = [f"{count:4}  {name}" for name, count in sorted(next(iter(lists.values())).items())] + lines
    print("\n".join(lines) or "no differences")
    return int(bool(differences(lists)))


if __name__ == "__main__":
    raise SystemExit(main())
