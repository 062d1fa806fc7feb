"""Values of which it shows only at run time how many dimensions they have: a result of a branch, or of a Squeeze
without axes.

A `Fork` is a condition and a graph for each of its cases. What such a value is in either case is a `Cases`; a node that
uses one is converted once in each graph. Where its results are tensors of the same rank in both cases, they become
those of an If, and the nodes behind it are converted once again. A case in which a node cannot be applied ends the run
with that error; from there on the other one is all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError, literal
from weft.expr.nodes import Expr, free_vars, select
from weft.graph.control import If
from weft.graph.identity import Require
from weft.graph.nodes import Graph, OpenType, TensorType, Value
from weft.graph.rewrite import copy_graph
from weft.tensor.language import as_dim
from weft_frontend.bodies import Body, InBody, Level, finished, put_here, shaped
from weft_frontend.contents import Content
from weft_frontend.operands import Absent, Cases, Poison, Scope, poisoned, settled
from weft_ops import Cast

if TYPE_CHECKING:
    from weft_frontend.importer import GraphImporter

MOST = 3
"""Forks inside of each other: each doubles the graphs that nodes are converted in."""

Convert = Callable[[int, Scope], Sequence[Any]]


@dataclass(eq=False)
class Fork:
    """A condition, and for each of its cases (true, false) a graph that is being built inside `outer`.

    Attributes:
        test: the condition, a bool of one element.
        formula: the condition as a formula, where there is one.
        texts: each case in words, for errors: "axis 0 has 1 element".
        taken: the case that is all there is, once the other is known to fail.
    """

    outer: Level
    test: Value
    formula: Any
    texts: tuple[str, str]
    levels: tuple[Level, Level]
    taken: int | None = None
    here: dict[int, Value] = field(default_factory=dict)

    def tests(self, formula: Any) -> bool:
        """Whether this formula is its condition."""
        return self.taken is None and isinstance(formula, Expr) and self.formula == formula

    @contextmanager
    def at(self, importer: GraphImporter, k: int) -> Iterator[None]:
        """What is built is built in case `k`."""
        assert importer.level is self.outer
        importer.resume(self.levels[k])
        try:
            yield
        finally:
            importer.leave()

    def inside(self, importer: GraphImporter, k: int, operand: Any) -> Any:
        """What stands in case `k` for an operand of the graph around."""
        operand = settled(operand)
        if isinstance(operand, Cases) and operand.fork is self:
            return operand.operands[k]
        if isinstance(operand, Cases):
            raise UnsupportedError(
                "a node uses two values whose numbers of dimensions depend on different conditions, that"
                f" {self.texts[0]} and that {operand.fork.texts[0]}",
                hint="fix the sizes that they depend on with input_shapes, if they are sizes",
            )
        return self.levels[k].capture(importer, operand)


def fork_at(importer: GraphImporter, test: Value, formula: Any, texts: tuple[str, str]) -> Fork | None:
    """A fork of the graph that is being built; the one that there is for this condition. None if there would be more
    than `MOST` inside of each other."""
    level = importer.level
    for fork in level.forks:
        if fork.tests(formula) or (fork.taken is None and fork.test is test):
            return fork
    if level.cases >= MOST:
        return None
    levels = [Level(level.builder.inner(name), level, cases=level.cases + 1) for name in ("then", "orelse")]
    level.forks.append(Fork(level, test, formula, texts, (levels[0], levels[1])))
    return level.forks[-1]


def case_of(importer: GraphImporter, formula: Any) -> int | None:
    """The case of a condition that the graph that is being built is of, if it is of one."""
    level = importer.level
    while level.outer is not None:
        for fork in level.outer.forks:
            if level in fork.levels and fork.tests(formula):
                return fork.levels.index(level)
        level = level.outer
    return None


def fork_of(scope: Scope, names: Sequence[str]) -> Fork | None:
    """The fork that a node depends on by what it uses."""
    found = (settled(scope.find(name)) for name in names if name)
    return next((operand.fork for operand in found if isinstance(operand, Cases)), None)


def in_cases(importer: GraphImporter, fork: Fork, scope: Scope, convert: Convert) -> list[Any]:
    """The results of `convert(k, scope)` in both cases: joined where they may be, else as `Cases`.

    Raises:
        FrontendError: neither case can be converted.
    """
    results: list[Sequence[Any]] = [(), ()]
    failed: list[FrontendError | None] = [None, None]
    for k in (0, 1):
        inner = Scope(outer=scope, prefix=scope.prefix, capture=partial(fork.inside, importer, k))
        try:
            with fork.at(importer, k):
                results[k] = convert(k, inner)
        except (UnsupportedError, InBody):  # it may work, or not be reached
            raise
        except FrontendError as error:
            failed[k] = error
    errors = [e for e in failed if e is not None]
    if len(errors) == 2:
        raise errors[0]
    if errors:
        _settle(importer, fork, int(failed[0] is not None), errors[0])
        return [settled(Cases(fork, (r, r))) for r in results[int(failed[0] is not None)]]
    return [_joined(importer, fork, a, b) for a, b in zip(*results)]


def _settle(importer: GraphImporter, fork: Fork, k: int, error: FrontendError) -> None:
    """From here on there is only case `k`, since the other one fails."""
    level = fork.levels[k]
    inner = level.builder.graph
    if isinstance(fork.formula, Expr):
        holds = select(fork.formula, 1, 0)
    else:
        holds = importer.builder.symbol(importer.builder.add(Cast(dt.int64), fork.test))
    place = "" if error.where is None else f" ({error.where.splitlines()[0]})"
    text = literal(f"the model cannot run where {fork.texts[1 - k]}: {error.what}{place}")
    needed = Require(as_dim(holds), 1 - k, 1 - k, text, (), "If")
    # Before what it computes has errors of its own; and at the end, should that use no value of it.
    captured = [importer.builder.add(needed, v) for v in level.captured]
    fork.here = {id(a): b for a, b in zip(inner.inputs, captured)}
    put_here(importer, Body(inner, captured))
    fork.taken = k
    importer.level.required.extend([needed, *level.required])


def _joined(importer: GraphImporter, fork: Fork, a: Any, b: Any) -> Any:
    """One operand for those of both cases, or both."""
    if poisoned(a) or poisoned(b):
        return Poison()
    if isinstance(a, Absent) and isinstance(b, Absent):
        return a
    if isinstance(a, Content) and isinstance(b, Content):
        return a if _same_content(fork, a, b) else Cases(fork, (a, b))
    if isinstance(a, Value) and isinstance(b, Value):
        if a.constant is not None and b.constant is not None:
            if a.dtype == b.dtype and np.array_equal(a.constant, b.constant):
                return importer.builder.constant(a.constant, a.name)
            return Cases(fork, (a, b))
        if _rank(a) == _rank(b) is not None and a.dtype == b.dtype:
            return join(importer, Cases(fork, (a, b)))
    return Cases(fork, (a, b))


def _same_content(fork: Fork, a: Content, b: Content) -> bool:
    """Whether both are the same formulas, over symbols that are known outside of the cases."""
    if a.dtype != b.dtype or a.shape != b.shape or any(type(x) is not type(y) for x, y in zip(a.dims(), b.dims())):
        return False
    inside = {name for level in fork.levels for name in level.builder.graph.symbols}
    symbols = {name for x in a.dims() if isinstance(x, Expr) for name in free_vars(x)}
    return a.dims() == b.dims() and not symbols & inside


def _rank(value: Value) -> int | None:
    return value.type.rank if isinstance(value.type, (TensorType, OpenType)) else None


def join(importer: GraphImporter, cases: Cases) -> Value:
    """The value of either case: the result of an If."""
    fork = cases.fork
    then, orelse = (_body(importer, fork, k, operand) for k, operand in enumerate(cases.operands))
    joined = importer.builder.add(If(then.graph, orelse.graph), fork.test, *then.captured, *orelse.captured)
    return shaped(importer.builder, joined)


def _body(importer: GraphImporter, fork: Fork, k: int, operand: Any) -> Body:
    """The part of case `k` that gives an operand."""
    level = fork.levels[k]
    with fork.at(importer, k):
        value = importer.required(importer.as_value(settled(operand)))
    graph = level.builder.graph
    part = copy_graph(Graph(graph.name, list(graph.inputs), [value], list(graph.nodes), dict(graph.symbols), ["y"]))
    made = Level(level.builder.inner(graph.name), level.outer, list(level.captured))
    made.builder.graph = part
    made.inside = {id(outer): (outer, new) for outer, new in zip(level.captured, part.inputs)}
    return finished(importer, made, 0)


__all__ = ["Fork", "case_of", "fork_at", "fork_of", "in_cases", "join"]
