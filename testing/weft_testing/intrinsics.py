"""`check_intrinsic(intrinsic)`: whether the code of a tensor intrinsic does what its meaning says, on random data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.errors import ScheduleError
from weft.expr.nodes import Const, Expr, Var, const
from weft.kernel import KernelSchedule, build
from weft.loop.nodes import Allocate, Block, BlockIter, Buffer, For, Let, Load, Program, Stmt, Store, seq
from weft.loop.verify import verify
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling.intrinsic import Form, Intrinsic, OperandView, meanings
from weft.scheduling.primitives import apply_primitive
from weft.scheduling.tree import blocks_in
from weft.tensor.evaluate import evaluate
from weft_interpreter.interpret import interpret
from weft_testing.operands import Array, Place, compare, lay, shape_of, values
from weft_testing.warps import WarpCase, in_fragments
from weft_testing.warps import copies as moves

Run: TypeAlias = Callable[[Program], Callable[[Mapping[str, Array]], Array]]
"""Compiles a program for somewhere and gives what runs it there: inputs by name → its one output."""

DATA = ("random", "extreme", "greatest", "least")


def check_intrinsic(
    intrinsic: Intrinsic,
    target: str | ResolvedTarget | None = None,
    *,
    run: Run | None = None,
    copies: Iterable[Intrinsic] = (),
    warp: int = 0,
    seed: int = 0,
) -> int:
    """Compares each of the intrinsic's codes with its meaning: on random and extreme data, at offsets that the
    alignment allows, with row-major and, where the declaration allows them, wider strides, at least and great lengths
    (dynamic ones as variables), with numbers for operands; what lies beside the result must stay as it was.

    Args:
        target: compile and run the code there, too; without it (and without `run`) it is interpreted only.
        run: what compiles and runs a program, for what no target string names.
        copies: the target's intrinsics, where its code generator takes no plain loops: those that copy bring the data
            to and from the intrinsic's memories. Where there are warps, all that fill and show fragments.
        warp: threads of a warp, for instructions of warps: they are tried by all the threads of two.

    Returns:
        How many comparisons were made.

    Integers must agree exactly; floats within 4 · (length of the reduction + 1) units in the last place of the greatest
    result.

    Raises:
        ScheduleError: the code disagrees; names the intrinsic, the element and both values.
        CodegenError: what it is tried in does not compile; or it works in fragments that no other intrinsic fills and
            shows.
    """
    rng = np.random.default_rng(seed)
    every = {i.name: i for i in copies}
    movers = {name: i for name, i in every.items() if moves(i)}
    warps = warp > 1 and in_fragments(intrinsic)
    functions = meanings({**(every if warps else movers), intrinsic.name: intrinsic}.values())
    places: list[tuple[str, Run]] = [
        ("interpreted", lambda p: lambda arrays: interpret(p, arrays, intrinsics=functions)[p.outputs[0].name])
    ]
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
            for wide, number in [(False, None), (True, None)] if warps else _ways(example, form):
                case: _Case | WarpCase
                if warps:
                    case = WarpCase.make(example, form, wide, rng, every.values(), warp)
                else:
                    case = _Case.make(
                        example, form, wide, rng, number, movers, [v in intrinsic.dynamic for v in intrinsic.lengths]
                    )
                ready = [(place, make(case.program)) for place, make in places]
                for kind in DATA:
                    arrays = case.data(kind, rng)
                    expected = case.expected(arrays)
                    for place, execute in ready:
                        case.compare(
                            execute(arrays),
                            expected,
                            f"{place}, {'wide' if wide else 'least'} strides, {kind} data{size}",
                        )
                        count += 1
    return count


def _ways(intrinsic: Intrinsic, form: Form) -> list[tuple[bool, int | None]]:
    """Whether strides are wide, and which operand is a number."""
    free = any(None in (o.strides or ()) for o in intrinsic.operands)
    numbers = [k for k, o in enumerate(intrinsic.operands[:-1]) if o.number] if form != "reset" else []
    return [(False, None), *([(True, None)] if free else []), *((False, k) for k in numbers)]


def _compiled(target: ResolvedTarget) -> Run:
    def make(program: Program) -> Callable[[Mapping[str, Array]], Array]:
        kernel = build(KernelSchedule(program, target))
        return lambda arrays: np.asarray(kernel(*(arrays[b.name] for b in program.inputs)))

    return make


@dataclass(frozen=True)
class _Case:
    intrinsic: Intrinsic
    form: Form
    used: tuple[int, ...]
    places: tuple[Place, ...]
    program: Program
    numbers: Mapping[int, float]

    @staticmethod
    def make(
        intrinsic: Intrinsic,
        form: Form,
        wide: bool,
        rng: np.random.Generator,
        number: int | None = None,
        copies: Mapping[str, Intrinsic] | None = None,
        dynamic: Sequence[bool] = (),
    ) -> _Case:
        last = len(intrinsic.operands) - 1
        used = (last,) if form == "reset" else tuple(k for k in range(last + 1) if k != number)
        numbers = (
            {} if number is None else {number: values("extreme", intrinsic.tensors[number].dtype, 1, rng)[0].item()}
        )
        places = tuple(lay(intrinsic, k, wide, rng) for k in used)
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
        told = {k: Var(f"length_{k}", dt.int64) for k, d in enumerate(dynamic) if d}
        stmt = intrinsic.emit(
            form, *views, lengths=[told[k] if k in told else const(n) for k, n in enumerate(intrinsic.given)]
        )
        for k, length in told.items():
            stmt = Let(length, const(intrinsic.given[k]), stmt)
        body = seq(*before, stmt, *after)
        for b in allocated:
            body = Allocate(b, body)
        program = Program(f"{intrinsic.name}_{form}", tuple(inputs), (out,), (), body)
        verify(program)
        return _Case(intrinsic, form, used, places, _moved(program, copies or {}), numbers)

    def data(self, kind: str, rng: np.random.Generator) -> dict[str, Array]:
        bits = [self.intrinsic.operands[k].bits for k in self.used]
        return {
            b.name: values(kind, b.dtype, p.size, rng, n) for b, p, n in zip(self.program.inputs, self.places, bits)
        }

    def _view(self, k: int, array: Array) -> Array:
        return self.places[k].view(array, shape_of(self.intrinsic, self.used[k]))

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
        steps = 1
        for _, n, kind in self.intrinsic.axes:
            steps *= n if kind == "reduce" else 1
        of = "".join(f", {self.intrinsic.operands[k].name} = {value}" for k, value in self.numbers.items())
        compare(self.intrinsic, self.form, got, expected, [(self.places[-1], 0)], steps, how + of)


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


def cases(intrinsic: Intrinsic, seed: int = 0) -> Iterator[Program]:
    """The programs that `check_intrinsic` runs, for those who want to look at their code."""
    rng = np.random.default_rng(seed)
    for form in ("compute", "reset", "update"):
        if intrinsic.code(form) is not None:
            yield _Case.make(intrinsic.examples()[-1], form, False, rng).program
