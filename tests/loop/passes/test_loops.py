"""Each loop pass on programs made for it: the meaning stays, and what the pass promises holds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from passcheck import ALL, same

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.functions import call
from weft.expr.nodes import Expr, Ramp, Select, Var, all_of, const, maximum, minimum, ne, select, size_of, walk
from weft.loop.nodes import (
    TRUE,
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    buffer,
    int64,
    seq,
    stmt_exprs,
    walk_stmts,
)
from weft.loop.parser import parse_program
from weft.loop.passes.flatten_buffers import flatten_buffers
from weft.loop.passes.guard_loads import guard_loads
from weft.loop.passes.hoist_invariants import hoist_invariants
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.partition_loops import MAX_GROWTH, partition_loops
from weft.loop.passes.relax_masks import relax_masks
from weft.loop.passes.simplify import simplify
from weft.loop.passes.unroll_loops import unroll_loops
from weft.loop.passes.vectorize_loops import vectorize_loops
from weft.loop.pipeline import lower_program

N = Var("n")
F32 = dt.float32
I, J, K, L = Var("i"), Var("j"), Var("k"), Var("l")


def loop(var: Var, extent: Any, body: Stmt, kind: LoopKind = "serial", **annotations: Any) -> For:
    return For(var, extent if isinstance(extent, Expr) else int64(extent), body, kind, tuple(annotations.items()))


def fors(p: Program) -> list[For]:
    return [s for s in walk_stmts(p.body) if isinstance(s, For)]


def conditions(stmt: Stmt) -> int:
    return sum(isinstance(s, If) for s in walk_stmts(stmt)) + sum(
        isinstance(n, Select) for s in walk_stmts(stmt) for e in stmt_exprs(s) for n in walk(e)
    )


def elementwise(kind: LoopKind, size: Any = N, outer: LoopKind = "serial") -> Program:
    """y = max(x, 0) in tiles of 8 with a guard."""
    x, y = buffer("x", (size,), F32), buffer("y", (size,), F32)
    at = I * 8 + J
    body = loop(J, 8, If(at < size, Store(y, (at,), maximum(x[at], 0.0))), kind)
    return Program("p", (x,), (y,), (N,) if size is N else (), loop(I, (size + 7) // 8, body, outer))


def conv(
    height: Any = 12, width: int = 12, channels: int = 4, tile: int = 6, lanes: int = 4, blocks: int = 2
) -> Program:
    """3 x 3, padding 1, output channels in vectors, a register tile."""
    x, w, y = (
        buffer("x", (channels, height, width), F32),
        buffer("w", (blocks, channels, 3, 3, lanes), F32),
        buffer("y", (blocks, height, width, lanes), F32),
    )
    acc = buffer("acc", (tile, lanes), F32, "register")
    o, h, wo, ic, kh, kw, wi, li = (Var(v) for v in ("o", "h", "wo", "ic", "kh", "kw", "wi", "li"))
    row, column = h + kh - 1, wo * tile + wi + kw - 1
    inside = all_of([row >= 0, row < height, column >= 0, column < width])
    value = select(inside, Load(x, (ic, row, column)), 0.0)
    init = loop(wi, tile, loop(li, lanes, Store(acc, (wi, li), const(0.0)), "vectorized"), "unrolled")
    wi1, li1, wi2, li2 = Var("wi1"), Var("li1"), Var("wi2"), Var("li2")
    from weft.expr.nodes import substitute

    step = Store(acc, (wi1, li1), acc[wi1, li1] + substitute(value, {"wi": wi1}) * w[o, ic, kh, kw, li1])
    update = loop(
        ic, channels, loop(kh, 3, loop(kw, 3, loop(wi1, tile, loop(li1, lanes, step, "vectorized"), "unrolled")))
    )
    finish = loop(
        wi2,
        tile,
        loop(li2, lanes, Store(y, (o, h, wo * tile + wi2, li2), maximum(acc[wi2, li2], 0.0)), "vectorized"),
        "unrolled",
    )
    nest = loop(
        o, blocks, loop(h, height, loop(wo, width // tile, Allocate(acc, seq(init, update, finish)))), "parallel"
    )
    return Program("conv", (x, w), (y,), tuple(d for d in (N,) if height is N), nest)


# -- lower_blocks, simplify, flatten ----------------------------------------------------------------------------------


def test_lower_blocks_guards_init_and_predicate() -> None:
    x, y, v, r = buffer("x", (N, N), F32), buffer("y", (N,), F32), Var("v"), Var("r")
    iters = (BlockIter(v, N), BlockIter(r, N, "reduce"))
    block = Block(
        "sum", iters, (I * 4 + J, K), Store(y, (v,), y[v] + x[v, r]), Store(y, (v,), const(0.0)), I * 4 + J < N
    )
    p = Program("p", (x,), (y,), (N,), loop(I, (N + 3) // 4, loop(J, 4, loop(K, N, block))))
    after = lower_blocks(p)
    same(p, after)
    assert not any(isinstance(s, Block) for s in walk_stmts(after.body))
    assert "if k == 0" in str(after) and "if i*4 + j < n" in str(after)


def test_simplify_drops_what_does_nothing() -> None:
    x, y, t = buffer("x", (8,), F32), buffer("y", (8,), F32), buffer("t", (4,), F32)
    body = Seq((
        loop(I, 1, loop(J, 8, If(I * 8 + J < 8, Store(y, (I * 8 + J % 8,), x[J])))),
        loop(K, 0, Store(y, (K,), const(1.0))),
        Allocate(t, loop(L, 4, If(L < 0, Store(t, (L,), const(0.0))))),
    ))  # fmt: skip
    after = simplify(Program("p", (x,), (y,), (), body))
    assert [f.var.name for f in fors(after)] == ["j"]
    assert not any(isinstance(s, (If, Allocate)) for s in walk_stmts(after.body))
    same(Program("p", (x,), (y,), (), body), after)


def test_simplify_uses_conditions_and_lets() -> None:
    y, m = buffer("y", (N,), F32), Var("m")
    body = Let(
        m,
        N // 2,
        loop(I, N, If(m > I, If(I < N, Store(y, (I,), const(1.0))), Store(y, (I,), select(m <= I, 2.0, const(3.0))))),
    )
    p = Program("p", (), (y,), (N,), body)
    after = simplify(p)
    same(p, after)
    assert conditions(after.body) == 1


def test_flatten_is_row_major() -> None:
    x, y = buffer("x", (3, N, 5), F32), buffer("y", (5, 3, N), F32)
    p = Program(
        "p", (x,), (y,), (N,), loop(I, 3, loop(J, N, loop(K, 5, Store(y, (K, I, J), x[I, J, K] + x[I, N - 1 - J, K]))))
    )
    after = flatten_buffers(p)
    same(p, after)
    assert all(len(b.shape) == 1 for b in after.params)


def test_flatten_adds_up_constants() -> None:
    x, y = buffer("x", (4, 6, 8), F32), buffer("y", (4,), F32)
    after = flatten_buffers(Program("p", (x,), (y,), (), loop(I, 3, Store(y, (I,), x[I + 1, I - 0 + 2, 7]))))
    assert "x[i*48 + i*8 + 71]" in str(after)


# -- partition --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 8, 16, 21])
def test_partition_peels_the_tail(n: int) -> None:
    p = simplify(elementwise("vectorized"))
    after = partition_loops(p)
    same(p, after, {"n": n, "m": 1})
    outer = [f for f in fors(after) if f.kind == "serial"]
    assert len(outer) == 2
    assert conditions(outer[0]) == 0 and conditions(outer[1]) == 1


def test_partition_of_a_parallel_loop_is_one_if() -> None:
    p = simplify(elementwise("vectorized", outer="parallel"))
    after = partition_loops(p)
    for n in (3, 16, 21):
        same(p, after, {"n": n, "m": 1})
    loops = [f for f in fors(after) if f.kind == "parallel"]
    assert len(loops) == 1
    assert isinstance(loops[0].body, If) and conditions(loops[0].body.then) == 0 and loops[0].body.orelse is not None


@pytest.mark.parametrize("rows", [128, 127, 196, 133, 60])
def test_partition_of_grouped_rows_leaves_no_condition(rows: int) -> None:
    """Rows in tiles, tiles in groups that are fused with columns: the last group has fewer tiles, the last tile fewer
    rows."""
    height, size, columns = 6, 9, 3
    tiles = -(-rows // height)
    groups = -(-tiles // size)
    x, y = buffer("x", (rows,), F32), buffer("y", (rows, columns), F32)
    row = I // columns * (size * height) + J * height + K
    store = Store(y, (row, I % columns), x[row])
    body = loop(
        I,
        groups * columns,
        loop(J, size, If(I // columns * size + J < tiles, loop(K, height, If(row < rows, store), "unrolled"))),
        "parallel",
    )
    p = Program("p", (x,), (y,), (), body)
    after = partition_loops(p)
    same(p, after)
    assert conditions(simplify(unroll_loops(after)).body) <= 1


@pytest.mark.parametrize("columns", [12, 10])
@pytest.mark.parametrize("rows", [36, 37, 6, N])
def test_partition_of_fused_tiles_asks_once(rows: int | Var, columns: int) -> None:
    """Of a fused loop the remainder tells the row of tiles: no bound of the variable says which is the last, one
    question does."""
    height, width = 6, 4
    tiles, across = (rows + height - 1) // height, -(-columns // width)
    x, y = buffer("x", (rows,), F32), buffer("y", (rows, columns), F32)
    row, column = I % tiles * height + K, I // tiles * width + J
    store = Store(y, (row, column), x[row])
    nest = loop(K, height, loop(J, width, If(all_of([row < rows, column < columns]), store), "unrolled"), "unrolled")
    p = Program("p", (x,), (y,), (N,) if rows is N else (), loop(I, tiles * across, nest, "parallel"))
    after = partition_loops(p)
    for n in (1, 6, 13) if rows is N else (1,):
        same(p, after, {"n": n, "m": 1})
    (outer,) = [f for f in fors(after) if f.kind == "parallel"]
    if rows is not N and rows % height == 0 and columns % width == 0:
        assert conditions(after.body) == 0
        return
    assert isinstance(outer.body, If)
    hot = outer.body.then
    while isinstance(hot, If):
        hot = hot.then
    assert conditions(hot) == 0
    if rows is not N:
        # Whatever is left when the tiles that are not whole are unrolled is the question where a tile is, no part of
        # what it computes.
        assert conditions(simplify(unroll_loops(after)).body) <= 3


def test_partition_asks_no_question_of_memory_or_of_lets() -> None:
    x, y = buffer("x", (4,), "int64"), buffer("y", (12,), F32)
    for condition in (I % 3 + x[I // 3] < 3, I % 3 + K < 3, I % (K + 2) < 1):
        body: Stmt = If(condition, Store(y, (I,), const(1.0)), Store(y, (I,), const(2.0)))
        p = Program("p", (x,), (y,), (), loop(I, 12, Let(K, I // 6, body), "parallel"))
        after = partition_loops(p)
        same(p, after)
        assert conditions(after.body) == 1


def test_partition_asks_no_question_that_its_guard_makes_safe() -> None:
    """A remainder by a number that may be zero stays under what says that it is not."""
    y = buffer("y", (6,), F32)
    body = Seq((Store(y, (I,), const(1.0)), If(N > 0, If(I % N < 2, Store(y, (I,), const(2.0))))))
    p = Program("p", (), (y,), (N,), loop(I, 6, body, "parallel"))
    for n in (0, 1, 4):
        same(p, partition_loops(p), {"n": n, "m": 1})


def test_partition_leaves_nothing_behind_that_never_runs() -> None:
    """What one exact question decides is gone on the other side, and what bounds have decided is not asked again."""
    y = buffer("y", (12,), F32)
    p = Program("p", (), (y,), (), loop(I, 12, If(I % 3 + I % 2 < 3, Store(y, (I,), const(2.0))), "parallel"))
    assert conditions(partition_loops(p).body) == 1
    x, y = buffer("x", (N, 24), F32), buffer("y", (N, 24), F32)
    row, column = I * 8 + K, J * 8 + L
    store = Store(y, (row, column), x[row - 1, column] + x[row + 1, column])
    nest = loop(J, 3, loop(K, 8, loop(L, 8, If(row >= 1, If(row < N - 1, store)), "vectorized"), "unrolled"))
    p = Program("p", (x,), (y,), (N,), loop(I, (N + 7) // 8, nest, "parallel"))
    after = partition_loops(p)
    assert sum(isinstance(s, Store) for s in walk_stmts(after.body)) == 2
    for n in (1, 7, 30):
        same(p, after, {"n": n, "m": 1})


def test_partition_of_borders() -> None:
    p = simplify(conv(tile=2))
    after = partition_loops(p)
    same(p, after)
    hot = [f for f in fors(after) if f.var.name == "h"]
    assert len(hot) == 1
    middle = next(f for f in fors(after) if f.var.name == "wo")
    assert conditions(middle) == 0


def test_partition_of_borders_with_symbolic_size() -> None:
    p = simplify(conv(height=N))
    after = partition_loops(p)
    for n in (1, 2, 3, 7):
        same(p, after, {"n": n, "m": 1})


def test_partition_tightens_a_loop_under_a_guard() -> None:
    y = buffer("y", (10,), F32)
    p = Program(
        "p",
        (),
        (y,),
        (),
        Seq(
            (
                loop(J, 10, Store(y, (J,), const(0.0))),
                loop(I, 10, If(all_of([I >= 3, I < 7]), Store(y, (I,), const(1.0)))),
            )
        ),
    )
    after = partition_loops(p)
    same(p, after)
    assert conditions(after.body) == 0 and len(fors(after)) == 2


def test_partition_first_and_last() -> None:
    x, y = buffer("x", (N,), F32), buffer("y", (N,), F32)
    from weft.expr.nodes import eq

    body = Seq(
        (If(eq(I, 0), Store(y, (I,), const(9.0)), Store(y, (I,), x[I])), If(eq(I, N - 1), Store(y, (I,), y[I] * 2.0)))
    )
    p = Program("p", (x,), (y,), (N,), loop(I, N, body))
    after = partition_loops(p)
    for n in (1, 2, 5):
        same(p, after, {"n": n, "m": 1})
    assert conditions(next(f for f in fors(after) if f.var.name == "i")) == 0


def test_partition_obeys_annotation_and_budget() -> None:
    y = buffer("y", (40,), F32)
    guarded = If(I < 20, Store(y, (I,), const(1.0)), Store(y, (I,), const(2.0)))
    kept = Program("p", (), (y,), (), loop(I, 40, guarded, partition=0))
    assert partition_loops(kept).body == kept.body
    nest: Stmt = Seq(tuple(Store(y, (int64(q),), const(1.0)) for q in range(40)))
    for d in range(6):
        v = Var(f"v{d}")
        nest = loop(
            v, 5, seq(If(all_of([v >= 1, v < 4]), Store(y, (v,), const(3.0)), Store(y, (v,), const(4.0))), nest)
        )
    p = Program("p", (), (y,), (), nest)
    after = partition_loops(p)
    assert sum(isinstance(s, Store) for s in walk_stmts(after.body)) <= MAX_GROWTH * sum(
        isinstance(s, Store) for s in walk_stmts(p.body)
    )


def test_causal_mask_splits_the_row() -> None:
    x, y = buffer("x", (7, 7), F32), buffer("y", (7, 7), F32)
    p = Program("p", (x,), (y,), (), loop(I, 7, loop(J, 7, Store(y, (I, J), select(J <= I, x[I, J], -1.0)))))
    after = partition_loops(p)
    same(p, after)
    assert conditions(after.body) == 0


# -- guards and vectors -----------------------------------------------------------------------------------------------


def test_guard_loads() -> None:
    x, y = buffer("x", (8,), F32), buffer("y", (8,), F32)
    value = (
        select(I < 5, x[I + 3], 0.0)
        + select(x[I] < 0.0, x[I], 1.0)
        + select(I < 6, x[7 - I], 2.0)
        + select(I < 4, x[I + 4], 5.0)
    )
    p = Program("p", (x,), (y,), (), loop(I, 8, Store(y, (I,), value)))
    after = guard_loads(p)
    same(p, after)
    predicates = [
        n
        for s in walk_stmts(after.body)
        for e in stmt_exprs(s)
        for n in walk(e)
        if isinstance(n, Load) and n.predicate is not None
    ]
    assert len(predicates) == 2
    assert sum(isinstance(n, Select) for s in walk_stmts(after.body) for e in stmt_exprs(s) for n in walk(e)) == 3


def chosen(levels: int, compared: Expr | None = None) -> tuple[Expr, tuple[Buffer, ...]]:
    """i < 5 ? (x1[i + 3] < 0 ? (x0[i + 3] < 0 ? 1 : y0[i + 3]) : y1[i + 3]) : 7 for two levels, and the buffers;
    `compared` stands for 0."""
    inputs: list[Buffer] = []
    value: Expr = const(1.0)
    for k in range(levels):
        x, y = buffer(f"x{k}", (8,), F32), buffer(f"y{k}", (8,), F32)
        inputs += [x, y]
        value = select(x[I + 3] < (const(0.0) if compared is None else compared), value, y[I + 3])
    return select(I < 5, value, 7.0), tuple(inputs)


def lets(p: Program) -> list[Let]:
    return [s for s in walk_stmts(p.body) if isinstance(s, Let)]


@pytest.mark.parametrize("levels", [1, 2, 3, 24])
def test_guards_of_nested_conditions_are_not_repeated(levels: int) -> None:
    """Elements 5 … 7 would read out of bounds, which the interpreter refuses; formulas grow with the square of the
    levels at most."""
    value, inputs = chosen(levels)
    y = buffer("y", (8,), F32)
    p = Program("p", inputs, (y,), (), loop(I, 8, Store(y, (I,), value)))
    after = guard_loads(p)
    assert len(lets(after)) == levels - 1
    assert sum(size_of(e) for s in walk_stmts(after.body) for e in stmt_exprs(s)) <= 60 * levels + 20 * levels * levels
    same(p, after)
    same(p, vectorize_loops(guard_loads(p.with_body(loop(I, 8, Store(y, (I,), value), "vectorized")))))


def test_conditions_that_are_nested_alike_have_one_name() -> None:
    value, inputs = chosen(4)
    y = buffer("y", (8,), F32)
    p = Program("p", inputs, (y,), (), loop(I, 8, Store(y, (I,), value + maximum(value, 0.0))))
    after = guard_loads(p)
    same(p, after)
    assert len(lets(after)) == 3


def test_conditions_stay_where_computing_them_before_would_change_what_they_are() -> None:
    """A While asks in every round; a predicated store reads nothing where its predicate fails; what a store adds to is
    told by its formula."""
    value, inputs = chosen(4)
    y, z, v = buffer("y", (8,), F32), buffer("z", (5,), F32), buffer("v", (1,), F32)
    own, _ = chosen(4, v[0] - 0.5)
    zero = int64(0)
    for outputs, body in (
        ((y,), loop(I, 8, Allocate(v, Seq((Store(v, (zero,), const(2.0)), While(value < v[0], Store(v, (zero,),
            v[0] - 8.0)), Store(y, (I,), v[0])))))),
        ((z,), loop(I, 8, Store(z, (I,), value, I < 5))),
        ((v,), Seq((Store(v, (zero,), const(0.0)), loop(I, 8, Store(v, (zero,), v[0] + own))))),
    ):  # fmt: skip
        p = Program("p", inputs, outputs, (), body)
        after = guard_loads(p)
        same(p, after)
        assert not lets(after)


def lowered(p: Program) -> Program:
    return vectorize_loops(guard_loads(flatten_buffers(simplify(lower_blocks(p)))))


def vectorized(
    body: Stmt, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...], lanes: int = 8
) -> tuple[Program, Program]:
    p = Program("p", inputs, outputs, (), loop(I, 3, loop(L, lanes, body, "vectorized")))
    after = lowered(p)
    same(p, after)
    return p, after


X, Y, Z = buffer("x", (3, 8), F32), buffer("y", (3, 8), F32), buffer("z", (3,), F32)


def test_ramp_and_broadcast() -> None:
    _, after = vectorized(Store(Y, (I, L), X[I, L] * Z[I] + 1.0), (X, Z), (Y,))
    assert "y[ramp(i*8, 1, 8)] = x[ramp(i*8, 1, 8)]*broadcast(z[i], 8) + broadcast(1.0f32, 8)" in str(after)


def test_strides_gather_and_reverse() -> None:
    t = buffer("t", (8, 3), F32)
    _, after = vectorized(Store(Y, (I, 7 - L), t[L, I] + X[I, L * L % 8]), (t, X), (Y,))
    ramps = [n for s in walk_stmts(after.body) for e in stmt_exprs(s) for n in walk(e) if isinstance(n, Ramp)]
    assert {str(r.stride) for r in ramps} >= {"3", "-1"}


@pytest.mark.parametrize("n", [1, 5, 13, 16])
def test_tail_is_masked(n: int) -> None:
    p = elementwise("vectorized")
    after = lowered(p)
    same(p, after, {"n": n, "m": 1})
    stores = [s for s in walk_stmts(after.body) if isinstance(s, Store)]
    assert all(s.predicate is not None for s in stores)
    assert not any(f.kind == "vectorized" for f in fors(after))


def test_loads_within_padding_need_no_mask() -> None:
    # 13 elements in panels of 8: x is padded to whole panels, z is not.
    x, z, y = buffer("x", (2, 8), F32), buffer("z", (13,), F32), buffer("y", (13,), F32)
    at = I * 8 + L
    p = Program(
        "p", (x, z), (y,), (), loop(I, 2, loop(L, 8, If(at < 13, Store(y, (at,), x[I, L] * z[at])), "vectorized"))
    )
    after = lowered(p)
    same(p, after)
    loads = {
        n.buffer.name: n.predicate
        for s in walk_stmts(after.body)
        for e in stmt_exprs(s)
        for n in walk(e)
        if isinstance(n, Load)
    }
    assert loads["x"] is None and loads["z"] is not None


def test_loads_in_the_index_of_a_load_that_needs_no_mask_need_one() -> None:
    """What is read wherever the place that was read leads to, as Gather clamps it, is in bounds; the place itself is
    not."""
    places, table, y = (
        buffer("places", (13,), dt.int64),
        buffer("table", (5,), dt.float32),
        buffer("y", (13,), dt.float32),
    )
    at = I * 8 + L
    read = table[maximum(minimum(places[at], 4), 0)]
    p = Program(
        "p", (places, table), (y,), (), loop(I, 2, loop(L, 8, If(at < 13, Store(y, (at,), read)), "vectorized"))
    )
    after = lowered(p)
    same(p, after)
    loads = {
        n.buffer.name: n.predicate
        for s in walk_stmts(after.body)
        for e in stmt_exprs(s)
        for n in walk(e)
        if isinstance(n, Load)
    }
    assert loads["table"] is None and loads["places"] is not None


def masked_tile(
    finish: str = "y[i*8 + l2] = c[l2]",
    condition: str = "i*8 + l2 < 13",
    dtype: str = "float32",
    step: str = "x[k, i*8 + l1]",
) -> Program:
    """Sums of 13 columns in vectors of 8: the second vector is not whole."""
    zero = "0.0" + dtype.replace("float", "f") if dtype.startswith("float") else "0i64"
    text = f"""program p(x: {dtype}[5, 13]) -> (y: {dtype}[16]) {{
      for l in 16 {{ y[l] = {zero} }}
      for i in 2 {{
        allocate c: {dtype}[8] in register {{
          for l0 in 8 vectorized {{ if i*8 + l0 < 13 {{ c[l0] = {zero} }} }}
          for k in 5 {{ for l1 in 8 vectorized {{ if i*8 + l1 < 13 {{ c[l1] = c[l1] + {step} }} }} }}
          for l2 in 8 vectorized {{ if {condition} {{ {finish} }} }}
        }}
      }}
    }}"""
    return unroll_loops(lowered(parse_program(text)))


def masks_of(p: Program, name: str) -> list[bool]:
    return [
        s.predicate is not None
        for s in walk_stmts(p.body)
        if isinstance(s, Store) and s.buffer.name == name and s.value.dtype.lanes > 1
    ]


def test_a_vector_that_is_read_under_a_mask_is_computed_whole() -> None:
    before = masked_tile()
    after = relax_masks(before)
    same(before, after)
    assert (
        masks_of(before, "c") == [True, True]
        and masks_of(after, "c") == [False, False]
        and masks_of(after, "y") == [True]
    )
    loads = [
        n
        for s in walk_stmts(after.body)
        for e in stmt_exprs(s)
        for n in walk(e)
        if isinstance(n, Load) and n.buffer.name == "x"
    ]
    assert loads and all(n.predicate is not None for n in loads)


@pytest.mark.parametrize(
    "change",
    [
        {"condition": "i*8 + l2 < 15"},  # more lanes are read than are computed
        {"finish": "y[i*8 + l2] = c[7 - l2]"},  # another lane's
        {"dtype": "int64", "step": "x[k, i*8 + l1]//x[0, i*8 + l1]"},  # may trap
    ],
)
def test_masks_stay_where_others_read_what_they_spare(change: dict[str, str]) -> None:
    before = masked_tile(**change)
    assert relax_masks(before) is before or masks_of(relax_masks(before), "c") == [True, True]


@pytest.mark.parametrize(
    ("register", "body"),
    [
        # The last vector reaches over the register's end.
        ("float32[5]", "c[ramp(0, 1, 8); M] = x[ramp(0, 1, 8); M]\ny[ramp(0, 1, 8); M] = c[ramp(0, 1, 8)]"),
        # What is read says whether something else is, and where.
        (
            "float32[8]",
            (
                "Z c[ramp(0, 1, 8); M] = broadcast(5.0f32, 8)\ny[ramp(0, 1, 8); M] = x[ramp(0, 1, 8); broadcast(0.0f32,"
                " 8) < c[ramp(0, 1, 8)]]"
            ),
        ),
        (
            "float32[8]",
            (
                "Z c[ramp(0, 1, 8); M] = broadcast(2.0f32, 8)\ny[ramp(0, 1, 8); M] = x[int64x8(c[ramp(0, 1, 8)]) -"
                " broadcast(2, 8); M]"
            ),
        ),
    ],
)
def test_masks_stay_where_lanes_beyond_them_matter(register: str, body: str) -> None:
    text = body.replace("Z", "c[ramp(0, 1, 8)] = broadcast(-1.0f32, 8)\n").replace(
        "M", "ramp(0, 1, 8) < broadcast(5, 8)"
    )
    start = "for i in 8 { y[i] = 0.0f32 }"
    before = parse_program(
        f"program p(x: float32[8]) -> (y: float32[8]) {{ {start}\nallocate c: {register} in register {{ {text} }} }}"
    )
    assert relax_masks(before) is before


def test_masks_stay_where_an_instruction_gets_the_register() -> None:
    text = """program p(x: float32[5]) -> (y: float32[8]) { for i in 8 { y[i] = 0.0f32 }
      allocate c: float32[8] in register {
        c[ramp(0, 1, 8)] = broadcast(0.0f32, 8)
        c[ramp(0, 1, 8); ramp(0, 1, 8) < broadcast(5, 8)] = x[ramp(0, 1, 8); ramp(0, 1, 8) < broadcast(5, 8)]
        y[ramp(0, 1, 8); ramp(0, 1, 8) < broadcast(5, 8)] = @reverse(c[ramp(0, 1, 8)]) -> float32x8
      } }"""
    before = parse_program(text)
    assert relax_masks(before) is before


def test_a_mask_that_changes_while_the_register_lives_stays() -> None:
    text = """program p(x: float32[4, 8]) -> (y: float32[4, 8]) {
      for i in 4 { for l in 8 { y[i, l] = 0.0f32 } }
      allocate c: float32[8] in register {
        for l0 in 8 vectorized { c[l0] = 0.0f32 }
        for j in 4 { for l1 in 8 vectorized { if l1 < 2*j + 1 {
          c[l1] = c[l1] + x[j, l1]
          y[j, l1] = c[l1]
        } } }
      }
    }"""
    before = lowered(parse_program(text))
    after = relax_masks(before)
    same(before, after)
    assert masks_of(after, "c")[1:] == [True]


def test_masked_statement_with_scalar_loads_runs_only_if_a_lane_is_active() -> None:
    # z[i*8 .. ] is out of range for tiles that have no active lane at all.
    x, z, y = buffer("x", (10,), F32), buffer("z", (2,), F32), buffer("y", (10,), F32)
    at = I * 8 + L
    p = Program(
        "p",
        (x, z),
        (y,),
        (),
        loop(I, 4, loop(L, 8, If(at < 10, Store(y, (at,), x[at] * z[I])), "vectorized", partition=0)),
    )
    same(p, lowered(p))


def test_select_with_scalar_load_out_of_range() -> None:
    z = buffer("z", (2,), F32)
    y = buffer("y", (4, 8), F32)
    at = I * 8 + L
    p = Program("p", (z,), (y,), (), loop(I, 4, loop(L, 8, Store(y, (I, L), select(at < 16, z[I], 7.0)), "vectorized")))
    same(p, lowered(p))
    q = Program(
        "p",
        (z,),
        (y,),
        (),
        loop(I, 4, loop(L, 8, Store(y, (I, L), select(L * L + I * 30 < 40, z[I], 7.0)), "vectorized")),
    )
    same(q, lowered(q))


def test_data_dependent_condition_is_read_once() -> None:
    out = buffer("out", (3, 8), F32)
    body = Seq((
        Store(out, (I, L), X[I, L]),
        If(out[I, L] < 0.0, Store(out, (I, L), const(1.0)), Store(out, (I, L), out[I, L] * 2.0 - Z[I])),
    ))  # fmt: skip
    _, after = vectorized(body, (X, Z), (out,))
    assert any(isinstance(s, Let) and s.var.dtype.lanes == 8 for s in walk_stmts(after.body))


def test_nested_conditions_loops_and_lets() -> None:
    acc, t = Buffer("acc", (int64(1),), F32, "register"), Var("t", F32)
    inner = loop(K, 3, If(K < I, If(L < 5, Store(acc, (int64(0),), acc[0] + X[K, L]))))
    finish = Let(t, acc[0] * 2.0, If(L * 2 < 9, Store(Y, (I, L), t + Z[I]), Store(Y, (I, L), t)))
    body = Allocate(acc, Seq((Store(acc, (int64(0),), const(0.0)), inner, finish)))
    _, after = vectorized(body, (X, Z), (Y,))
    assert "allocate acc: float32[8] in register" in str(after)


def test_outer_of_nested_vector_loops_is_unrolled() -> None:
    p = Program(
        "p", (X,), (Y,), (), loop(I, 3, loop(L, 8, Store(Y, (I, L), X[I, L] + 1.0), "vectorized"), "vectorized")
    )
    after = vectorize_loops(flatten_buffers(p))
    same(p, after)
    assert [f.kind for f in fors(after)] == ["unrolled"]


def declined(p: Program) -> str:
    after = lowered(p)
    same(p, after)
    return next(
        str(dict(f.annotations)["vectorize_declined"])
        for f in fors(after)
        if "vectorize_declined" in dict(f.annotations)
    )


def test_what_has_no_vector_form_is_serial_and_says_so() -> None:
    def one(body: Stmt, lanes: int = 8, out: Buffer = Y) -> Program:
        return Program("p", (X,), (out,), (), loop(I, 3, loop(L, lanes, body, "vectorized")))

    total = buffer("total", (3,), F32)
    reduce = Seq((If(L < 1, Store(total, (I,), const(0.0))), Store(total, (I,), total[I] + X[I, L])))
    assert declined(one(reduce, out=total)) == "'total' is accumulated over the lanes"
    triangle = Seq((Store(Y, (I, L), const(0.0)), loop(K, L, Store(Y, (I, L), Y[I, L] + 1.0))))
    assert declined(one(triangle)) == "the extent of the loop 'k' inside differs between lanes"
    v = Buffer("v", (int64(1),), F32, "register")
    turns = Allocate(
        v,
        Seq(
            (
                Store(v, (int64(0),), X[I, L]),
                While(const(1.0) < v[0], Store(v, (int64(0),), v[0] - 1.0)),
                Store(Y, (I, L), v[0]),
            )
        ),
    )
    assert declined(one(turns)) == "a while loop inside runs differently in each lane"
    zero = loop(J, 3, Store(total, (J,), const(0.0)))
    p = Program(
        "p",
        (X,),
        (total,),
        (),
        Seq((zero, loop(I, 3, loop(L, 8, AtomicUpdate(total, (I,), "add", X[I, L]), "vectorized")))),
    )
    assert declined(p) == "an atomic update of 'total' inside"


def test_all_lanes_into_one_element_is_an_error() -> None:
    p = Program("p", (X,), (Z,), (), loop(I, 3, loop(L, 8, Store(Z, (I,), X[I, L]), "vectorized")))
    with pytest.raises(LoopError) as error:
        lowered(p)
    text = str(error.value)
    assert text.startswith("vectorize_loops: all lanes of loop 'l' store to one element of 'z'")
    assert "why: the index does not vary with 'l', the value does" in text and "hint:" in text


# -- unroll, hoist ----------------------------------------------------------------------------------------------------


def test_unroll_renames_and_nests() -> None:
    t, acc = Var("t", F32), Buffer("acc", (int64(2),), F32, "local")
    body = Allocate(
        acc, Seq((loop(K, 2, Store(acc, (K,), X[I, J * 2 + K])), Let(t, acc[0] + acc[1], Store(Y, (I, J), t))))
    )
    clear = loop(Var("a"), 3, loop(Var("b"), 8, Store(Y, (Var("a"), Var("b")), const(0.0))))
    p = Program("p", (X,), (Y,), (), Seq((clear, loop(I, 3, loop(J, 4, body, "unrolled"), "unrolled"))))
    after = unroll_loops(p)
    same(p, after)
    assert len([s for s in walk_stmts(after.body) if isinstance(s, Let)]) == 12
    assert "let t: " in str(after) and "acc_11" in str(after)


def test_unroll_of_a_symbolic_extent_is_declined_in_the_open() -> None:
    y = buffer("y", (N,), F32)
    after = unroll_loops(Program("p", (), (y,), (N,), loop(I, N, Store(y, (I,), const(0.0)), "unrolled")))
    assert fors(after)[0].kind == "serial"
    assert dict(fors(after)[0].annotations)["unroll_declined"] == "the extent n is not constant"


def test_hoist_moves_costly_formulas_only() -> None:
    value = X[I, L] * call("exp", I.astype(F32)) + (I * 7 // 3 + L).astype(F32)
    p = Program("p", (X,), (Y,), (), loop(I, 3, loop(L, 8, Store(Y, (I, L), value))))
    after = hoist_invariants(p)
    same(p, after, exact=False)
    lets = [s for s in walk_stmts(after.body) if isinstance(s, Let)]
    assert {str(s.value) for s in lets} == {"exp(float32(i))", "i*7//3"}
    assert isinstance(after.body, For) and isinstance(after.body.body, Let)


def test_hoist_does_not_move_what_may_fault() -> None:
    x, y = buffer("x", (N,), dt.int64), buffer("y", (N,), dt.int64)
    d = Var("d")
    p = Program(
        "p",
        (x,),
        (y,),
        (N,),
        loop(I, N, Let(d, x[I] - x[I], loop(J, 1, If(ne(d, 0), Store(y, (I,), 7 // d), Store(y, (I,), d))))),
    )
    after = hoist_invariants(p)
    assert not any(isinstance(s, Let) and "//" in str(s.value) for s in walk_stmts(after.body))


# -- all --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [conv(), conv(tile=2), conv(height=N, tile=3)], ids=["wide", "narrow", "symbolic"])
def test_convolution_through_all_passes(p: Program) -> None:
    stages: list[Program] = []
    lower_program(p, ALL, lambda name, program: stages.append(program))
    for after in stages:
        same(p, after)
    formulas = [n for s in walk_stmts(stages[-1].body) for e in stmt_exprs(s) for n in walk(e)]
    assert not any(isinstance(n, Load) and n.predicate == TRUE for n in formulas)


def test_speed() -> None:
    """84 FMAs (14 pixels, 2 blocks of output channels and so on) go through in tens of milliseconds."""
    lower_program(conv(56, 56, 63, 14, 16, 4), ALL)
    start = time.process_time()
    lower_program(conv(56, 56, 64, 14, 16, 4), ALL)
    assert (
        time.process_time() - start < 5.0
    )  # 0.05 on an idle machine: what is seen is a time that grows out of all proportion
