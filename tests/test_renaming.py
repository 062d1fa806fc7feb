"""Names mean nothing to the compiler: classes of operators, values, tensors, buffers, variables and blocks may be
called anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from weft.compilation import Compilation
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, TensorType
from weft.graph.operator import Operator, Sample
from weft.kernel_cache import KernelCache
from weft.loop.nodes import Allocate, Block, For, Let, Program, walk_stmts
from weft.loop.parser import parse_program
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling.rule import select_rule
from weft.scheduling.schedule import Schedule
from weft_ops import ALL_OPERATORS
from weft_testing.models import lstm, mlp, mobilenet_v2, resnet18, transformer

TARGETS = ("llvm -mcpu=x86-64-v3 -threads=2", "cuda -arch=sm_80")
MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "transformer": transformer,
    "lstm": lstm,
    "resnet18": lambda: resnet18(size=32, width=8),
    "mobilenet_v2": lambda: mobilenet_v2(size=32, width=8, blocks=3),
}
_NOTES = re.compile(r'\b(op|composite|node|algorithm|\w+_declined)=("[^"]*"|\d+)(, )?')
_WORD = re.compile(r'"[^"]*"|(?<![\w.@])[A-Za-z_]\w*(?![\w.])')


def names_of(program: Program) -> list[str]:
    """Every name that a program defines, once, in order."""
    found = dict.fromkeys(b.name for b in (*program.inputs, *program.outputs))
    found.update(dict.fromkeys(d.name for d in program.dims))
    for s in walk_stmts(program.body):
        if isinstance(s, (For, Let)):
            found[s.var.name] = None
        elif isinstance(s, Allocate):
            found[s.buffer.name] = None
        elif isinstance(s, Block):
            found.update(dict.fromkeys((s.name, *(i.var.name for i in s.iters))))
    return list(found)


def with_names(program: Program, new: dict[str, str]) -> str:
    """A program's text with other names. A word in front of a parenthesis is a function, unless it is a block's
    name."""

    def word(found: re.Match[str]) -> str:
        called = text[found.end() : found.end() + 1] == "(" and not text[: found.start()].endswith("block ")
        keyword = found.group() == "where" and text[: found.start()].endswith(") ")
        return found.group() if called or keyword or found.start() < head else new.get(found.group(), found.group())

    text = str(program)
    head = text.index("(")
    return _WORD.sub(word, text)


def canonical(program: Program) -> str:
    """A program's text with its names numbered in order, without what stands there for people."""
    text = with_names(program, {n: f"n{k}" for k, n in enumerate(names_of(program))})
    return re.sub(r"program \w+", "program", _NOTES.sub("", text))


def scheduled(program: Program, target: ResolvedTarget) -> tuple[str, str]:
    rule, _ = select_rule(target.rules, program, target.machine, target.intrinsics)
    s = Schedule(program, target.machine, intrinsics=target.intrinsics)
    rule.apply(s)
    return rule.name, canonical(s.program)


def kernels(graph: Graph, target: str) -> tuple[list[tuple[str, str]], list[Program]]:
    """The rules and schedules of a graph's kernels, and the programs that they are of."""
    c = Compilation(resolve_target(target), cache=False)
    store = KernelCache(c.target.fingerprint, enabled=False)
    found, naive = [], []
    for node in c.optimize(graph).nodes:
        if isinstance(node.op, Group) and not node.op.view:
            _, kernel = c._kernel(node, store)
            c.schedule(kernel)
            assert kernel.scheduled is not None
            found.append((kernel.rule, canonical(kernel.scheduled)))
            naive.append(kernel.naive)
    return found, naive


def classes(base: type[Operator] = Operator) -> Iterator[type[Operator]]:
    for one in base.__subclasses__():
        if one.__module__.startswith(("weft.", "weft_ops.")):
            yield one
        yield from classes(one)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.split()[0])
@pytest.mark.parametrize("model", MODELS)
def test_names_of_operators_and_values_change_no_kernel(model: str, target: str) -> None:
    before, _ = kernels(MODELS[model](), target)
    graph = MODELS[model]()
    graph.name = "other"
    for k, value in enumerate(list(graph.values())):
        value.name = f"x{9999 - k}"
    with classes_renamed():
        after, _ = kernels(graph, target)
    assert after == before


@contextmanager
def classes_renamed() -> Iterator[None]:
    """Every class of operators has another name, in texts as well."""
    old = [(one, one.__name__, one.operator_name) for one in dict.fromkeys(classes())]
    try:
        for k, (one, _, _) in enumerate(old):
            one.__name__ = f"Z{997 - k}"
            one.operator_name = f"Y{997 - k}"
        yield
    finally:
        for one, name, in_texts in old:
            one.__name__, one.operator_name = name, in_texts


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.split()[0])
@pytest.mark.parametrize("model", MODELS)
def test_names_in_programs_change_no_schedule(model: str, target: str) -> None:
    _, programs = kernels(MODELS[model](), target)
    resolved = resolve_target(target)
    for program in programs:
        assert scheduled(renamed(program), resolved) == scheduled(parse_program(str(program)), resolved)


def renamed(program: Program) -> Program:
    """The program with other names for all that it defines, in the order of the old ones, as sums are written in the
    order of their variables' names."""
    return parse_program(with_names(program, {n: f"other_{n}" for n in names_of(program)}))


SAMPLES = [
    (op, s) for op in ALL_OPERATORS for s in op.samples() if all(a is None or a.dtype.kind in "biuf" for a in s.inputs)
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("op", "sample"), SAMPLES, ids=[f"{op.__name__}-{s.name}" for op, s in SAMPLES])
def test_names_in_programs_of_samples_change_no_schedule(op: type[Operator], sample: Sample) -> None:
    b = GraphBuilder("sample")
    inputs = [
        None if a is None else b.input(f"x{k}", TensorType(_dtype(a), a.shape)) for k, a in enumerate(sample.inputs)
    ]
    result = b.add_all(sample.op, *inputs)
    for k, y in enumerate(result if isinstance(result, tuple) else (result,)):
        b.output(y, f"y{k}")
    graph = b.build()
    for target in TARGETS:
        resolved = resolve_target(target)
        for program in kernels(graph, target)[1]:
            assert scheduled(renamed(program), resolved) == scheduled(parse_program(str(program)), resolved)


def _dtype(array: np.ndarray) -> object:  # type: ignore[type-arg]
    from weft import dtypes as dt

    return dt.dtype(array.dtype)
