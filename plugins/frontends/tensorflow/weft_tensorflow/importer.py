"""A graph of TensorFlow → Graph: only what the outputs need is read, in the order of what they need.

Calls of functions are put where they are. Variables are what the checkpoint's restoring gives them: the part of the
graph that does so is read as well. converters/ says how each operator is converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim
from weft_frontend.bodies import shaped
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent, Poison, Poisoned, Unsupported, poisoned
from weft_ops import StringConstant
from weft_tensorflow.complexes import Complex
from weft_tensorflow.context import Context
from weft_tensorflow.frames import JOINS, Frames, node_of
from weft_tensorflow.lists import Array, TensorList
from weft_tensorflow.model_file import Model, Signature, TensorRef
from weft_tensorflow.outputs import OUTPUTS, REFERENCES
from weft_tensorflow.plugin import TensorflowOptions
from weft_tensorflow.registry import REGISTRY
from weft_tensorflow.state import Handle, States, Stored
from weft_tensorflow.tables import Asset, Table, Tables
from weft_tensorflow.tensors import dtype_of, shape_of, texts_of
from weft_tensorflow.texts import MOVES, is_text, moved

MOST_DEPTH = 48
"""Functions inside of functions."""
IGNORED = frozenset({"Assert", "NoOp", "Print", "PrintV2", "CheckNumericsV2"})
"""Operators whose operands are not needed."""
PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
SIDES = frozenset({*IGNORED, "Const", "Placeholder", "VarHandleOp", "VariableV2", "Variable", "SaveV2"})
"""Operators that are no output of a graph, although nothing uses them."""


def import_model(model: Model, options: TensorflowOptions) -> Graph:
    """The graph of a model.

    Raises:
        FrontendError: an ill-formed model, or a name that it has not.
        UnsupportedError: everything unsupported, at once.
    """
    try:
        first = Importer(model, options)
        graph = first.run()
        if options.state == "inputs" and first.states.changed:
            graph = Importer(model, options, first.states.changed).run()
    except UnicodeDecodeError as error:
        raise FrontendError("a name of the model is no UTF-8", why=str(error)) from None
    return graph


class Scope:
    """The nodes of a graph or of a function's body, and the results of those that were read.

    Raises:
        FrontendError: two nodes have one name.
    """

    def __init__(
        self, nodes: Iterable[Any], prefix: str, function: Any = None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        self.prefix, self.function, self.attributes = prefix, function, attributes or {}
        self.nodes: dict[str, Any] = {}
        self.values: dict[str, Sequence[Any]] = {}
        self.loops: dict[str, Any] = {}
        """What the loops give that were read."""
        for node in nodes:
            if node.name in self.nodes:
                raise FrontendError(f"two nodes are named '{prefix}{node.name}'")
            self.nodes[node.name] = node

    @cached_property
    def frames(self) -> Frames:
        """Branches and loops that are nodes."""
        return Frames(self.nodes)

    def within(self, values: Mapping[str, Sequence[Any]]) -> Scope:
        """The same nodes, of which no more than these were read: in a branch or an iteration."""
        inner = copy(self)
        inner.frames = self.frames
        inner.values, inner.loops = dict(values), {}
        return inner


class Importer(GraphImporter):
    """The state of one import.

    Args:
        changing: variables that a call changes, which are to be inputs.
    """

    title = "TensorFlow"
    hint = "save the model without; a plugin can convert it (hook `converters`)"

    def __init__(self, model: Model, options: TensorflowOptions, changing: Iterable[str] = ()) -> None:
        library = {f.signature.name: f for f in model.graph.library.function}
        count = len(model.graph.node) + sum(len(f.node_def) for f in library.values())
        super().__init__(re.sub(r"\W+", "_", model.name) or "graph", "tensorflow", REGISTRY, count)
        self.model, self.options, self.library = model, options, library
        self.depth = 0
        self.open: set[str] = set()
        self.states = States(self, options.state, changing)
        self.tables = Tables(self)
        self.scope = Scope(model.graph.node, "")

    def run(self) -> Graph:
        signature = self.model.signature or self.frozen()
        self.restore()
        self.states.begin()
        for name, ref in signature.inputs.items():
            self.feed(ref, self.builder.input(name, self.input_type(name, ref)))
        self.check_names(signature)
        self.demand(self.scope, [parsed(ref.where)[0] for ref in signature.outputs.values()])
        results = {
            name: self.find(self.scope, ref.where, f"output '{name}'") for name, ref in signature.outputs.items()
        }
        if self.unsupported:
            raise self.everything_unsupported()
        for name, operand in results.items():
            rank = None if (shape := signature.outputs[name].shape) is None else len(shape)
            try:
                value = self.as_value(operand, name)
            except Unsupported as error:
                raise UnsupportedError(f"output '{name}': {error.reason} is not supported") from None
            self.builder.output(shaped(self.builder, value, rank), name)
        for name, value in self.states.results():
            self.builder.output(value, name)
        return self.built()

    # -- what is read
    def frozen(self) -> Signature:
        """The signature of a frozen graph: its placeholders, and what nothing uses, unless the options name others."""
        nodes = self.scope.nodes
        used = {parsed(i)[0] for node in nodes.values() for i in node.input}
        outputs = self.options.outputs or [n for n, node in nodes.items() if n not in used and node.op not in SIDES]
        inputs = list(self.options.inputs)
        if not inputs:
            inputs = [n for n in self.needed(parsed(o)[0] for o in outputs) if nodes[n].op in PLACEHOLDERS]
            order = {name: k for k, name in enumerate(nodes)}
            inputs.sort(key=order.__getitem__)
        if not outputs:
            raise FrontendError("the graph has no outputs", hint="name them: --frontend 'tensorflow -outputs=…'")
        for name in (*inputs, *outputs):
            self.node_named(parsed(name)[0])
        return Signature("", {n: self.placeholder(n) for n in inputs}, {n: TensorRef(n, 0, None) for n in outputs})

    def node_named(self, name: str, scope: Scope | None = None) -> Any:
        """A node of a graph.

        Raises:
            FrontendError: there is none.
        """
        scope = scope or self.scope
        if name not in scope.nodes:
            close = nearest(name, scope.nodes)
            where = f"function '{scope.function.signature.name}'" if scope.function is not None else None
            raise FrontendError(
                f"there is no node '{name}'", where=where, hint=f"did you mean '{close}'?" if close else None
            )
        return scope.nodes[name]

    def placeholder(self, name: str) -> TensorRef:
        """What is fed to a graph that has no signature, by the attributes of its node."""
        node = self.node_named(parsed(name)[0])
        attributes = {entry.key: entry.value for entry in node.attr}
        kind = attributes.get("dtype", attributes.get("T"))
        shape = attributes.get("shape")
        sizes = None if shape is None else shape_of(shape.shape, f"node '{name}'")
        return TensorRef(name, 0 if kind is None else kind.type, sizes)

    def needed(self, names: Iterable[str]) -> list[str]:
        """The nodes that these need."""
        found: dict[str, None] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                waiting.extend(parsed(i)[0] for i in self.node_named(name).input)
        return list(found)

    def restore(self) -> None:
        """Gives variables the values of the checkpoint, by what the model has for that."""
        saver = self.model.saver
        if self.model.bundle is None or saver is None or not saver.restore_op_name:
            return
        file = parsed(saver.filename_tensor_name)[0]
        self.scope.values[file] = [Absent()]
        self.states.first += 1
        try:
            self.demand(self.scope, [parsed(saver.restore_op_name)[0]])
        finally:
            self.states.first -= 1
        if self.unsupported:
            raise self.everything_unsupported()

    # -- inputs
    def input_type(self, name: str, ref: TensorRef) -> TensorType:
        if ref.type == 0:
            raise FrontendError(f"input '{name}' has no dtype", hint="name a placeholder, or give the signature")
        given = self.options.shapes.get(name)
        if given is not None:
            shape: tuple[int, ...] | None = tuple(-1 if d == "?" else int(d) for d in given.split("x") if d)
            if ref.shape is not None and len(ref.shape) != len(shape or ()):
                raise FrontendError(f"shapes gives '{name}' {len(shape or ())} sizes, it has {len(ref.shape)}")
        else:
            shape = ref.shape
        if shape is None:
            raise FrontendError(
                f"how many dimensions input '{name}' has is not known",
                hint=f"give its sizes: --frontend 'tensorflow -shapes={name}=1x224x224x3', a ? for one that is open",
            )
        stem = re.sub(r"\W+", "_", name).strip("_") or "input"
        stem = f"n{stem}" if stem[:1].isdigit() else stem
        sizes = tuple(d if d >= 0 else self.dimension(f"{stem}_{k}") for k, d in enumerate(shape))
        return TensorType(dtype_of(ref.type, f"input '{name}'", texts=True), sizes)

    def dimension(self, name: str) -> Dim:
        self.open.add(name)
        return self.options.dims[name] if name in self.options.dims else Var(self.builder.unique(name), dt.int64)

    def check_names(self, signature: Signature) -> None:
        """That every name in the options is one of the model's."""
        for option, given, known in (
            ("dims", self.options.dims, self.open),
            ("shapes", self.options.shapes, signature.inputs),
        ):
            for name in given:
                if name not in known:
                    what = "open dimension" if option == "dims" else "input"
                    close = nearest(name, known)
                    raise FrontendError(
                        f"{option} gives '{name}', which is no {what} of the model",
                        hint=f"did you mean '{close}'?" if close else f"it has: {', '.join(sorted(known)) or 'none'}",
                    )

    def feed(self, ref: TensorRef, value: Value) -> None:
        """Gives a tensor of the graph a value from outside."""
        name, port = parsed(ref.where)
        self.node_named(name)
        if port not in (None, "0"):
            raise FrontendError(f"'{ref.where}' cannot be an input", why="only a node's first output can")
        self.scope.values[name] = [value]

    # -- nodes
    def demand(self, scope: Scope, names: Iterable[str]) -> None:
        """Reads nodes, and before each what it needs.

        Raises:
            FrontendError: a node is not there, or needs its own result.
        """
        for root in names:
            if root in scope.values:
                continue
            active = {root}
            stack = [(root, self.needs(scope, root))]
            while stack:
                name, rest = stack[-1]
                following = next((n for n in rest if n not in scope.values), None)
                if following is None:
                    stack.pop()
                    active.discard(name)
                    scope.values[name] = self.evaluate(scope, name)
                elif following in active:
                    raise FrontendError("a node needs its own result", where=f"node '{scope.prefix}{following}'")
                else:
                    active.add(following)
                    stack.append((following, self.needs(scope, following)))

    def needs(self, scope: Scope, name: str) -> Iterator[str]:
        """The nodes whose results a node uses, and those that come before it."""
        node = self.node_named(name, scope)
        if node.op in JOINS:
            return iter(scope.frames.needs(name))
        ignored = node.op in IGNORED
        return iter([parsed(i)[0] for i in node.input if not ignored or (node.op == "NoOp" and i.startswith("^"))])

    def evaluate(self, scope: Scope, name: str) -> Sequence[Any]:
        """What stands for the outputs of a node, whose operands have been read."""
        node = scope.nodes[name]
        place = scope.prefix + name
        data = [] if node.op in IGNORED | JOINS else [i for i in node.input if not i.startswith("^")]
        context = Context(self, scope, node, place, [self.find(scope, i, f"node '{place}'") for i in data])
        if node.op not in REFERENCES:
            context.operands = [self.referenced(context, o) for o in context.operands]
        before = len(self.builder.graph.nodes)
        results = list(self.node(context))
        last = results[0] if results else None
        if (
            isinstance(last, Value)
            and len(self.builder.graph.nodes) > before
            and last.producer is self.builder.graph.nodes[-1]
        ):
            self.builder.rename(last, place)
        return [Absent() if r is None else r for r in results]

    def referenced(self, c: Context, operand: Any) -> Any:
        """The operand; of a variable of the first version its value."""
        return self.states.read(c, operand.name) if isinstance(operand, Handle) and operand.reference else operand

    def find(self, scope: Scope, ref: str, where: str) -> Any:
        """What stands for a tensor: "node", "node:1", in functions "node:output:0".

        Raises:
            FrontendError: the node has no such output.
        """
        name, *rest = ref.split(":")
        values = scope.values[name]
        if values and all(isinstance(v, Poison) for v in values):
            return values[0]
        try:
            at = int(rest[-1]) if rest else 0
            if len(rest) == 2 or (rest and not rest[0].isdigit()):
                at = self.first_of(scope, name, rest[0]) + (at if len(rest) == 2 else 0)
        except ValueError:
            at = -1
        if not 0 <= at < len(values):
            raise FrontendError(f"'{ref[:200]}' is no output of a node", where=where)
        return values[at]

    def first_of(self, scope: Scope, name: str, output: str) -> int:
        """Where the outputs of a name begin among those of a node; -1: there are none."""
        node = scope.nodes.get(name)
        if node is None:
            return -1
        at = 0
        for known, count in self.layout(node):
            if known in (output, "*"):
                return at
            at += counted(node, count)
        return -1

    def layout(self, node: Any) -> Sequence[tuple[str, str]]:
        """The outputs of a node: names, and the attributes that say how many; "*" for one of any name."""
        if node.op in self.library:
            return [(arg.name, "") for arg in self.library[node.op].signature.output_arg]
        return OUTPUTS.get(node.op, (("*", ""),))

    def outputs(self, scope: Scope, node: Any) -> int:
        """How many outputs a node has."""
        return sum(counted(node, count) for _, count in self.layout(node))

    def convert(self, c: Any) -> Sequence[Any]:
        if c.op_type in self.library and self.own(c) is None:
            return self.call(c, c.op_type, c.operands)
        return super().convert(c)

    def converted(self, c: Any, converter: Any) -> Sequence[Any]:
        if c.op_type in MOVES and any(map(is_text, c.operands)):
            return moved(c, converter)
        return super().converted(c, converter)

    # -- functions
    def function(self, c: Context, name: str, count: int) -> Any:
        """A function that a node calls with so many operands.

        Raises:
            FrontendError: there is none, it takes another number, or functions call each other.
        """
        found = self.library.get(name)
        if found is None:
            raise c.error(f"the model has no function '{name[:200]}'")
        if len(found.signature.input_arg) != count:
            raise c.error(f"function '{name}' takes {len(found.signature.input_arg)} input(s), gets {count}")
        return found

    def call(self, c: Context, name: str, operands: Sequence[Any]) -> list[Any]:
        """The results of a function whose body is put here."""
        function = self.function(c, name, len(operands))
        given = {entry.key: entry.value for entry in function.attr} | c.attributes
        scope = Scope(function.node_def, f"{c.name}/", function, given)
        for argument, operand in zip(function.signature.input_arg, operands):
            if argument.name in scope.nodes:
                raise c.error(f"function '{name}' has a node and an input that are named '{argument.name}'")
            scope.values[argument.name] = [operand]
        returned = {entry.key: entry.value for entry in function.ret}
        wanted = []
        for output in function.signature.output_arg:
            if output.name not in returned:
                raise c.error(f"function '{name}' does not return its output '{output.name}'")
            wanted.append(returned[output.name])
        found = self.nested(c, scope, wanted, [e.value for e in function.control_ret])
        if any(map(poisoned, found)):
            raise Poisoned
        return found

    def nested(self, c: Context, scope: Scope, refs: Sequence[str], before: Sequence[str] = ()) -> list[Any]:
        """What stands for tensors of a function's body, or of a branch or loop, and before them nodes.

        Raises:
            UnsupportedError: there are too many inside of each other.
        """
        if self.depth >= MOST_DEPTH:
            raise UnsupportedError(f"functions, branches or loops are more than {MOST_DEPTH} deep", where=c.place)
        self.depth += 1
        try:
            self.demand(scope, [*before, *map(node_of, refs)])
        finally:
            self.depth -= 1
        return [self.find(scope, ref, c.place) for ref in refs]

    # -- operands
    def as_value(self, operand: Any, name: str = "shape") -> Value:
        if isinstance(operand, TensorList):
            raise Unsupported("a list of tensors as a tensor")
        if isinstance(operand, Complex):
            raise Unsupported("complex numbers")
        if isinstance(operand, (Array, Asset, Handle, Table, Absent)):
            raise Unsupported("a variable, a table or a missing result as a tensor")
        if isinstance(operand, Stored):
            return self.builder.constant(operand.bundle.read(operand.name, name), operand.name)
        if isinstance(operand, np.ndarray):
            return self.builder.add(StringConstant(texts_of(operand.reshape(-1), name), operand.shape), name=name)
        return super().as_value(operand, name)


def parsed(ref: str) -> tuple[str, str | None]:
    """The node of an input of a node, and which of its outputs."""
    name, *rest = ref.removeprefix("^").split(":")
    return name, rest[-1] if rest else None


def counted(node: Any, attribute: str) -> int:
    """How many outputs an attribute says: a number, or the length of a list."""
    if not attribute:
        return 1
    for entry in node.attr:
        if entry.key == attribute:
            return len(entry.value.list.type) if entry.value.HasField("list") else max(int(entry.value.i), 0)
    return 0


__all__ = ["Importer", "Scope", "import_model"]
