"""How much of Keras' own layer tests is read: `python -m tests.frontends.keras.coverage [--every N] [MODULE…]`.

Every call of `TestCase.run_layer_test` in the tests that Keras' wheel holds becomes a model of that layer, with random
weights, which is converted, interpreted and compared with Keras on its torch backend. Prints a line for each case that
does not agree, and the totals.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import io
import pkgutil
import sys
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from tests.frontends.keras.nets import answer, filled, the_keras

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_testing.frontend import compare

TOLERANCE = {"float16": (2e-3, 2e-3), "bfloat16": (2e-2, 2e-2)}
"""Relative and absolute, as `weft_testing.frontend.compare` has them; of other floats 2e-4 and 2e-5."""


@dataclass(frozen=True)
class Result:
    """A case: agrees, wrong, refused, failed (a defect: neither refused nor wrong); or not run, where Keras itself does
    not make a model of it on this backend, or its tensors are sparse or ragged."""

    name: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A call of `run_layer_test`."""

    name: str
    kind: Any
    given: dict[str, Any]
    call: dict[str, Any]
    shapes: Any
    dtypes: Any
    data: Any


def arrays(case: Case) -> Any:
    """What the layer is called with: the test's own data, or random numbers."""
    keras = the_keras()
    if case.data is not None:
        return keras.tree.map_structure(lambda x: np.asarray(keras.ops.convert_to_numpy(x)), case.data)
    rng = np.random.default_rng(3)
    dtypes = case.dtypes or keras.tree.map_shape_structure(lambda _: "float32", case.shapes)

    def make(shape: Any, dtype: str) -> Any:
        numbers = rng.integers(0, 2, shape) if np.dtype(dtype).kind in "iub" else rng.standard_normal(shape)
        return numbers.astype(dtype)

    if isinstance(dtypes, str):
        return make(case.shapes, dtypes)
    if isinstance(case.shapes, dict):
        return {k.removesuffix("_shape"): make(s, dtypes[k]) for k, s in case.shapes.items()}
    return type(case.shapes)(make(s, d) for s, d in zip(case.shapes, dtypes, strict=True))


def model_of(case: Case) -> tuple[Any, list[Any]]:
    """A functional model of the layer, and arrays for its inputs; the batch is open where the call has no tensors."""
    keras = the_keras()
    given = arrays(case)
    fixed = any(hasattr(x, "shape") for x in keras.tree.flatten(case.call))

    def ends(x: Any) -> Any:
        return keras.Input(batch_shape=x.shape if fixed else (None, *x.shape[1:]), dtype=x.dtype.name)

    inputs = keras.tree.map_structure(ends, given)
    layer = case.kind(**case.given)
    outputs = layer(**inputs, **case.call) if isinstance(inputs, dict) else layer(inputs, **case.call)
    return filled(keras.Model(keras.tree.flatten(inputs), outputs)), keras.tree.flatten(given)


def judged(case: Case) -> Result:
    """What becomes of a case."""
    try:
        model, given = model_of(case)
        names = [v.name for v in model.inputs]
        run = answer(model)
    except Exception as error:  # noqa: BLE001 - whatever Keras raises
        return Result(case.name, "not run", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    try:
        graph = weft.load(model)
    except UnsupportedError as error:
        return Result(case.name, "refused", " ".join(str(error.where or error.what).split())[:260])
    except WeftError as error:
        return Result(case.name, "failed", " ".join(str(error).split())[:300])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(case.name, "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    by_name = {v.name: x for v, x in zip(graph.inputs, given)} if len(graph.inputs) == len(names) else {}
    try:
        wanted = run(by_name)
    except Exception as error:  # noqa: BLE001 - whatever Keras raises
        return Result(case.name, "not run", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    try:
        found = dict(zip(graph.output_names, evaluate(graph, by_name)))
        for output, want in zip(graph.output_names, wanted, strict=True):
            compare(found, {output: want}, "interpreted", *TOLERANCE.get(want.dtype.name, (2e-4, 2e-5)))
    except AssertionError as error:
        return Result(case.name, "wrong", str(error)[:200])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(case.name, "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Result(case.name, "agrees")


# -- the tests of Keras -----------------------------------------------------------------------------------------------


def modules() -> list[str]:
    """The modules of Keras' wheel that test layers."""
    import keras.src.layers as layers

    found = pkgutil.walk_packages(layers.__path__, "keras.src.layers.")
    return [m.name for m in found if m.name.endswith("_test")]


def imported(module: str) -> Any:
    """A module of tests; libraries that it needs for other tests than ours are empty."""
    empty = {name: mock.MagicMock() for name in ("tensorflow", "grain", "scipy", "scipy.signal", "conftest")
             if importlib.util.find_spec(name.split(".")[0]) is None}  # fmt: skip
    with mock.patch.dict(sys.modules, empty):
        return importlib.import_module(module)


def testing(module: Any) -> tuple[str, ...]:
    """The names of the methods of a module that call `run_layer_test`."""
    tree = ast.parse(inspect.getsource(module))
    return tuple(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "run_layer_test" in ast.dump(node) and node.name.startswith("test")
    )


def tests_of(suite: Any, names: Sequence[str]) -> Iterator[Any]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one, names)
        elif getattr(one, "_testMethodName", "").startswith(tuple(names)):
            yield one


def results(module: str, every: int = 1) -> Iterator[Result]:
    """What becomes of the cases of a module."""
    from keras.src.testing import TestCase

    short = module.removeprefix("keras.src.layers.").removesuffix("_test")
    try:
        loaded = imported(module)
    except Exception as error:  # noqa: BLE001 - a library that the test needs
        yield Result(short, "not run", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return
    found: list[Case] = []

    def note(self: Any, layer_cls: Any, init_kwargs: Any, input_shape: Any = None, input_dtype: Any = None,
             input_sparse: bool = False, input_ragged: bool = False, input_data: Any = None, call_kwargs: Any = None,
             **_: Any) -> None:  # fmt: skip
        name = f"{short}.{self._testMethodName}: {layer_cls.__name__}"
        dense = not input_sparse and not input_ragged and (input_shape is not None or input_data is not None)
        if dense:
            found.append(Case(name, layer_cls, dict(init_kwargs or {}), dict(call_kwargs or {}), input_shape,
                              input_dtype, input_data))  # fmt: skip

    names = testing(loaded)
    suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
    with mock.patch.object(TestCase, "run_layer_test", note):
        for one in tests_of(suite, names) if names else ():
            unittest.TextTestRunner(io.StringIO(), verbosity=0).run(one)
    for case in found[::every]:
        yield judged(case)


def coverage(chosen: Sequence[str] = (), every: int = 1, say: Callable[[str], None] = print) -> Counter[str]:
    """Judges the cases of all modules, or of those whose names contain one of `chosen`; says each that does not
    agree."""
    counts: Counter[str] = Counter()
    for module in modules():
        if chosen and not any(name in module for name in chosen):
            continue
        for result in results(module, every):
            counts[result.verdict] += 1
            if result.verdict != "agrees":
                say(f"{result.verdict:8} {result.name}: {result.reason}")
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frontends.keras.coverage", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of test modules")
    parser.add_argument("--every", type=int, default=1, help="every N-th case of each module")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    counts = coverage(options.names, options.every)
    run = sum(counts.values()) - counts["not run"]
    share = 100 * counts["agrees"] / max(run, 1)
    print(", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
    print(f"{counts['agrees']} of {run} that Keras runs agree: {share:.1f} %, {time.monotonic() - begin:.0f} s")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
