"""Recognition of loops that copy a box of a tensor, as descriptions for bulk tensor copies: `weft_gpu.bulk_copies`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.expr.linear import ZERO, Polynomial, linear, number
from weft.expr.nodes import Const, Expr, Select, Var, all_of, free_vars, has, select, substitute
from weft.loop.nodes import Buffer, For, If, IntrinsicCall, Load, Stmt, Store, int64, int_const
from weft.loop.passes.copies import if_stmt
from weft.loop.passes.partition_loops import not_negative
from weft.loop.passes.simplify import holds
from weft_gpu.bulk_copies import ALIGNED, BOX, BulkCopy, TensorMap


@dataclass(frozen=True)
class BoxNest:
    """A nest of loops that copies a box. `store`: its only one; `conditions`: all of which hold where it is copied at
    all."""

    store: Store
    box: BulkCopy
    conditions: tuple[Expr, ...]

    def stmt(self) -> Stmt:
        """What begins the copy in place of the nest."""
        return if_stmt(all_of(self.conditions), self.box.call())


def is_box(s: Stmt) -> bool:
    """Whether a statement is a loop that says that it copies a box."""
    return isinstance(s, For) and BOX in dict(s.annotations)


def box_nest(nest: Stmt, lets: Mapping[str, Expr]) -> BoxNest | str:
    """The box that serial loops copy, `s[…] = x[…]` or `s[…] = select(inside, x[…], 0)`; or why it is none.

    Each loop moves along one dimension of `x`, and in shared memory by what the faster ones fill: the loops are the
    dims of the tensor, merged where one goes on where another ends. `inside` asks whether indices are within `x`, since
    what lies outside of a tensor is zero, or what is the same for all of the box.

    Args:
        lets: names of formulas that the indices may have, each complete in itself.
    """
    loops: dict[str, int] = {}
    conditions: list[Expr] = []
    s = nest
    while not isinstance(s, Store):
        if isinstance(s, For) and s.kind == "serial" and (n := int_const(s.extent)) is not None:
            loops[s.var.name] = n
            s = s.body
        elif isinstance(s, If) and s.orelse is None:
            conditions.append(s.cond)
            s = s.then
        else:
            return f"a {type(s).__name__} is in its loops"
    asked: list[Expr] = []
    value = s.value
    while (
        isinstance(value, Select) and isinstance(value.b, Const) and not value.b.value and str(value.b.value) != "-0.0"
    ):
        asked += holds(value.cond)
        value = value.a
    if (
        s.predicate is not None
        or s.buffer.scope != "shared"
        or not isinstance(value, Load)
        or value.predicate is not None
        or value.buffer.scope != "global"
    ):
        return f"it stores {value}"
    if any(free_vars(c).keys() & loops.keys() for c in conditions):
        return "a part of it is not copied"
    to, source = (_Place.of(x, loops, lets) for x in (Load(s.buffer, s.indices), value))
    if to is None or source is None:
        return (
            f"the indices of '{(s if to is None else value).buffer.name}' are no sums of its loops, or the buffer has"
            " no constant shape"
        )
    if min(*loops.values(), *(d.extent for d in source.dims), 1) < 1:
        return "nothing is copied"
    whole: list[Expr] = []
    asked = [c for c in asked if not _first_alone(not_negative(substitute(c, lets)), loops, source)]
    for c in asked:
        if any(_asks(not_negative(substitute(c, lets)), d, loops) for d in source.dims):
            continue
        if free_vars(substitute(c, lets)).keys() & loops.keys() or has(c, (Load, IntrinsicCall)):
            return f"what {c} leaves out is not what lies outside of '{value.buffer.name}'"
        whole.append(c)
    found = _tensor(value.buffer, loops, to, source)
    if isinstance(found, str):
        return found
    tensor, start = found
    if whole:  # what is zero as a whole starts where the tensor has ended
        start = select(all_of(whole), start[0], tensor.extents[0]), *start[1:]
    why = tensor.refused()
    if why is not None:
        return why
    each = s.buffer.dtype.bytes
    if any(n * each % ALIGNED for n in (*to.flat.terms.values(), to.flat.constant)):
        return f"it does not begin at a multiple of {ALIGNED} bytes of '{s.buffer.name}'"
    first = tuple(substitute(i, {v: int64(0) for v in loops}) for i in s.indices)
    return BoxNest(s, BulkCopy(Load(s.buffer, first), tensor, start), tuple(conditions))


@dataclass(frozen=True)
class _Dim:
    """A dimension of a buffer: its extent, its stride in elements, how far each loop moves along it, and where it
    begins."""

    extent: int
    stride: int
    steps: dict[str, int]
    rest: Polynomial


@dataclass(frozen=True)
class _Place:
    """An access; `flat`: where it begins in elements; `steps`: what a loop moves by."""

    dims: tuple[_Dim, ...]
    steps: dict[str, int]
    flat: Polynomial

    @staticmethod
    def of(x: Load, loops: Mapping[str, int], lets: Mapping[str, Expr]) -> _Place | None:
        dims: list[_Dim] = []
        steps: dict[str, int] = {}
        flat, stride = ZERO, 1
        for index, extent in zip(reversed(x.indices), reversed(x.buffer.shape)):
            n, form = int_const(extent), linear(substitute(index, lets))
            parts = form.split_variables(loops)
            if n is None or parts is None or any(has(t, (Load, IntrinsicCall)) for t in parts[0].atoms):
                return None
            rest, mine = parts[0], {v: factor.constant for v, factor in parts[1].items()}
            dims.insert(0, _Dim(n, stride, mine, rest))
            for v, k in mine.items():
                steps[v] = steps.get(v, 0) + k * stride
            flat, stride = flat.plus(rest, stride), stride * n
        return _Place(tuple(dims), steps, flat)


def _tensor(
    buffer: Buffer, loops: Mapping[str, int], to: _Place, source: _Place
) -> tuple[TensorMap, tuple[Expr, ...]] | str:
    """The tensor, and where the box starts in it."""
    order = sorted((v for v, n in loops.items() if n > 1), key=lambda v: to.steps.get(v, 0))
    filled = 1
    for v in order:
        if to.steps.get(v) != filled:
            return (
                f"loop '{v}' moves {to.steps.get(v, 0)} elements in shared memory, where the faster ones fill {filled}"
            )
        filled *= loops[v]
    # Pieces of dimensions, the fastest first: dimension, step along it, elements.
    found: list[tuple[int, int, int]] = []
    for v in order:
        moved = [k for k, d in enumerate(source.dims) if d.steps.get(v)]
        if len(moved) != 1 or source.dims[moved[0]].steps[v] < 1:
            return f"loop '{v}' does not move forwards along one dimension of '{buffer.name}'"
        k, n = moved[0], loops[v]
        step = source.dims[k].steps[v]
        if found and found[-1][0] == k and found[-1][1] * found[-1][2] == step:
            found[-1] = k, found[-1][1], found[-1][2] * n
        else:
            found.append((k, step, n))
    pieces = [(*p, *(0, ZERO)) for p in found]
    for k, d in enumerate(source.dims):
        mine = sorted((j for j, p in enumerate(found) if p[0] == k), key=lambda j: found[j][1])
        for j, after in pairwise(mine):
            _, step, n = found[j]
            if found[after][1] % step or n * step > found[after][1]:
                return f"its pieces along a dimension of '{buffer.name}' overlap"
            pieces[j] = (k, step, n, found[after][1] // step, ZERO)
        if not mine:
            if d.rest:  # a condition may ask whether it is within
                pieces.append((k, 1, 1, d.extent, d.rest))
            continue
        _, step, n = found[mine[-1]]
        at = d.rest.divided(step)
        if at is None or (len(mine) > 1 and d.extent % step):
            return f"it may begin, or '{buffer.name}' end, within a piece of {step} elements"
        pieces[mine[-1]] = (k, step, n, -(-d.extent // step), at)
    if not found:
        return "it is one element"
    strides = tuple(source.dims[k].stride * step for k, step, *_ in pieces)
    tensor = TensorMap(buffer, tuple(p[3] for p in pieces), strides, tuple(p[2] for p in pieces))
    return tensor, tuple(p[4].expr() for p in pieces)


def _asks(form: Polynomial | None, d: _Dim, loops: Mapping[str, int]) -> bool:
    """Whether a condition, that a sum is not negative, holds just where an index is within its dimension."""
    if form is None:
        return False
    for step, fast in _scales(d, loops):
        mine = d.rest
        for v, k in d.steps.items():
            if v not in fast:
                mine = mine.plus(linear(_variable(form, v)), k)
        scaled = form.scale(step)
        if scaled == mine or (d.extent % step == 0 and scaled == number(d.extent - step) - mine):
            return True
    return False


def _first_alone(form: Polynomial | None, loops: Mapping[str, int], source: _Place) -> bool:
    """Whether a condition keeps the first iteration of a loop alone, which is why indices no longer speak of it, and
    the second one would lie outside of a dimension: the loop moves along that one, by what the faster ones fill."""
    if form is None or form.constant or len(form.terms) != 1:
        return False
    ((v, k),) = form.atoms.items()
    if not isinstance(v, Var) or k != -1 or v.name not in loops or v.name in source.steps:
        return False
    for d in source.dims:
        filled = 1 + sum(step * (loops[x] - 1) for x, step in d.steps.items() if step > 0)
        if (at := d.rest.value) is not None and d.steps and at + filled >= d.extent:
            d.steps[v.name] = filled
            source.steps[v.name] = filled * d.stride
            return True
    return False


def _scales(d: _Dim, loops: Mapping[str, int]) -> Iterator[tuple[int, Sequence[str]]]:
    """Steps of the dimension within which an index is inside or not as a whole, with the loops that move within one."""
    yield 1, ()
    for step in sorted(set(d.steps.values()) | {k * loops[v] for v, k in d.steps.items()}):
        fast = [v for v, k in d.steps.items() if 0 < k < step]
        if step > 1 and sum(d.steps[v] * (loops[v] - 1) for v in fast) < step:
            yield step, fast


def _variable(form: Polynomial, name: str) -> Expr:
    return next((t for t in form.atoms if isinstance(t, Var) and t.name == name), Var(name, int64(0).dtype))
