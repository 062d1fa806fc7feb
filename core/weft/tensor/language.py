"""Index formulas over whole tensors: what an operator computes, not how.

Tensor  := Placeholder | Compute(axes, body) | Scan(steps, init, update)
body    := Expr over axes, with Read(tensor, indices); or Reduce at the top: reducer over reduce axes
Reducer := identity, combine; over tuples too (argmax)

n = var("n"); A = placeholder((n, 64)); k = reduce_axis(64)
C = compute((n, n), lambda i, j: sum(A[i, k] * A[j, k], axis=k))
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias, overload

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, TensorError, expect
from weft.expr import nodes as e
from weft.expr.nodes import Const, Expr, ExprLike, Var, walk, wrap

Dim: TypeAlias = "int | Expr"
"""The size of a dimension: an int, or an int64 formula over symbols."""


def as_dim(value: object) -> Dim:
    """A dimension: a Python int, or an int64 formula (constants become ints).

    Raises:
        TensorError: it is neither.
    """
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, Expr):
        return value
    try:
        if isinstance(value, (int, SupportsIndex)):  # int first: to check a protocol takes long
            return operator.index(value)
    except TypeError:  # an array of several elements
        pass
    raise TensorError(
        f"a size is an integer or a formula, got {type(value).__name__}", hint='for example 16, or weft.var("n")'
    )


def _shape(shape: object) -> tuple[Dim, ...]:
    """Dimensions. Raises TensorError if it is no sequence of them."""
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise TensorError(
            f"a shape is a list of sizes, got {type(shape).__name__}", hint='for example (4, weft.var("n"))'
        )
    return tuple(as_dim(d) for d in shape)


def _name(name: object) -> None:
    expect(name, (str, type(None)), "a name", "a text", TensorError)


def _formula(body: object, of: str) -> Expr:
    """What a function or a user gave as a formula. Raises TensorError if it is none."""
    try:
        return wrap(_resolve(body))
    except ExprError:
        raise TensorError(f"the formula of {of} is a formula or a number, got {type(body).__name__}") from None


def _takes(function: Callable[..., Any], count: int, of: str) -> None:
    """That a function takes so many arguments, as far as it tells. Raises TensorError if not."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a built-in one does not tell
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise TensorError(
            f"the function of {of} is called with {count} argument(s), one for each dimension", why=str(error)
        ) from None


def _axes(axis: object) -> tuple[ReduceAxis, ...]:
    axes = (axis,) if isinstance(axis, ReduceAxis) else tuple(axis) if isinstance(axis, Iterable) else None
    if not axes or not all(isinstance(a, ReduceAxis) for a in axes):
        raise TensorError("a reduction has axes", hint="give what weft.reduce_axis returned, or a list of them")
    return axes


def factors(dims: Sequence[Dim]) -> tuple[int, Counter[Expr]]:
    """A product of dimensions as a number and symbolic factors."""
    number, symbolic = 1, Counter[Expr]()
    stack = list(dims)
    while stack:
        d = as_dim(stack.pop())
        if isinstance(d, int):
            number *= d
        elif isinstance(d, e.Mul):
            stack += [d.a, d.b]
        else:
            symbolic[d] += 1
    return number, symbolic


class Read(Expr):
    """One element of a tensor."""

    __slots__ = ("indices", "tensor")
    fields = ("tensor", "indices")

    def __init__(self, tensor: Tensor, indices: tuple[Expr, ...]) -> None:
        self.tensor, self.indices, self.dtype = tensor, indices, tensor.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Read(self.tensor, children)


@dataclass(frozen=True)
class ReduceAxis:
    """A reduction variable over 0 … extent - 1. Usable in formulas as its variable."""

    var: Var
    extent: Dim


@dataclass(frozen=True, eq=False)
class Reducer:
    """An associative reduction over tuples of `width` values.

    Args:
        identity: dtypes of the values → the start values.
        combine: (accumulated values, new values) → accumulated values.
        commutative: whether the order may change.
    """

    name: str
    width: int
    identity: Callable[[Sequence[DType]], tuple[Expr, ...]]
    combine: Callable[[Sequence[Expr], Sequence[Expr]], tuple[Expr, ...]]
    commutative: bool = True


class Reduce(Expr):
    """The reduction of `values` over `axes`; allowed only as the whole body of a compute. `index` picks one result."""

    __slots__ = ("axes", "index", "init", "reducer", "values")
    fields = ("reducer", "values", "axes", "index", "init")

    def __init__(
        self,
        reducer: Reducer,
        values: tuple[Expr, ...],
        axes: tuple[ReduceAxis, ...],
        index: int = 0,
        init: tuple[Expr, ...] | None = None,
    ) -> None:
        self.reducer, self.values, self.axes, self.index = reducer, values, axes, index
        self.init = init if init is not None else reducer.identity([v.dtype for v in values])
        self.dtype = values[index].dtype

    def children(self) -> tuple[Expr, ...]:
        return self.values

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Reduce(self.reducer, children, self.axes, self.index, self.init)


class Tensor:
    """A named array of `shape` (ints or formulas) and `dtype`; `source` says where its elements come from."""

    def __init__(
        self, name: str, shape: Sequence[Dim], dtype: DType, source: Placeholder | Compute | Scan, output: int = 0
    ) -> None:
        self.name, self.shape, self.dtype, self.source, self.output = name, tuple(shape), dtype, source, output

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: object) -> Expr:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) == 1 and items[0] == () and self.rank == 0:
            items = ()
        if len(items) != self.rank:
            raise TensorError(f"tensor '{self.name}' has {self.rank} dimension(s), indexed with {len(items)}")
        exprs = tuple(i.var if isinstance(i, ReduceAxis) else wrap(i, dt.int64) for i in items)
        return Read(self, tuple(e.cast_to(x, dt.int64) for x in exprs))

    def __call__(self, *indices: object) -> Expr:
        return self[indices]

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(str(d) for d in self.shape)}]"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that this one's source reads, in order of first use."""
        return self.source.inputs


@dataclass(frozen=True, eq=False)
class Placeholder:
    """An input."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Compute:
    """Every element by formula. Several bodies: one tuple reduction with several results.

    `role`: the name by which schedule rules recognise this part of an algorithm, the annotation `role` of its block;
    "": none.
    """

    axes: tuple[Var, ...]
    shape: tuple[Dim, ...]
    bodies: tuple[Expr, ...]
    role: str = ""

    @property
    def reduce(self) -> Reduce | None:
        return self.bodies[0] if isinstance(self.bodies[0], Reduce) else None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tensors_read(self.bodies)


@dataclass(frozen=True, eq=False)
class Scan:
    """A recurrence: state[t] = update(t, state[t - 1]), state[-1] = init.

    `states` are placeholders standing for the previous state inside `updates`; output number q is the tensor
    (length, *state shape) of all the states q, or the last one only if `last`.
    """

    step: Var
    length: Dim
    init: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    updates: tuple[Tensor, ...]
    last: bool
    reverse: bool

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        seen: dict[int, Tensor] = {id(t): t for t in self.init}
        stack = list(self.updates)
        done: set[int] = {id(s) for s in self.states}
        while stack:
            t = stack.pop()
            if id(t) in done:
                continue
            done.add(id(t))
            if isinstance(t.source, Placeholder) or not depends_on(t, self.states, self.step):
                seen.setdefault(id(t), t)
            else:
                stack.extend(reversed(t.inputs))
        return tuple(seen.values())


def tensors_read(bodies: Sequence[Expr]) -> tuple[Tensor, ...]:
    """The tensors read by formulas, in order of first use (conditions and indices included)."""
    seen: dict[int, Tensor] = {}
    for body in bodies:
        for node in walk(body):
            if isinstance(node, Read):
                seen.setdefault(id(node.tensor), node.tensor)
            if isinstance(node, Reduce):
                for start in node.init:
                    for inner in walk(start):
                        if isinstance(inner, Read):
                            seen.setdefault(id(inner.tensor), inner.tensor)
    return tuple(seen.values())


def depends_on(tensor: Tensor, states: Sequence[Tensor], step: Var) -> bool:
    """Whether `tensor` is computed inside a scan: it uses a previous state or the step variable, directly or not."""
    ids, seen = {id(s) for s in states}, set()
    stack = [tensor]
    while stack:
        t = stack.pop()
        if id(t) in ids:
            return True
        if id(t) in seen:
            continue
        seen.add(id(t))
        if isinstance(t.source, Compute) and any(
            isinstance(n, Var) and n.name == step.name for b in t.source.bodies for n in walk(b)
        ):
            return True
        stack.extend(t.inputs)
    return False


_names = itertools.count()


def _fresh(prefix: str) -> str:
    return f"{prefix}{next(_names)}"


def var(name: str, dtype: object = dt.int64) -> Var:
    """A symbolic dimension or scalar."""
    expect(name, str, "the name of a variable", "a text", TensorError)
    return Var(name, dt.dtype(dtype))


def placeholder(shape: Sequence[ExprLike], dtype: object = dt.float32, name: str | None = None) -> Tensor:
    """An input tensor; dtype float32 by default."""
    _name(name)
    return Tensor(name or _fresh("T"), _shape(shape), dt.dtype(dtype), Placeholder())


def reduce_axis(extent: ExprLike, name: str | None = None) -> ReduceAxis:
    """A reduction variable over 0 … extent - 1."""
    _name(name)
    return ReduceAxis(Var(name or _fresh("r"), dt.int64), as_dim(extent))


def _resolve(body: Any) -> Any:
    if isinstance(body, ReduceAxis):
        return body.var
    return body


@overload
def compute(
    shape: Sequence[ExprLike],
    formula: Callable[..., ExprLike | ReduceAxis],
    name: str | None = None,
    axes: Sequence[str] | None = None,
    role: str = "",
) -> Tensor: ...
@overload
def compute(
    shape: Sequence[ExprLike],
    formula: Callable[..., tuple[Expr, ...]],
    name: str | None = None,
    axes: Sequence[str] | None = None,
    role: str = "",
) -> tuple[Tensor, ...]: ...
def compute(
    shape: Sequence[ExprLike],
    formula: Callable[..., ExprLike | ReduceAxis | tuple[Expr, ...]],
    name: str | None = None,
    axes: Sequence[str] | None = None,
    role: str = "",
) -> Tensor | tuple[Tensor, ...]:
    """The tensor whose element [i, j, …] is formula(i, j, …).

    `role`: the name by which a schedule recognises this part of an algorithm.

    Returns one Tensor; a tuple of Tensors if `formula` returns the tuple result of a reducer of width > 1.

    Raises:
        TensorError: the formula returns no formula, or nests a reduction inside a formula.
    """
    _name(name)
    dims = _shape(shape)
    prefix = name or _fresh("C")
    if not callable(formula):
        raise TensorError(
            f"compute '{prefix}' takes a function of the indices, got {type(formula).__name__}",
            hint="for example lambda i, j: a[i, j] + 1",
        )
    variables = tuple(Var(n, dt.int64) for n in (axes or [f"{prefix}_i{k}" for k in range(len(dims))]))
    _takes(formula, len(variables), f"compute '{prefix}'")
    body = formula(*variables)
    bodies = tuple(_formula(b, f"compute '{prefix}'") for b in (body if isinstance(body, tuple) else (body,)))
    if not bodies:
        raise TensorError(f"compute '{prefix}' returns no formula")
    for b in bodies:
        for node in walk(b):
            if isinstance(node, Reduce) and node is not b:
                raise TensorError(
                    f"compute '{prefix}' uses a reduction inside a formula",
                    hint="give the reduction a compute of its own",
                )
    if len(bodies) > 1 and not all(isinstance(b, Reduce) for b in bodies):
        raise TensorError(f"compute '{prefix}' returns several formulas that are not one reduction")
    expect(role, str, f"the role of compute '{prefix}'", "a text", TensorError)
    source = Compute(variables, dims, bodies, role)
    outputs = tuple(
        Tensor(prefix if len(bodies) == 1 else f"{prefix}_{q}", dims, b.dtype, source, q) for q, b in enumerate(bodies)
    )
    return outputs if isinstance(body, tuple) else outputs[0]


def scan(
    length: ExprLike,
    init: Sequence[Tensor],
    step: Callable[..., Any],
    name: str | None = None,
    last: bool = False,
    reverse: bool = False,
) -> tuple[Tensor, ...]:
    """A recurrence over `length` steps.

    Args:
        init: the state before the first step, one tensor each.
        step: (t, *states) → the next states, same shapes and dtypes, as computes over t (a Var) and the states.
        last: give only the last state, shape of the state; else all of them, shape (length, *state).
        reverse: run t from length - 1 down to 0 (state[t] stored at t).
    """
    _name(name)
    prefix = name or _fresh("S")
    if not isinstance(init, (tuple, list)) or not init or not all(isinstance(s, Tensor) for s in init):
        raise TensorError(
            f"scan '{prefix}' begins with a list of tensors, the state before its first step",
            hint="give init=[tensor, …]",
        )
    if not callable(step):
        raise TensorError(f"scan '{prefix}' takes a function of t and the states, got {type(step).__name__}")
    as_dim(length)
    t = Var(f"{prefix}_t", dt.int64)
    states = tuple(placeholder(s.shape, s.dtype, f"{prefix}_s{q}") for q, s in enumerate(init))
    updates = step(t, *states)
    updates = updates if isinstance(updates, tuple) else (updates,)
    for u in updates:
        expect(u, Tensor, f"what the step of scan '{prefix}' returns", "a tensor, or a tuple of them", TensorError)
    if len(updates) != len(states) or any(u.dtype != s.dtype or u.rank != s.rank for u, s in zip(updates, states)):
        raise TensorError(f"scan '{prefix}': the step returns {list(updates)}, the state is {list(states)}")
    source = Scan(t, as_dim(length), tuple(init), states, updates, last, reverse)
    lead = () if last else (as_dim(length),)
    return tuple(Tensor(f"{prefix}_{q}", (*lead, *s.shape), s.dtype, source, q) for q, s in enumerate(states))


_WITH_INFINITY = frozenset({"float16", "bfloat16", "float32", "float64", "float8_e5m2"})


def _finite_ends(dtype: DType) -> tuple[float, float]:
    """The least and the greatest finite value of a float dtype."""
    import ml_dtypes

    found = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]  # ml_dtypes declares no types here
    return float(found.min), float(found.max)


def lowest(dtype: DType) -> Const:
    """The least value of a dtype: -inf for floats."""
    import numpy as np

    if dtype.is_bool:
        return Const(False, dtype)
    if dtype.is_float:
        return Const(-math.inf if dtype.name in _WITH_INFINITY else _finite_ends(dtype)[0], dtype)
    return Const(
        int(np.iinfo(dtype.numpy).min) if dtype.bits >= 8 else (-(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0),
        dtype,
    )


def highest(dtype: DType) -> Const:
    """The greatest value of a dtype: inf for floats."""
    import numpy as np

    if dtype.is_bool:
        return Const(True, dtype)
    if dtype.is_float:
        return Const(math.inf if dtype.name in _WITH_INFINITY else _finite_ends(dtype)[1], dtype)
    return Const(
        int(np.iinfo(dtype.numpy).max) if dtype.bits >= 8 else (1 << (dtype.bits - (dtype.kind == "int"))) - 1, dtype
    )


def _arg_reducer(
    name: str, better: Callable[[Expr, Expr], Expr], start: Callable[[DType], Const], last: bool
) -> Reducer:
    def combine(x: Sequence[Expr], y: Sequence[Expr]) -> tuple[Expr, ...]:
        """x, y = (value, index); the first (or last) index of the best value; NaN wins."""
        nan_y = e.const(False) if not y[0].dtype.is_float else e.ne(y[0], y[0])
        nan_x = e.const(False) if not x[0].dtype.is_float else e.ne(x[0], x[0])
        tie = e.eq(x[0], y[0]) | (nan_x & nan_y)
        nearer = e.lt(x[1], y[1]) if last else e.lt(y[1], x[1])
        take = e.and_(
            e.not_(e.and_(nan_x, e.not_(nan_y))),
            better(y[0], x[0]) | e.and_(nan_y, e.not_(nan_x)) | e.and_(tie, e.or_(nearer, e.lt(x[1], 0))),
        )
        return e.select(take, y[0], x[0]), e.select(take, y[1], x[1])

    return Reducer(name, 2, lambda d: (start(d[0]), Const(-1, d[1])), combine)


REDUCERS: dict[str, Reducer] = {
    r.name: r
    for r in (
        Reducer("sum", 1, lambda d: (Const(0, d[0]),), lambda x, y: (e.add(x[0], y[0]),)),
        Reducer("prod", 1, lambda d: (Const(1, d[0]),), lambda x, y: (e.mul(x[0], y[0]),)),
        Reducer("min", 1, lambda d: (highest(d[0]),), lambda x, y: (e.minimum(x[0], y[0]),)),
        Reducer("max", 1, lambda d: (lowest(d[0]),), lambda x, y: (e.maximum(x[0], y[0]),)),
        Reducer("all", 1, lambda d: (Const(True, d[0]),), lambda x, y: (e.and_(x[0], y[0]),)),
        Reducer("any", 1, lambda d: (Const(False, d[0]),), lambda x, y: (e.or_(x[0], y[0]),)),
        _arg_reducer("argmax", lambda a, b: e.lt(b, a), lowest, last=False),
        _arg_reducer("argmin", lambda a, b: e.lt(a, b), highest, last=False),
        _arg_reducer("argmax_last", lambda a, b: e.lt(b, a), lowest, last=True),
        _arg_reducer("argmin_last", lambda a, b: e.lt(a, b), highest, last=True),
    )
}
"""Reducers by name."""


@overload
def reduce(reducer: Reducer | str, values: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expr: ...
@overload
def reduce(
    reducer: Reducer | str, values: Sequence[ExprLike], axis: ReduceAxis | Sequence[ReduceAxis]
) -> tuple[Expr, ...]: ...
def reduce(
    reducer: Reducer | str, values: ExprLike | Sequence[ExprLike], axis: ReduceAxis | Sequence[ReduceAxis]
) -> Expr | tuple[Expr, ...]:
    """The reduction of `values` over `axis`: one formula, or a tuple of them for reducers of width > 1."""
    r = REDUCERS.get(reducer) if isinstance(reducer, str) else reducer
    if not isinstance(r, Reducer):
        raise TensorError(f"there is no reducer {reducer!r}", hint=f"known: {', '.join(REDUCERS)}")
    axes = _axes(axis)
    exprs = tuple(
        _formula(v, f"the reduction '{r.name}'") for v in (values if isinstance(values, (tuple, list)) else (values,))
    )
    if len(exprs) != r.width:
        raise TensorError(f"reducer '{r.name}' takes {r.width} value(s), got {len(exprs)}")
    results = tuple(Reduce(r, exprs, axes, q) for q in range(r.width))
    return results[0] if r.width == 1 else results


def sum(value: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis]) -> Expr:
    """Σ value over the axes."""
    return reduce("sum", value, axis)
