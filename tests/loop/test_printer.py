import pytest
from tests.loop.programs import N, guarded, histogram, matmul, opaque, row_sums, vectorized

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.nodes import Var, const
from weft.loop.nodes import Block, Buffer, For, Let, Program, Seq, Stmt, Store, buffer, int64, walk_stmts
from weft.loop.printer import excerpt, print_buffer, print_program, print_stmt


def test_blocks() -> None:
    assert (
        print_program(matmul(dtype="int32"))
        == """\
program matmul(A: int32[4, 5], B: int32[5, 6]) -> (C: int32[4, 6]) {
  for i in 4 {
    for j in 6 {
      for k in 5 {
        block matmul(vi: 4 = i, vj: 6 = j, vk: reduce 5 = k) @ op="MatMul" {
          init { C[vi, vj] = 0i32 }
          C[vi, vj] = C[vi, vj] + A[vi, vk]*B[vk, vj]
        }
      }
    }
  }
}"""
    )


def test_predicates_kinds_and_annotations() -> None:
    assert (
        str(guarded())
        == """\
program guarded(x: int32[n]) -> (y: int32[n]) dims(n) {
  for io in (n + 3)//4 parallel {
    for ii in 4 unrolled @ factor=4, pragma="a \\"quoted\\" name" {
      block double(b: n = io*4 + ii) where io*4 + ii < n {
        y[b] = x[b]*2i32
      }
    }
  }
}"""
    )


def test_definitions_need_braces_only_before_other_statements() -> None:
    text = str(opaque())
    assert "    allocate tile: float32[4] in scratchpad align 128 {\n" in text
    assert (
        '      block load(b: 2 = i) reads(x[b*4 for 4]) writes(tile[0 for 4]) @ role="cache" {\n        @copy4(tile[0],'
        " x[b*4])\n" in text
    )
    assert "    block done() reads() writes() {\n" in text
    assert "    allocate acc: float32[] in register\n    acc[] = 0.0f32\n" in str(row_sums())


def test_vectors_and_aliases() -> None:
    text = str(vectorized())
    assert "aliases(0 = 0) {" in text
    assert "let v: float32x4 = x[ramp(io*4, 1, 4); ramp(io*4, 1, 4) < broadcast(n, 4)]*broadcast(s[0], 4)\n" in text
    assert "y[ramp(io*4, 1, 4); ramp(io*4, 1, 4) < broadcast(n, 4)] = v + broadcast(1.0f32, 4)" in text


def test_atomic() -> None:
    assert "    atomic y[x[i]%4] += 1i32\n" in str(histogram())


def test_other_dtypes_of_variables() -> None:
    y, i = buffer("y", (4,), dt.int32), Var("i", dt.int32)
    stmt = For(i, const(4, "int32"), Let(Var("t", dt.int32), i, Store(y, (i,), Var("t", dt.int32))), "threadIdx.x")
    assert print_stmt(stmt) == "for i as int32 in 4i32 threadIdx.x {\n  let t: int32 = i\n  y[i] = t\n}"


def test_buffer() -> None:
    assert (
        print_buffer(Buffer("a b", (N, int64(4)), dt.float16, "shared", 32))
        == "`a b`: float16[n, 4] in shared align 32"
    )


def test_marks() -> None:
    p = matmul()
    text = print_stmt(p.body, {"i": "already bound to threadIdx.x", "matmul": "this one"})
    assert "for i in 4 {  # <-- already bound to threadIdx.x\n" in text
    assert '@ op="MatMul" {  # <-- this one\n' in text
    assert text.count("# <--") == 2
    assert "    for k in 5 {  # <-- here\n" in print_stmt(p.body, frozenset({"k"}))
    assert print_stmt(p.body, "k") == print_stmt(p.body, ["k"])
    store = next(s for s in walk_stmts(p.body) if isinstance(s, Store))
    assert "          init {\n            C[vi, vj] = 0.0f32  # <-- twice\n          }\n" in print_program(
        p, at=store, note="twice"
    )


def test_excerpt_of_a_long_program() -> None:
    y = buffer("y", (100,), dt.float32)
    nests: list[Stmt] = [For(Var(f"i{q}"), int64(2), Store(y, (int64(q),), const(0.0))) for q in range(100)]
    p = Program("long", (), (y,), (), For(Var("outer"), int64(1), Seq(tuple(nests))))
    assert (
        excerpt(p, {"i50": "slow"}, around=2)
        == """\
program long() -> (y: float32[100]) {
  for outer in 1 {
    ...
      y[49] = 0.0f32
    }
    for i50 in 2 {  # <-- slow
      y[50] = 0.0f32
    }
    ..."""
    )
    assert excerpt(p) == str(p)
    assert excerpt(matmul(), {"k": "slow"}) == print_program(matmul(), {"k": "slow"})


def test_errors() -> None:
    with pytest.raises(LoopError, match="cannot print a Stmt"):
        print_stmt(Stmt())
    with pytest.raises(LoopError, match=r"block 'b' has 0 iterator\(s\) and 1 binding\(s\)"):
        print_stmt(Block("b", (), (int64(1),), Seq(())))
