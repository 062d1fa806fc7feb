"""An exported program as a graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from weft import dtypes as dt
from weft.converters import Converters
from weft.errors import FrontendError, from_signal
from weft.expr.nodes import Const, Expr, Var, select
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.graph.identity import Identity, Require
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Poison, Poisoned, Unsupported, poisoned
from weft_ops import ReduceMax
from weft_ops.shapes import same, show
from weft_torch.agreement import expect_same_results, written_otherwise
from weft_torch.complexes import Complex, apart, together
from weft_torch.context import Context
from weft_torch.decomposition import table
from weft_torch.guards import arguments, condition
from weft_torch.registry import complexes, qualified, registry
from weft_torch.sizes import formula, size, sizes_of_no_tensor
from weft_torch.tensors import PARTS, array_of, dtype_of

EFFECTS = (torch.ops.aten._linalg_check_errors.default,)
"""What looks at data and raises."""
SIZES = (torch.SymInt, torch.SymBool, torch.SymFloat)


def import_program(program: torch.export.ExportedProgram) -> Graph:
    """The graph of an exported program.

    Raises:
        FrontendError: it cannot be read.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    importer = ProgramImporter("torch", 0)
    taken_apart = prepared(program, importer.others)
    expect_same_results(program, taken_apart)
    importer.count(taken_apart.graph)
    for node in written_otherwise(program):
        importer.note(f"{node.target}: out= of another shape than the result", node)
    return importer.run(taken_apart)


def prepared(program: torch.export.ExportedProgram, others: Converters | None = None) -> torch.export.ExportedProgram:
    """The program without operators that write to their operands, and with those taken apart that have no converter.

    Raises:
        FrontendError: PyTorch fails to.
    """
    try:
        return program.run_decompositions(table(others))
    except Exception as error:  # of PyTorch's tracing, and of operators that packages define
        if from_signal(error):
            raise
        raise FrontendError(
            "PyTorch cannot take the program's operators apart",
            why=f"{type(error).__name__}: {str(error).strip()[:2000]}",
            hint="see that program.run_decompositions() works",
        ) from error


class ProgramImporter(GraphImporter):
    """The state of reading one program, or one graph that Dynamo captured."""

    title = "PyTorch"
    hint = "a plugin can convert an operator (hook `converters`, frontend 'torch'), or register a decomposition for it"

    def __init__(self, name: str, nodes: int) -> None:
        super().__init__(name, "torch", registry, nodes)
        self.symbols: dict[str, Dim] = {}
        self.env: dict[torch.fx.Node, Any] = {}
        self.conditions: list[Require] = []
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._named: dict[int, Value] = {}
        self.overwritten: set[str] = set()
        """Names of buffers that the program writes to."""

    def count(self, graph: torch.fx.Graph) -> None:
        """Bounds what is written out by the nodes of the graph."""
        self.most_written = max(self.most_written, 100 * len(graph.nodes))

    # -- a program
    def run(self, program: torch.export.ExportedProgram) -> Graph:
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        self.overwritten = {
            s.target for s in program.graph_signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION and s.target
        }
        ranges = {str(s): r for s, r in program.range_constraints.items()}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        for node in placeholders:
            self.placeholder(program, node, specs[node.name])
        self.require_ranges(ranges)
        self.require_guards(program)
        for node in program.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self.env[node] = self.visit(node, program.graph_module)
        results = self.results(program)
        if self.unsupported:
            raise self.everything_unsupported()
        return self.finish(results)

    # -- a graph that Dynamo captured
    def capture(
        self,
        module: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        results: Sequence[torch.fx.Node] | None = None,
        given: Sequence[torch.fx.Node] = (),
    ) -> Graph:
        """The graph of a module of PyTorch's operators; every output that is a tensor or a size is one of the graph's,
        in order. A size that an input tensor has is no input.

        Args:
            constants: inputs that are always the same, by place.
            results: the nodes that are outputs, in place of the module's own.
            given: nodes that are not computed: their results are inputs.

        Raises:
            UnsupportedError: it uses what is not supported; lists everything.
        """
        nodes = list(module.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        for k, node in enumerate(places):
            if k in constants:
                self.env[node] = self.constant_of(constants[k], node.name, node)
        self.env.update(dict.fromkeys(tokens(module.graph)))
        placeholders = [n for n in places if n not in self.env]
        for node in sizes_of_no_tensor(placeholders):
            self.env[node] = self.input_of(node, node.meta["val"])
        for node in (*placeholders, *given):
            if isinstance(node.meta.get("val"), torch.Tensor):
                self.env[node] = self.input_of(node, node.meta["val"])
        for node in placeholders:
            if node not in self.env:
                value = node.meta.get("val")
                self.env[node] = self.size_of(node, value) if isinstance(value, torch.SymInt) else value
        for node in nodes:
            if node not in self.env and node.op != "output":
                self.env[node] = self.visit(node, module)
        leaves = torch.utils._pytree.tree_leaves(nodes[-1].args[0]) if results is None else results
        found = self.outputs([(f"output_{k}", n) for k, n in enumerate(leaves) if isinstance(n, torch.fx.Node)])
        if self.unsupported:
            raise self.everything_unsupported()
        return self.finish(found)

    def finish(self, results: Sequence[tuple[str, Value]]) -> Graph:
        for name, value in results:
            self.builder.output(value, name)
        return self.built()

    def placeholder(self, program: torch.export.ExportedProgram, node: torch.fx.Node, spec: Any) -> None:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            found = program.state_dict.get(spec.target)
            found = program.constants.get(spec.target) if found is None else found
            self.env[node] = self.constant_of(found, spec.target, node)
            if spec.target in self.overwritten and isinstance(self.env[node], Value):
                # It stays visible, and is not computed with at import: a training makes it a state.
                self.env[node] = self.builder.add(Identity(), self.env[node])
        elif spec.kind is InputKind.USER_INPUT:
            self.env[node] = self.input_of(node, node.meta.get("val"))
        elif spec.kind is InputKind.TOKEN:  # which orders what has effects: there is nothing such here
            self.env[node] = None
        else:
            self.note(f"an input of kind {spec.kind.name.lower()}", node)
            self.env[node] = Poison()

    def constant_of(self, tensor: Any, name: str, node: torch.fx.Node) -> Any:
        """A parameter, buffer or constant; those that share memory are one."""
        if not isinstance(tensor, torch.Tensor):
            self.note(f"a constant of class {type(tensor).__name__}", node)
            return Poison()
        # What PyTorch conjugates or negates when it is read shares the memory of what it does not.
        seen = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()
        key = (tensor.dtype, *seen) if tensor.numel() else (name,)
        if key not in self._constants:
            try:
                made = self.builder.constant(array_of(tensor), name)
                self._constants[key] = apart(self.builder, made) if tensor.dtype in PARTS else made
            except Unsupported as error:
                self.note(error.reason, node)
                return Poison()
        return self._constants[key]

    def input_of(self, node: torch.fx.Node, fake: Any) -> Any:
        if isinstance(fake, torch.Tensor):
            try:
                dtype = dtype_of(PARTS.get(fake.dtype, fake.dtype))
                shape = tuple(self.input_size(d) for d in fake.shape)
            except Unsupported as error:
                self.note(error.reason, node)
                return Poison()
            if fake.dtype in PARTS:
                return apart(self.builder, self.builder.input(node.name, TensorType(dtype, (*shape, 2))))
            return self.builder.input(node.name, TensorType(dtype, shape))
        if isinstance(fake, torch.SymInt):
            value = self.builder.input(node.name, TensorType(dt.int64, ()))
            self.symbols[str(fake.node.expr)] = as_dim(self.builder.symbol(value))
            return ct.content(dt.int64, [self.symbols[str(fake.node.expr)]], ())
        return fake  # a constant: the program was exported for it

    def input_size(self, d: Any) -> Dim:
        """A size of an input; a symbol that stands alone in it is bound by it."""
        if isinstance(d, torch.SymInt):
            expression = d.node.expr
            if expression.is_Symbol:
                self.symbols.setdefault(expression.name, Var(expression.name, dt.int64))
            else:
                for symbol in sorted(expression.free_symbols, key=str):
                    self.symbols.setdefault(symbol.name, Var(symbol.name, dt.int64))
        return size(d, self.symbols)

    def require_ranges(self, ranges: dict[str, Any]) -> None:
        """The sizes between the bounds that the program was exported for."""
        for name, bounds in ranges.items():
            symbol = self.symbols.get(name)
            low, high = (int(b) if getattr(b, "is_Integer", False) else None for b in (bounds.lower, bounds.upper))
            low = None if low is None or low <= 2 else low  # PyTorch takes 0 and 1 as well
            high = None if high is None or high >= 2**62 else high
            if symbol is None or isinstance(symbol, int) or (low is None and high is None):
                continue
            text = f"size '{name}' is {{0}}, the program was exported for {{1}} … {'{2}' if high is not None else '∞'}"
            self.conditions.append(Require(symbol, low, high, text, (symbol, low or 0, high or 0), "input"))

    def require_guards(self, program: torch.export.ExportedProgram) -> None:
        """Conditions on sizes that the model's own code asked about."""
        placed = {n.name: self.env[n] for n in program.graph.nodes if n.op == "placeholder"}
        inputs = {said: placed[name] for said, name in arguments(program).items() if name in placed}
        for text in dict.fromkeys(getattr(program, "_guards_code", None) or ()):
            try:
                holds = condition(text, lambda name, axis: inputs[name].shape[axis])
            except Unsupported as error:
                self.note(error.reason, "its export")
                continue
            self.condition(holds, f"sizes are not as the program was exported for: {text}")

    def sizes(self) -> dict[str, Range]:
        return {d.name: Range(0, None) for d in self.symbols.values() if isinstance(d, Var)}

    def results(self, program: torch.export.ExportedProgram) -> list[tuple[str, Value]]:
        """The outputs by name: the model's own, then what buffers and inputs become that it writes to."""
        (output,) = (n for n in program.graph.nodes if n.op == "output")
        own: list[tuple[str, Any]] = []
        written: list[tuple[str, Any]] = []
        for node, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION):
                written.append((f"{spec.target}.after", node))
            elif spec.kind is OutputKind.USER_OUTPUT:
                own.append((getattr(spec.arg, "name", None) or "output", node))
            elif spec.kind is not OutputKind.TOKEN:
                self.note(f"an output of kind {spec.kind.name.lower()}", node)
        return self.outputs([*own, *written])

    def outputs(self, found: Sequence[tuple[str, Any]]) -> list[tuple[str, Value]]:
        results: list[tuple[str, Value]] = []
        taken: set[str] = set()
        for name, node in found:
            operand = self.env[node] if isinstance(node, torch.fx.Node) else node
            if operand is None:
                continue
            if isinstance(operand, (bool, int, float)):
                operand = self.builder.constant(operand, name)
            if poisoned(operand):
                continue
            while name in taken:
                name += "_again"
            taken.add(name)
            operand = together(self.builder, operand) if isinstance(operand, Complex) else operand
            results.append((name, self.as_value(operand)))
        if results and self.conditions and not self.unsupported:
            name, value = results[0]
            for condition in self.conditions:
                if not isinstance(condition.holds, Const) or not condition.holds.value:
                    value = self.builder.add(condition, value)
            results[0] = name, value
        return results

    # -- nodes
    def note(self, reason: str, node: Any) -> None:
        """Something that is not supported, at a node."""
        self.unsupported.setdefault(reason, []).append(f"'{node}'")

    def visit(self, node: torch.fx.Node, module: torch.nn.Module) -> Any:
        """What stands for a node of the program."""
        if node.op == "get_attr":
            found: Any = module
            for part in str(node.target).split("."):
                found = getattr(found, part)
            if isinstance(found, torch.Tensor):
                return self.constant_of(found, str(node.target), node)
            return found
        if node.op != "call_function":
            raise FrontendError(f"a node of kind {node.op}", where=f"node '{node.name}'")
        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self.item(node)
        if isinstance(value, SIZES) and self.known_size(value):
            return self.size_of(node, value)
        if isinstance(node.target, torch._ops.OpOverload):
            return self.call(node, *qualified(node.target), node.target._schema)
        if node.target is torch.ops.higher_order.with_effects and node.args[1] in EFFECTS:
            self.expect_zeros(self.env[node.args[2]], f"{node.args[3]}: the matrix is singular, or not as it should be")
            return [None, None]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self.call(node, "higher_order", node.target.name(), None)
        return self.call(node, "python", getattr(node.target, "__name__", str(node.target)), None)

    def inline(self, module: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
        """What stands for the results of a sub-graph, put where the graph is being built."""
        outer, self._constants = self._constants, {}
        checks = len(self.conditions)
        nodes = list(module.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        self.env.update(zip(places, operands, strict=True))
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.env[node] = self.visit(node, module)
        self._constants = outer
        if len(self.conditions) > checks:
            raise Unsupported("a branch or a loop that checks sizes or matrices")
        found = [self.operand(x) for x in torch.utils._pytree.tree_leaves(nodes[-1].args[0])]
        if any(map(poisoned, found)):
            raise Poisoned
        return found

    def expect_zeros(self, info: Any, what: str) -> None:
        """What the run checks of the state that a decomposition of a matrix ends with."""
        if isinstance(info, Value) and not poisoned(info):
            most = self.builder.add(ReduceMax(None, False), info)
            symbol = as_dim(self.builder.symbol(most, 0, "info"))
            self.conditions.append(Require(symbol, None, 0, what, (), "linalg"))

    def condition(self, holds: Any, text: str) -> None:
        """What the run checks of sizes before it computes."""
        if isinstance(holds, Expr):
            value = as_dim(select(simplify(holds, self.sizes()), 1, 0))
            if value != 1:
                self.conditions.append(Require(value, 1, None, text.replace("{", "{{").replace("}", "}}"), (), "input"))

    def item(self, node: torch.fx.Node) -> Any:
        source, k = self.env[node.args[0]], node.args[1]
        if isinstance(source, Poison):
            return source
        self.name_it(source[k], node.name)
        return source[k]

    def known_size(self, value: Any) -> bool:
        expression = value.node.expr
        return str(expression) in self.symbols or all(s.name in self.symbols for s in expression.free_symbols)

    def size_of(self, node: torch.fx.Node, value: Any) -> Any:
        try:
            found = formula(value.node.expr, self.symbols)
        except Unsupported as error:
            self.note(error.reason, node.name)
            return Poison()
        content = ct.content(dt.bool_ if isinstance(value, torch.SymBool) else dt.int64, [found], ())
        return self.short_content(content)

    def call(self, node: torch.fx.Node, domain: str, name: str, schema: Any) -> Any:
        """The results of an operator: one, or a list where the operator gives several."""
        names, arguments, fakes = bound(node, schema)
        operands = [self.operand(a) for a in arguments]
        c = Context(self, node, f"{domain}.{name}", domain, names, operands, fakes)
        results = self.node(c)
        several = isinstance(node.meta.get("val"), (list, tuple))
        return list(results) if several else results[0] if results else None

    def operand(self, argument: Any) -> Any:
        """An argument as converters take it."""
        if isinstance(argument, torch.fx.Node):
            found = self.env[argument]
            if isinstance(found, ct.Content) and not isinstance(argument.meta.get("val"), torch.Tensor):
                (element,) = found.dims()
                return element if isinstance(element, (bool, int)) else as_dim(element)
            return found
        if isinstance(argument, (list, tuple)):
            return [self.operand(a) for a in argument]
        return argument

    def own(self, c: Any) -> Any:
        name = c.op_type.partition(".")[2]
        return (complexes if of_complex(c) else self.registry).find(c.domain, name)

    def convert(self, c: Any) -> Sequence[Any]:
        name = c.op_type.partition(".")[2]
        converter = self.own(c)
        given = self.others.find(c.domain, name, 1, converter is not None)
        if converter is None and given is None:
            raise Unsupported(self.unknown(c))
        if any(map(poisoned, c.operands)):
            raise Poisoned
        self.expect_supported(c)
        function: Any = converter if given is None else given
        found = function(c)
        results = [self.refined(r) if isinstance(r, Value) else r for r in _sequence(found)]
        self.check(c, results)
        if c.outputs == 1:
            self.name_it(results[0], c.name)
        return results

    def name_it(self, value: Any, name: str) -> None:
        """Gives what a node made the node's name, which `weft verify` asks PyTorch for."""
        if isinstance(value, Value) and value.producer is not None and id(value) not in self._named:
            self._named[id(value)] = value
            self.builder.rename(value, name)

    def unknown(self, c: Any) -> str:
        return f"operator {c.op_type}" + (" of complex numbers" if of_complex(c) else "")

    def expect_supported(self, c: Context) -> None:
        """Refuses dtypes that Weft has not, of results that are used."""
        for k in range(c.outputs):
            if isinstance(c.fake(k), torch.Tensor):
                c.part_dtype(k)

    def check(self, c: Context, results: list[Any]) -> None:
        """A converter's results have the dtypes and sizes that PyTorch says, or the converter is wrong."""
        for k, value in enumerate(results):
            fake = c.fake(k) if k < c.outputs else None
            if isinstance(value, Complex) != c.is_complex(k) and value is not None:
                raise FrontendError(f"{c.op_type}: its converter mistakes complex numbers", where=c.place)
            value = value.re if isinstance(value, Complex) else value
            if not isinstance(value, Value) or not isinstance(value.type, TensorType) or fake is None:
                continue
            self.bind(fake, value)
            dtype, shape = c.part_dtype(k), self.shape_of(fake)
            agrees = len(shape) == len(value.shape) and all(same(a, b) is not False for a, b in zip(shape, value.shape))
            if value.dtype != dtype or not agrees:
                raise FrontendError(
                    f"{c.op_type}: its converter gives {value.dtype}{show(value.shape)}, PyTorch says"
                    f" {dtype}{show(shape)}",
                    where=c.place,
                    hint=self.defect,
                )

    # -- sizes
    def bind(self, fake: Any, value: Value) -> None:
        """Sizes that only the run knows, by the names that PyTorch gave them."""
        for d, wanted in zip(value.shape, fake.shape):
            if isinstance(wanted, torch.SymInt) and wanted.node.expr.is_Symbol:
                self.symbols.setdefault(wanted.node.expr.name, d)

    def shape_of(self, fake: Any) -> tuple[Dim, ...]:
        """The sizes of a tensor of PyTorch's; of symbols that only the run knows the graph's own."""
        return tuple(size(d, self.symbols) for d in fake.shape)


def tokens(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """What orders nodes that have effects, and holds nothing."""
    found = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        found |= {node.args[0], *(n for n in node.users if n.target is operator.getitem and n.args[1] == 0)}
    return found


def of_complex(c: Context) -> bool:
    """Whether an operand of a node or a result is complex."""
    given = [x for a in c.operands for x in (a if isinstance(a, list) else [a])]
    return any(isinstance(x, (Complex, complex)) for x in given) or any(map(c.is_complex, range(c.outputs)))


def bound(node: torch.fx.Node, schema: Any) -> tuple[list[str], list[Any], list[Any]]:
    """The arguments of a node in the order of the operator's schema: names, themselves, what PyTorch says of each."""
    if schema is None:
        names = [f"argument {k}" for k in range(len(node.args))] + list(node.kwargs)
        arguments = [*node.args, *node.kwargs.values()]
    else:
        names = [a.name for a in schema.arguments]
        given: dict[str, Any] = dict(zip(names, node.args))
        given.update(node.kwargs)
        arguments = [given.get(a.name, a.default_value) for a in schema.arguments]
    return names, arguments, [torch.fx.map_arg(a, lambda n: n.meta.get("val")) for a in arguments]


def _sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


__all__ = ["ProgramImporter", "bound", "import_program", "tokens"]
