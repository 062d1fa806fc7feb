"""A module of StableHLO as a graph, one operation at a time; converters/ says how each is converted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Type, Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_frontend.contents import Content
from weft_frontend.context import Context as GraphContext
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent, Poison, Poisoned, Unsupported, poisoned
from weft_ops import Concat, Reshape
from weft_ops.shapes import same, show
from weft_stablehlo.attributes import keyword
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.legalize import taken_apart
from weft_stablehlo.reading import Model
from weft_stablehlo.registry import CUSTOM, REGISTRY
from weft_stablehlo.structure import recognised
from weft_stablehlo.tensors import Tensor, tensor_type
from weft_stablehlo.values import Values

MOST_DEPTH = 64
"""Calls and regions inside of each other."""
RETURNS = ("func.return", "stablehlo.return", "chlo.return")
_QUOTED = re.compile(r'loc\("([^"]*)"\)')


def import_module(model: Model, dims: Mapping[str, int] | None = None, function: str | None = None) -> Graph:
    """The graph of a function of a module.

    Args:
        dims: sizes of axes that the model leaves open, by the names of their symbols.
        function: its name; None: main, or the only one that others may call.

    Raises:
        FrontendError: an ill-formed module, or a function or axis that it has not.
        UnsupportedError: everything unsupported, at once.
    """
    importer = ModuleImporter(model, dims or {})
    return recognised(importer.run(importer.entry(function)))


class ModuleImporter(GraphImporter):
    """The state of one import."""

    title = "StableHLO"
    hint = "a plugin can convert an operation (hook `converters`, frontend 'stablehlo')"

    def __init__(self, model: Model, dims: Mapping[str, int]) -> None:
        self.functions: dict[str, Any] = {}
        for op in model.module.body.operations:
            if op.operation.name == "func.func":
                self.functions[op.attributes["sym_name"].value] = op
        super().__init__("stablehlo", "stablehlo", REGISTRY, 1000)
        self.model, self.sizes, self.open = model, dims, set[str]()
        self.depth = self.loose = 0
        self.counts: dict[str, int] = {}
        self.names: dict[str, Any] = {}

    # -- functions
    def entry(self, name: str | None) -> Any:
        """The function that is read."""
        if name is None:
            if "main" in self.functions:
                return self.functions["main"]
            public = [k for k, f in self.functions.items() if _is_public(f) and len(f.regions[0].blocks)]
            if len(public) != 1:
                raise FrontendError(
                    f"the module has no function main, but {len(public)} others: {', '.join(public[:20]) or 'none'}",
                    hint="choose one: function=…",
                )
            return self.functions[public[0]]
        if name not in self.functions:
            close = nearest(name, self.functions)
            raise FrontendError(
                f"the module has no function '{name}'",
                hint=f"did you mean '{close}'?"
                if close
                else f"it has {', '.join(list(self.functions)[:20]) or 'none'}",
            )
        return self.functions[name]

    def run(self, function: Any) -> Graph:
        if not len(function.regions[0].blocks):
            raise FrontendError("the function has no body", where=function.attributes["sym_name"].value)
        block = function.regions[0].blocks[0]
        values = Values()
        taken: set[str] = set()
        names = argument_names(block)
        taken.update(names)
        for k, (argument, name) in enumerate(zip(block.arguments, names)):
            values[argument] = self.argument(argument, k, name)
        self.check_sizes()
        found = self.results(block, values, "")
        for k, operand in enumerate(found):
            if isinstance(operand, Absent):
                continue
            if poisoned(operand):
                break
            value = self.required(self.value_of(operand))
            self.builder.output(value, self.output_name(function, k, taken))
        if self.unsupported:
            raise self.everything_unsupported()
        return self.built()

    def argument(self, argument: Any, k: int, name: str) -> Any:
        """The input for an argument of the function; of complex numbers its last axis has both parts."""
        if "token" in str(argument.type):
            return Absent()
        try:
            type = tensor_type(argument.type)
        except Unsupported as error:
            self.unsupported.setdefault(error.reason, []).append(f"'{name}'")
            return Poison()
        shape = tuple(self.dimension(name, k, d) if size is None else size for d, size in enumerate(type.shape))
        value = self.builder.input(name, TensorType(type.dtype, (*shape, 2) if type.complex else shape))
        if not type.complex:
            return value
        c = self.composer()
        return Complex([c.pick(value, -1, 0), c.pick(value, -1, 1)])

    def dimension(self, name: str, argument: int, axis: int) -> Dim:
        """A size that the module leaves open: a symbol, of JAX's name where there is one."""
        known = self.model.dims.get((argument, axis))
        symbol = known if known is not None else f"{name}_{axis}"
        self.open.add(symbol)
        if symbol in self.sizes:
            return self.sizes[symbol]
        return Var(symbol if known is not None else self.builder.unique(symbol), dt.int64)

    def check_sizes(self) -> None:
        for name in self.sizes:
            if name not in self.open:
                close = nearest(name, self.open)
                raise FrontendError(
                    f"dims gives '{name}', which is no open dimension of the model's inputs",
                    hint=f"did you mean '{close}'?"
                    if close
                    else f"its open dimensions: {', '.join(sorted(self.open)) or 'none'}",
                )

    def output_name(self, function: Any, k: int, taken: set[str]) -> str:
        found = ""
        if "res_attrs" in function.attributes:
            described = function.attributes["res_attrs"][k]
            for key in ("jax.result_info", "tf_saved_model.index_path"):
                if key in described:
                    found = _text(described, key)
        return unique(identifier(found) or f"result_{k}", taken, f"result_{k}")

    # -- blocks
    def put(self, block: Any, operands: Sequence[Any], outer: Values | None, prefix: str) -> list[Any]:
        """What a block returns, whose operations are put here.

        Raises:
            Poisoned: a result comes from what is not supported.
        """
        values = Values(outer)
        for argument, operand in zip(block.arguments, operands, strict=True):
            values[argument] = operand
        found = self.results(block, values, prefix)
        if any(map(poisoned, found)):
            raise Poisoned
        return found

    def put_scalars(self, block: Any, operands: Sequence[Any], outer: Values | None, prefix: str) -> list[Any]:
        """As `put`, of a block written for scalars, whose operands are tensors: their types are not the module's."""
        self.loose += 1
        try:
            return self.put(block, operands, outer, prefix)
        finally:
            self.loose -= 1

    def results(self, block: Any, values: Values, prefix: str) -> list[Any]:
        """Converts the operations of a block; what stands for what it returns."""
        self.depth += 1
        try:
            if self.depth > MOST_DEPTH:
                raise UnsupportedError(
                    f"calls and regions are more than {MOST_DEPTH} inside of each other", where=prefix
                )
            for view in block.operations:
                op = view.operation
                operands = [values[v] for v in op.operands]
                if op.name in RETURNS:
                    return operands
                for result, operand in zip(op.results, self.visit(op, operands, values, prefix)):
                    values[result] = operand
        finally:
            self.depth -= 1
        raise FrontendError("a block returns nothing", where=prefix)

    def visit(self, op: Any, operands: Sequence[Any], values: Values, prefix: str) -> list[Any]:
        """What stands for the results of an operation."""
        domain, _, name = op.name.rpartition(".")
        domain = "" if domain == "stablehlo" else domain
        if op.name == "stablehlo.custom_call":
            domain, name = CUSTOM, op.attributes["call_target_name"].value
        count = self.counts[name] = self.counts.get(name, -1) + 1
        full = f"{prefix}{name}_{count}"
        c = Context(self, op, name, full, operands, values, domain)
        results = list(self.node(c))
        if not prefix and len(results) == 1 and isinstance(results[0], Value):
            self.names[full] = op
            if results[0].producer is not None and results[0].producer in self.builder.graph.nodes[-1:]:
                self.builder.rename(results[0], full)
        results += [Absent()] * (len(op.results) - len(results))
        return results

    def own(self, c: GraphContext) -> Any:
        found = super().own(c)
        assert isinstance(c, Context)
        if found is None and c.domain == "chlo":
            return taken_apart
        return found

    def unknown(self, c: GraphContext) -> str:
        return f"custom call {c.op_type}" if c.domain == CUSTOM else super().unknown(c)

    def convert(self, c: GraphContext) -> Sequence[Any]:
        assert isinstance(c, Context)
        types = c.results  # refuses dtypes that Weft has not
        found = list(super().convert(c))
        for k, (operand, type) in enumerate(zip(found, types) if not self.loose else ()):
            found[k] = self.checked(c, operand, type)
        return found

    def checked(self, c: Context, operand: Any, type: Tensor) -> Any:
        """A converter's result, which has the type that the module says, or the converter is wrong; with the sizes that
        the module knows."""
        if isinstance(operand, Complex) and type.complex:
            return Complex([self.checked_part(c, part, type) for part in operand])
        if type.complex and isinstance(operand, (Value, Content)):
            raise FrontendError(f"{c.op_type}: its converter gives no complex numbers", where=c.place, hint=self.defect)
        return self.checked_part(c, operand, type) if isinstance(operand, (Value, Content)) else operand

    def checked_part(self, c: Context, part: Any, type: Tensor) -> Any:
        shape = part.shape
        agrees = len(shape) == len(type.shape) and all(
            b is None or same(a, b) is not False for a, b in zip(shape, type.shape)
        )
        if part.dtype != type.dtype or not agrees:
            stated = "[" + ", ".join("?" if d is None else str(d) for d in type.shape) + "]"
            raise FrontendError(
                f"{c.op_type}: its converter gives {part.dtype}{show(shape)}, the module says {type.dtype}{stated}",
                where=c.place,
                hint=self.defect,
            )
        known = tuple(a if b is None else b for a, b in zip(shape, type.shape))
        return self.builder.add(Reshape(known), part) if known != tuple(shape) else part

    # -- calls and bodies
    def call(self, c: Context, name: str, operands: Sequence[Any]) -> list[Any]:
        """What a function returns, whose operations are put here."""
        function = self.functions.get(name)
        if function is None or not len(function.regions[0].blocks):
            raise c.error(f"calls '{name}', which the module does not define")
        block = function.regions[0].blocks[0]
        if len(block.arguments) != len(operands):
            raise c.error(f"'{name}' takes {len(block.arguments)} argument(s), gets {len(operands)}")
        return self.put(block, operands, None, f"{c.name}/")

    def body(self, block: Any, c: Context, types: Sequence[Type], made: Any = None, counted: bool = False) -> Body:
        """A region as a graph of its own, whose inputs are the parts of its arguments; `types` are theirs.

        Args:
            made: (what stands for the values inside, what the block returns) → the outputs; None: the parts of what it
                returns.
            counted: it gets the number of the iteration before all else.
        """
        arguments = [tensor_type(a.type) for a in block.arguments]

        def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            values = Values(c.values_here, lambda o: level.capture(self, o))
            for argument, operand in zip(block.arguments, joined(arguments, operands)):
                values[argument] = operand
            found = self.results(block, values, f"{c.name}/")
            if any(map(poisoned, found)):
                raise Poisoned
            parts = self.flat(found) if made is None else made(values, found)
            return [(f"value_{k}", v) for k, v in enumerate(parts)]

        return build_body(self, c.name, [(f"value_{k}", t) for k, t in enumerate(types)], make, counted)

    def nested(self, c: Context, values: Values, make: Any) -> Body:
        """A graph of its own, made inside of an operation: `make` gets what stands there for the values around, and the
        capture of others, and returns the outputs."""

        def inner(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            def capture(o: Any) -> Any:
                return level.capture(self, o)

            parts = self.flat(make(Values(values, capture), capture))
            return [(f"value_{k}", v) for k, v in enumerate(parts)]

        return build_body(self, c.name, (), inner)

    def flat(self, operands: Sequence[Any]) -> list[Value]:
        """Operands as values, complex ones as two."""
        found: list[Value] = []
        for o in operands:
            found += [self.as_value(p) for p in (o if isinstance(o, Complex) else [o])]
        return found

    def joined(self, types: Sequence[Tensor], values: Sequence[Value]) -> list[Any]:
        """Values as operands of these types, two of them as a complex one."""
        ranks = [len(t.shape) for t in types for _ in range(1 + t.complex)]
        return joined(types, [shaped(self.builder, v, rank) for v, rank in zip(values, ranks)])

    # -- operands
    def value_of(self, operand: Any) -> Value:
        """An operand as one value, whose last axis has both parts of complex numbers."""
        if not isinstance(operand, Complex):
            return self.as_value(operand)
        parts = [self.as_value(p) for p in operand]
        ends = [self.builder.add(Reshape((*p.shape, 1)), p) for p in parts]
        found: Value = self.builder.add(Concat(len(parts[0].shape)), *ends)
        return found

    def as_dim(self, formula: Any) -> Dim:
        return as_dim(formula)

    def keyword_of(self, op: Any, name: str) -> str:
        """The word of an attribute that is an enumeration; empty where the operation has none of the name."""
        return keyword(op.attributes[name]) if name in op.attributes else ""

    def composer(self) -> Any:
        from weft_ops.composing import Composer

        return Composer(self.builder)


def _is_public(function: Any) -> bool:
    given = function.attributes
    return "sym_visibility" not in given or given["sym_visibility"].value == "public"


def joined(types: Sequence[Tensor], values: Sequence[Any]) -> list[Any]:
    """Values as operands of these types, two of them as a complex one."""
    found, rest = [], list(values)
    for type in types:
        found.append(Complex([rest.pop(0), rest.pop(0)]) if type.complex else rest.pop(0))
    return found


def argument_names(block: Any) -> list[str]:
    """The names of the inputs for a function's arguments."""
    taken: set[str] = set()
    names = []
    for k, argument in enumerate(block.arguments):
        quoted = _QUOTED.fullmatch(str(argument.location))
        names.append(unique(identifier(quoted.group(1)) if quoted else f"arg{k}", taken, f"arg{k}"))
    return names


def _text(attributes: Any, key: str) -> str:
    """A string among attributes; of anything else its text, of a location "", as MLIR's Python gives none of them."""
    try:
        return str(attributes[key]).strip('"')
    except TypeError:
        return ""


def identifier(text: str) -> str:
    """A name as inputs and outputs have them."""
    found = re.sub(r"\W+", "_", text).strip("_")
    return f"n{found}" if found[:1].isdigit() else found


def unique(name: str, taken: set[str], other: str) -> str:
    """A name that is not taken, which then is."""
    name = name or other
    while name in taken:
        name = f"{name}_{other}" if not name.endswith(other) else f"{name}_"
    taken.add(name)
    return name


__all__ = ["ModuleImporter", "argument_names", "import_module"]
