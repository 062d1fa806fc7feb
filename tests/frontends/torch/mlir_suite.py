"""How much of torch-mlir's end-to-end suite is read: `python -m tests.frontends.torch.mlir_suite FOLDER [--every N]`.

FOLDER is `projects/pt1/python` of a checkout of github.com/llvm/torch-mlir. Its cases are modules of PyTorch with what
calls them. Each call is exported, with the sizes dynamic that the case says are, as far as `torch.export` keeps them;
converted, interpreted (`--target llvm`: compiled) and compared with PyTorch, with the suite's tolerances. What is not
read so is tried again with fixed sizes, and its reason says what became of it. Prints a line for each case that does
not agree, the reasons of refusals with their numbers, and the totals.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import signal
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.torch_architectures import define_detection
from tests.frontends.torch.judging import Case, Result, judge, report

SECONDS = 120
"""That a case may take."""
RTOL, ATOL = 1e-3, 1e-7
"""Of floats, as the suite's `reporting.py` has them."""
SUITE = "torch_mlir_e2e_test"


def stub(name: str, **contents: Any) -> None:
    """A module that the suite imports for what is not used here."""
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules.setdefault(name, module)


def cases(folder: Path) -> list[Any]:
    """The registered cases, by name; a file of the suite that cannot be imported is named and left out."""
    stub("multiprocess", set_start_method=lambda name: None)
    stub("torch_mlir", __path__=[])
    stub("torch_mlir._version", torch_version_for_comparison=lambda: (9, 9), version=lambda text: text)
    define_detection()
    sys.path.insert(0, str(folder))
    for path in sorted((folder / SUITE / "test_suite").glob("*.py")):
        try:
            importlib.import_module(f"{SUITE}.test_suite.{path.stem}")
        except (ImportError, RuntimeError, AttributeError) as error:
            print(f"left out: {path.name}: {error}", file=sys.stderr)
    registered = importlib.import_module(f"{SUITE}.registry").GLOBAL_TEST_REGISTRY
    return sorted(registered, key=lambda test: str(test.unique_name))


def calls(test: Any) -> Iterator[Case]:
    """The calls of a case, each of a module of its own."""
    framework = importlib.import_module(f"{SUITE}.framework")
    torch.manual_seed(0)
    with torch.no_grad():
        trace = framework.generate_golden_trace(test)
    for item in trace:
        torch.manual_seed(0)
        module = test.program_factory()
        arguments = tuple(item.inputs)
        yield Case(test.unique_name, module, arguments, dynamic_sizes(module, arguments), close)


def dynamic_sizes(module: Any, arguments: tuple[Any, ...]) -> Any:
    """For torch.export what a case says of sizes: -1 is any; None: it says none."""
    said = getattr(module.forward, "_torch_mlir_arg_annotations", None)
    if said is None or len(said) != len(arguments) + 1:
        return None
    found: list[Any] = []
    for argument, annotation in zip(arguments, said[1:]):
        shape = annotation[0] if annotation else ()
        if isinstance(argument, torch.Tensor) and len(shape) == argument.dim():
            found.append({k: torch.export.Dim.AUTO for k, d in enumerate(shape) if d == -1})
        else:
            found.append(torch.export.Dim.AUTO if type(argument) is int else None)
    return tuple(found) if any(found) else None


def close(value: Any, array: Any) -> None:
    """As the suite compares: dtypes, shapes, elements."""
    assert value.shape == array.shape, f"shape {value.shape}, PyTorch has {array.shape}"
    if array.dtype.kind not in "biuf" and array.dtype.kind != "V":
        raise AssertionError(f"dtype {array.dtype}")
    python = array.ndim == 0 and array.dtype == np.float64 and value.dtype == np.float32
    assert python or value.dtype == array.dtype, f"dtype {value.dtype}, PyTorch has {array.dtype}"
    exact = array.dtype.kind in "biu"
    a, b = value.astype(np.float64), array.astype(np.float64)
    bad = (value != array) if exact else ~np.isclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True)
    if np.any(bad):
        at = tuple(int(k) for k in np.argwhere(bad)[0])
        raise AssertionError(f"{np.sum(bad)} of {bad.size} differ, at {at}: {value[at]!r}, PyTorch has {array[at]!r}")


def judged(test: Any, target: str | None = None) -> Result:
    """What becomes of a case: of its first call that does not agree, if there is one."""
    name = test.unique_name
    try:
        found = list(calls(test))
    except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
        return Result(name, "not exported", f"eager: {type(error).__name__}: {str(error)[:100]}")
    if not found:
        return Result(name, "not exported", "nothing is called")
    results = [judge(case, target) for case in found]
    for k, (case, result) in enumerate(zip(found, results)):
        if result.verdict != "agrees" and case.dynamic is not None:
            again = judge(Case(case.name, case.module, case.arguments, None, case.close), target)
            exports = again if result.verdict == "not exported" else None
            results[k] = exports or Result(name, result.verdict, f"{result.reason} [fixed sizes: {again.verdict}]")
    return next((r for r in results if r.verdict != "agrees"), results[0])


def guarded(test: Any, target: str | None = None) -> Result:
    """As `judged`, for so many seconds."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judged(test, target)
    except TimeoutError as error:
        return Result(test.unique_name, "failed", str(error))
    finally:
        signal.alarm(0)


_CASES: dict[str, Any] = {}


def _begin(folder: Path) -> None:
    torch.set_num_threads(1)
    exporting = importlib.import_module("torch._export.utils")
    exporting._materialize_cpp_cia_ops()  # once is enough: PyTorch does it several times a program
    exporting._materialize_cpp_cia_ops = lambda: None
    _CASES.update({test.unique_name: test for test in cases(folder)})


def _one(name: str, target: str | None) -> Result:
    return guarded(_CASES[name], target)


def run(folder: Path, names: list[str], target: str | None, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        for name in names:
            yield _one(name, target)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(folder,)) as pool:
        yield from pool.map(_one, names, [target] * len(names), chunksize=8)


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="cases; none for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--first", type=int, default=0, help="begin with this case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    options = parser.parse_args()
    _begin(options.folder)
    names = [n for n in _CASES if not options.names or n in options.names]
    names = names[options.first :: options.every]
    started, reasons, kept = time.perf_counter(), Counter[str](), []
    for result in run(options.folder, names, options.target, options.jobs):
        kept.append(result)
        if result.verdict in ("refused", "failed"):
            reasons[result.reason.partition(" [")[0].partition(" (")[0]] += 1
        report([result])
    for reason, count in reasons.most_common():
        print(f"{count:4}  {reason}")
    counts = Counter(result.verdict for result in kept)
    exported = len(kept) - counts["not exported"]
    share = 100 * counts["agrees"] / max(exported, 1)
    print(", ".join(f"{n} {v}" for v, n in counts.most_common()), f"in {time.perf_counter() - started:.0f} s")
    print(f"{exported} of {len(kept)} exported, of which {share:.1f} % agree")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
