import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.loop.programs import EXAMPLES, programs

from weft import dtypes as dt
from weft.errors import ParseError
from weft.expr.nodes import Var, const
from weft.loop.nodes import (
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
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
from weft.loop.parser import parse_program, parse_stmt
from weft.loop.verify import verify
from weft_interpreter.interpret import interpret


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_come_back(name: str) -> None:
    program = EXAMPLES[name]()
    again = parse_program(str(program))
    assert again == program
    assert str(again) == str(program)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_programs_come_back(program: Program) -> None:
    assert parse_program(str(program)) == program


x, y = buffer("x", (4,), dt.int64), buffer("y", (4, 4), dt.int64)
i, n = Var("i"), Var("n")
STATEMENTS: dict[str, Stmt] = {
    "empty": Seq(()),
    "empty loop": For(i, n, Seq(())),
    "for, of another dtype": For(Var("q", dt.int32), const(3, "int32"), Seq(()), "blockIdx.z", (("a", -1), ("b",
        'x\n"\\'), ("odd key", 0))),
    "while": While(x[0] < n, Store(x, (int64(0),), x[0] + 1)),
    "if else": If(x[0] < n, Seq(()), If(n < 0, Store(x, (n,), n))),
    "let before others": Seq((Let(Var("t"), n + 1, Store(x, (n,), Var("t"))), Store(x, (n,), n), Let(Var("u"), n,
        Seq(())))),
    "let of a let": Let(Var("t"), n + 1, Let(Var("u", dt.float32), const(1.0), Store(x, (n,), Var("t")))),
    "predicates": Store(y, (n, int64(0)), Load(x, (n,), n < 4), n < 3),
    "atomics": Seq((AtomicUpdate(x, (n,), "add", n), AtomicUpdate(y, (n, n), "min", n - 1), AtomicUpdate(x, (n,), "max",
        n))),
    "intrinsics": Seq((
        Evaluate(IntrinsicCall("go", ())), Evaluate(IntrinsicCall("dot", (x[n], n * 2), dt.int32)), Store(x, (n,),
            IntrinsicCall("f", (n,), dt.int64)),
    )),
    "regions": Block("b", (), (), Seq(()), reads=(Region(y, ((n, int64(1)), (int64(0), n))), Region(x, ((n, n),))),
        writes=()),
    "iterators": Block(
        "b", (BlockIter(Var("p", dt.int32), const(4, "int32"), "scan"), BlockIter(Var("q"), n, "reduce")), (const(1,
            "int32"), n), Seq(()), Seq(()), n < 3
    ),
    "odd names": Block("conv 2d/1", (BlockIter(Var("for"), Var("reduce")),), (Var("not"),), Store(Buffer("if", (n,),
        dt.int64), (Var("for"),), n)),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_come_back(name: str) -> None:
    stmt = STATEMENTS[name]
    variables = {v: Var(v) for v in ("n", "reduce", "not")}
    assert parse_stmt(str(stmt), variables, {"x": x, "y": y, "if": Buffer("if", (n,), dt.int64)}) == stmt


def test_the_example_of_the_architecture() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("    program ") and line.endswith("{"))
    text = textwrap.dedent("\n".join(lines[start : lines.index("    }", start) + 1]))
    program = parse_program(text)
    assert str(program) == text
    verify(program)
    x, w = np.ones((17, 32), np.float32), np.ones((32, 16), np.float32)
    np.testing.assert_array_equal(interpret(program, [x, w])["y"], x @ w)


def test_dims_of_another_dtype_and_comments() -> None:
    p = parse_program(
        "program p(dims: int8[n], x: int8[4]) -> (y: float32[2]) dims(n as int32, m) aliases(0 = 1) { y[0] = 1.0f32 #"
        " <-- here\n y[1] = 2.0f32 }"
    )
    assert (
        p.dims == (Var("n", dt.int32), Var("m"))
        and p.inputs[0].shape == (Var("n", dt.int32),)
        and p.aliases == ((0, 1),)
    )
    assert isinstance(p.body, Seq) and len(p.body.stmts) == 2


def test_a_let_takes_the_dtype_of_its_value() -> None:
    assert parse_stmt("let t = 1.5f32 y[0] = t", {}, {"y": buffer("y", (1,), dt.float32)}) == Let(
        Var("t", dt.float32), const(1.5), Store(buffer("y", (1,), dt.float32), (int64(0),), Var("t", dt.float32))
    )


HEAD = "program p(x: float32[4]) -> (y: float32[4]) dims(n) {"
ERRORS = {
    "program p(": "expected the name of a buffer, got the end of the text\n  line 1, column 11",
    "programme p": "expected 'program', got 'programme'",
    "program p(x: floaty[4]) -> () {}": "unknown dtype 'floaty'",
    f"{HEAD}}} more": "unexpected 'more' after the program",
    f"{HEAD}\n  y[i] = x[0]\n}}": "unknown variable 'i'\n  line 2, column 5\n    y[i] = x[0]\n      ^",
    f"{HEAD} z[0] = x[0] }}": "unknown buffer 'z'",
    f"{HEAD} y[0, 1] = x[0] }}": "buffer 'y' has 1 dimension(s), indexed with 2\n  line 1, column 55",
    f"{HEAD} y[0] = x[0, 1] }}": "buffer 'x' has 1 dimension(s), indexed with 2\n  line 1, column 62",
    f"{HEAD} y[x[0, n]] = x[0] }}": "buffer 'x' has 1 dimension(s), indexed with 2",
    f"{HEAD} y[0] = 1 + 1.0f32 }}": "operands of '+' differ in dtype: int64 and float32",
    f"{HEAD} fro i in 4 {{}} }}": "expected a statement, got 'fro'",
    f"{HEAD} for i in 4 paralel {{}} }}": "unknown kind of loop 'paralel'",
    f"{HEAD} for i in 4 @ a=b {{}} }}": "expected an integer or a string, got 'b'",
    f"{HEAD} atomic y[0; true] += x[0] }}": "an atomic update has no predicate",
    f"{HEAD} atomic y[0] -= x[0] }}": "expected '+=', 'min=' or 'max=', got '-'",
    f"{HEAD} if y[0] < {{ }}": "expected a formula",
    f"{HEAD} for i in 4 {{": "expected '}', got the end of the text",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert ERRORS[text] in str(caught.value)


def test_error_hints() -> None:
    with pytest.raises(ParseError, match="did you mean 'parallel'"):
        parse_stmt("for i in 4 paralel {}")
    with pytest.raises(ParseError, match="did you mean 'for'"):
        parse_stmt("fro i in 4 {}")
    with pytest.raises(ParseError, match="did you mean 'acc'"):
        parse_stmt("ac[0] = 1", {}, {"acc": x})
    with pytest.raises(ParseError, match="expected a statement, got '}'"):
        parse_stmt("x[0] = 1 }", {}, {"x": x})
