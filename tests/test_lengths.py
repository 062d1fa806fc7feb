"""How long functions and modules are. A longer one is in a table here, with the reason why it is not split."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = "core", "interpreter", "ops", "remote", "runtime", "testing", "tuning", "training", "plugins"
MOST_LINES_OF_A_FUNCTION = 60
"""From `def` to the end, docstring not counted, functions within it counted."""
MOST_LINES_OF_A_MODULE = 500

FUNCTIONS = {
    "testing/weft_testing/cli/bench.py::bench": "a command: half of it declares the options",
    "testing/weft_testing/cli/bench.py::examine": "the steps of one measurement, which share its many options",
    "tuning/weft_tuning/cli.py::tune": "a command: half of it declares the options",
    "testing/weft_testing/cli/inspect.py::inspect": "a command: a third of it declares the options",
    "testing/weft_testing/bench/roofline_page.py::plot": "one drawing, from its axes to its legend",
    "ops/weft_ops/sampling.py::GridSample.direct": "one algorithm, whose formulas share its sizes and indices",
    "ops/weft_ops/resizing.py::Resize.along": "one algorithm, whose formulas share its sizes and indices",
    "ops/weft_ops/recurrent.py::Recurrence.direct": "three cells, whose steps share the formulas of a gate",
    "ops/weft_ops/masked_trees.py::MaskedTrees.asks": "one loop nest, a function for each loop",
    "ops/weft_ops/trees.py::TreeEnsemble.walks": "one loop nest, a function for each loop",
    "ops/weft_ops/winograd.py::WinogradConv.winograd": "one algorithm, whose formulas share its sizes and indices",
    "plugins/cpu_llvm/weft_llvm/arithmetic.py::_fmod_text": "the text of one LLVM function, read from top to bottom",
    "plugins/cpu_llvm/weft_llvm/exports/elf.py::_library": "one file, from its head to its last section",
    "plugins/cpu_llvm/weft_llvm/exports/pe.py::_library": "one file, from its head to its last section",
    "plugins/cpu_llvm/weft_llvm/schedules/attention.py::schedule_attention": "one schedule, step by step",
    "plugins/cpu_llvm/weft_llvm/schedules/contraction.py::schedule_tile": "one schedule, step by step",
    "plugins/cpu_llvm/weft_llvm/schedules/reduction.py::schedule_reduction": "one schedule, step by step",
    "plugins/gpu/weft_gpu/launches.py::_part": "notes the grid while it rewrites the loops",
    "plugins/gpu/weft_gpu/schedules/contraction.py::schedule_tile": "one schedule, step by step",
    "plugins/gpu/weft_gpu/schedules/fragments.py::schedule_fragments": "one schedule, step by step",
    "runtime/weft_runtime/loops.py::NativeTrips.__call__": "its loop advances the buffers that it binds",
    "runtime/weft_runtime/native.py::Segment.failure": "a case for each code of an error, with its text",
    "testing/weft_testing/cli/demo.py::demo": "a command that reports each of its steps",
    "testing/weft_testing/cli/verify.py::verify": "a command: half of it declares the options",
    "testing/weft_testing/conform/page.py::page": "one page, from its head to its end",
}
"""path::qualified name → why the function is longer."""

MODULES = {
    "core/weft/compilation.py": "the stages of a compilation share its state; slightly over the limit",
    "core/weft/expr/nodes.py": "one class and one builder for each node of the IR; builders fold by the classes",
    "core/weft/loop/math_tables.py": "coefficients and one formula for each function, read side by side",
    "core/weft/plugins.py": "the host of plugins, whose answers and failures share its state; slightly over the limit",
    "core/weft/tensor/language.py": "the functions by which kernels are written; slightly over the limit",
    "ops/weft_ops/attention.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/contraction.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/normalization.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/quantization.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/reduction.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/sampling.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/window.py": "operators, each beside its reference, formulas and samples",
    "ops/weft_ops/passes/fuse_quantization.py": "one pass, whose steps share a view of values",
    "ops/weft_ops/passes/simplify_algebra.py": "one table of rules with a function for each",
    "ops/weft_ops/recurrent.py": "recurrences, and the networks made of them",
    "ops/weft_ops/sorting.py": "operators, each beside its reference, formulas and samples",
    "plugins/c_family/weft_c_family/emitter.py": "one class with a method for each node",
    "plugins/c_family/weft_c_family/formulas.py": "one class with a method for each node",
    "plugins/cpu_llvm/weft_llvm/pool.py": "one module of LLVM IR as text, read from top to bottom",
    "plugins/cpu_llvm/weft_llvm/schedules/contraction.py": "one schedule and the choices in it",
    "plugins/gpu/weft_gpu/passes/remove_barriers.py": "one analysis, whose methods share its accesses",
    "runtime/weft_runtime/steps.py": "one class with a method for each kind of step",
    "testing/weft_testing/conform/kit.py": "one class: what checks call",
    "testing/weft_testing/conform/made.py": "one table of generators: a function for each kind of case",
}
"""path → why the module is longer."""


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and its decorators."""
    whole = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return whole
    docstring = function.body[0]
    return whole - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def functions(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """The qualified names of all functions below a node, and their lengths."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = (*within, child.name)
            if not isinstance(child, ast.ClassDef):
                yield ".".join(name), length(child)
            yield from functions(child, name)
        else:
            yield from functions(child, within)


def sources() -> list[Path]:
    """The Python files of the packages; their tests and caches are none."""
    found = [f for folder in FOLDERS for f in (ROOT / folder).rglob("*.py")]
    return sorted(f for f in found if not {"build", "dist", ".venv"} & set(f.relative_to(ROOT).parts))


def compare(found: dict[str, int], most: int, table: dict[str, str]) -> list[str]:
    """What is wrong: what is too long without a reason, and reasons that are no longer needed."""
    long = {name: lines for name, lines in found.items() if lines > most}
    return [
        *(
            f"{name} has {n} lines, at most {most}: split it, or give a reason"
            for name, n in long.items()
            if name not in table
        ),
        *(f"{name} needs no entry any more: delete it" for name in table if name not in long),
        *(f"{name}: the entry has no reason" for name, reason in table.items() if not reason.strip()),
    ]


def test_functions_are_short() -> None:
    found = {
        f"{file.relative_to(ROOT)}::{name}": lines
        for file in sources()
        for name, lines in functions(ast.parse(file.read_text()))
    }
    assert found
    assert not compare(found, MOST_LINES_OF_A_FUNCTION, FUNCTIONS)


def test_modules_are_short() -> None:
    found = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources()}
    assert found
    assert not compare(found, MOST_LINES_OF_A_MODULE, MODULES)


def test_how_lines_are_counted() -> None:
    text = '@cache\ndef f(x):\n    """Two\n    lines."""\n\n    def g():\n        return x\n\n    return g\n'
    assert dict(functions(ast.parse(text))) == {"f": 6, "f.g": 2}
    assert dict(functions(ast.parse("class A:\n    def f(self):\n        pass\n"))) == {"A.f": 2}


def test_what_is_refused() -> None:
    assert compare({"f": 60}, 60, {}) == []
    assert compare({"f": 61}, 60, {"f": "one case per node"}) == []
    assert "f has 61 lines, at most 60" in compare({"f": 61}, 60, {})[0]
    assert "f needs no entry" in compare({"f": 60}, 60, {"f": "one case per node"})[0]
    assert "no reason" in compare({"f": 61}, 60, {"f": " "})[0]
