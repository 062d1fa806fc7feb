"""The state of reading one model: the graph that is built, what is known of its values, what is not supported.

Operands are graph values, or contents: integers known as formulas (`weft_frontend.contents`), which become nodes only
where an operator needs them as data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.converters import Converters
from weft.errors import FrontendError, UnsupportedError, WeftError
from weft.expr.nodes import Expr, Var, free_vars, maximum, ne, select, size_of, substitute
from weft.expr.ranges import Range, range_of
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Value
from weft.graph.rewrite import attribute_symbols, drop_dead
from weft.passes.fold_constants import work_of
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_frontend.bodies import Level
from weft_frontend.cases import join
from weft_frontend.contents import LIMIT, Content
from weft_frontend.context import Context
from weft_frontend.operands import Absent, Cases, Elements, Poison, Poisoned, Unsupported, poisoned
from weft_frontend.registry import Registry
from weft_ops import Cast, Dims, Reshape, SequenceConstruct, SequenceEmpty, Transpose
from weft_ops.shapes import static

# A result that is constant and this small is computed at once: shapes that go through floats stay known.
FOLDED = 1024
# What that may take in all, as `work_of` counts it: some seconds. A loop that is written out may do it thousands of
# times.
FOLDED_WORK = 1 << 34
# Nodes that functions, branches and loops may come to when they are written out: so many, or so many times those in the
# file.
WRITTEN, WRITTEN_PER_NODE = 20_000, 100
# Operators that converters make of nodes, in all: an attribute may ask for any number of them.
COMPOSED, COMPOSED_PER_NODE = 1 << 17, 1000
# Parts of the formula of a size beyond which it gets a symbol of its own, whose value a kernel computes: formulas of
# formulas would double with each step.
LONGEST = 40
# Parts of the formulas that `written_out` gives.
LONGEST_WRITTEN = 4096
# Numbers that are made at import of attributes and sizes alone, in all: a file of a hundred bytes may ask for any
# number of them.
MADE = 1 << 24

Operand: TypeAlias = "Value | Content | Poison | Absent | list[Any]"
"""What stands for an operand of a node."""


class GraphImporter:
    """The state of reading one model. A frontend derives its own class, which goes through the model's nodes, makes a
    `Context` of each, and calls `node`.

    Args:
        name: of the graph.
        frontend: the name under which plugins give converters for it.
        registry: the frontend's own converters.
        nodes: how many the file has, for the limit on nodes that are written out.
        domains: other names of domains → those that the registry has.
    """

    title = "model"
    """The format, as errors name it: "the TITLE frontend"."""
    hint = "export it without; a plugin can convert it (hook `converters`)"
    """What to do about operators that are not supported."""
    defect = "if the model is valid, this is a defect of the frontend"
    """The hint where a converter fails with an exception of its own."""

    def __init__(
        self, name: str, frontend: str, registry: Registry[Any], nodes: int, domains: dict[str, str] | None = None
    ) -> None:
        self.level = Level(GraphBuilder(name))
        self.registry = registry
        self.others = Converters(frontend, (Unsupported, Poisoned), check=wrong_result, domains=domains or {})
        self.unsupported: dict[str, list[str]] = {}
        self.written = self.composed = self.made = self.folding = self.shortened = 0
        self.most_made = MADE
        self.most_written = max(WRITTEN, WRITTEN_PER_NODE * nodes)
        self.most_composed = max(COMPOSED, COMPOSED_PER_NODE * nodes)
        # By the ids of values, which are kept: an id is another's when its value has gone.
        self._contents: dict[int, tuple[Value, Content | None]] = {}
        self._tensors: dict[int, tuple[Content, Value]] = {}
        self._outer_tensors: list[dict[int, tuple[Content, Value]]] = []
        self._shortened: list[dict[Expr, Expr]] = [{}]
        self._rearranged: dict[int, tuple[Value, Value]] = {}

    @property
    def builder(self) -> GraphBuilder:
        return self.level.builder

    # -- bodies that are graphs of their own
    def enter(self, name: str) -> Level:
        """What is built from here on is a graph of its own, until `leave`."""
        self.resume(Level(self.builder.inner(name), self.level))
        return self.level

    def resume(self, level: Level) -> None:
        """What is built from here on is built there, until `leave`."""
        self.level = level
        self._outer_tensors.append(self._tensors)
        self._tensors = {}
        self._shortened.append({})

    def leave(self) -> None:
        assert self.level.outer is not None
        self.level = self.level.outer
        self._tensors = self._outer_tensors.pop()
        self._shortened.pop()

    def built(self) -> Graph:
        """The graph, with the nodes that its outputs need. What is a weight in another form is computed of the weight
        again: what a training takes for a parameter is the model's, under its name and in its shape, and one that the
        model uses in two forms is one parameter."""
        graph = self.builder.build()
        inside = {id(n) for n in graph.nodes}
        forms = {key: value for key, (_, value) in self._rearranged.items() if id(value.producer) in inside}
        for node in graph.nodes:
            node.inputs = tuple([None if v is None else forms.get(id(v), v) for v in node.inputs])
        graph.outputs = [forms.get(id(v), v) for v in graph.outputs]
        drop_dead(graph)
        return graph

    def required(self, value: Value) -> Value:
        """A result of the graph that is being built, provided that all holds that it has to."""
        for op in self.level.required:
            value = self.builder.add(op, value)
        return value

    # -- nodes
    def node(self, c: Context) -> Sequence[Any]:
        """What stands for the outputs of a node; poison where something is not supported, which is collected.

        Raises:
            FrontendError: it cannot be converted, at its place.
            UnsupportedError: the model comes to too many nodes.
        """
        self.written += 1
        if self.written > self.most_written:
            raise UnsupportedError(
                f"the model comes to more than {self.most_written:,} nodes",
                where=c.place,
                why="functions, branches and loops that are written out multiply",
                hint="call a function less often inside of others, or export the model without functions",
            )
        try:
            with self.builder.named(c.name):
                return self.convert(c)
        except Poisoned:
            return [Poison()] * c.outputs
        except Unsupported as error:
            self.unsupported.setdefault(error.reason, []).append(c.label)
            return [Poison()] * c.outputs
        except UnsupportedError:
            raise
        except FrontendError as error:
            if error.where and error.where.startswith("node '"):
                raise
            raise FrontendError(error.what, where=c.place, why=error.why, hint=error.hint) from error
        except WeftError as error:
            raise FrontendError(
                f"{c.op_type} cannot be applied: {error.what}", where=c.place, why=error.why, hint=error.hint
            ) from error
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = self.invalid()
            raise FrontendError(
                f"{c.op_type} cannot be applied",
                where=c.place,
                why=why or f"{type(error).__name__}: {error}",
                hint=None if why is not None else self.defect,
            ) from error

    def invalid(self) -> str | None:
        """What the format's own checks say against the model; asked where a converter fails."""
        return None

    def convert(self, c: Context) -> Sequence[Any]:
        """The results of a node, by the frontend's converter or a plugin's.

        Raises:
            Unsupported: there is none.
            Poisoned: an operand comes from what is not supported.
        """
        converter = self.own(c)
        given = self.others.find(c.domain, c.op_type, c.version, converter is not None)
        if converter is None and given is None:
            raise Unsupported(self.unknown(c))
        if any(map(poisoned, c.operands)):
            raise Poisoned
        if given is not None:
            return [self.refined(r) if isinstance(r, Value) else r for r in sequence(given(c))]
        return self.converted(c, converter)

    def own(self, c: Context) -> Any:
        """The frontend's own converter for a node; None: it has none."""
        return self.registry.find(c.domain, c.op_type, c.version)

    def unknown(self, c: Context) -> str:
        """What is said of an operator without a converter."""
        return f"operator {c.domain + '.' if c.domain else ''}{c.op_type}"

    def converted(self, c: Context, converter: Any) -> Sequence[Any]:
        """The results of a node by the frontend's converter, or by its formula where every operand has a content."""
        formula = self.registry.find_formula(c.domain, c.op_type)
        if formula is not None and c.all_contents():
            result = formula(c)
            # What leaves its dtype's range wraps around, which numbers here do not: operators do.
            if result is not None and all(r.fits for r in sequence(result) if isinstance(r, Content)):
                return [self.short_content(r) if isinstance(r, Content) else r for r in sequence(result)]
        return [self.refined(r) if isinstance(r, Value) else r for r in sequence(converter(c))]

    def everything_unsupported(self) -> UnsupportedError:
        """The error that lists what was collected, with the nodes of each."""
        lines = []
        for what, names in sorted(self.unsupported.items()):
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            lines.append(f"{what}: {shown}")
        what = "one thing" if len(lines) == 1 else f"{len(lines)} things"
        return UnsupportedError(
            f"the model uses {what} that the {self.title} frontend does not support",
            where="\n".join(lines),
            hint=self.hint,
        )

    def refined(self, result: Value) -> Value:
        """A result as a constant, where it is small and known, and with symbols in place of long formulas of sizes."""
        return self.short_value(self.folded(result))

    # -- long formulas
    def short_content(self, content: Content) -> Content:
        """The content with symbols in place of formulas that are longer than `LONGEST`."""
        elements = content.dims()
        long = [x for x in elements if isinstance(x, Expr) and size_of(x) > LONGEST]
        if not long:
            return content
        short = self._short(long)
        return ct.content(
            content.dtype, [short.get(x, x) if isinstance(x, Expr) else x for x in elements], content.shape
        )

    def short_value(self, value: Value) -> Value:
        """The value with symbols in place of sizes that are longer formulas than `LONGEST`; a view of it."""
        if not isinstance(value.type, TensorType):
            return value
        long = [d for d in value.shape if isinstance(d, Expr) and size_of(d) > LONGEST]
        if not long or value.dtype.kind == "string":
            return value
        short = self._short(long)
        shape = tuple(as_dim(short.get(d, d)) if isinstance(d, Expr) else d for d in value.shape)
        return self.builder.add(Reshape(shape), value, name=value.name)

    def _short(self, formulas: Sequence[Expr]) -> dict[Expr, Expr]:
        """By formula what stands for it: a symbol, which is a size, or the difference of two where it may be negative;
        of a condition, whether it is not 0."""
        known = self._shortened[-1]
        for e in dict.fromkeys(formulas):
            if e in known:
                continue
            number = select(e, 1, 0) if e.dtype.is_bool else e
            positive = range_of(number, {name: Range(0, None) for name in free_vars(number)}).within(0, None)
            parts = [number] if positive else [maximum(number, 0), maximum(0 - number, 0)]
            value = self.builder.add(Dims(tuple(as_dim(p) for p in parts)), name="size")
            symbols = [self.builder.symbol(value, k) for k in range(len(parts))]
            found = symbols[0] if positive else symbols[0] - symbols[1]
            known[e] = ne(found, 0) if e.dtype.is_bool else found
            self.shortened += 1
        return known

    def written_out(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """Sizes of the graph that is being built, with the formulas in place of the symbols that stand for long ones
        there: the graph around has none of these."""
        formulas = {s.name: e for e, s in self._shortened[-1].items() if isinstance(s, Var)}
        found = list(dims)
        for _ in range(len(formulas)):
            within = {n for d in found if isinstance(d, Expr) for n in free_vars(d)} & set(formulas)
            if not within or sum(size_of(d) for d in found if isinstance(d, Expr)) > LONGEST_WRITTEN:
                break
            found = [as_dim(substitute(d, formulas)) if isinstance(d, Expr) else d for d in found]
        return tuple(found)

    def folded(self, value: Value) -> Value:
        """A small value of constants as a constant; what is dequantised stays so, which passes make integers of."""
        node = value.producer
        if node is None or not isinstance(value.type, TensorType) or not value.type.is_static or len(node.outputs) != 1:
            return value
        if node.op.folds_late or not node.op.deterministic:
            return value
        arrays = [None if i is None else i.constant for i in node.inputs]
        if (
            math.prod(static(value.type.shape)) > FOLDED
            or not arrays
            or any(i is not None and a is None for i, a in zip(node.inputs, arrays))
        ):
            return value
        if sum(a.size for a in arrays if a is not None) > 4 * FOLDED or attribute_symbols(node.op):
            return value
        work = work_of(node.op, node.inputs, node.outputs)
        if work is None or self.folding + work > FOLDED_WORK:
            return value
        self.folding += work
        try:
            with np.errstate(all="ignore"):
                array = np.asarray(node.op.reference(*arrays))
        except (ArithmeticError, ValueError, IndexError):
            return value  # it fails at run time as well
        constant = self.builder.constant(array, value.name)
        if isinstance(node.op, (Cast, Reshape, Transpose)) and all(
            a is not None and dt.dtype(a.dtype).is_float and a.size > 1 for a in (array, *arrays)
        ):
            self._rearranged[id(constant)] = constant, value
        return constant

    # -- operands
    def as_value(self, operand: Any, name: str = "shape") -> Value:
        """An operand as a graph value; a content becomes one node per formula, or a constant; elements become a
        sequence.

        Raises:
            UnsupportedError: it is, or comes from, an output that the node's converter does not make.
        """
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, Cases):
            return join(self, operand)
        if isinstance(operand, Elements):
            made = SequenceConstruct() if operand else SequenceEmpty(operand.dtype)
            return self.builder.add(made, *map(self.as_value, operand))
        if isinstance(operand, (Absent, Poison)):
            raise UnsupportedError(
                f"'{name}' needs an output of a node that the {self.title} frontend does not compute",
                hint="export the model without that output",
            )
        assert isinstance(operand, Content)
        kept = self._tensors.get(id(operand))
        if kept is None:
            kept = self._tensors[id(operand)] = (operand, self._tensor(operand, name))
            self.remember(kept[1], operand)
        return kept[1]

    def _tensor(self, content: Content, name: str) -> Value:
        b = self.builder
        if content.is_constant:
            return b.constant(content.array(), name)
        if content.dtype.is_bool:
            ints = ct.content(dt.int64, [ct.choose(x, 1, 0) for x in content.dims()], content.shape)
            return b.add(Cast(dt.bool_), self._tensor(ints, name))
        value: Value = b.add(Dims(tuple(content.dims()), content.dtype), name=name)
        return value if len(content.shape) == 1 else b.add(Reshape(content.shape), value)

    def remember(self, value: Value, content: Content | None) -> None:
        """What a value holds, as far as it is known."""
        self._contents[id(value)] = value, content

    def known(self, operand: Any) -> Content | None:
        """The content of an operand if it is known without reading data at run time."""
        if isinstance(operand, Content):
            return operand
        if not isinstance(operand, Value):
            return None
        if id(operand) not in self._contents:
            self.remember(operand, None if operand.constant is None else ct.of_array(operand.constant))
        return self._contents[id(operand)][1]

    def demanded(self, operand: Any) -> Content | None:
        """The content of an operand, read at run time if need be; None if that is not possible."""
        found = self.known(operand)
        if found is not None or not isinstance(operand, Value):
            return found
        if not isinstance(operand.type, TensorType):
            return None
        type = operand.type
        if not type.is_static or not type.dtype.is_integer:
            return None
        count = math.prod(static(type.shape))
        if count > LIMIT:
            return None
        return ct.content(dt.int64, [self.builder.symbol(operand, k) for k in range(count)], static(type.shape))


def wrong_result(c: Context, result: Any) -> str | None:
    """What is wrong with the result of a plugin's converter; None: nothing."""
    results = sequence(result)
    for one in results:
        if one is not None and not isinstance(one, (Value, Content)):
            return (
                f"its converter returned {one!r:.80}; expected a Value for each output, or None for one that it does"
                " not make"
            )
    made = sum(r is not None for r in results)
    if len(results) > c.outputs:
        return f"its converter returned {len(results)} results, the node has {c.outputs} output(s)"
    return None if made else "its converter returned no result"


def sequence(result: Any) -> Sequence[Any]:
    """A converter's result as a sequence of outputs."""
    return result if isinstance(result, (tuple, list)) else (result,)


__all__ = ["GraphImporter", "Operand", "sequence"]
