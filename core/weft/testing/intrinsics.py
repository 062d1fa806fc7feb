"""`check_intrinsic(intrinsic)`: whether the code of a tensor intrinsic does what its meaning says, on random data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ScheduleError
from weft.expr.nodes import Const, Expr, Var, const
from weft.kernel import KernelSchedule, build
from weft.loop.interpret import int_range, interpret
from weft.loop.nodes import Allocate, Block, BlockIter, Buffer, For, Load, Program, Stmt, Store, seq
from weft.loop.verify import verify
from weft.pipeline import ResolvedTarget, resolve_target
from weft.scheduling.intrinsic import Form, Intrinsic, OperandView, meanings
from weft.scheduling.primitives import apply_primitive
from weft.scheduling.tree import blocks_in
from weft.tensor.evaluate import evaluate
from weft.tensor.language import Read

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[[Program], Callable[[Mapping[str, Array]], Array]]
"""Compiles a program for somewhere and gives what runs it there: inputs by name → its one output."""

DATA = ("random", "extreme", "greatest", "least")


def check_intrinsic(
    intrinsic: Intrinsic, target: str | ResolvedTarget | None = None, *, run: Run | None = None, copies: Iterable[Intrinsic] = (), seed: int = 0
) -> int:
    """Compares each of the intrinsic's codes with its meaning: on random and extreme data, at offsets that the alignment allows, with row-major and,
    where the declaration allows them, wider strides, at least and great lengths, with numbers for operands; what lies beside the result must stay as it was.

    Args:
        target: compile and run the code there, too; without it (and without `run`) it is interpreted only.
        run: what compiles and runs a program, for what no target string names.
        copies: the target's intrinsics, where its code generator takes no plain loops: those that copy bring the data to and from the intrinsic's memories.

    Returns:
        How many comparisons were made.

    Integers must agree exactly; floats within 4 · (length of the reduction + 1) units in the last place of the greatest result.

    Raises:
        ScheduleError: the code disagrees; names the intrinsic, the element and both values.
    """
    rng = np.random.default_rng(seed)
    movers = {i.name: i for i in copies if _copies(i)}
    functions = meanings({**movers, intrinsic.name: intrinsic}.values())
    places: list[tuple[str, Run]] = [("interpreted", lambda p: lambda arrays: interpret(p, arrays, intrinsics=functions)[p.outputs[0].name])]
    if target is not None:
        resolved = resolve_target(target) if isinstance(target, str) else target
        places.append((f"on target '{resolved.target}'", _compiled(resolved)))
    if run is not None:
        places.append(("run", run))
    count = 0
    for example in intrinsic.examples():
        size = f", {', '.join(f'{v} = {n}' for v, n in zip(intrinsic.lengths, example.given))}" if example.given else ""
        for form in ("compute", "reset", "update"):
            if intrinsic.code(form) is None:
                continue
            for wide, number in _ways(example, form):
                case = _Case.make(example, form, wide, rng, number, movers)
                ready = [(place, make(case.program)) for place, make in places]
                for kind in DATA:
                    arrays = case.data(kind, rng)
                    expected = case.expected(arrays)
                    for place, execute in ready:
                        of = "" if number is None else f", {example.operands[number].name} = {case.numbers[number]}"
                        case.compare(execute(arrays), expected, f"{place}, {'wide' if wide else 'least'} strides, {kind} data{size}{of}")
                        count += 1
    return count


def _ways(intrinsic: Intrinsic, form: Form) -> list[tuple[bool, int | None]]:
    """Whether strides are wide, and which operand is a number."""
    free = any(None in (o.strides or ()) for o in intrinsic.operands)
    numbers = [k for k, o in enumerate(intrinsic.operands[:-1]) if o.number] if form != "reset" else []
    return [(False, None), *([(True, None)] if free else []), *((False, k) for k in numbers)]


def _copies(intrinsic: Intrinsic) -> bool:
    """Whether an intrinsic only moves elements."""
    (body,) = intrinsic.source.bodies
    return isinstance(body, Read) and body.indices == intrinsic.source.axes


def _compiled(target: ResolvedTarget) -> Run:
    def make(program: Program) -> Callable[[Mapping[str, Array]], Array]:
        kernel = build(KernelSchedule(program, target))
        return lambda arrays: np.asarray(kernel(*(arrays[b.name] for b in program.inputs)))

    return make


@dataclass(frozen=True)
class _Place:
    """Where an operand lies in its buffer of one dimension."""

    offset: int
    strides: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class _Case:
    intrinsic: Intrinsic
    form: Form
    used: tuple[int, ...]
    places: tuple[_Place, ...]
    program: Program
    numbers: Mapping[int, float]

    @staticmethod
    def make(
        intrinsic: Intrinsic, form: Form, wide: bool, rng: np.random.Generator, number: int | None = None, copies: Mapping[str, Intrinsic] | None = None
    ) -> _Case:
        last = len(intrinsic.operands) - 1
        used = (last,) if form == "reset" else tuple(k for k in range(last + 1) if k != number)
        numbers = {} if number is None else {number: _values("extreme", intrinsic.tensors[number].dtype, 1, rng)[0].item()}
        places = tuple(_lay(intrinsic, k, wide, rng) for k in used)
        inputs, before, after = [], [], []
        views: list[OperandView | Const] = []
        allocated: list[Buffer] = []
        out = Buffer("result", (const(places[-1].size),), intrinsic.meaning.dtype)
        for k, place in zip(used, places):
            operand, tensor = intrinsic.operands[k], intrinsic.tensors[k]
            align = max(64, operand.align)
            given = Buffer(f"given_{operand.name}", (const(place.size),), tensor.dtype, align=align)
            inputs.append(given)
            held = out if k == last else given
            if operand.scopes and "global" not in operand.scopes:
                held = Buffer(f"held_{operand.name}", (const(place.size),), tensor.dtype, operand.scopes[0], align)
                allocated.append(held)
            if held is not given:
                before.append(_copy(f"at_{operand.name}", held, given, place.size))
            if k == last and held is not out:
                after.append(_copy("at_result", out, held, place.size))
            steps: tuple[tuple[Expr, ...], ...] = tuple((const(s),) for s in place.strides)
            views.append(OperandView(operand, held, (const(place.offset),), steps))
        for k, value in numbers.items():
            views.insert(k, Const(value, intrinsic.tensors[k].dtype))
        stmt = intrinsic.emit(form, *views)
        body = seq(*before, stmt, *after)
        for b in allocated:
            body = Allocate(b, body)
        program = Program(f"{intrinsic.name}_{form}", tuple(inputs), (out,), (), body)
        verify(program)
        return _Case(intrinsic, form, used, places, _moved(program, copies or {}), numbers)

    def data(self, kind: str, rng: np.random.Generator) -> dict[str, Array]:
        return {b.name: _values(kind, b.dtype, p.size, rng) for b, p in zip(self.program.inputs, self.places)}

    def _view(self, k: int, array: Array) -> Array:
        shape, place = self.intrinsic.tensors[self.used[k]].shape, self.places[k]
        strides = [s * array.itemsize for s in place.strides]
        return np.lib.stride_tricks.as_strided(array[place.offset :], [int(str(d)) for d in shape], strides)

    def expected(self, arrays: Mapping[str, Array]) -> Array:
        given = list(arrays.values())
        operands = {self.intrinsic.tensors[q]: np.array(self._view(k, given[k])) for k, q in enumerate(self.used[:-1])}
        for k, value in self.numbers.items():
            tensor = self.intrinsic.tensors[k]
            operands[tensor] = np.full([int(str(d)) for d in tensor.shape], value, tensor.dtype.numpy)
        result = given[-1].copy()
        if self.form == "update":
            operands[self.intrinsic.held] = np.array(self._view(len(given) - 1, result))
        with np.errstate(all="ignore"):  # infinities and nan are among the data
            self._view(len(given) - 1, result)[...] = evaluate(self.intrinsic.form(self.form), operands)
        return result

    def compare(self, got: Array, expected: Array, how: str) -> None:
        d = self.intrinsic.meaning.dtype
        inside = np.zeros(expected.shape, bool)
        self._view(len(self.places) - 1, inside)[...] = True
        if d.is_float:
            wide_got, wide_expected = got.astype(np.float64), expected.astype(np.float64)
            steps = 1
            for _, n, kind in self.intrinsic.axes:
                steps *= n if kind == "reduce" else 1
            finite = np.abs(wide_expected[np.isfinite(wide_expected) & inside])
            eps = float(ml_dtypes.finfo(d.numpy).eps)  # type: ignore[no-untyped-call]
            bound = 4 * (steps + 1) * eps * max(1.0, float(finite.max()) if finite.size else 1.0)
            with np.errstate(invalid="ignore"):  # infinite less infinite
                near = np.abs(wide_got - wide_expected) <= np.where(inside, bound, 0)
            same = near | (wide_got == wide_expected) | (np.isnan(wide_got) & np.isnan(wide_expected))
        else:
            same = got == expected
        if same.all():
            return
        bad = int(np.flatnonzero(~(same | ~inside))[0]) if (~same & inside).any() else int(np.flatnonzero(~same)[0])
        name, where = self.intrinsic.operands[-1].name, None
        for index in np.ndindex(*[int(str(n)) for n in self.intrinsic.meaning.shape]):
            if self.places[-1].offset + sum(i * s for i, s in zip(index, self.places[-1].strides)) == bad:
                where = f"{name}[{', '.join(map(str, index))}]"
                break
        raise ScheduleError(
            f"the {self.form} code of intrinsic '{self.intrinsic.name}' disagrees with its meaning",
            where=f"{where or f'{abs(bad - self.places[-1].offset)} elements beside the start of {name}, outside of it'} ({how})",
            why=f"the {'meaning' if where else 'value before'} is {expected[bad]}, the code gives {got[bad]}; {int((~same).sum())} elements differ",
        )


def _lay(intrinsic: Intrinsic, k: int, wide: bool, rng: np.random.Generator) -> _Place:
    operand, tensor = intrinsic.operands[k], intrinsic.tensors[k]
    shape = [int(str(d)) for d in tensor.shape]
    asked: Sequence[int | None] = operand.strides if operand.strides is not None else intrinsic.dense(k)
    strides: list[int] = [s or 0 for s in asked]
    reach = 1 + sum(abs(s) * (n - 1) for s, n in zip(asked, shape) if s is not None)
    for d in reversed(range(len(shape))):
        if asked[d] is None:
            strides[d] = reach + (int(rng.integers(1, 4)) if wide else 0)
            reach += strides[d] * (shape[d] - 1)
    unit = max(1, operand.align // tensor.dtype.scalar.bytes)
    offset = unit * int(rng.integers(1, 4))
    return _Place(offset, tuple(strides), offset + reach + 3)


def _copy(name: str, to: Buffer, source: Buffer, size: int) -> Stmt:
    v, i = Var(f"{name}_copied", dt.int64), Var(f"{name}_element", dt.int64)
    return For(v, const(size), Block(name, (BlockIter(i, const(size)),), (v,), Store(to, (i,), Load(source, (i,)))))


def _moved(program: Program, copies: Mapping[str, Intrinsic]) -> Program:
    """The program with its copies made by the instruction that can, where one can."""
    for block in blocks_in(program.body):
        for name in copies:
            try:
                program, _ = apply_primitive(program, "tensorize", (block.name, name), {}, copies)
                break
            except ScheduleError:
                continue
    return program


def _values(kind: str, dtype: DType, size: int, rng: np.random.Generator) -> Array:
    if dtype.is_bool:
        return {"greatest": np.ones(size, bool), "least": np.zeros(size, bool)}.get(kind, rng.integers(0, 2, size).astype(bool))
    if dtype.is_integer:
        least, greatest = int_range(dtype)
        if kind == "random":
            return rng.integers(least, greatest, size, dtype=dtype.numpy if dtype.bits >= 8 else np.int64, endpoint=True).astype(dtype.numpy)
        pool = {"extreme": [least, greatest, 0, 1, greatest - 1], "greatest": [greatest], "least": [least]}[kind]
        return np.array(pool, dtype.numpy)[rng.integers(0, len(pool), size)]
    scale = {"random": 1.0, "extreme": 0.0, "greatest": 16.0, "least": 2.0**-6}[kind]
    values = rng.standard_normal(size) * scale if scale else rng.integers(-8, 9, size)
    return values.astype(dtype.numpy)


def cases(intrinsic: Intrinsic, seed: int = 0) -> Iterator[Program]:
    """The programs that `check_intrinsic` runs, for those who want to look at their code."""
    rng = np.random.default_rng(seed)
    for form in ("compute", "reset", "update"):
        if intrinsic.code(form) is not None:
            yield _Case.make(intrinsic.examples()[-1], form, False, rng).program
