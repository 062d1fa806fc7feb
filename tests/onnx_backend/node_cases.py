"""ONNX's own conformance cases of single operators, from the installed `onnx` package, and how Weft is held against
them.

python -m tests.onnx_backend.node_cases --update-passing [--only REGEX]      runs every case, writes passing.txt
python -m tests.onnx_backend.node_cases --target "llvm -mtriple=wasm32"      runs every case on another target
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import weft
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft_onnx.tensors import to_array

PASSING = Path(__file__).parent / "passing.txt"
NOT_PASSING = Path(__file__).parent / "not_passing.txt"
# Operators of which a case may have other steps than one native segment, and why. So may cases of strings, sequences
# and optionals.
STEPS = {
    "If": "a branch that may fail, or whose results are not of the other's type, is taken or not",
    "Loop": "the iterations are more than are unrolled, or their number is known only at run time",
    "Scan": "the same",
    "SequenceMap": "the number of elements is the run's",
    "SequenceConstruct": "its result leaves the graph, or goes through a loop",
    "SequenceInsert": "the sequence or the position is the run's",
    "SplitToSequence": "its result leaves the graph",
    "OptionalHasElement": "whether there is something is known only at run time",
    "OptionalGetElement": "the same",
    "ImageDecoder": "decoding of files is no numeric work",
    "Bernoulli": "without a seed the system gives one",
    "RandomUniformLike": "the same",
    "Dropout": "the same, in training",
}
# Operators whose results the specification leaves open: their shapes, dtypes and laws are compared.
RANDOM = ("Bernoulli", "RandomUniformLike")
# In CI every operator has its first case by hash, and one of this many others.
ONE_IN = 24


@cache
def cases() -> dict[str, Any]:
    """Every case by name. Making them takes seconds: ONNX computes the expected results."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def operator(name: str, model: onnx.ModelProto) -> str:
    """What a case is counted under: its operator, or for an operator written out as its function, "expanded"."""
    return "expanded" if "_expanded" in name else model.graph.node[-1].op_type


def passing() -> list[tuple[str, str]]:
    """(operator, case) of every case that is expected to pass."""
    lines = [line.split() for line in PASSING.read_text().splitlines() if line and not line.startswith("#")]
    return [(op, case) for op, case in lines]


def not_passing() -> dict[str, str]:
    """Case → why it does not pass, of every case that does not: written by hand."""
    lines = [line.partition(" ") for line in NOT_PASSING.read_text().splitlines() if line and not line.startswith("#")]
    return {case: reason.strip() for case, _, reason in lines}


def stratified(listed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """At least one case of every operator, the same ones every time."""
    ranked = sorted(listed, key=lambda entry: zlib.crc32(entry[1].encode()))
    first = {op: (op, case) for op, case in reversed(ranked)}
    return [entry for entry in listed if first[entry[0]] == entry or zlib.crc32(entry[1].encode()) % ONE_IN == 0]


def one_in(count: int, listed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """One of so many cases, the same ones every time, whatever their operators."""
    return [entry for entry in listed if zlib.crc32(entry[1].encode()) % count == 0]


def array(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [array(v) for v in value]
    if isinstance(value, onnx.TensorProto):
        return to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def run(case: Any, target: str = "llvm") -> None:
    """Compiles a case, runs it, compares with the case's own tolerance.

    Raises:
        AssertionError: another result, or the model is not one native step, though it is wholly numeric.
    """
    executable = weft.compile(case.model, target=target, cache=False)
    if not has_steps(case.model):
        assert [step.kind for step in executable.manifest.steps] == ["native"], executable.plan
    check(case, executable)


def has_steps(model: onnx.ModelProto) -> bool:
    """Whether a model may have other steps than one native segment."""
    ends = [*model.graph.input, *model.graph.output]
    objects = any(
        e.type.WhichOneof("value") != "tensor_type" or e.type.tensor_type.elem_type == onnx.TensorProto.STRING
        for e in ends
    )
    return objects or any(n.op_type in STEPS for n in nodes(model.graph))


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and its sub-graphs."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.HasField("g"):
                yield from nodes(a.g)


def is_random(model: onnx.ModelProto) -> bool:
    """Whether the expected values are one draw of many: numpy's, which the specification does not ask for."""
    drops = any(n.op_type == "Dropout" and len(n.input) == 3 for n in model.graph.node)
    return drops or any(n.op_type in RANDOM for n in nodes(model.graph))


def run_on_device(case: Any, kind: str) -> dict[str, str]:
    """As `run`, with everything that the target `kind` takes on its device, and the rest on the host.

    Returns:
        Operators on the host → why, as "reason [code]".

    Raises:
        AssertionError: another result.
    """
    mixed = MixedCompilation(resolve_targets(f"{kind}, llvm"), cache=False, by_cost=False)
    executable = mixed.run(weft.load(case.model))
    check(case, executable)
    assert mixed.placement is not None
    elsewhere = [p for p in mixed.placement.nodes if p.target != kind]
    return {
        type(p.node.op).__name__: "{1} [{0}]".format(*p.refused.get(kind, ("", "nobody says why"))) for p in elsewhere
    }


def check(case: Any, executable: weft.Executable) -> None:
    """Holds an executable against the case's expected results."""
    for inputs, expected in case.data_sets:
        named = {info.name: array(value) for info, value in zip(case.model.graph.input, inputs)}
        results = list(executable.run(named).values())
        assert len(results) == len(expected)
        if is_random(case.model):
            obeys(case.model.graph.node[-1].op_type, list(named.values()), results, list(map(array, expected)))
            continue
        for got, want in zip(results, map(array, expected)):
            compare(got, want, case.rtol, case.atol)


def obeys(op: str, inputs: list[Any], results: list[Any], expected: list[Any]) -> None:
    """Holds random results against the expected ones' dtypes and shapes, and against what any draw has to be."""
    for got, want in zip(results, expected):
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        )
    if op != "Dropout":
        assert set(np.unique(results[0])) <= {0, 1}
        assert not results[0][inputs[0] <= 0].any() and results[0][inputs[0] >= 1].all()
        return
    x, ratio = inputs[0], float(inputs[1])
    kept = results[1] if len(results) > 1 else results[0] != 0
    np.testing.assert_allclose(results[0], np.where(kept, x / (1 - ratio), 0), rtol=1e-6)
    share = kept.mean()  # six deviations of a sum of as many draws
    assert abs(share - (1 - ratio)) <= 6 * np.sqrt(ratio * (1 - ratio) / x.size), (
        f"{share} are kept, expected about {1 - ratio}"
    )


def compare(got: Any, want: Any, rtol: float, atol: float) -> None:
    if want is None or isinstance(want, list):
        assert type(got) is type(want), f"got {type(got).__name__}, expected {type(want).__name__}"
        assert want is None or len(got) == len(want), f"got {len(got)} elements, expected {len(want)}"
        for g, w in zip(got or (), want or ()):
            compare(g, w, rtol, atol)
        return
    assert isinstance(got, np.ndarray) and isinstance(want, np.ndarray), (
        f"got {type(got).__name__}, expected {type(want).__name__}"
    )
    assert got.dtype == want.dtype, f"got {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"got {got.shape}, expected {want.shape}"
    if got.dtype == object:
        assert got.tolist() == want.tolist(), f"got {got.tolist()}, expected {want.tolist()}"
        return
    if got.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # as the suite's own runner does: two units in the last place
    if got.dtype.kind not in "biufc":
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


# -- the list ---------------------------------------------------------------------------------------------------------


def outcomes(only: str | None = None, target: str = "llvm") -> Iterator[tuple[str, str, str]]:
    """(operator, case, what went wrong or "")."""
    for name, case in cases().items():
        if only is not None and not re.search(only, name):
            continue
        try:
            run(case, target)
            reason = ""
        except (weft.WeftError, AssertionError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        except Exception as error:  # noqa: BLE001 - a case that crashes must not end the run
            reason = f"crash: {type(error).__name__}: {error}"
        yield operator(name, case.model), name, reason


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="node_cases")
    parser.add_argument("--update-passing", action="store_true", help="write passing.txt")
    parser.add_argument("--only", help="a regular expression: other cases keep their entry")
    parser.add_argument("--target", default="llvm", help="what to compile for; the list is of llvm's")
    options = parser.parse_args(arguments)
    if options.update_passing and options.target != "llvm":
        parser.error("--update-passing is for the target llvm")
    if options.target != "llvm":
        listed, good = dict(map(reversed, passing())), 0  # type: ignore[arg-type]
        for _, name, reason in outcomes(options.only, options.target):
            good += name in listed and not reason
            if reason and name in listed:
                print(f"{name}: {reason[:300]}", flush=True)
        print(f"{good} of {len(listed)} cases that pass on llvm pass on {options.target}")
        return
    kept = set(passing()) if options.only and PASSING.is_file() else set()
    for op, name, reason in outcomes(options.only):
        kept.discard((op, name))
        if not reason:
            kept.add((op, name))
        else:
            print(f"{name}: {reason[:200]}", flush=True)
    operators = {op for op, _ in kept} - {"expanded"}
    print(f"{len(kept)} of {len(cases())} cases pass, of {len(operators)} operators")
    if options.update_passing:
        head = (
            f"# Node cases of onnx {onnx.__version__} that pass: operator, case. Written by `python -m"
            " tests.onnx_backend.node_cases --update-passing`.\n"
        )
        PASSING.write_text(head + "".join(f"{op} {name}\n" for op, name in sorted(kept)))


if __name__ == "__main__":
    main(sys.argv[1:])
