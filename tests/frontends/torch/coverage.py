"""How much of PyTorch's own operator list is read: `python -m tests.frontends.torch.coverage [--every N] [NAME…]`.

Each entry of op_db, with its first float32 sample (int64 or complex64 where it does not take float32), becomes a module
that is exported, converted, interpreted and compared with PyTorch. Prints a line for each entry that
does not agree, and the totals.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_testing.frontend import compare
from weft_torch.tensors import array_of

RTOL, ATOL = 2e-4, 2e-5
"""Of float32 and float64, as `weft_testing.frontend.compare` has them."""
_BEGUN: list[Any] = []
"""Generators of samples: one that ends while something is traced would become part of it."""


@dataclass(frozen=True)
class Result:
    """An entry: agrees, wrong, refused, failed (a defect: neither refused nor wrong), not exported, no sample."""

    name: str
    verdict: str
    reason: str = ""


SIGNS = ("svd", "linalg.svd", "linalg.eigh")
"""Entries with vectors whose signs mean nothing."""
DTYPES = (torch.float32, torch.int64, torch.complex64)
"""Of samples; the first that an entry has."""
UNDEFINED = ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "empty")
"""Entries that promise no values: dtypes and shapes are compared."""


class Sample(torch.nn.Module):
    """An operator with all arguments but tensors."""

    def __init__(self, function: Callable[..., Any], spec: Any, given: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.spec, self.given = function, spec, given

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(g, torch.Tensor) else g for g in self.given]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def entries() -> list[Any]:
    """op_db."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def named(op: Any) -> str:
    """The name of an entry, with that of its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def sample_of(op: Any) -> tuple[Sample, tuple[torch.Tensor, ...]] | None:
    """The first sample of an entry, float32 if it has that dtype, as a module and its inputs; None: it has none."""
    torch.manual_seed(0)
    dtypes = op.supported_dtypes("cpu")
    dtype = next((d for d in DTYPES if d in dtypes), torch.float32)
    samples = iter(op.sample_inputs("cpu", dtype, requires_grad=False))
    sample = next(samples, None)
    _BEGUN.append(samples)
    if sample is None:
        return None
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    return Sample(op.op, spec, leaves), tuple(x for x in leaves if isinstance(x, torch.Tensor))


def judged(op: Any, target: str | None = None) -> Result:
    """What becomes of an entry."""
    name = named(op)
    try:
        found = sample_of(op)
        if found is None:
            return Result(name, "no sample")
        module, tensors = found
        program = torch.export.export(module, tensors, strict=False)
        wanted = pytree.tree_leaves(module(*(t.clone() for t in tensors)))
    except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
        return Result(name, "not exported", f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
    try:
        graph = weft.load(program)
        inputs = [array_of(t) for t in tensors]
        named_inputs = dict(zip(program.graph_signature.user_inputs, inputs))
        feeds = [named_inputs[v.name] for v in graph.inputs]
        names = graph.output_names
        got = weft.compile(graph, target, cache=False)(*feeds) if target else evaluate(graph, feeds)
    except UnsupportedError as error:
        return Result(name, "refused", str(error.where).replace("\n", "; ")[:200])
    except WeftError as error:
        return Result(name, "failed", f"{error.what[:160]} {error.why or ''}".replace("\n", " ")[:260])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(name, "failed", f"{type(error).__name__}: {str(error)[:160]}")
    return compared(name, dict(zip(names, got if isinstance(got, (list, tuple)) else [got])), wanted)


def compared(name: str, got: dict[str, Any], wanted: Sequence[Any]) -> Result:
    answers = [w for w in wanted if w is not None]
    if len(got) < len(answers):
        return Result(name, "wrong", f"{len(got)} outputs, PyTorch has {len(answers)}")
    for (output, value), want in zip(got.items(), answers):
        array = array_of(want) if isinstance(want, torch.Tensor) else np.asarray(want)
        value, array = (np.abs(value), np.abs(array)) if name in SIGNS else (value, array)
        value = array if name in UNDEFINED and value.shape == array.shape and value.dtype == array.dtype else value
        try:
            compare({output: value}, {output: array}, "interpreted", RTOL, ATOL)
        except AssertionError as error:
            return Result(name, "wrong", str(error)[:200])
    return Result(name, "agrees")


def run(ops: Sequence[Any], target: str | None = None) -> Iterator[Result]:
    """Results one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            yield judged(op, target)


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries; none for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th entry")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    parser.add_argument("--all", action="store_true", help="print those that agree, too")
    options = parser.parse_args()
    chosen = [op for op in entries() if not options.names or named(op) in options.names or op.name in options.names]
    started, counts = time.perf_counter(), Counter[str]()
    for result in run(chosen[:: options.every], options.target):
        counts[result.verdict] += 1
        if options.all or result.verdict != "agrees":
            print(f"{result.verdict:12} {result.name:40} {result.reason}", flush=True)
    print(", ".join(f"{n} {v}" for v, n in counts.most_common()), f"in {time.perf_counter() - started:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
