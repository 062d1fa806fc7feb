"""How many gradients of PyTorch's operators agree: `python -m tests.frontends.torch.gradients [NAMES] [--every N]`.

Each entry of op_db that PyTorch differentiates (`supports_autograd`), with its first float64 sample (float32,
complex128 or complex64 where it does not take float64), becomes a module. It is exported and converted; the graph of
the products of random cotangents and its Jacobian (`weft.vjp`) is interpreted (`--target llvm`: compiled), and its
results, together with those of the operator itself, are compared with PyTorch's. Cotangents are given for every result
that PyTorch differentiates, and gradients asked for by every tensor of the sample that requires them. Complex numbers
are pairs of floats at the borders of a graph, and so are their gradients: PyTorch's gradient by a + bi is
∂L/∂a + i ∂L/∂b.

An entry is differentiated as PyTorch's own checks of gradients do it. Results that are unique but for signs or phases,
such as eigenvectors, go through the function that the sample has for that purpose (`output_process_fn_grad`), and
operands that must be symmetric or triangular through that of the entry (`gradcheck_wrapper`).

Counted is every entry whose forward converts. Not counted, and printed with the reason, are those that PyTorch does not
export, that the frontend refuses (random numbers above all), of which PyTorch itself gives no gradient, and those of
which it gives another one than the function has (`UNTRUE`).
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.frontends.torch.coverage import entries, named, sample_of
from tests.frontends.torch.judging import Case, Result, attempted, compared, copied, fed, ran, report, sampled, traced
from torch.utils import _pytree as pytree

import weft
from weft.graph.nodes import Graph
from weft_testing.frontend import compare
from weft_torch.tensors import array_of

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.complex64)
"""Of samples; the first that an entry has."""
WITHIN = {"float64": (1e-6, 1e-9), "float32": (2e-4, 2e-5)}
"""Of a dtype: the relative difference that is allowed, and that of the largest element."""
UNTRUE = {
    "as_strided_scatter": "it gives what is written over the gradient of what is written there",
    **{
        f"nn.functional.max_unpool{d}d": "where places repeat, it gives what is written over the gradient of the last"
        for d in (1, 2, 3)
    },
}
"""Entries with their reasons; op_db switches off their own checks of gradients (`TestBwdGradients.test_fn_grad`)."""
COUNTED = ("agrees", "wrong", "refused", "failed")
"""Verdicts of entries whose forward converts."""


@dataclass(frozen=True)
class Differentiated:
    """What PyTorch says: for each result its cotangent, for each argument its gradient; None: it has none."""

    results: list[torch.Tensor]
    cotangents: list[torch.Tensor | None]
    gradients: list[torch.Tensor | None]


def differentiable() -> list[Any]:
    """The entries of op_db that PyTorch differentiates."""
    return [op for op in entries() if op.supports_autograd]


def case_of(op: Any) -> tuple[Case, list[bool]] | None:
    """The first sample of an entry, and for each of its tensors whether its gradient is asked for; None: no sample."""
    dtypes = op.supported_backward_dtypes("cpu")
    sample = sample_of(op, next((d for d in DTYPES if d in dtypes), torch.float64), requires_grad=True)
    if sample is None:
        return None

    def function(*args: Any, **kwargs: Any) -> Any:
        result = op.gradcheck_wrapper(op.op, *args, **kwargs)
        return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result

    given = (sample.input, *sample.args), sample.kwargs
    wanted = [x.requires_grad for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
    module, tensors = sampled(function, *pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given))
    return Case(named(op), module, tensors, close=within), wanted


def differentiated(case: Case, wanted: Sequence[bool]) -> Differentiated:
    """PyTorch's gradients of Σ cotangent · result."""
    arguments = [x.requires_grad_(w) for x, w in zip(copied(case.arguments), wanted)]
    results = [x for x in pytree.tree_leaves(case.module(*arguments)) if x is not None]
    torch.manual_seed(1)
    some = [isinstance(x, torch.Tensor) and x.requires_grad for x in results]
    cotangents = [torch.randn_like(x) if s else None for x, s in zip(results, some)]
    of, seeds = [x for x, s in zip(results, some) if s], [c for c in cotangents if c is not None]
    by = [x for x, w in zip(arguments, wanted) if w]
    if not of:
        raise ValueError("no result has a gradient")
    found = torch.autograd.grad(of, by, seeds, allow_unused=True)
    dense = iter(torch.zeros(x.shape, dtype=x.dtype) if _none(g) else g for x, g in zip(by, found))
    return Differentiated(results, cotangents, [next(dense) if w else None for w in wanted])


def _none(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient is absent, or one of PyTorch's zeros without memory."""
    return gradient is None or gradient._is_zerotensor()


def judge(case: Case, wanted: Sequence[bool], target: str | None = None) -> Result:
    """Whether the gradients of a case agree; "not converted": its forward is refused."""
    found = traced(case)
    if isinstance(found, Result):
        return found
    program, _ = found
    graph = attempted(case.name, lambda: weft.load(program))
    if isinstance(graph, Result):
        return Result(case.name, "not converted", f"{graph.verdict}: {graph.reason}")
    try:
        said = differentiated(case, wanted)
    except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
        return Result(case.name, "no gradient", f"{type(error).__name__}: {(str(error) or ' ').splitlines()[0][:100]}")
    place = {name: k for k, name in enumerate(program.graph_signature.user_inputs)}
    feeds = fed(graph, program, case.arguments)
    return attempted(case.name, lambda: compared_gradients(case, graph, feeds, said, place, target))


def compared_gradients(
    case: Case, graph: Graph, feeds: list[Any], said: Differentiated, place: Mapping[str, int], target: str | None
) -> Result:
    """The results of the graph, and its gradients by its inputs, against PyTorch's.

    Args:
        place: of each input of the program, by name, among the arguments.
    """
    seeds: dict[Any, Any] = {}
    for value, cotangent in zip(graph.outputs, said.cotangents):
        if cotangent is not None:  # a result that is there twice has both cotangents
            seeds[value] = seeds.get(value, 0) + array_of(cotangent)
    by = [v for v in graph.inputs if said.gradients[place[v.name]] is not None]
    unused = set(place) - {v.name for v in graph.inputs}
    expected = {f"unused {n}": g for n in unused if (g := said.gradients[place[n]]) is not None}
    got = {n: np.zeros_like(array_of(g)) for n, g in expected.items()}
    if by:
        backward = weft.vjp(graph, list(seeds), by, values=True, unreached="zeros")
        outputs = ran(backward, [*feeds, *seeds.values()], target)
        answer = compared(case.name, dict(zip(backward.output_names, outputs)), said.results, case.close)
        if answer.verdict != "agrees":
            return answer
        expected |= {f"gradient_{v.name}": said.gradients[place[v.name]] for v in by}
        got |= dict(zip((f"gradient_{v.name}" for v in by), outputs[len(graph.outputs) :]))
    return compared(case.name, got, list(expected.values()), case.close)


def within(value: Any, array: Any) -> None:
    compare({"y": value}, {"y": array}, "run", *WITHIN.get(array.dtype.name, WITHIN["float32"]))


def run(chosen: Sequence[Any], target: str | None = None) -> Iterator[Result]:
    """Results one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in chosen:
            if named(op) in UNTRUE:
                yield Result(named(op), "untrue", UNTRUE[named(op)])
                continue
            try:
                found = case_of(op)
            except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
                yield Result(named(op), "not exported", f"no sample: {type(error).__name__}: {str(error)[:100]}")
                continue
            yield Result(named(op), "no sample") if found is None else judge(*found, target)


def summary(counts: Counter[str]) -> str:
    """Totals, and the part of those whose forward converts that agrees."""
    total = sum(counts[v] for v in COUNTED)
    each = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    return f"{each}; {counts['agrees']} of {total} agree, {100 * counts['agrees'] / max(1, total):.1f} %"


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries; none for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th entry")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    parser.add_argument("--all", action="store_true", help="print those that agree, too")
    options = parser.parse_args()
    chosen = [op for op in differentiable() if not options.names or {named(op), op.name} & set(options.names)]
    started = time.perf_counter()
    counts = report(run(chosen[:: options.every], options.target), options.all)
    print(f"{summary(counts)}, in {time.perf_counter() - started:.0f} s")
    return 1 if counts["wrong"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
