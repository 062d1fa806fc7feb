from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from tests.loop.programs import EXAMPLES, N, loops, programs, reduction, spatial

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr import nodes as e
from weft.expr.nodes import Broadcast, Ramp, Var, const
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    Evaluate,
    For,
    If,
    Let,
    Load,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    While,
    buffer,
    int64,
)
from weft.loop.parser import parse_program
from weft.loop.verify import verify
from weft.tensor.language import placeholder

x, y, z = buffer("x", (4,), dt.float32), buffer("y", (4,), dt.float32), buffer("z", (4, 4), dt.float32)
i, j, one, zero = Var("i"), Var("j"), const(1.0), int64(0)
store = Store(y, (zero,), one)


def message(body: Stmt, **changes: Any) -> str:
    program = Program(**{"name": "p", "inputs": (x,), "outputs": (y, z), "dims": (N,), "body": body, **changes})
    with pytest.raises(LoopError) as caught:
        verify(program)
    return str(caught.value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_well_formed(name: str) -> None:
    verify(EXAMPLES[name]())


@settings(max_examples=40, deadline=None)
@given(programs())
def test_random_programs_are_well_formed(program: Program) -> None:
    verify(program)


def test_the_place_is_marked() -> None:
    assert (
        message(For(i, int64(4), Store(y, (Var("qq"),), x[i])))
        == "verify: variable 'qq' is used before it is defined\n"
        "  program p(x: float32[4]) -> (y: float32[4], z: float32[4, 4]) dims(n) {\n"
        "    for i in 4 {\n"
        "      y[qq] = x[i]  # <-- here\n"
        "    }\n"
        "  }"
    )


FILL = Store(y, (Var("v"),), one)


def block(
    name: str = "b",
    iters: tuple[BlockIter, ...] = (spatial("v", 4),),
    bindings: Any = (zero,),
    body: Stmt = FILL,
    **more: Any,
) -> Block:
    return Block(name, iters, bindings, body, **more)


F32 = Var("f", dt.float32)
CASES: dict[str, tuple[Stmt, str]] = {
    "loop twice": (Seq((For(i, int64(4), store), For(i, int64(4), store))), "the variable name 'i' is used twice"),
    "loop like a dim": (For(N, int64(4), store), "the variable name 'n' is used twice"),
    "let like a loop": (For(i, int64(4), Let(i, zero, store)), "the variable name 'i' is used twice"),
    "iterator like a loop": (For(i, int64(4), block(iters=(spatial("i", 4),), body=store)),
        "the variable name 'i' is used twice"),
    "iterator twice": (block(iters=(spatial("v", 4), spatial("v", 4)), bindings=(zero, zero)),
        "the variable name 'v' is used twice"),
    "loop like an iterator": (Seq((block(), For(Var("v"), int64(4), store))), "the variable name 'v' is used twice"),
    "block twice": (Seq((block(), block())), "the block name 'b' is used twice"),
    "buffer twice": (Allocate(buffer("y", (1,), "int8"), store), "the buffer name 'y' is used twice"),
    "allocation twice": (Seq((Allocate(buffer("t", (1,), "int8"), store), Allocate(buffer("t", (1,), "int8"), store))),
        "the buffer name 't' is used twice"),
    "undefined": (Store(y, (i,), one), "variable 'i' is used before it is defined"),
    "ended": (Seq((For(i, int64(4), store), Store(y, (i,), one))),
        "why: it is defined elsewhere, and ends with its body"),
    "extent of itself": (For(i, i, store), "variable 'i' is used before it is defined"),
    "misspelt": (Let(Var("total"), zero, Store(y, (Var("totl"),), one)), "did you mean 'total'?"),
    "other dtype": (For(i, int64(4), Store(y, (Var("i", dt.int32),), one)), "variable 'i' is int64, used as int32"),
    "no buffer": (Store(buffer("t", (4,), dt.float32), (zero,), one), "buffer 't' does not exist here"),
    "misspelt buffer": (Allocate(buffer("total", (4,), dt.float32), Store(buffer("totl", (4,), dt.float32), (zero,),
        one)), "did you mean 'total'?"),
    "ended buffer": (
        Seq((Allocate(t := buffer("t", (4,), dt.float32), store), Store(y, (zero,), t[0]))),
        "why: it is allocated elsewhere, and ends with its body",
    ),
    "another buffer": (Store(y, (zero,), buffer("x", (5,), dt.float32)[0]),
        "why: used as x: float32[5], defined as x: float32[4]"),
    "another scope": (Store(Buffer("y", y.shape, y.dtype, "local"), (zero,), one),
        "buffer 'y' is used as another than the one defined"),
    "rank of a store": (Store(z, (zero,), one), "buffer 'z' has 2 dimension(s), indexed with 1"),
    "float index": (Store(y, (one,), one), "index 0 of 'y' is float32, no integer\n"),
    "lanes of indices": (Store(z, (Ramp(zero, int64(1), 2), Ramp(zero, int64(1), 4)), Broadcast(one, 4)),
        "the indices of 'z' have 2 and 4 lanes"),
    "vector of vectors": (
        Allocate(v := Buffer("v", (int64(4),), dt.float32.with_lanes(4)), Store(v, (Ramp(zero, int64(1), 4),),
            Broadcast(one, 4))),
        "buffer 'v' holds vectors and is indexed by a vector",
    ),
    "predicate of a load": (Store(y, (zero,), Load(x, (zero,), Broadcast(const(True), 4))),
        "the predicate of an access to 'x' is boolx4, expected bool"),
    "predicate of a store": (Store(y, (zero,), one, int64(1)),
        "the predicate of an access to 'y' is int64, expected bool"),
    "dtype of a store": (Store(y, (zero,), int64(3)), "a value of dtype int64 is stored to 'y', expected float32"),
    "lanes of a store": (Store(y, (Ramp(zero, int64(1), 4),), one),
        "a value of dtype float32 is stored to 'y', expected float32x4"),
    "dtype of an atomic": (AtomicUpdate(y, (zero,), "add", int64(3)),
        "a value of dtype int64 is stored to 'y', expected float32"),
    "input stored to": (Store(x, (zero,), one), "input 'x' is stored to"),
    "input updated": (AtomicUpdate(x, (zero,), "add", one), "input 'x' is stored to"),
    "input written by a region": (block(writes=(Region(x, ((zero, int64(1)),)),)),
        "block 'b' says that it writes an input"),
    "rank of a region": (block(reads=(Region(z, ((zero, int64(1)),)),)),
        "block 'b' gives a region of 1 dimension(s) for 'z', which has 2"),
    "dtype of a region": (block(reads=(Region(x, ((one, int64(1)),)),)),
        "the region of 'x' is float32, expected an integer"),
    "while": (While(zero, store), "the condition of a while is int64, expected bool"),
    "if": (If(Broadcast(const(True), 4), store), "the condition of an if is boolx4, expected bool"),
    "block predicate": (block(predicate=zero), "the predicate of block 'b' is int64, expected bool"),
    "let": (Let(F32, zero, store), "let 'f' is float32, its value int64"),
    "loop variable": (For(F32, int64(4), store), "loop variable 'f' is float32, no integer"),
    "loop kind": (For(i, int64(4), store, "vectorised"), "did you mean 'vectorized'?"),  # type: ignore[arg-type]
    "loop extent": (For(i, const(4, "int32"), store), "the extent of loop 'i' is int32, expected int64"),
    "vectorized": (For(i, N, store, "vectorized"), "vectorized loop 'i' has the extent n, no constant"),
    "allocation": (Allocate(Buffer("t", (one,), dt.float32), store),
        "a dimension of 't' is float32, expected an integer"),
    "handles": (Allocate(Buffer("t", (int64(1),), dt.handle), store), "buffer 't' holds elements of dtype handle"),
    "iterator kind": (block(iters=(BlockIter(Var("v"), int64(4), "other"),)),
        "iterator 'v' is of unknown kind 'other'"),  # type: ignore[arg-type]
    "iterator dtype": (block(iters=(BlockIter(F32, int64(4)),), body=store), "iterator 'f' is float32, no integer"),
    "iterator extent": (block(iters=(BlockIter(Var("v"), one),)),
        "the extent of iterator 'v' is float32, expected int64"),
    "binding": (block(bindings=(one,)), "the binding of iterator 'v' is float32, expected int64"),
    "binding count": (block(bindings=()), "block 'b' has 1 iterator(s) and 0 binding(s)"),
    "loop inside a block": (For(i, int64(4), block(bindings=(i,), body=Store(y, (i,), one))),
        "the body of block 'b' uses 'i', a loop around the block"),
    "atomic operation": (AtomicUpdate(y, (zero,), "mul", one),
        "unknown atomic operation 'mul'"),  # type: ignore[arg-type]
    "evaluate": (Evaluate(zero), "a formula without effects is evaluated"),  # type: ignore[arg-type]
    "tensor language": (Store(y, (zero,), placeholder((4,), name="A")[0]), "'A[0]' belongs to the tensor language"),
    "statement": (Stmt(), "a Stmt is no statement"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_violations(name: str) -> None:
    body, expected = CASES[name]
    text = message(body)
    assert expected in text
    assert "# <-- here" in text or name in ("binding count", "statement")


def test_violations_of_the_signature() -> None:
    assert "dim 'd' is float32, no integer" in message(store, dims=(Var("d", dt.float32),))
    assert "'y' is a parameter in register scope" in message(
        store, outputs=(Buffer("y", (int64(4),), dt.float32, "register"),)
    )
    assert "the program has no output" in message(Seq(()), outputs=())
    assert "alias 2 = 0 names no output or no input" in message(store, aliases=((2, 0),))
    text = message(store, inputs=(Buffer("x", (int64(5),), dt.float32),), aliases=((0, 0),))
    assert (
        "alias 0 = 0 joins what cannot be one memory" in text
        and "the output is y: float32[4], the input x: float32[5]" in text
    )
    assert "hint: give both one dtype and one shape" in text
    assert "variable 'q' is used before it is defined" in message(store, inputs=(buffer("x", (Var("q"),), dt.float32),))
    assert "the buffer name 'y' is used twice" in message(store, inputs=(y,))


def test_scopes_that_are_allowed() -> None:
    side_by_side = Seq((loops(block("a", bindings=(i,)), ("i", 4)), loops(block("b", bindings=(j,)), ("j", 4))))
    lets = Let(
        Var("t"), N, For(i, int64(4), block(bindings=(i,), body=Store(y, (Var("v"),), e.cast_to(Var("t"), dt.float32))))
    )
    inside = For(
        i, int64(4), block(bindings=(i,), body=For(j, int64(1), Store(y, (Var("v") + j,), one)), predicate=i < N)
    )
    for body in (side_by_side, lets, inside):
        verify(Program("p", (x,), (y,), (N,), body))


# -- races


def races(text: str) -> str | None:
    try:
        verify(parse_program("program p(x: float32[8], at: int64[8]) -> (y: float32[8]) dims(n) { " + text + " }"))
    except LoopError as error:
        return str(error)
    return None


RACES = (
    "for i in 8 parallel { y[0] = x[i] }",
    "for i in n threadIdx.x { y[n] = x[i] }",
    "for i in 8 vectorized { y[0] = y[0] + 1.0f32 }",
    "for i in 8 parallel { for j in 8 { y[j] = y[j] + x[i] } }",
    (
        "for i in 8 { for k in 4 parallel { block b(s: 8 = i, r: reduce 4 = k) { init { y[s] = 0.0f32 } y[s] = y[s] +"
        " x[r] } } }"
    ),
    "for i in 8 parallel { let t: int64 = i*2 y[at[3]] = x[t//2] }",
    "for i in 8 parallel { if n < 3 { y[0] = x[i] } }",
    "for i in 8 parallel { allocate t: float32[1] t[0] = x[i] y[0] = t[0] }",
)
FREE = (
    "for i in 8 parallel { y[i] = x[i] }",
    "for i in 8 parallel { y[at[i]] = x[i] }",
    "for i in 8 parallel { let t: int64 = i y[t] = x[i] }",
    "for i in 8 parallel { if i < 1 { y[0] = x[i] } }",
    "for i in 8 parallel { y[0; i < 1] = x[i] }",
    "for i in 8 parallel { block b(s: 8 = i) where i < 1 { y[0] = x[s] } }",
    "for i in 8 parallel { while x[i] < y[0] { y[0] = x[i] } }",
    "for i in 8 parallel { y[0] = x[0] }",
    "for i in 8 parallel { atomic y[0] += x[i] }",
    "for i in 1 parallel { y[0] = x[i] }",
    "for i in 8 { y[0] = x[i] }",
    "for i in 8 parallel { allocate t: float32[1] t[0] = 0.0f32 for j in 8 { t[0] = t[0] + x[j] } y[i] = t[0] }",
    "for i in 8 parallel { allocate t: int64[1] t[0] = i y[t[0]] = x[i] }",
    "for i in 8 { allocate t: float32[1] t[0] = x[i] for j in 8 parallel { y[0] = t[0] } }",
)


@pytest.mark.parametrize("text", RACES)
def test_certain_races(text: str) -> None:
    found = races(text)
    assert found is not None and "store different values to the same element of 'y'" in found and "# <-- here" in found
    assert "(rfactor)" in found


@pytest.mark.parametrize("text", FREE)
def test_no_certain_race(text: str) -> None:
    assert races(text) is None


def test_init_of_a_parallel_reduction_is_not_what_races() -> None:
    v, r = Var("v"), Var("r")
    b = Block(
        "b",
        (spatial("v", 4), reduction("r", 4)),
        (i, j),
        AtomicUpdate(y, (v,), "add", x[r]),
        init=Store(y, (v,), x[r] * 0.0),
    )
    verify(Program("p", (x,), (y,), (), For(i, int64(4), For(j, int64(4), b, "parallel"))))
