"""What becomes of a module of a suite: exported, converted, run, compared with PyTorch."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft_testing.frontend import compare
from weft_torch.tensors import array_of

T = TypeVar("T")
RTOL, ATOL = 2e-4, 2e-5
"""Of float32 and float64, as `weft_testing.frontend.compare` has them."""


@dataclass(frozen=True)
class Result:
    """A case: agrees, wrong, refused, failed (a defect: neither refused nor wrong), not exported, no sample."""

    name: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A module and what it is called with.

    dynamic: sizes as `torch.export.export` takes them. close: compares (ours, PyTorch's) and raises AssertionError.
    """

    name: str
    module: torch.nn.Module
    arguments: tuple[Any, ...]
    dynamic: Any = None
    close: Callable[[Any, Any], None] | None = None


class Sample(torch.nn.Module):
    """A function with all arguments but tensors."""

    def __init__(self, function: Callable[..., Any], spec: Any, given: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.spec, self.given = function, spec, given

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(g, torch.Tensor) else g for g in self.given]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def sampled(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> tuple[Sample, tuple[torch.Tensor, ...]]:
    """A call as a module of its tensors, and these."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return Sample(function, spec, leaves), tuple(x for x in leaves if isinstance(x, torch.Tensor))


def judge(case: Case, target: str | None = None) -> Result:
    """What becomes of a case, interpreted, or compiled for a target."""
    found = traced(case)
    if isinstance(found, Result):
        return found
    program, wanted = found

    def compare_answers() -> Result:
        graph = weft.load(program)
        got = ran(graph, fed(graph, program, case.arguments), target)
        return compared(case.name, dict(zip(graph.output_names, got)), wanted, case.close)

    return attempted(case.name, compare_answers)


def traced(case: Case) -> tuple[torch.export.ExportedProgram, list[Any]] | Result:
    """The exported program of a case, and PyTorch's answers; a result if PyTorch refuses."""
    try:
        program = exported(case)
        # Without torch.no_grad: with it Transformers give zeros at padded places, which their exported programs do not.
        return program, pytree.tree_leaves(copied(case.module)(*copied(case.arguments)))
    except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
        return Result(case.name, "not exported", f"{type(error).__name__}: {(str(error) or ' ').splitlines()[0][:100]}")


def attempted(name: str, action: Callable[[], T]) -> T | Result:
    """What Weft makes of a case; a result if it refuses or fails."""
    try:
        return action()
    except UnsupportedError as error:
        return Result(name, "refused", str(error.where).replace("\n", "; ")[:300])
    except WeftError as error:
        return Result(name, "failed", f"{error.what[:160]} {error.why or ''}".replace("\n", " ")[:260])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(name, "failed", f"{type(error).__name__}: {str(error)[:160]}")


def ran(graph: Graph, feeds: list[Any], target: str | None) -> list[Any]:
    """The outputs of a graph, interpreted, or compiled for a target."""
    got = weft.compile(graph, target, cache=False)(*feeds) if target else evaluate(graph, feeds)
    return list(got) if isinstance(got, (list, tuple)) else [got]


def copied(arguments: Any) -> Any:
    """Arguments in memory of their own, with their strides; of sparse ones clones. A module with such is not copied."""
    try:
        return copy.deepcopy(arguments)
    except NotImplementedError:
        return pytree.tree_map_only(torch.Tensor, torch.clone, arguments)


def exported(case: Case) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(case.module, copied(case.arguments), dynamic_shapes=case.dynamic, strict=False)


def fed(graph: Graph, program: torch.export.ExportedProgram, arguments: Any) -> list[Any]:
    """The arrays of a graph's inputs."""
    leaves = pytree.tree_leaves(arguments)
    given = dict(zip(program.graph_signature.user_inputs, leaves, strict=True))
    return [array_of(x) if isinstance(x := given[v.name], torch.Tensor) else np.int64(x) for v in graph.inputs]


def compared(
    name: str, got: dict[str, Any], wanted: Sequence[Any], close: Callable[[Any, Any], None] | None = None
) -> Result:
    answers = [w for w in wanted if w is not None]
    if len(got) < len(answers):
        return Result(name, "wrong", f"{len(got)} outputs, PyTorch has {len(answers)}")
    for (output, value), want in zip(got.items(), answers):
        array = array_of(want) if isinstance(want, torch.Tensor) else np.asarray(want)
        try:
            (close or within)(np.asarray(value), array)
        except AssertionError as error:
            return Result(name, "wrong", f"'{output}': {error}"[:260])
    return Result(name, "agrees")


def within(value: Any, array: Any) -> None:
    compare({"y": value}, {"y": array}, "run", RTOL, ATOL)


def report(results: Iterable[Result], agreeing: bool = False) -> Counter[str]:
    """Prints each result that does not agree; counts by verdict."""
    counts = Counter[str]()
    for result in results:
        counts[result.verdict] += 1
        if agreeing or result.verdict != "agrees":
            print(f"{result.verdict:12} {result.name:40} {result.reason}", flush=True)
    return counts


__all__ = [
    "Case",
    "Result",
    "Sample",
    "attempted",
    "compared",
    "copied",
    "exported",
    "fed",
    "judge",
    "ran",
    "report",
    "sampled",
    "traced",
    "within",
]
