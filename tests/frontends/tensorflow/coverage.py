"""What the frontend reads of the cases that tf2onnx tests itself with: each a small graph, frozen, with inputs and
TensorFlow's outputs.

    python -m tests.frontends.tensorflow.coverage [--compiled] [-k PART] [-v]

Needs TensorFlow, the wheel of tf2onnx (1.17.0), which has its tests in it, and parameterized; nothing else needs them.
Prints each case that does not agree, with the reason, grouped by it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import weft
from weft.errors import WeftError
from weft.graph.evaluate import evaluate

MODULES = ("test_backend",)
OTHERS = (
    "test_cond", "test_loops", "test_lstm", "test_gru", "test_stacked_lstm", "test_custom_rnncell", "test_lstmblock",
    "test_grublock", "test_cudnn_compatible_gru",
)  # fmt: skip
"""Further modules, which `--all` runs too."""


class Missed(Exception):
    """A case that does not agree; says why."""


class Refused(Missed, ValueError):
    """A case that is refused; some expect a ValueError for that."""


def computed(
    graph_def: Any, inputs: Mapping[str, Any], outputs: Sequence[str], compiled: bool, tables: Any = None
) -> list[Any]:
    """What Weft makes of a frozen graph, whose tables the session has filled."""
    given = {name.removesuffix(":0"): np.asarray(value) for name, value in inputs.items()}
    given = {n: a.astype(object) if a.dtype.kind in "US" else a for n, a in given.items()}
    files = {}
    for k, (name, contents) in enumerate((tables or {}).items()):
        name = _bytes(name).decode()
        files[name] = f"table{k}.txt"
        rows = zip(*(column.tolist() for column in contents))
        Path(files[name]).write_bytes(b"".join(b"\t".join(map(_bytes, row)) + b"\n" for row in rows))
    graph = weft.load(
        graph_def.SerializeToString(), frontend="tensorflow", inputs=tuple(given), outputs=tuple(outputs),
        shapes={n: "x".join(map(str, a.shape)) for n, a in given.items()}, tables=files,
    )  # fmt: skip
    if not compiled:
        return list(evaluate(graph, given))
    found = weft.compile(graph, target="llvm", cache=False).run(given)
    return [found[name] for name in outputs]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def case(
    self: Any,
    func: Any,
    feed_dict: Mapping[str, Any],
    input_names: Any,
    outputs: Sequence[str],
    rtol: float = 1e-7,
    atol: float = 1e-5,
    mtol: Any = None,
    check_value: bool = True,
    check_dtype: bool = True,
    as_session: bool = False,
    large_model: bool = False,
    premade_placeholders: bool = False,
    **_: Any,
) -> Any:
    """Stands for tf2onnx's `run_test_case`."""
    expected, graph_def, tables = self.freeze_and_run_tf(
        func, dict(feed_dict), outputs, as_session, premade_placeholders, large_model
    )
    try:
        actual = computed(graph_def, feed_dict, outputs, self.compiled, tables)
    except WeftError as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    for name, want, got in zip(outputs, expected, actual):
        want, got = np.asarray(want), np.asarray(got)
        if check_dtype and want.dtype != got.dtype:
            raise Missed(f"output '{name}' is {got.dtype}, TensorFlow has {want.dtype}")
        if want.shape != got.shape:
            raise Missed(f"output '{name}' has shape {got.shape}, TensorFlow has {want.shape}")
        if check_value:
            self.compare(want, got, max(rtol, 1e-5), atol, mtol)
    return SimpleNamespace(outputs=list(outputs), input_names=list(feed_dict), graph=graph_def)


def again(self: Any, g: Any, outputs: Sequence[str], inputs: Mapping[str, Any], **_: Any) -> list[Any]:
    """Stands for tf2onnx's `run_backend`, with which some cases run a graph once more."""
    return computed(g.graph, inputs, outputs, self.compiled)


def compare(want: Any, got: Any, rtol: float, atol: float, mtol: Any) -> None:
    if want.dtype == object:
        texts = [[_bytes(x).decode() for x in a.reshape(-1).tolist()] for a in (want, got)]
        if texts[0] != texts[1]:
            raise Missed(f"wrong: {texts[1]}, TensorFlow has {texts[0]}"[:200])
        return
    if mtol is not None:
        want, got = np.clip(want, -mtol, mtol), np.clip(got, -mtol, mtol)
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise Missed("wrong: " + " ".join(str(error).split())[:200]) from None


def suite(modules: Sequence[str], compiled: bool) -> Iterator[Any]:
    """The tests of tf2onnx, with ours in place of its conversion."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("onnxruntime") is None:  # of which the tests ask the version alone
        sys.modules["onnxruntime"] = SimpleNamespace(__version__="1.22.0")  # type: ignore[assignment]
    folder = Path(str(distribution("tf2onnx").locate_file("tests")))
    sys.path.insert(0, str(folder))
    base = importlib.import_module("backend_test_base").Tf2OnnxBackendTestBase
    base.run_test_case, base.run_backend = case, again
    base.compiled, base.compare = compiled, staticmethod(compare)
    for name in modules:
        for group in unittest.defaultTestLoader.loadTestsFromName(name):
            yield from group  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="compile each case, rather than interpret it")
    parser.add_argument("--all", action="store_true", help="the modules on loops and recurrent layers too")
    parser.add_argument("-k", default="", help="cases whose names have this part")
    parser.add_argument("-v", action="store_true", help="print whole errors")
    options = parser.parse_args()
    sys.argv[1:] = []  # which tf2onnx reads as well
    missed: dict[str, list[str]] = defaultdict(list)
    agreed = skipped = 0
    start = time.monotonic()
    if not hasattr(np, "string_"):  # which a case uses, and numpy 2 has not
        np.string_ = np.bytes_  # type: ignore[attr-defined]
    os.chdir(tempfile.mkdtemp())  # where cases leave files
    for test in suite((*MODULES, *OTHERS) if options.all else MODULES, options.compiled):
        if options.k not in test.id():
            continue
        result = unittest.TestResult()
        test.run(result)
        name = test.id().rsplit(".", 1)[-1]
        if result.skipped:
            skipped += 1
        elif result.wasSuccessful():
            agreed += 1
        else:
            text = (result.failures + result.errors)[0][1].strip()
            parts = re.split("(?:Missed|Refused): ", text, maxsplit=1)
            reason = parts[1] if len(parts) > 1 else "the case itself: " + text.splitlines()[-1]
            missed[reason if options.v else _short(reason)].append(name)
    total = agreed + sum(map(len, missed.values()))
    for reason, names in sorted(missed.items(), key=lambda item: -len(item[1])):
        print(f"{len(names)} × {reason}: {', '.join(names)}")
    print(f"{agreed} of {total} agree ({100 * agreed / max(total, 1):.1f} %); {skipped} skipped by tf2onnx itself;"
          f" {time.monotonic() - start:.0f} s")  # fmt: skip


def _short(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines()]
    return " | ".join(lines[:3])[:240]


if __name__ == "__main__":
    main()
