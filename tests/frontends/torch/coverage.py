"""How much of PyTorch's own lists is read: `python -m tests.frontends.torch.coverage [--suite modules] [--every N]`.

Each entry of op_db (`--suite operators`), with its first float32 sample (int64 or complex64 where it does not take
float32), becomes a module; each of module_db (`--suite modules`) is one, in evaluation mode, with its first float32
sample. It is exported, converted, interpreted (`--target llvm`: compiled) and compared with PyTorch. Prints a line
for each entry that does not agree, and the totals.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tests.frontends.torch.judging import Case, Result, judge, report, sampled, within

_BEGUN: list[Any] = []
"""Generators of samples: one that ends while something is traced would become part of it."""
SIGNS = ("svd", "linalg.svd", "linalg.eigh")
"""Entries with vectors whose signs mean nothing."""
DTYPES = (torch.float32, torch.int64, torch.complex64)
"""Of samples; the first that an entry has."""
UNDEFINED = ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "empty")
"""Entries that promise no values: dtypes and shapes are compared."""


def entries(suite: str = "operators") -> list[Any]:
    """op_db, or module_db."""
    if suite == "modules":
        from torch.testing._internal.common_modules import module_db

        return list(module_db)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def named(entry: Any) -> str:
    """The name of an entry, with that of its variant."""
    variant = getattr(entry, "variant_test_name", "")
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def case_of(op: Any) -> Case | None:
    """The first sample of an entry of op_db, float32 if it has that dtype; None: it has none."""
    dtypes = op.supported_dtypes("cpu")
    sample = sample_of(op, next((d for d in DTYPES if d in dtypes), torch.float32))
    if sample is None:
        return None
    module, tensors = sampled(op.op, (sample.input, *sample.args), sample.kwargs)
    return Case(named(op), module, tensors, close=closeness(named(op)))


def sample_of(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> Any | None:
    """The first sample of an entry of op_db; None: it has none."""
    torch.manual_seed(0)
    samples = iter(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    sample = next(samples, None)
    _BEGUN.append(samples)
    return sample


def module_cases(entry: Any) -> list[Case]:
    """The float32 samples of an entry of module_db."""
    torch.manual_seed(0)
    found = entry.module_inputs_func(entry, "cpu", torch.float32, requires_grad=False, training=False)
    cases = []
    for k, sample in enumerate(found):
        given = sample.constructor_input
        module = entry.module_cls(*given.args, **given.kwargs).eval()
        if entry.is_lazy:  # its parameters have sizes once it was called
            module(*sample.forward_input.args, **sample.forward_input.kwargs)
        call, tensors = sampled(module, sample.forward_input.args, sample.forward_input.kwargs)
        cases.append(Case(f"{entry.name}.{k}" if k else entry.name, call, tensors))
    return cases


def closeness(name: str) -> Callable[[Any, Any], None]:
    """How the results of an entry are compared."""
    if name in SIGNS:
        return lambda value, array: within(np.abs(value), np.abs(array))
    if name in UNDEFINED:
        return lambda value, array: within(np.zeros_like(value), np.zeros_like(array))
    return within


def cases_of(entry: Any, suite: str, samples: int) -> list[Case]:
    if suite == "modules":
        return module_cases(entry)[: samples or None]
    case = case_of(entry)
    return [] if case is None else [case]


def run(
    chosen: Sequence[Any], target: str | None = None, suite: str = "operators", samples: int = 1
) -> Iterator[Result]:
    """Results one after another.

    Args:
        samples: of each entry of module_db; 0 for all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in chosen:
            try:
                cases = cases_of(entry, suite, samples)
            except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
                yield Result(named(entry), "not exported", f"no sample: {type(error).__name__}: {str(error)[:100]}")
                continue
            if not cases:
                yield Result(named(entry), "no sample")
            for case in cases:
                yield judge(case, target)


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries; none for all")
    parser.add_argument("--suite", choices=("operators", "modules"), default="operators")
    parser.add_argument("--samples", type=int, default=1, help="of each module; 0 for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th entry")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    parser.add_argument("--all", action="store_true", help="print those that agree, too")
    options = parser.parse_args()
    chosen = [e for e in entries(options.suite) if not options.names or {named(e), e.name} & set(options.names)]
    started = time.perf_counter()
    counts = report(run(chosen[:: options.every], options.target, options.suite, options.samples), options.all)
    print(", ".join(f"{n} {v}" for v, n in counts.most_common()), f"in {time.perf_counter() - started:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
