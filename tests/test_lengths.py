"""How long functions and modules are. A longer one is in a table here, with the reason why it is not split."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = "core", "ops", "runtime", "testing", "plugins"
MOST_LINES_OF_A_FUNCTION = 60
"""From `def` to the end, docstring not counted, functions within it counted."""
MOST_LINES_OF_A_MODULE = 500

FUNCTIONS = {
    "testing/weft_testing/cli/bench.py::bench": "to be split",
    "testing/weft_testing/cli/bench.py::examine": "to be split",
    "core/weft/cli/inspect.py::inspect": "to be split",
    "core/weft/cli/inspect.py::inspect_graph": "to be split",
    "core/weft/cli/placement.py::inspect_placed": "to be split",
    "testing/weft_testing/bench/roofline.py::print_roofline": "to be split",
    "testing/weft_testing/bench/roofline_page.py::plot": "to be split",
    "core/weft/pipeline.py::compile": "to be split",
    "core/weft/scheduling/primitives/make_online.py::make_online": "to be split",
    "core/weft/scheduling/primitives/reorder.py::reorder": "to be split",
    "core/weft/scheduling/primitives/stage.py::stage": "to be split",
    "ops/weft_ops/sampling.py::GridSample.direct": "to be split",
    "ops/weft_ops/resizing.py::Resize.along": "to be split",
    "ops/weft_ops/sampling.py::RoiAlign.sampled": "to be split",
    "ops/weft_ops/recurrent.py::Recurrence.direct": "to be split",
    "ops/weft_ops/trees.py::TreeEnsemble.walk": "to be split",
    "ops/weft_ops/winograd.py::WinogradConv.winograd": "to be split",
    "plugins/cpu_llvm/weft_llvm/arithmetic.py::_fmod_text": "the text of one LLVM function, read from top to bottom",
    "plugins/cpu_llvm/weft_llvm/schedules/attention.py::schedule_attention": "to be split",
    "plugins/cpu_llvm/weft_llvm/schedules/contraction.py::schedule_tile": "to be split",
    "plugins/cpu_llvm/weft_llvm/schedules/reduction.py::schedule_reduction": "to be split",
    "plugins/frontends/onnx/weft_onnx/importer.py::Importer.node": "to be split",
    "plugins/gpu/weft_gpu/launches.py::_part": "to be split",
    "plugins/gpu/weft_gpu/schedules/contraction.py::schedule_tile": "to be split",
    "plugins/gpu/weft_gpu/schedules/fragments.py::schedule_fragments": "to be split",
    "runtime/weft_runtime/loops.py::NativeTrips.__call__": "to be split",
    "runtime/weft_runtime/native.py::NativeSegment._failure": "to be split",
    "testing/weft_testing/cli/demo.py::demo": "to be split",
    "testing/weft_testing/cli/verify.py::verify": "to be split",
    "testing/weft_testing/conform/page.py::page": "to be split",
    "testing/weft_testing/conform/session.py::run": "to be split",
}
"""path::qualified name → why the function is longer."""

MODULES = {
    "core/weft/compilation.py": "to be split",
    "core/weft/expr/nodes.py": "to be split",
    "core/weft/loop/math_tables.py": "to be split",
    "core/weft/loop/passes/await_queues.py": "to be split",
    "core/weft/loop/passes/block_sums.py": "to be split",
    "core/weft/lower/lower.py": "to be split",
    "core/weft/mixed.py": "to be split",
    "core/weft/passes/fuse.py": "to be split",
    "core/weft/passes/place.py": "to be split",
    "core/weft/plugins.py": "to be split",
    "core/weft/scheduling/intrinsic.py": "to be split",
    "core/weft/scheduling/primitives/tensorize.py": "to be split",
    "core/weft/tensor/language.py": "to be split",
    "ops/weft_ops/attention.py": "to be split",
    "ops/weft_ops/contraction.py": "to be split",
    "ops/weft_ops/indexing.py": "to be split",
    "ops/weft_ops/normalization.py": "to be split",
    "ops/weft_ops/passes/fuse_quantization.py": "to be split",
    "ops/weft_ops/passes/simplify_algebra.py": "to be split",
    "ops/weft_ops/recurrent.py": "to be split",
    "ops/weft_ops/sorting.py": "to be split",
    "plugins/c_family/weft_c_family/emitter.py": "to be split",
    "plugins/c_family/weft_c_family/formulas.py": "to be split",
    "plugins/cpu_llvm/weft_llvm/pool.py": "to be split",
    "plugins/cpu_llvm/weft_llvm/schedules/contraction.py": "to be split",
    "plugins/frontends/onnx/weft_onnx/converters/movement.py": "to be split",
    "plugins/frontends/onnx/weft_onnx/importer.py": "to be split",
    "plugins/gpu/weft_gpu/passes/remove_barriers.py": "to be split",
    "runtime/weft_runtime/steps.py": "to be split",
    "testing/weft_testing/conform/kit.py": "to be split",
    "testing/weft_testing/conform/made.py": "to be split",
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
