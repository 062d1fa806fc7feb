"""THE list of what plugins may import: modules, and the names of each. Everything else may change with any version.

Hooks are in it by `weft.hooks.Specifications`, which no plugin has to import.

`python -m weft_testing.public` prints every name with its signature: docs/api.txt is this text, and docs/api-changes.md
says what has changed since the last version. Sources are read, not imported.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

PACKAGES = (
    "weft",
    "weft_c_family",
    "weft_frontend",
    "weft_gpu",
    "weft_interpreter",
    "weft_ops",
    "weft_queues",
    "weft_runtime",
    "weft_testing",
)
"""The packages that the modules are in."""
EVERYTHING: tuple[str, ...] = ("*",)
"""Of a module: its `__all__`, or whatever it defines without a leading underscore."""

_FACE = (
    "Executable", "WeftError", "build", "call", "compile", "compile_adaptive", "compute", "export", "load", "maximum",
    "minimum", "placeholder", "reduce", "reduce_axis",
    "scan", "schedule", "select", "sum", "var",
)  # fmt: skip
_OPERATORS = (
    "activation", "arithmetic", "attention", "bitwise", "comparison", "contraction", "fixed_point", "host", "image",
    "indexing", "linear_algebra",
    "loss", "movement", "normalization", "quantization", "random", "recurrent", "reduction", "scanning", "signal",
    "sorting", "transcendental", "trees",
    "window",
)  # fmt: skip

_FRONTEND = (
    "activations", "archives", "bodies", "cases", "contents", "context", "control", "forest", "importer", "layouts",
    "movement", "operands", "protos", "random_numbers", "registry", "support_vectors", "windows",
)  # fmt: skip

# Methods of a Schedule, whose program is their first argument.
_PRIMITIVES = (
    "annotate", "bind", "butterfly", "cache_read", "cache_write", "compact_buffer", "compute_at", "compute_inline",
    "decompose_reduction",
    "double_buffer", "fuse",
    "lift", "make_online", "pad_loop", "pad_tile", "parallel", "partition", "prefetch", "reorder", "reverse_compute_at",
    "reverse_compute_inline", "rfactor",
    "serial", "serpentine", "set_scope",
    "specialize", "split", "stage", "stage_result", "tensorize", "unroll", "vectorize",
)  # fmt: skip

PUBLIC: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "weft": _FACE,
        "weft.errors": EVERYTHING,
        "weft.forks": ("cached_property", "hold", "need", "of_this_process", "per_process", "temporary_folder"),
        "weft.dtypes": EVERYTHING,
        "weft.choices": ("Choice", "Choices"),
        "weft.machine": EVERYTHING,
        "weft.options": ("make_options",),
        "weft.rates": EVERYTHING,
        "weft.target": EVERYTHING,
        "weft.converters": ("Converters",),
        "weft.hooks": (
            "Converter",
            "EngineKind",
            "ExportOption",
            "Exporter",
            "Frontend",
            "Specifications",
            "StageReport",
            "hookimpl",
        ),
        # formulas
        "weft.expr.nodes": EVERYTHING,
        "weft.expr.functions": EVERYTHING,
        "weft.expr.printer": ("print_expr",),
        "weft.expr.parser": ("parse_expr",),
        "weft.expr.evaluate": ("evaluate",),
        "weft.expr.ranges": ("Range", "Ranges", "add_ranges", "multiply_ranges", "negate_range", "range_of"),
        "weft.expr.simplify": ("prove", "simplify"),
        "weft.expr.affine": EVERYTHING,
        "weft.expr.linear": ("linear", "number", "Polynomial", "polynomial", "ZERO"),
        "weft.tensor.language": EVERYTHING,
        "weft.tensor.evaluate": ("evaluate",),
        # loops and schedules
        "weft.loop.math_tables": ("ROUNDED_TWICE",),
        "weft.loop.nodes": EVERYTHING,
        "weft.loop.printer": ("excerpt", "print_program", "print_stmt"),
        "weft.loop.parser": ("parse_program", "parse_stmt"),
        "weft.loop.verify": ("verify",),
        "weft.loop.pipeline": ("LoopPass", "lower_program"),
        "weft.loop.grids": EVERYTHING,
        "weft.loop.passes.copies": ("EMPTY", "Names", "copy_stmt", "if_stmt", "is_empty", "rewrite"),
        "weft.loop.passes.distances": ("MOST_VALUES", "distances", "overlaps", "reach"),
        "weft.loop.passes.hoist_invariants": ("summands",),
        "weft.loop.passes.lower_blocks": ("lower_blocks",),
        "weft.loop.passes.partition_loops": ("atoms_of", "conditions_in", "decide", "not_negative"),
        "weft.loop.passes.simplify": ("holds", "simplify"),
        "weft.loop.passes.start_empty_reductions": ("start_empty_reductions",),
        "weft.loop.queues": ("AWAIT_QUEUES", "Await", "Begin", "Queue", "begin"),
        "weft.kernel": ("Kernel", "KernelSchedule"),
        "weft.scheduling": EVERYTHING,
        "weft.scheduling.access": EVERYTHING,
        "weft.scheduling.costs": EVERYTHING,
        "weft.scheduling.intrinsic": ("Call", "Intrinsic", "Operand", "OperandView", "meanings", "queued"),
        "weft.scheduling.patterns": EVERYTHING,
        "weft.scheduling.primitives": _PRIMITIVES,
        "weft.scheduling.rule": EVERYTHING,
        "weft.scheduling.schedule": ("Attempt", "Checkpoint", "Schedule"),
        "weft.scheduling.trace": ("Step", "Trace", "replay"),
        "weft.scheduling.tree": ("blocks_in",),
        # graphs and operators
        "weft.graph.nodes": EVERYTHING,
        "weft.graph.operator": EVERYTHING,
        "weft.graph.layout": EVERYTHING,
        "weft.graph.group": EVERYTHING,
        "weft.graph.rewrite": (
            "Replacement",
            "Rewriter",
            "attribute_symbols",
            "bound_symbols",
            "copy_graph",
            "drop_dead",
            "mentioned_symbols",
            "rewrite",
            "substitute_symbols",
        ),
        "weft.graph.control": ("SEQUENCE", "If", "Loop", "bodies", "run_bodies"),
        "weft.graph.host": EVERYTHING,
        "weft.graph.identity": EVERYTHING,
        "weft.graph.inferred": EVERYTHING,
        "weft.graph.evaluate": ("evaluate",),
        "weft.graph.printer": ("print_graph",),
        "weft.graph.parser": ("parse_graph",),
        "weft.graph.verify": ("verify",),
        "weft.records": EVERYTHING,
        "weft_ops": EVERYTHING,
        **{f"weft_ops.{family}": EVERYTHING for family in _OPERATORS},
        "weft_ops.composing": ("Composer",),
        "weft_ops.elementwise": ("Binary", "FloatUnary", "Function", "Scalar", "Unary"),
        "weft_ops.forests": EVERYTHING,
        "weft_ops.moving": ("Movement",),
        "weft_ops.precision": ("float_info", "in_compute_dtype"),
        "weft_ops.winograd": ("POINTS", "TAPS", "WinogradConv"),
        "weft_ops.scheduling.attention": EVERYTHING,
        "weft_ops.scheduling.winograd": EVERYTHING,
        "weft_ops.shapes": EVERYTHING,
        "weft_ops.words": EVERYTHING,
        "weft.passes.capabilities": EVERYTHING,
        "weft.passes.choose_layouts": ("choose_layouts",),
        "weft.passes.fold_constants": ("work_of",),
        "weft.passes.fuse": ("fuse",),
        "weft.passes.pipeline": ("GraphPass",),
        "weft.passes.place": ("Offers", "Refuse", "Take"),
        "weft.lower.lower": ("lower_group", "lower_tensors"),
        "weft.lower.offers": ("offer_by_rules",),
        # code and what runs it
        "weft.codegen.base": EVERYTHING,
        "weft.codegen.build_segment": ("build_segment",),
        "weft_c_family": EVERYTHING,
        "weft_c_family.definitions": ("Definitions",),
        "weft_c_family.emitter": ("Kernel", "byte_size"),
        "weft_c_family.formulas": ("COMPARISON", "LOOSE", "PRIMARY", "PRODUCT", "SUM", "UNARY", "Code", "Formulas"),
        "weft_c_family.language": ("Language", "short"),
        "weft.codegen.segment": EVERYTHING,
        "weft.codegen.steps": EVERYTHING,
        "weft_interpreter.interpret": ("interpret",),
        "weft_queues.await_queues": ("await_queues",),
        # targets that run grids of groups of threads
        "weft_gpu.bulk_copies": EVERYTHING,
        "weft_gpu.codegen": ("GpuCodegen",),
        "weft_gpu.image": ("Kernel", "Launch", "Tensor", "pack", "unpack"),
        "weft_gpu.languages": ("rules_in",),
        "weft_gpu.launch": ("grid_of",),
        "weft_gpu.launches": EVERYTHING,
        "weft_gpu.limits": ("exceeds_grid",),
        "weft_gpu.machines": ("grid_machine", "grid_rates"),
        "weft_gpu.passes": ("grid_passes",),
        "weft_gpu.passes.bulk_copies": ("BoxNest", "box_nest"),
        "weft_gpu.passes.copy_async": ("copy_async",),
        "weft_gpu.schedules.winograd": ("choose_winograd",),
        # readers of model formats
        **{f"weft_frontend.{part}": EVERYTHING for part in _FRONTEND},
        # the runtime
        "weft_runtime": EVERYTHING,
        "weft_runtime.abi": EVERYTHING,
        "weft_runtime.arrays": EVERYTHING,
        "weft_runtime.cache": ("Cache",),
        "weft_runtime.cpu_features": ("WINDOWS", "byte_order", "host_features", "known_features", "machine_name"),
        "weft_runtime.device": (
            "Borrowed",
            "Device",
            "DeviceKind",
            "HostDevice",
            "Memory",
            "Slice",
            "Started",
            "blamed",
            "open_device",
        ),
        "weft_runtime.dlpack": ("Foreign", "foreign_tensor"),
        "weft_runtime.dtypes": EVERYTHING,
        "weft_runtime.errors": EVERYTHING,
        "weft_runtime.executable": ("Executable", "NativeCode"),
        "weft_runtime.formulas": ("Formula", "formula", "to_postfix"),
        "weft_runtime.loader": ("Code",),
        "weft_runtime.plan": ("HOST", "Copy", "DeviceCall", "HostCall", "Step"),
        "weft_runtime.header": ("abi_header", "declarations"),
        "weft_runtime.settings": ("CACHE_DIR",),
        "weft_runtime.support": ("architectures",),
        "weft_runtime.threads": ("available_threads",),
        "weft_runtime.wasm": ("needed",),
        # tests
        "weft_testing.changed": EVERYTHING,
        "weft_testing.frontend": EVERYTHING,
        "weft_testing.imports": EVERYTHING,
        "weft_testing.intrinsics": ("check_intrinsic",),
        "weft_testing.models": ("mlp", "picture", "resnet18"),
        "weft_testing.plugin": EVERYTHING,
        "weft_testing.public": ("PACKAGES", "PUBLIC", "api_entries", "public_names"),
    }
)
"""Module → its public names."""


def public_names(module: str) -> tuple[str, ...]:
    """What a plugin may import from a public module, sorted.

    Raises:
        KeyError: the module is not public.
    """
    given = PUBLIC[module]
    return tuple(sorted(_defined(module) if given == EVERYTHING else given))


def api_lines() -> Iterator[str]:
    """The whole list: each module in a line, then each of its names with its signature, a line each, with members below
    classes."""
    for module in sorted(PUBLIC):
        yield module
        for name in public_names(module):
            yield from ("  " + line for line in signature(module, name))


def api_entries() -> dict[str, str]:
    """`module.name` → its signature, members of classes included."""
    found = {}
    for module in sorted(PUBLIC):
        for name in public_names(module):
            found[f"{module}.{name}"] = "\n".join(signature(module, name))
    return found


def parse_api(text: str) -> dict[str, str]:
    """The entries of a text that `python -m weft_testing.public` printed."""
    found: dict[str, list[str]] = {}
    module = key = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            module = line
        elif not line.startswith("    "):
            words = line.split()
            name = words[1] if words[0] in ("class", "def") else words[0]
            key = f"{module}.{name.partition('(')[0].rstrip(':')}"
            found.setdefault(key, []).append(line[2:])  # one line per overload
        else:
            found[key].append(line[2:])
    return {key: "\n".join(lines) for key, lines in found.items()}


def home(module: str, name: str) -> str:
    """The module that defines a name of a public one: itself, unless it passes on another's name."""
    found = _passed_on(module).get(name)
    return module if found is None else home(found, name)


# -- signatures -------------------------------------------------------------------------------------------------------


def signature(module: str, name: str) -> list[str]:
    """A name as it is declared: a function's arguments, of each overload; a class's bases, fields and methods; another
    module's name where it is only passed on.

    Raises:
        LookupError: the module does not have it.
    """
    home = _passed_on(module).get(name)
    if home is not None:
        return [f"{name} = {home}.{name}"] if home in PUBLIC and name in public_names(home) else signature(home, name)
    functions = [n for n in _top(module) if isinstance(n, ast.FunctionDef) and n.name == name]
    if functions:
        overloads = [n for n in functions if "overload" in map(ast.unparse, n.decorator_list)]
        return [_function(n) for n in overloads or functions[:1]]
    for node in _top(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class(module, node)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            alias = ast.unparse(node.annotation) == "TypeAlias" and node.value is not None
            return [
                f"{name}: {ast.unparse(node.annotation)}"
                + (f" = {ast.unparse(node.value)}" if alias and node.value is not None else "")
            ]
        if isinstance(node, ast.Assign) and name in _targets(node):
            return [name]
    raise LookupError(f"'{module}' does not define '{name}'")


def _function(node: ast.FunctionDef) -> str:
    marks = [
        m
        for m in ("property", "classmethod", "staticmethod", "abstractmethod", "cached_property")
        if m in [ast.unparse(d) for d in node.decorator_list]
    ]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}" + (f"  # {', '.join(marks)}" if marks else "")


def _class(module: str, node: ast.ClassDef) -> list[str]:
    bases = ", ".join(ast.unparse(b) for b in node.bases)
    lines = [f"class {node.name}" + (f"({bases})" if bases else "")]
    inherited = _inherited(module, node)
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and not part.target.id.startswith("_"):
            default = (
                f" = {ast.unparse(part.value)}"
                if part.value is not None and "ClassVar" not in ast.unparse(part.annotation)
                else ""
            )
            lines.append(f"  {part.target.id}: {ast.unparse(part.annotation)}{default}")
        if isinstance(part, ast.FunctionDef) and (
            part.name == "__init__" or (not part.name.startswith("_") and part.name not in inherited)
        ):
            if not any(ast.unparse(d).startswith("algorithm(") for d in part.decorator_list):
                lines.append("  " + _function(part))
    return lines


def _inherited(module: str, node: ast.ClassDef) -> set[str]:
    """The methods that classes of public modules hand down to a class."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = [(module, ast.unparse(b)) for b in node.bases]
    while todo:
        where, name = todo.pop()
        home = where if name in _classes(where) else _passed_on(where).get(name)
        if home is None or home not in PUBLIC or (home, name) in seen or name not in _classes(home):
            continue
        seen.add((home, name))
        base = _classes(home)[name]
        found.update(p.name for p in base.body if isinstance(p, ast.FunctionDef))
        todo += [(home, ast.unparse(b)) for b in base.bases]
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _top(module) if isinstance(node, ast.ClassDef)}


# -- sources ----------------------------------------------------------------------------------------------------------


@cache
def _source(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module '{module}'")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _top(module: str) -> Iterator[ast.stmt]:
    """Statements of a module, those under `if TYPE_CHECKING` and the like included."""
    todo = list(_source(module).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.If, ast.Try)):
            todo = [*node.body, *todo]
        else:
            yield node


def _targets(node: ast.Assign) -> list[str]:
    return [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]


@cache
def _passed_on(module: str) -> dict[str, str]:
    """Names that a module has from another: name → the other."""
    found = {}
    for node in _top(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for a in node.names:
                if a.name == "*":
                    source = str(node.module)
                    further = {} if source in PUBLIC else _passed_on(source)
                    found.update({n: further.get(n, source) for n in _defined(source)})
                elif a.asname in (None, a.name):
                    found[a.name] = str(node.module)
        if isinstance(node, ast.Assign) and _targets(node) == ["_PUBLIC"]:
            found.update(ast.literal_eval(node.value))  # names that `weft` finds at first use
    return found


@cache
def _defined(module: str) -> frozenset[str]:
    names: set[str] = set()
    for node in _top(module):
        if isinstance(node, ast.Assign) and _targets(node) == ["__all__"] and isinstance(node.value, ast.List):
            return frozenset(ast.literal_eval(node.value))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(_targets(node))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            names.update(a.name for a in node.names if a.asname == a.name)  # said to be passed on
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names |= _defined(str(node.module))
    return frozenset(n for n in names if not n.startswith("_"))


if __name__ == "__main__":
    print("\n".join(api_lines()))
