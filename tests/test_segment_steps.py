"""Steps of segments, executed here one by one: formulas mean what the reference evaluator says, every value is assigned
once and used where it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.codegen import steps as sp
from weft.codegen.build_segment import build_segment
from weft.codegen.segment import (
    AllocateOutput,
    Arena,
    BindData,
    Check,
    Constant,
    Data,
    Input,
    InputDim,
    KernelCall,
    Output,
    SegmentSpec,
    Symbol,
    Tensor,
)
from weft.errors import CodegenError, ExprError
from weft.expr import nodes as ex
from weft.expr.evaluate import evaluate
from weft_runtime.abi import type_word

MASK = (1 << 64) - 1


def signed(n: int) -> int:
    return (n & MASK) - (((n >> 63) & 1) << 64)


def truncated(a: int, b: int) -> int:
    assert b != 0 and (a, b) != (-(1 << 63), -1), "what processors trap on"
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def shift(n: int) -> int:
    assert 0 <= n < 64
    return n


MEANINGS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: signed(a + b), "sub": lambda a, b: signed(a - b), "mul": lambda a, b: signed(a * b),
    "div": truncated,
    "rem": lambda a, b: a - b * truncated(a, b), "udiv": lambda a, b: signed((a & MASK) // (b & MASK)),
    "urem": lambda a, b: signed((a & MASK) % (b & MASK)),
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a,
    b: signed(a << shift(b)),
    "shr": lambda a, b: a >> shift(b),
    "ushr": lambda a, b: signed((a & MASK) >> shift(b)), "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "ult": lambda a, b: (a & MASK) < (b & MASK),
    "ule": lambda a, b: (a & MASK) <= (b & MASK), "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "both": lambda a, b: a and b,
    "either": lambda a, b: a or b, "not": lambda a: not a, "int": int, "select": lambda c, a, b: a if c else b,
}  # fmt: skip


class Ended(Exception):
    """The run ends with a code and its arguments."""


class Machine:
    """Executes steps. Pointers are lists, dicts of fields, or (list, bytes from its begin)."""

    def __init__(
        self,
        inputs: list[dict[str, Any]],
        outputs: list[dict[str, Any]],
        constants: Iterable[Any] = (),
        threads: int = 0,
    ) -> None:
        self.ctx = {"constants": list(constants), "threads": threads, "arena": "none", "arena_bytes": 0}
        self.calls: list[tuple[str, list[Any], list[int]]] = []
        self.kernel: Callable[[str, list[Any], list[int]], int] = lambda *_: 0
        self.scope: dict[str, Any] = {"ctx": self.ctx, "in": inputs, "out": outputs}

    def run(self, steps: sp.Steps) -> None:
        assert tuple(sp.OPERATIONS) and {s.op for s in steps.walk() if isinstance(s, sp.Compute)} <= MEANINGS.keys()
        names = [
            v.name
            for s in steps.walk()
            for v in (getattr(s, "result", None), getattr(s, "beyond", None))
            if v is not None
        ]
        assert len(names) == len(set(names)), "a value is assigned twice"
        self.scope |= {"buffers": [None] * steps.buffers, "dims": [0] * steps.dims}
        self.block(steps.body)

    def block(self, steps: Iterable[sp.Step]) -> None:
        for step in steps:
            if isinstance(step, sp.If):
                outer, self.scope = self.scope, dict(self.scope)
                self.block(step.then if self.of(step.cond) else step.orelse)
                self.scope = outer
            else:
                self.step(step)

    def of(self, operand: sp.Operand) -> Any:
        return self.scope[operand.name] if isinstance(operand, sp.Value) else operand

    def step(self, step: sp.Step) -> None:
        match step:
            case sp.Require(cond, code, args):
                if not self.of(cond):
                    raise Ended(code, [self.of(a) for a in args])
            case sp.StoreElement(base, _, index, value):
                self.of(base)[index] = self.of(value)
            case sp.CallKernel(kernel, item):
                self.calls.append((kernel, list(self.scope["buffers"]), list(self.scope["dims"])))
                code = self.kernel(*self.calls[-1])
                if code:
                    raise Ended(6, [item, code])
            case _:
                self.scope[step.result.name] = self.value(step)

    def value(self, step: Any) -> Any:
        match step:
            case sp.Compute(_, op, operands):
                return MEANINGS[op](*map(self.of, operands))
            case sp.Checked(_, beyond, op, a, b):
                exact = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}[op](
                    self.of(a), self.of(b)
                )
                self.scope[beyond.name] = signed(exact) != exact
                return signed(exact)
            case sp.LoadField(_, base, _, field):
                return self.of(base)[field]
            case sp.TypeWord(_, tensor):
                return self.of(tensor)["word"]
            case sp.LoadElement(_, base, _, index):
                return self.of(base)[index]
            case sp.Advance(_, base, bytes_):
                return (self.of(base), self.of(bytes_)) if self.of(bytes_) else self.of(base)
            case sp.AllocateArena(_, bytes_):
                self.ctx |= {"arena": "arena", "arena_bytes": self.of(bytes_)}
                return "arena"
            case sp.AllocateStorage(_, output, rank):
                self.scope["out"][output] |= {"data": f"room {self.scope['dims'][:rank]}"}
                return 0
        raise AssertionError(step)


def tensor(dtype: str, *sizes: int, data: Any = "x") -> dict[str, Any]:
    return {"word": type_word(dtype, len(sizes)), "shape": list(sizes), "data": data, "byte_offset": 0}


A, B = ex.Var("a"), ex.Var("b")
KINDS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")


def formulas() -> st.SearchStrategy[ex.Expr]:
    """Of all integer dtypes, cast to int64."""
    leaves = st.one_of(
        st.sampled_from([A, B]),
        st.integers(-300, 300).map(ex.const),
        st.sampled_from([ex.const(v) for v in (1 << 40, -(1 << 63), 7, 8)]),
    )
    pairs = [
        ex.BitAnd, ex.BitOr, ex.BitXor, ex.Min, ex.Max, ex.FloorDiv, ex.FloorMod, ex.TruncDiv, ex.TruncMod, ex.Add,
        ex.Sub, ex.Mul, ex.ShiftLeft,
        ex.ShiftRight,
    ]  # fmt: skip

    def grow(inner: st.SearchStrategy[ex.Expr]) -> st.SearchStrategy[ex.Expr]:
        narrow = st.tuples(st.sampled_from(pairs), inner, inner, st.sampled_from(KINDS[:4] + KINDS[5:]))
        tests = st.tuples(st.sampled_from([ex.Lt, ex.Le, ex.Eq, ex.Ne]), inner, inner, st.sampled_from(KINDS))
        return st.one_of(
            narrow.map(lambda p: p[0](p[1].astype(p[3]), p[2].astype(p[3])).astype("int64")),
            tests.map(lambda p: p[0](p[1].astype(p[3]), p[2].astype(p[3])).astype("int64")),
            st.tuples(tests, inner, inner).map(lambda p: ex.select(p[0][0](p[0][1], p[0][2]), p[1], p[2])),
        )

    return st.recursive(leaves, grow, max_leaves=8)


def divides_by_zero(e: ex.Expr, env: dict[str, int]) -> bool:
    divisions = (ex.FloorDiv, ex.FloorMod, ex.TruncDiv, ex.TruncMod)
    try:
        return any(isinstance(n, divisions) and int(evaluate(n.b, env)) == 0 for n in ex.walk(e))
    except ExprError as error:  # a divisor divides by zero
        return "division by zero" in str(error)


@settings(deadline=None)
@given(formulas(), st.integers(-(1 << 40), 1 << 40), st.integers(-300, 300))
def test_formulas_mean_what_the_evaluator_says(e: ex.Expr, a: int, b: int) -> None:
    env = {"a": a, "b": b}
    with np.errstate(all="ignore"):
        if divides_by_zero(e, env):
            return
        wanted = int(evaluate(e, env))
    symbols = Symbol("a", InputDim(0, 0)), Symbol("b", InputDim(0, 1))
    spec = SegmentSpec(
        "f", (Tensor("x", dt.float32, (A, B)),), (), 0, symbols, (), (Check(ex.const(False), 100, (e,)),)
    )
    with pytest.raises(Ended) as ended:
        Machine([tensor("float32", a, b)], []).run(build_segment(spec))
    assert ended.value.args == (100, [wanted])


def spec() -> SegmentSpec:
    """y = x + c, with as many elements as d[1] says, by a kernel that has scratch."""
    n, m = ex.Var("n"), ex.Var("m")
    return SegmentSpec(
        "s", (Tensor("x", dt.float32, (n, ex.const(4))), Tensor("d", dt.int32, (ex.const(2),))), (Tensor("y",
            dt.float32, (m,)),), 1,
        (Symbol("n", InputDim(0, 0)), Symbol("m", Data(1, dt.int32, 1))), (Input(0), Input(1), Constant(0), Arena(n * 4,
            ex.const(8)), Output(0)),
        (Check(m <= n * 4, 101, (m,)), AllocateOutput(0, (m,)), KernelCall("add", (0, 2, 3, 4), (m, n))), n * 4 + 8,
    )  # fmt: skip


def test_a_segment() -> None:
    steps = build_segment(spec())
    assert (steps.kernels, steps.buffers, steps.dims) == (("add",), 4, 2)
    out = [{"data": None, "byte_offset": 0}]
    machine = Machine([tensor("float32", 5, 4), tensor("int32", 2, data=[0, 7])], out, ["c"])
    machine.run(steps)
    assert machine.calls == [("add", ["x", "c", ("arena", 20), "room [7]"], [7, 5])]
    assert machine.ctx["arena_bytes"] == 28


def ended(inputs: list[dict[str, Any]], out: dict[str, Any] | None = None, code: int = 0) -> tuple[int, list[Any]]:
    machine = Machine(inputs, [out or tensor("float32", 7)], ["c"])
    machine.kernel = lambda *_: code
    with pytest.raises(Ended) as found:
        machine.run(build_segment(spec()))
    return found.value.args  # type: ignore[return-value]


def test_what_does_not_fit_ends_the_run() -> None:
    x, d = tensor("float32", 5, 4), tensor("int32", 2, data=[0, 7])
    assert ended([tensor("float64", 5, 4), d]) == (1, [0, 2, type_word("float64", 0) >> 32])
    assert ended([tensor("float32", 5, 3), d]) == (2, [0, 1, 4, 3])
    assert ended([x, tensor("int32", 1, data=[0])]) == (2, [1, 0, 2, 1])
    assert ended([x, tensor("int32", 2, data=[0, 21])]) == (101, [21])
    assert ended([x, d], tensor("float32", 6)) == (3, [0, 0, 7, 6])
    assert ended([x, d], tensor("float32", 7, 1)) == (3, [0, -1, 1, 2])
    assert ended([x, d], code=9) == (6, [2, 9])
    assert ended([tensor("float32", 1 << 62, 4), d])[0] == 101, "a check fails where its condition leaves int64"


def test_a_spec_that_makes_no_sense_is_refused_once_for_all() -> None:
    with pytest.raises(CodegenError, match="'n' is no data symbol of segment 'bad'"):
        build_segment(SegmentSpec("bad", (), (), 0, (), (), (BindData("n"),)))
