"""How much of StableHLO's own data files is read: `python -m tests.frontends.stablehlo.coverage FOLDER [--every N]
[NAME…]`, where FOLDER is stablehlo/testdata of a copy of github.com/openxla/stablehlo.

Each file holds a function, its inputs and what it gives. The inputs become arguments; the function is converted, run
and compared. Prints a line for each file that does not agree, and the totals.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_stablehlo.importer import import_module
from weft_stablehlo.reading import Model, parsed
from weft_testing.frontend import compare

TOLERANCES = {"float64": (1e-10, 1e-12), "float32": (3e-5, 3e-6), "float16": (4e-3, 1e-3), "bfloat16": (3e-2, 8e-3)}
"""By dtype, relative and absolute, as `weft_testing.frontend.compare` has them."""


@dataclass(frozen=True)
class Result:
    """A file: agrees, wrong, refused, failed (a defect: neither refused nor wrong), read (it does not say what it
    gives), not parsed."""

    name: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A file whose function takes its inputs as arguments: the module, the inputs, what is expected of each output, and
    whether to the bit."""

    module: Any
    inputs: Sequence[np.ndarray[Any, Any]]
    expected: Sequence[np.ndarray[Any, Any]]
    exact: Sequence[bool]


def constants(module: Any, name: str) -> list[np.ndarray[Any, Any]]:
    """What a function without arguments returns."""
    if all(op.attributes["sym_name"].value != name for op in module.body.operations):
        return []
    return [np.asarray(x) for x in evaluate(import_module(Model(module), function=name), {})]


def case_of(path: Path) -> Case:
    """The case in a file."""
    module = parsed(path.read_bytes())
    inputs, expected = constants(module, "inputs"), constants(module, "expected")
    if not expected:
        return Case(module, (), (), ())
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    block = main.regions[0].blocks[0]
    checks, wanted, exact, calls = [], [], [], {}
    with module.context, ir.Location.unknown():
        for view in list(block.operations):
            op = view.operation
            if op.name == "func.call" and op.attributes["callee"].value == "inputs":
                for result in op.results:
                    result.replace_all_uses_with(block.add_argument(result.type, ir.Location.unknown()))
                op.erase()
            elif op.name == "func.call" and op.attributes["callee"].value == "expected":
                calls = {r: k for k, r in enumerate(op.results)}
                given = op
            elif op.name == "stablehlo.custom_call" and "check." in op.attributes["call_target_name"].value:
                checks.append(op.operands[0])
                wanted.append(expected[calls[op.operands[1]]])
                exact.append(op.attributes["call_target_name"].value == "check.expect_eq")
                op.erase()
            elif op.name == "func.return":
                with ir.InsertionPoint(op):
                    func.ReturnOp(checks)
                op.erase()
        given.erase()
        types = [a.type for a in block.arguments], [v.type for v in checks]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        for name in ("arg_attrs", "res_attrs"):
            if name in main.attributes:
                del main.attributes[name]
    return Case(module, inputs, wanted, exact)


def judged(path: Path, target: str | None = None) -> Result:
    """What becomes of a file."""
    try:
        case = case_of(path)
    except Exception as error:  # noqa: BLE001 - whatever MLIR raises
        return Result(path.stem, "not parsed", f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "))
    try:
        graph = import_module(Model(case.module))
        if not case.expected:
            return Result(path.stem, "read")
        got = weft.compile(graph, target, cache=False)(*case.inputs) if target else evaluate(graph, case.inputs)
    except UnsupportedError as error:
        return Result(path.stem, "refused", str(error.where).replace("\n", "; ")[:200])
    except WeftError as error:
        return Result(path.stem, "failed", f"{error.what[:160]} {error.why or ''}".replace("\n", " ")[:300])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(path.stem, "failed", f"{type(error).__name__}: {str(error)[:160]}")
    for k, (value, want) in enumerate(zip(got if isinstance(got, (list, tuple)) else [got], case.expected)):
        rtol, atol = (0.0, 0.0) if case.exact[k] else TOLERANCES.get(want.dtype.name, (0.0, 0.0))
        floats = want.dtype.name in TOLERANCES
        try:
            if floats:  # numpy's float64 has all of them
                name = want.dtype.name
                assert np.asarray(value).dtype == want.dtype, f"dtype {np.asarray(value).dtype}, expected {name}"
                value, want = np.asarray(value, np.float64), np.asarray(want, np.float64)
                if not rtol:
                    assert np.array_equal(value, want, equal_nan=True), "differs, and must be equal"
                    continue
            compare({"y": np.asarray(value)}, {"y": want}, "run", rtol, atol)
        except AssertionError as error:
            return Result(path.stem, "wrong", str(error)[:200])
    return Result(path.stem, "agrees")


def run(paths: Sequence[Path], target: str | None = None) -> Iterator[Result]:
    """Results one after another."""
    for path in paths:
        yield judged(path, target)


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="patterns of names, as of a shell; none for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th file")
    parser.add_argument("--first", type=int, default=0, help="the number of the first file")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    parser.add_argument("--all", action="store_true", help="print those that agree, too")
    options = parser.parse_args()
    found = sorted(options.folder.glob("*.mlir"))
    chosen = [p for p in found if not options.names or any(fnmatch(p.stem, n) for n in options.names)]
    started, counts = time.perf_counter(), Counter[str]()
    for result in run(chosen[options.first :: options.every], options.target):
        counts[result.verdict] += 1
        if options.all or result.verdict not in ("agrees", "read"):
            print(f"{result.verdict:12} {result.name:60} {result.reason}", flush=True)
    print(", ".join(f"{n} {v}" for v, n in counts.most_common()), f"in {time.perf_counter() - started:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
