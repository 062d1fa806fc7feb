"""The harness for frontends: a model, inputs and the framework's own answer → read, interpreted, compiled, saved and
loaded again, at another size. `weft_testing.changed` has what reads changed bytes.

    case = FrontendCase("m.tflite", {"x": x}, lambda inputs: interpreter(inputs))
    check_frontend(case)                                  # raises AssertionError with the stage that differs
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.graph.operator import Array
from weft_runtime.executable import Executable

Answer = Mapping[str, Array] | Sequence[Array]
"""The outputs of a framework, by name or in the order of the graph's."""
STAGES = ("interpreted", "compiled", "loaded again")
"""What `check_frontend` compares."""


@dataclass(frozen=True)
class FrontendCase:
    """A model of a framework, and what the framework says of it.

    Args:
        model: a path, bytes, or a framework's object, as `weft.load` takes it.
        inputs: arrays by the names of the graph's inputs.
        answer: inputs → the framework's outputs, by name or in the graph's order.
        frontend: its name and options; None: the one that takes the model.
        options: further options for `weft.load`, by name.
        others: more inputs, of other sizes where the model leaves some open.
        rtol: relative to each element, atol: relative to the largest magnitude of each output, at least 1. Both apply
            to floats; all else must be equal. 0 and 0: equal to the bit.
    """

    model: Any
    inputs: Mapping[str, Array]
    answer: Callable[[Mapping[str, Array]], Answer]
    frontend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[Mapping[str, Array]] = ()
    rtol: float = 1e-4
    atol: float = 1e-5


def check_frontend(
    case: FrontendCase, target: str | None = "llvm", stages: Sequence[str] = STAGES
) -> tuple[Graph, Executable | None]:
    """Reads a model and compares what it computes with the framework's answer, at every stage.

    Args:
        target: that it is compiled for; None: it is interpreted only.
        stages: of `STAGES`.

    Returns:
        The graph as it was read, and the executable.

    Raises:
        AssertionError: a result differs; says at which stage, which output and by how much.
        WeftError: the model is refused.
    """
    graph = weft.load(case.model, frontend=case.frontend, **case.options)
    names = graph.output_names
    runs = [(inputs, _by_name(case.answer(inputs), names)) for inputs in (case.inputs, *case.others)]
    if "interpreted" in stages:
        for inputs, wanted in runs:
            compare(dict(zip(names, evaluate(graph, inputs))), wanted, "interpreted", case.rtol, case.atol)
    if target is None or not {"compiled", "loaded again"} & set(stages):
        return graph, None
    executable = weft.compile(graph, target=target, cache=False)
    results = [executable.run(inputs) for inputs, _ in runs]
    for found, (_, wanted) in zip(results, runs):
        compare(found, wanted, f"compiled for {target}", case.rtol, case.atol)
    if "loaded again" in stages:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.weft"
            executable.save(path)
            again = Executable.load(path)
            for found, (inputs, _) in zip(results, runs):
                compare(again.run(inputs), found, "saved and loaded again", 0, 0)
    return graph, executable


def _by_name(answer: Answer, names: Sequence[str]) -> dict[str, Array]:
    given = dict(answer) if isinstance(answer, Mapping) else dict(zip(names, answer, strict=True))
    missing = [name for name in names if name not in given]
    if missing:
        raise AssertionError(f"the framework's answer lacks {', '.join(missing)}; it has {', '.join(given)}")
    return {name: np.asarray(given[name]) for name in names}


def compare(
    found: Mapping[str, Array], wanted: Mapping[str, Array], stage: str, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Compares outputs by name, as `FrontendCase` describes.

    Raises:
        AssertionError: a shape, dtype or element differs.
    """
    for name, want in wanted.items():
        got = np.asarray(found[name])
        where = f"{stage}, output '{name}'"
        if got.shape != want.shape:
            raise AssertionError(f"{where}: shape {got.shape}, the framework has {want.shape}")
        if got.dtype != want.dtype:
            raise AssertionError(f"{where}: dtype {got.dtype}, the framework has {want.dtype}")
        exact = want.dtype.kind not in "fcV" or (not rtol and not atol)
        if exact and want.dtype.kind in "fcV":
            bits = np.dtype((np.void, want.dtype.itemsize))
            wrong = np.ascontiguousarray(got).reshape(-1).view(bits) != np.ascontiguousarray(want).reshape(-1).view(
                bits
            )
            wrong = np.asarray(wrong).reshape(want.shape)
        elif exact:
            wrong = got != want
        else:
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            a, b = got.astype(kind), want.astype(kind)
            sizes = np.abs(b)[np.isfinite(b)]
            limit = atol * max(1.0, float(sizes.max(initial=0.0))) + rtol * np.where(np.isfinite(b), np.abs(b), 0)
            with np.errstate(invalid="ignore"):
                close = (a == b) | (np.abs(a - b) <= limit) | (np.isnan(a) & np.isnan(b))
            wrong = ~close
        if np.any(wrong):
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{where}: {int(np.sum(wrong))} of {wrong.size} elements differ, first at {at}: {got[at]!r}, the"
                f" framework has {want[at]!r}"
            )


__all__ = ["STAGES", "Answer", "FrontendCase", "check_frontend", "compare"]
