"""Programs in which warps try an instruction on matrices in fragments.

Nobody can store to a fragment but instructions: matrices come into fragments and out of them by the target's other
intrinsics. Those that copy do it at once; else a product of other matrices is what a result held before, and a product
with another matrix shows what was loaded. Every warp has data of its own.

    for y in 2 threadIdx.y { for x in 32 threadIdx.x { at_a[…] = given_a[…] … } }        all threads bring what is in
        shared memory
    for y in 2 threadIdx.y { @load_a(at_a[…], 24, fa[0]) … @mma(fa[0], fb[0], fc[0]) @store(fc[0], at_c[…], 20) }
    for y in 2 threadIdx.y { for x in 32 threadIdx.x { result[…] = at_c[…] } }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr.nodes import Expr, Var, add, const, lt, mul
from weft.loop.grids import FRAGMENT
from weft.loop.nodes import Allocate, Buffer, For, If, Load, Program, Stmt, Store, seq
from weft.loop.verify import verify
from weft.scheduling.intrinsic import Form, Intrinsic, OperandView
from weft.tensor.evaluate import evaluate
from weft.tensor.language import Read, Tensor
from weft_testing.operands import Array, Place, compare, lay, shape_of, values

WARPS = 2
"""Of the group."""
DEPTH = 2
"""Instructions one after another that bring a matrix into a fragment, or out of one, at most."""


def in_fragments(intrinsic: Intrinsic) -> bool:
    """Whether an operand lies in fragments."""
    return any(_is_fragment(s) for o in intrinsic.operands for s in o.scopes)


def copies(intrinsic: Intrinsic) -> bool:
    """Whether an intrinsic only moves elements."""
    (body,) = intrinsic.source.bodies
    return isinstance(body, Read) and body.indices == intrinsic.source.axes


def _is_fragment(scope: str) -> bool:
    return scope.partition(".")[0] == FRAGMENT


@dataclass(frozen=True)
class _Home:
    """Where each warp has a matrix: its part of a buffer in global or shared memory, or a fragment.

    Args:
        shown: it is what the instruction works on, whose data is of every kind; the others' are small integers, of
            which products are exact.
        bits: significant bits of its elements.
    """

    name: str
    scope: str
    tensor: Tensor
    place: Place
    align: int
    shown: bool
    bits: int | None

    @property
    def in_fragment(self) -> bool:
        return _is_fragment(self.scope)


@dataclass(frozen=True)
class _Step:
    """An instruction, where its operands are; of a reset, the result alone."""

    intrinsic: Intrinsic
    form: Form
    homes: tuple[_Home, ...]


class _NoWay(Exception):
    """An operand that nothing brings to its fragment or out of it."""


@dataclass
class _Chain:
    """The steps that try one form of an intrinsic, found from those that there are. `wide`: strides that are left open
    are more than the least."""

    every: Sequence[Intrinsic]
    wide: bool
    rng: np.random.Generator
    steps: list[_Step] = field(default_factory=list)
    homes: list[_Home] = field(default_factory=list)

    def try_(self, i: Intrinsic, form: Form) -> _Home:
        """The result, in memory."""
        operands = [] if form == "reset" else [self.bring(i, k, True, DEPTH) for k in range(len(i.operands) - 1)]
        result = self.home(i, len(i.operands) - 1, True)
        if form == "update" and result.in_fragment:
            self.fill(result, DEPTH)
        self.steps.append(_Step(i, form, (*operands, result)))
        return self.show(result, DEPTH)

    def home(self, i: Intrinsic, k: int, shown: bool) -> _Home:
        operand, tensor = i.operands[k], i.tensors[k]
        scopes = operand.scopes or ("global",)
        scope = next((s for s in scopes if s in ("global", "shared") or _is_fragment(s)), None)
        if scope is None:
            raise _NoWay(
                f"operand '{operand.name}' of '{i.name}' lies in scope '{scopes[0]}', which threads do not fill"
            )
        if _is_fragment(scope):  # the second of two matrices
            n = math.prod(shape_of(i, k))
            place = Place(n, i.dense(k), 2 * n)
        else:
            place = lay(i, k, self.wide, self.rng)
            unit = max(1, operand.align // tensor.dtype.bytes)
            place = Place(place.offset, place.strides, -(-place.size // unit) * unit)
        found = _Home(
            f"{operand.name}{len(self.homes)}", scope, tensor, place, max(64, operand.align), shown, operand.bits
        )
        self.homes.append(found)
        return found

    def bring(self, i: Intrinsic, k: int, shown: bool, depth: int) -> _Home:
        found = self.home(i, k, shown)
        if found.in_fragment:
            self.fill(found, depth)
        return found

    def fill(self, target: _Home, depth: int) -> None:
        """Steps that bring a matrix into a fragment: a copy shows the data itself."""
        for i in self._sorted(x for x in self.every if depth and _may_be(x, len(x.operands) - 1, target)):
            if self._taken(partial(self._fill, target, i, depth - 1)) is not None:
                return
        raise _NoWay(
            f"no instruction brings a {target.tensor.dtype} matrix of {_sizes(target.tensor)} into scope"
            f" '{target.scope}'"
        )

    def _fill(self, target: _Home, i: Intrinsic, depth: int) -> _Home:
        operands = tuple(self.bring(i, k, target.shown and copies(i), depth) for k in range(len(i.operands) - 1))
        self.steps.append(_Step(i, "compute", (*operands, target)))
        return target

    def show(self, source: _Home, depth: int) -> _Home:
        """Steps that bring what a fragment holds to memory; where it is then."""
        if not source.in_fragment:
            return source
        for i in self._sorted(x for x in self.every if depth and _may_take(x, source)):
            found = self._taken(partial(self._show, source, i, depth - 1))
            if found is not None:
                return found
        raise _NoWay(
            f"no instruction takes a {source.tensor.dtype} matrix of {_sizes(source.tensor)} out of scope"
            f" '{source.scope}'"
        )

    def _show(self, source: _Home, i: Intrinsic, depth: int) -> _Home:
        last, place = len(i.operands) - 1, _may_take(i, source)[0]
        operands = [source if k == place else self.bring(i, k, False, depth) for k in range(last)]
        result = self.home(i, last, False)
        self.steps.append(_Step(i, "compute", (*operands, result)))
        return self.show(result, depth)

    def _taken(self, attempt: Callable[[], _Home]) -> _Home | None:
        """What an attempt gives; one that fails gives None, and leaves nothing behind."""
        steps, homes = len(self.steps), len(self.homes)
        try:
            return attempt()
        except _NoWay:
            del self.steps[steps:], self.homes[homes:]
            return None

    @staticmethod
    def _sorted(found: Iterable[Intrinsic]) -> list[Intrinsic]:
        """Copies first, then what needs the fewest fragments."""
        return sorted(found, key=lambda i: (not copies(i), sum(_is_fragment(s) for o in i.operands for s in o.scopes)))


def _may_be(i: Intrinsic, k: int, home: _Home) -> bool:
    """Whether a matrix in a fragment may be operand number `k` of an instruction of constant shapes."""
    operand, tensor = i.operands[k], i.tensors[k]
    return (
        not i.lengths
        and home.scope in operand.scopes
        and tensor.dtype == home.tensor.dtype
        and tuple(tensor.shape) == tuple(home.tensor.shape)
    )


def _may_take(i: Intrinsic, home: _Home) -> list[int]:
    """Which of an instruction's operands, the result aside, a matrix in a fragment may be."""
    return [k for k in range(len(i.operands) - 1) if _may_be(i, k, home)]


def _sizes(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))


@dataclass(frozen=True)
class WarpCase:
    """One form of an intrinsic, tried by the warps of one group. `seen`: by which instruction its result is shown, if
    it cannot be seen itself."""

    intrinsic: Intrinsic
    form: Form
    steps: Sequence[_Step]
    given: Sequence[_Home]
    result: _Home
    program: Program
    seen: str

    @classmethod
    def make(
        cls,
        intrinsic: Intrinsic,
        form: Form,
        wide: bool,
        rng: np.random.Generator,
        every: Iterable[Intrinsic],
        warp: int,
    ) -> WarpCase:
        """Args:
            every: the target's intrinsics, with which fragments are filled and shown.
            warp: threads of a warp; an instruction of several warps is tried by twice as many.

        Raises:
            CodegenError: none of them fills a fragment that the intrinsic reads, or shows the one that it writes.
        """
        chain = _Chain([i for i in every if not i.lengths and i.warps == intrinsic.warps], wide, rng)
        try:
            result = chain.try_(intrinsic, form)
        except _NoWay as why:
            raise CodegenError(f"the intrinsic '{intrinsic.name}' cannot be tried by itself", why=str(why)) from None
        shows = [
            s.intrinsic
            for s in chain.steps[[s.intrinsic is intrinsic and s.form == form for s in chain.steps].index(True) + 1 :]
        ]
        seen = next((i.name for i in shows if not copies(i)), "")
        given = [h for h in chain.homes if not h.in_fragment]
        program = _program(f"{intrinsic.name}_{form}", chain, given, result, warp * intrinsic.warps)
        verify(program)
        return cls(intrinsic, form, chain.steps, given, result, program, seen)

    def data(self, kind: str, rng: np.random.Generator) -> dict[str, Array]:
        """The inputs, by name."""

        def of(h: _Home) -> Array:
            if h.shown or not h.tensor.dtype.is_integer:
                return values(kind if h.shown else "extreme", h.tensor.dtype, WARPS * h.place.size, rng, h.bits)
            return rng.integers(0, 9, WARPS * h.place.size).astype(h.tensor.dtype.numpy)

        return {f"given_{h.name}": of(h) for h in self.given}

    def expected(self, arrays: Mapping[str, Array]) -> Array:
        """What the output should be."""
        result = arrays[f"given_{self.result.name}"].copy()
        memory = {**{h.name: arrays[f"given_{h.name}"] for h in self.given}, self.result.name: result}
        for warp in range(WARPS):
            held: dict[str, Array] = {}
            for step in self.steps:
                used = (
                    [len(step.intrinsic.operands) - 1]
                    if step.form == "reset"
                    else list(range(len(step.intrinsic.operands)))
                )
                matrices = [
                    (
                        held.get(h.name)
                        if h.in_fragment
                        else h.place.view(memory[h.name], shape_of(step.intrinsic, k), warp * h.place.size)
                    )
                    for k, h in zip(used, step.homes)
                ]
                operands = {step.intrinsic.tensors[k]: np.array(m) for k, m in zip(used[:-1], matrices)}
                if step.form == "update":
                    operands[step.intrinsic.held] = np.array(matrices[-1])
                with np.errstate(all="ignore"):
                    value = evaluate(step.intrinsic.form(step.form), operands)
                if step.homes[-1].in_fragment:
                    held[step.homes[-1].name] = value
                else:
                    result_matrix = matrices[-1]
                    assert result_matrix is not None  # only what is in a fragment may not be there yet
                    result_matrix[...] = value
        return result

    def compare(self, got: Array, expected: Array, how: str) -> None:
        """Raises ScheduleError where the output is not as expected."""
        steps = 1
        for step in self.steps:
            steps = max(steps, math.prod(n for _, n, kind in step.intrinsic.axes if kind == "reduce"))
        places = [(self.result.place, warp * self.result.place.size) for warp in range(WARPS)]
        shown = self.steps[-1].intrinsic
        compare(
            self.intrinsic,
            self.form,
            got,
            expected,
            places,
            steps,
            how + (f", seen through '{self.seen}'" if self.seen else ""),
            shown,
        )


def _program(name: str, chain: _Chain, given: Sequence[_Home], result: _Home, warp: int) -> Program:
    inputs = {
        h.name: Buffer(f"given_{h.name}", (const(WARPS * h.place.size),), h.tensor.dtype, align=h.align) for h in given
    }
    out = Buffer("result", (const(WARPS * result.place.size),), result.tensor.dtype, align=result.align)
    buffers = {h.name: inputs[h.name] for h in given}
    shared: list[Buffer] = []
    before: list[tuple[Buffer, Buffer]] = []
    for h in given:
        if h.scope == "shared":
            buffers[h.name] = Buffer(f"at_{h.name}", (const(WARPS * h.place.size),), h.tensor.dtype, "shared", h.align)
            shared.append(buffers[h.name])
        elif h is result:
            buffers[h.name] = out
        if buffers[h.name] is not inputs[h.name]:
            before.append((buffers[h.name], inputs[h.name]))
    fragments = [h for h in chain.homes if h.in_fragment]
    buffers |= {h.name: Buffer(f"held_{h.name}", (const(h.place.size),), h.tensor.dtype, h.scope) for h in fragments}
    y = Var("warp", dt.int64)

    def view(step: _Step, k: int, h: _Home) -> OperandView:
        first = const(h.place.offset) if h.in_fragment else add(mul(y, h.place.size), h.place.offset)
        return OperandView(
            step.intrinsic.operands[k], buffers[h.name], (first,), tuple((const(s),) for s in h.place.strides)
        )

    def emit(step: _Step) -> Stmt:
        first = len(step.intrinsic.operands) - len(step.homes)
        return step.intrinsic.emit(step.form, *(view(step, first + k, h) for k, h in enumerate(step.homes)))

    work = seq(*map(emit, chain.steps))
    for h in reversed(fragments):
        work = Allocate(buffers[h.name], work)
    body = seq(
        *(_moved(k, to, source, warp) for k, (to, source) in enumerate(before)),
        For(y, const(WARPS), work, "threadIdx.y"),
        *([_moved(len(before), out, buffers[result.name], warp)] if buffers[result.name] is not out else []),
    )
    for b in reversed(shared):
        body = Allocate(b, body)
    return Program(name, tuple(inputs.values()), (out,), (), body)


def _moved(k: int, to: Buffer, source: Buffer, warp: int) -> Stmt:
    """All threads of the group copy a buffer."""
    (size,) = to.shape
    y, x, turn = (Var(f"{word}{k}", dt.int64) for word in ("row", "lane", "turn"))
    at: Expr = add(mul(add(mul(turn, WARPS), y), warp), x)
    turns = -(-int(str(size)) // (WARPS * warp))
    each = For(turn, const(turns), If(lt(at, size), Store(to, (at,), Load(source, (at,)))))
    return For(y, const(WARPS), For(x, const(warp), each, "threadIdx.x"), "threadIdx.y")
