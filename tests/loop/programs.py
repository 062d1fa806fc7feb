"""Programs for tests: a few by hand, and `programs()`, a hypothesis strategy of small random ones.

Every program here verifies and can be interpreted with `arrays(program, seed)`, dims from `DIMS`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Broadcast, Expr, Ramp, Var, add, const, free_vars, maximum, minimum, mul, select
from weft.loop.nodes import (
    TRUE,
    Allocate,
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
    LoopKind,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    While,
    buffer,
    seq,
    walk_stmts,
)
from weft.loop.nodes import int64 as i64

DIMS = {"n": 5, "m": 3}
N, M = Var("n"), Var("m")


def loops(body: Stmt, *nest: tuple[str, Any] | tuple[str, Any, LoopKind]) -> Stmt:
    """`body` under loops, outermost first: ("i", 4) or ("i", 4, "parallel")."""
    for name, extent, *kind in reversed(nest):
        body = For(Var(name), extent if isinstance(extent, Expr) else i64(extent), body, *kind)
    return body


def spatial(name: str, extent: Any) -> BlockIter:
    return BlockIter(Var(name), extent if isinstance(extent, Expr) else i64(extent))


def reduction(name: str, extent: Any) -> BlockIter:
    return BlockIter(Var(name), extent if isinstance(extent, Expr) else i64(extent), "reduce")


def relu(n: Any = 8) -> Program:
    """One elementwise block."""
    x, y, i, b = buffer("x", (n,), dt.float32), buffer("y", (n,), dt.float32), Var("i"), Var("b")
    block = Block(
        "relu", (spatial("b", n),), (i,), Store(y, (b,), maximum(x[b], 0.0)), annotations=(("op", "Relu"), ("node", 0))
    )
    return Program("relu", (x,), (y,), (N,) if n is N else (), loops(block, ("i", n)))


def matmul(m: Any = 4, n: Any = 6, k: Any = 5, dtype: Any = dt.float32) -> Program:
    """C = A B with an undecomposed reduction."""
    a, b, c = buffer("A", (m, k), dtype), buffer("B", (k, n), dtype), buffer("C", (m, n), dtype)
    vi, vj, vk = Var("vi"), Var("vj"), Var("vk")
    block = Block(
        "matmul", (spatial("vi", m), spatial("vj", n), reduction("vk", k)), (Var("i"), Var("j"), Var("k")),
        Store(c, (vi, vj), add(c[vi, vj], mul(a[vi, vk], b[vk, vj]))), init=Store(c, (vi, vj), const(0, dtype)),
        annotations=(("op", "MatMul"),),
    )  # fmt: skip
    dims = tuple(d for d in (N, M) if d in (m, n, k))
    return Program("matmul", (a, b), (c,), dims, loops(block, ("i", m), ("j", n), ("k", k)))


def matmul_relu(m: Any = 4, n: Any = 6, k: Any = 5) -> Program:
    """A reduction into an allocated buffer, then an elementwise epilogue."""
    p = matmul(m, n, k)
    t = p.outputs[0]
    y, bi, bj = buffer("Y", t.shape, dt.float32), Var("bi"), Var("bj")
    block = Block(
        "relu",
        (spatial("bi", m), spatial("bj", n)),
        (Var("i1"), Var("j1")),
        Store(y, (bi, bj), maximum(t[bi, bj], 0.0)),
    )
    return Program("matmul_relu", p.inputs, (y,), p.dims, Allocate(t, seq(p.body, loops(block, ("i1", m), ("j1", n)))))


def guarded() -> Program:
    """Symbolic extent tiled by 4: a block predicate, a parallel and an annotated loop."""
    x, y, b = buffer("x", (N,), dt.int32), buffer("y", (N,), dt.int32), Var("b")
    at = Var("io") * 4 + Var("ii")
    block = Block("double", (spatial("b", N),), (at,), Store(y, (b,), x[b] * 2), predicate=at < N)
    tile = For(Var("ii"), i64(4), block, "unrolled", (("factor", 4), ("pragma", 'a "quoted" name')))
    return Program("guarded", (x,), (y,), (N,), For(Var("io"), (N + 3) // 4, tile, "parallel"))


def row_sums() -> Program:
    """Two-level accumulation in a register, Let, If/else and a symbolic extent; no block."""
    x, y, acc = (
        buffer("x", (M, N), dt.float32),
        buffer("y", (M,), dt.float32),
        buffer("acc", (), dt.float32, "register"),
    )
    i, j, t = Var("i"), Var("j"), Var("t", dt.float32)
    inner = For(j, N, Let(t, x[i, j], If(t < 0.0, Store(acc, (), acc[()] - t), Store(acc, (), acc[()] + t))))
    body = Allocate(acc, Seq((Store(acc, (), const(0.0)), inner, Store(y, (i,), acc[()]))))
    return Program("row_sums", (x,), (y,), (M, N), For(i, M, body, "parallel"))


def histogram() -> Program:
    """Data-dependent indices and atomic updates from a parallel loop."""
    x, y, i, z = buffer("x", (12,), dt.int64), buffer("y", (4,), dt.int32), Var("i"), Var("z")
    fill = For(z, i64(4), Store(y, (z,), const(0, dt.int32)))
    count = For(i, i64(12), AtomicUpdate(y, (x[i] % 4,), "add", const(1, dt.int32)), "parallel")
    return Program("histogram", (x,), (y,), (), Seq((fill, count)))


def collatz() -> Program:
    """While over a register: steps until 1."""
    x, y, v = buffer("x", (6,), dt.int64), buffer("y", (6,), dt.int64), buffer("v", (2,), dt.int64, "local")
    i = Var("i")
    step = Seq((
        If(v[0] % 2 < 1, Store(v, (i64(0),), v[0] // 2), Store(v, (i64(0),), v[0] * 3 + 1)),
        Store(v, (i64(1),), v[1] + 1),
    ))  # fmt: skip
    start = (Store(v, (i64(0),), x[i] % 30 + 31), Store(v, (i64(1),), i64(0)))
    body = Allocate(v, Seq((*start, While(i64(1) < v[0], step), Store(y, (i,), v[1]))))
    return Program("collatz", (x,), (y,), (), For(i, i64(6), body))


def vectorized() -> Program:
    """After vectorisation: ramps, broadcasts, masks, a Let of a vector."""
    x, y, s = buffer("x", (N,), dt.float32), buffer("y", (N,), dt.float32), buffer("s", (1,), dt.float32)
    io, v = Var("io"), Var("v", dt.float32.with_lanes(4))
    lanes = Ramp(io * 4, i64(1), 4)
    mask = lanes < N
    body = Let(
        v, mul(Load(x, (lanes,), mask), Broadcast(s[0], 4)), Store(y, (lanes,), v + Broadcast(const(1.0), 4), mask)
    )
    return Program("vectorized", (x, s), (y,), (N,), For(io, (N + 3) // 4, body), aliases=((0, 0),))


def opaque() -> Program:
    """A block with explicit regions around an intrinsic call, in a scope and alignment of its own; a definition that is
    not the last statement."""
    x, y = buffer("x", (8,), dt.float32), buffer("y", (8,), dt.float32)
    tile = Buffer("tile", (i64(4),), dt.float32, "scratchpad", 128)
    b, i, j = Var("b"), Var("i"), Var("j")
    copy = Block(
        "load", (spatial("b", 2),), (i,), Evaluate(IntrinsicCall("copy4", (tile[0], x[b * 4]))),
        reads=(Region(x, ((b * 4, i64(4)),)),), writes=(Region(tile, ((i64(0), i64(4)),)),), annotations=(("role",
            "cache"),),
    )  # fmt: skip
    back = For(j, i64(4), Store(y, (i * 4 + j,), tile[j] * 2.0))
    mark = Block("done", (), (), Evaluate(IntrinsicCall("note", (i64(7),))), reads=(), writes=())
    return Program(
        "opaque", (x,), (y,), (), Seq((For(i, i64(2), Seq((Allocate(tile, Seq((copy, back))), mark))), mark_again()))
    )


def mark_again() -> Stmt:
    return Block("end", (), (), Evaluate(IntrinsicCall("note", (i64(8),))), reads=(), writes=())


def _copy4(to: Any, source: Any) -> None:
    to.array[to.offset : to.offset + 4] = source.array[source.offset : source.offset + 4]


_copy4.addresses = True  # type: ignore[attr-defined]  # loads among its arguments arrive as Address

INTRINSICS = {"copy4": _copy4, "note": lambda value: None}

EXAMPLES = {
    f.__name__: f for f in (relu, matmul, matmul_relu, guarded, row_sums, histogram, collatz, vectorized, opaque)
}


def arrays(program: Program, seed: int = 0, dims: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    """Small random inputs: exact in float arithmetic, so any order of a sum gives the same bits."""
    rng = np.random.default_rng(seed)
    env = {k: np.int64(v) for k, v in (dims or DIMS).items()}
    result = {}
    for b in program.inputs:
        shape = tuple(int(evaluate(d, env)) for d in b.shape)
        values = rng.integers(0 if b.dtype.kind == "uint" else -8, 9, shape)
        result[b.name] = values.astype(b.dtype.numpy)
    return result


@st.composite
def programs(draw: st.DrawFn, max_stages: int = 3, symbolic: bool = True) -> Program:
    """A chain of 1 … max_stages blocks, each elementwise (with shifts and transposes), a reduction, or a tiled nest
    with a predicate.

    Names: block `s0`, its buffer `t0`, loops `s0_i`, `s0_j`, `s0_k` (fused nests: `s0_f`), iterators `s0_vi` …; the
    last buffer is the output `out`.
    """
    sizes = st.sampled_from([i64(1), i64(2), i64(3), i64(4), i64(6), *((N, M) if symbolic else ())])
    dtype = draw(st.sampled_from([dt.float32, dt.int32]))
    inputs = [
        buffer(f"x{q}", draw(st.lists(sizes, min_size=1, max_size=2)), dtype) for q in range(draw(st.integers(1, 2)))
    ]
    known, nests, middle = list(inputs), [], []
    count = draw(st.integers(1, max_stages))
    for s in range(count):
        last = s == count - 1
        target = buffer("out" if last else f"t{s}", draw(st.lists(sizes, min_size=1, max_size=2)), dtype)
        # Each intermediate is read by the next stage, so that compute_at and inlining have something to do.
        sources = [known[-1] if s else draw(st.sampled_from(known))] + draw(
            st.lists(st.sampled_from(known), max_size=1)
        )
        nests.append(_stage(draw, f"s{s}", target, sources, sizes))
        known.append(target)
        if not last:
            middle.append(target)
    body: Stmt = Seq(tuple(nests)) if len(nests) > 1 else nests[0]
    for b in reversed(middle):
        body = Allocate(b, body)
    used = {name for b in known for d in b.shape for name in free_vars(d)}
    used |= {name for loop in walk_stmts(body) if isinstance(loop, For) for name in free_vars(loop.extent)}
    return Program("random", tuple(inputs), (known[-1],), tuple(v for v in (N, M) if v.name in used), body)


def _read(draw: st.DrawFn, source: Buffer, iters: list[Var]) -> Expr:
    """An element of `source` at an index that depends on the iterators and stays inside."""
    indices: list[Expr] = []
    for d in source.shape:
        v = draw(st.sampled_from(iters))
        kind = draw(st.sampled_from(["wrap", "clamp", "shift", "scale"]))
        indices.append({"wrap": v % d, "clamp": minimum(v, d - 1), "shift": (v + 1) % d, "scale": (v * 2) % d}[kind])
    return Load(source, tuple(indices))


def _stage(draw: st.DrawFn, name: str, target: Buffer, sources: list[Buffer], sizes: st.SearchStrategy[Expr]) -> Stmt:
    letters = "ij"[: len(target.shape)]
    axes = [Var(f"{name}_v{c}") for c in letters]
    kind = draw(st.sampled_from(["map", "sum", "max", "tiled"]))
    iters = [BlockIter(v, d) for v, d in zip(axes, target.shape)]
    nest: list[tuple[Any, ...]] = [(f"{name}_{c}", d) for c, d in zip(letters, target.shape)]
    bindings: list[Expr] = [Var(n) for n, _ in nest]
    predicate: Expr = TRUE
    init: Stmt | None = None
    variables = list(axes)
    if kind in ("sum", "max"):
        extent = draw(sizes)
        k = Var(f"{name}_vk")
        iters.append(BlockIter(k, extent, "reduce"))
        nest.append((f"{name}_k", extent))
        bindings.append(Var(f"{name}_k"))
        variables.append(k)
    value = _read(draw, sources[0], variables)
    for source in sources[1:]:
        other = _read(draw, source, variables)
        value = draw(st.sampled_from([add, maximum, lambda a, b: select(a < b, b, a + b)]))(value, other)
    old = Load(target, tuple(axes))
    if kind == "sum":
        init, value = Store(target, tuple(axes), const(0, target.dtype)), old + value
    elif kind == "max":
        init, value = Store(target, tuple(axes), const(-1000, target.dtype)), maximum(old, value)
    if kind == "tiled":
        # The first axis in tiles of 2 or 4 that need not divide it.
        factor = draw(st.sampled_from([2, 4]))
        outer, inner = f"{name}_{letters[0]}o", f"{name}_{letters[0]}i"
        at = Var(outer) * factor + Var(inner)
        predicate = at < target.shape[0]
        nest = [(outer, (target.shape[0] + (factor - 1)) // factor), (inner, factor), *nest[1:]]
        bindings[0] = at
    block = Block(name, tuple(iters), tuple(bindings), Store(target, tuple(axes), value), init, predicate)
    return loops(block, *nest)
