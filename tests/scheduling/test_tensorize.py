"""tensorize: what it makes of blocks, what it refuses in which words, and that the meaning stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.errors import LoopError, ScheduleError
from weft.expr.nodes import Cast, cast_to, const
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.scheduling import Call, Intrinsic, Operand, Schedule, Trace, meanings, replay
from weft.tensor import language as tl
from weft_gpu.passes import grid_passes
from weft_interpreter.interpret import interpret


def gemm(m: int = 8, n: int = 8, k: int = 8, dtype: str = "float32", **operands: Any) -> Intrinsic:
    """The example of the TVM paper; operands=Operand(…) replace the default ones, which have free strides of rows."""
    a, b, r = tl.placeholder((m, k), dtype, "A"), tl.placeholder((k, n), dtype, "B"), tl.reduce_axis(k, "k")
    c = tl.compute((m, n), lambda i, j: tl.sum(a[i, r] * b[r, j], axis=r), "C", axes=("i", "j"))
    given = tuple(operands.get(name, Operand(name, strides=(None, 1))) for name in "ABC")
    return Intrinsic("gemm", c, given, Call("gemm8x8"), Call("fill_zero"), Call("fuse_gemm8x8_add"))


GEMM = gemm()


def product(
    m: Any = "m*8",
    n: Any = 24,
    k: Any = "k*8",
    value: str = "X[vi, vk]*Y[vk, vj]",
    dtype: str = "float32",
    zero: str = "0.0f32",
) -> Program:
    dims = ", ".join(d for d in "mnk" if any(d in str(x) for x in (m, n, k)))
    return parse_program(
        f"""program product(X: {dtype}[{m}, {k}], Y: {dtype}[{k}, {n}]) -> (Z: {dtype}[{m}, {n}]){f" dims({dims})" if dims else ""} {{
      for i in {m} {{ for j in {n} {{ for r in {k} {{ block C(vi: {m} = i, vj: {n} = j, vk: reduce {k} = r) {{
        init {{ Z[vi, vj] = {zero} }} Z[vi, vj] = Z[vi, vj] + {value} }} }} }} }} }}"""  # noqa: E501
    )


def tiled(
    program: Program,
    intrinsic: Intrinsic = GEMM,
    sizes: tuple[int, int, int] = (8, 8, 8),
    order: tuple[int, ...] = (0, 1, 2),
) -> Schedule:
    s = Schedule(program, checked=True, intrinsics={intrinsic.name: intrinsic})
    outer, inner = zip(*(s.split(v, [None, n]) for v, n in zip("ijr", sizes)))
    s.reorder(*outer, *(inner[q] for q in order))
    return s


def check(s: Schedule, naive: Program, dims: dict[str, int] | None = None) -> None:
    """Interpreted as its instructions mean, after every loop pass too, the schedule computes what the naive program
    does."""
    from weft.expr.evaluate import evaluate

    rng = np.random.default_rng(0)
    dims = {d.name: (dims or {}).get(d.name, 2) for d in naive.dims}
    arrays = [
        rng.integers(-4, 5, [int(evaluate(d, dims)) for d in b.shape]).astype(b.dtype.numpy) for b in naive.inputs
    ]
    functions = meanings(s.intrinsics.values())
    wanted = interpret(naive, arrays, dims)
    for name, array in wanted.items():
        np.testing.assert_array_equal(
            interpret(s.program, arrays, dims, intrinsics=functions, shuffle_seed=1)[name], array
        )
    lowered = lower_program(s.program, frozenset(), extra=grid_passes())
    flat = interpret(lowered, [np.asarray(a).reshape(-1) for a in arrays], dims, intrinsics=functions)
    for name, array in wanted.items():
        np.testing.assert_array_equal(flat[name], array.reshape(-1))
    assert str(parse_program(str(s.program))) == str(s.program)
    assert str(replay(naive, Trace.from_json(s.trace.to_json()), s.intrinsics)) == str(s.program)


# -- what it makes ----------------------------------------------------------------------------------------------------


def test_a_sum_that_goes_on_outside_is_reset_and_updated() -> None:
    s = tiled(product())
    s.tensorize("i_1", "gemm")
    text = " ".join(str(s).split())
    assert "block C(vi: m = i_0, vj: 3 = j_0, vk: reduce k = r_0)" in text
    assert (
        "reads(X[vi*8 for 8, vk*8 for 8], Y[vk*8 for 8, vj*8 for 8], Z[vi*8 for 8, vj*8 for 8]) writes(Z[vi*8 for 8,"
        " vj*8 for 8])" in text
    )
    assert (
        "init { @fill_zero(Z[vi*8, vj*8], 24) } @fuse_gemm8x8_add(X[vi*8, vk*8], k*8, Y[vk*8, vj*8], 24, Z[vi*8,"
        " vj*8], 24)" in text
    )
    assert s.block("C").annotation("tensorize") == "gemm"
    check(s, product())
    check(s, product(), {"k": 0})


def test_a_sum_within_the_tile_is_the_whole_code() -> None:
    s = tiled(product(k=8))
    s.tensorize("i_1", "gemm")
    assert "@gemm8x8(X[vi*8, 0], 8, Y[0, vj*8], 24, Z[vi*8, vj*8], 24)" in str(s)
    check(s, product(k=8))


def test_a_decomposed_start_is_tensorized_by_itself() -> None:
    s = tiled(product())
    init = s.decompose_reduction("C", "r_0")
    s.tensorize("i_1", "gemm")
    s.tensorize(s.loops(init)[-2], "gemm")
    assert "@fill_zero" in str(s.block(init)) and "@fuse_gemm8x8_add" in str(s.block("C")) and s.block("C").init is None
    check(s, product())


def test_decomposed_afterwards_the_start_still_says_what_it_writes() -> None:
    s = tiled(product())
    s.tensorize("i_1", "gemm")
    init = s.decompose_reduction("C", "r_0")
    assert s.buffers(init) == ["Z"] and s.block(init).reads == ()
    s.parallel("i_0")
    check(s, product())


def test_a_block_stands_for_the_nest_that_holds_it_alone() -> None:
    naive = product(8, 8, 8)
    s = Schedule(naive, checked=True, intrinsics={"gemm": GEMM})
    s.tensorize("C", "gemm")
    assert "block C(vi: 1 = 0) reads(X[0 for 8, 0 for 8], Y[0 for 8, 0 for 8]) writes(Z[0 for 8, 0 for 8])" in str(s)
    check(s, naive)


@pytest.mark.parametrize("value", ["X[vi, vk]*Y[vk, vj]", "Y[vk, vj]*X[vi, vk]"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_loops_and_factors_in_another_order(value: str, order: tuple[int, ...]) -> None:
    s = tiled(product(value=value), order=order)
    s.tensorize(s.loops("C")[3], "gemm")
    check(s, product(value=value))


def test_several_loops_that_make_up_one_iterator() -> None:
    naive = product()
    s = tiled(naive)
    a, b = s.split("j_1", [2, 4])
    s.reorder(b, "i_1")
    s.tensorize(s.loops("C")[3], "gemm")
    assert a in s.trace.to_json()
    check(s, naive)


def test_unit_loops_on_either_side() -> None:
    row = gemm(1, 8, 8)
    s = Schedule(product(1, 8, 8), checked=True, intrinsics={"gemm": row})
    s.tensorize("C", "gemm")
    check(s, product(1, 8, 8))
    naive = product(3, 8, 8)
    s = Schedule(naive, checked=True, intrinsics={"gemm": row})
    s.split("i", [None, 1])
    s.tensorize("i_1", "gemm")
    check(s, naive)


def test_a_result_of_one_element() -> None:
    """The loop of one iteration that walks it may stand outside of the tile."""
    k, a = tl.reduce_axis(8, "k"), tl.placeholder((8,), name="A")
    total = Intrinsic(
        "total",
        tl.compute((1,), lambda j: tl.sum(a[k], axis=k), name="C"),
        (Operand("A"), Operand("C")),
        Call("total"),
        Call("start"),
        Call("more"),
    )
    naive = parse_program(
        """program sums(x: float32[16]) -> (y: float32[1]) { for i in 1 { for r in 16 { block S(vi: 1 = i, vr: reduce 16 = r) {
      init { y[vi] = 0.0f32 } y[vi] = y[vi] + x[vr] } } } }"""  # noqa: E501
    )
    s = Schedule(naive, checked=True, intrinsics={"total": total})
    _, inner = s.split("r", [None, 8])
    s.tensorize(inner, "total")
    check(s, naive)


def test_packed_operands_and_accumulators_of_their_own() -> None:
    whole = gemm(
        **{
            "A": Operand("A", strides=(None, 1)),
            "B": Operand("B", scope="weights", align=32),
            "C": Operand("C", scope="accumulator"),
        }
    )
    naive = product("m*8", 24, "k*8")
    s = Schedule(naive, checked=True, intrinsics={"gemm": whole})
    acc = s.cache_write("C", "accumulator")
    panel = s.cache_read("C", "Y", "weights")
    i, j, r = (s.split(v, [None, 8]) for v in s.loops("C"))
    s.reorder(i[0], j[0], r[0], i[1], j[1], r[1])
    s.reverse_compute_at(acc, j[0])
    s.compute_at(panel, r[0])
    for buffer in (*s.buffers("C"), *s.buffers(panel)):
        s.compact_buffer(buffer)
    s.tensorize(i[1], "gemm")
    assert "@fuse_gemm8x8_add(X[vi*8, vk*8], k*8, " in str(s)
    check(s, naive)


def test_casts_as_written_and_constants() -> None:
    a, b, r = tl.placeholder((4,), "uint8", "a"), tl.placeholder((8, 4), "int8", "b"), tl.reduce_axis(4, "k")
    c = tl.compute((8,), lambda i: tl.sum(cast_to(a[r], "int32") * cast_to(b[i, r], "int32"), axis=r), "c", axes=("i",))
    dot = Intrinsic(
        "dot", c, (Operand("a"), Operand("b", strides=(None, 1)), Operand("c")), Call("dot"), update=Call("dot_add")
    )
    assert isinstance(c.source.bodies[0].values[0].a, Cast)
    naive = parse_program("""program p(x: uint8[5, 12], w: int8[16, 12]) -> (y: int32[5, 16]) {
      for i in 5 { for j in 16 { for r in 12 { block C(vi: 5 = i, vj: 16 = j, vk: reduce 12 = r) {
        init { y[vi, vj] = 0i32 } y[vi, vj] = y[vi, vj] + int32(w[vj, vk])*int32(x[vi, vk]) } } } } }""")
    s = Schedule(naive, checked=True, intrinsics={"dot": dot})
    j, r = s.split("j", [None, 8]), s.split("r", [None, 4])
    s.reorder(j[0], r[0], j[1], r[1])
    s.decompose_reduction("C", r[0])
    s.tensorize(j[1], "dot")
    check(s, naive)


def test_code_of_several_statements() -> None:
    """Code at the level of formulas: vectors and loops over elements."""
    from weft.expr.nodes import Broadcast
    from weft.loop.nodes import For, seq

    def update(a: Any, b: Any, c: Any) -> Any:
        k = tl.var("k")
        rows = (c.store(c.load(8, i) + Broadcast(a[i, k], 8) * b.load(8, k), i) for i in range(8))
        return For(k, const(8), seq(*rows))

    def reset(c: Any) -> Any:
        return seq(*(c.store(Broadcast(const(0.0, "float32"), 8), i) for i in range(8)))

    rows = Intrinsic("rows", GEMM.meaning, GEMM.operands, lambda a, b, c: seq(reset(c), update(a, b, c)), reset, update)
    naive = product("m*8", 24, 16)
    s = tiled(naive, rows)
    s.tensorize("i_1", "rows")
    assert "ramp(vj*8, 1, 8)" in str(s)
    check(s, naive)


def test_elementwise_meanings_and_fills() -> None:
    x = tl.placeholder((16,), name="x")
    relu = Intrinsic(
        "relu",
        tl.compute((16,), lambda i: tl.e.maximum(x[i], 0.0), "y", axes=("i",)),
        (Operand("x"), Operand("y")),
        Call("relu16"),
    )
    fill = Intrinsic(
        "fill", tl.compute((16,), lambda i: const(1.5, "float32"), "y", axes=("i",)), (Operand("y"),), Call("fill16")
    )
    naive = parse_program(
        """program p(a: float32[n*32]) -> (b: float32[n*32], c: float32[32]) dims(n) {
      for i in n*32 { block relu(v: n*32 = i) { b[v] = max(a[v], 0.0f32) } }  for j in 32 { block ones(w: 32 = j) { c[w] = 1.5f32 } } }"""  # noqa: E501
    )
    s = Schedule(naive, checked=True, intrinsics={"relu": relu, "fill": fill})
    s.tensorize(s.split("i", [None, 16])[1], "relu")
    s.tensorize(s.split("j", [None, 16])[1], "fill")
    check(s, naive)


def test_windows_have_overlapping_regions() -> None:
    """A meaning whose operand is read at sums of axes."""
    x, w, r = tl.placeholder((10,), name="x"), tl.placeholder((3,), name="w"), tl.reduce_axis(3, "r")
    fir = Intrinsic(
        "fir",
        tl.compute((8,), lambda i: tl.sum(x[i + r.var] * w[r], axis=r), "y", axes=("i",)),
        (Operand("x"), Operand("w"), Operand("y")),
        Call("fir"),
    )
    naive = parse_program(
        """program p(a: float32[n*8 + 2], f: float32[3]) -> (b: float32[n*8]) dims(n) {
      for i in n*8 { for r in 3 { block B(v: n*8 = i, k: reduce 3 = r) { init { b[v] = 0.0f32 } b[v] = b[v] + a[v + k]*f[k] } } } }"""  # noqa: E501
    )
    s = Schedule(naive, checked=True, intrinsics={"fir": fir})
    s.tensorize(s.split("i", [None, 8])[1], "fir")
    assert "reads(a[v*8 for 10], f[0 for 3]) writes(b[v*8 for 8])" in str(s)
    check(s, naive)


# -- what it refuses --------------------------------------------------------------------------------------------------


def refusal(s: Schedule, *args: str) -> str:
    before = str(s)
    with pytest.raises(ScheduleError) as caught:
        s.tensorize(*args)
    assert str(s) == before
    return str(caught.value)


def test_a_refusal_shows_both_programs_side_by_side() -> None:
    text = refusal(tiled(product(value="X[vi, vk] + Y[vk, vj]")), "i_1", "gemm")
    lines = text.splitlines()
    assert lines[0] == "tensorize may not put 'gemm' in the place of 'i_1' in program 'product'"
    assert lines[1].split("|")[0].strip() == "the program" and lines[1].split("|")[1].strip() == "the meaning"
    columns = [x.split("|") for x in lines if "|" in x]
    assert any("X[vi, vk] + Y[vk, vj]" in left for left, _ in columns)
    assert any("C[v_i, v_j] + A[v_i, v_k]*B[v_k, v_j]" in right for _, right in columns)
    assert "why: the formula of block 'C' is not that of the meaning" in text


@pytest.mark.parametrize(
    ("program", "sizes", "words"),
    [
        (product(20), (8, 8, 8), "why: the condition i_0*8 + i_1 < 20 does not hold in the whole tile for certain"),
        (product("m"), (8, 8, 8), "hint: pad_loop makes the tiles of 'C' whole, or split by a divisor"),
        (
            product(),
            (8, 8, 4),
            "the tile runs over i_1: 8, j_1: 8, r_1: reduce 4, the meaning over i: 8, j: 8, k: reduce 8",
        ),
        (product(value="X[vi, vk]*Y[vj, vk]", n="k*8"), (8, 8, 8), "dimension 0 of operand 'B' has stride"),
        (
            product(value="X[vi, vk]*X[vi, vk]"),
            (8, 8, 8),
            "operand 'B' does not lie in 'X' as the meaning reads it: X[i_0*8 + i_1, r_0*8 + r_1] is not",
        ),
        (product(zero="1.0f32"), (8, 8, 8), "block 'C' starts its sum otherwise than the meaning, which starts from 0"),
        (product(dtype="float64", zero="0.0f64"), (8, 8, 8), "the formula of block 'C' is not that of the meaning"),
    ],
)
def test_what_does_not_match(program: Program, sizes: tuple[int, int, int], words: str) -> None:
    square = gemm(**{"B": Operand("B", strides=(24, 1))})
    assert words in refusal(tiled(program, square, sizes), "i_1", "gemm")


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        (
            Operand("A", scope="activations", strides=(None, 1)),
            "operand 'A' must lie in scope 'activations', 'X' lies in 'global'\n  hint: cache_read it",
        ),
        (
            Operand("C", scope="acc", strides=(None, 1)),
            "operand 'C' must lie in scope 'acc', 'Z' lies in 'global'\n  hint: cache_write or set_scope to 'acc'",
        ),
        (Operand("B"), "dimension 0 of operand 'B' has stride 8, in 'Y' it is 24\n  hint: copy the tile"),
        (Operand("A"), "dimension 0 of operand 'A' has stride 8, in 'X' it is k*8"),
        (
            Operand("B", align=64, strides=(None, 1)),
            "operand 'B' must be aligned to 64 bytes; 'Y' is aligned to 64, its first element is",
        ),
        (Operand("B", align=128, strides=(None, 1)), "operand 'B' must be aligned to 128 bytes; 'Y' is aligned to 64"),
    ],
)
def test_preconditions(operand: Operand, words: str) -> None:
    assert words in refusal(tiled(product(), gemm(**{operand.name: operand})), "i_1", "gemm")


def test_alignment_that_formulas_prove() -> None:
    s = tiled(product(), gemm(**{"B": Operand("B", align=32, strides=(None, 1))}))
    s.tensorize("i_1", "gemm")
    check(s, product())


def test_rows_of_an_aligned_operand_are_aligned() -> None:
    s = Schedule(
        product(8, 8, 8), checked=True, intrinsics={"gemm": gemm(**{"B": Operand("B", align=64, strides=(None, 1))})}
    )
    assert "rows of operand 'B' must be aligned to 64 bytes; in 'Y' they are 8 elements apart" in refusal(
        s, "C", "gemm"
    )


def test_forms_that_an_intrinsic_lacks() -> None:
    whole = Intrinsic("gemm", GEMM.meaning, GEMM.operands, Call("gemm8x8"))
    words = "'gemm' has no code to update the result, and block 'C' needs it: its sum goes on outside the tile"
    assert words in refusal(tiled(product(), whole), "i_1", "gemm")
    s = tiled(product(), whole)
    s.decompose_reduction("C", "r_0")
    assert "has no code to update the result, and block 'C' needs it: its sum was started elsewhere" in refusal(
        s, "i_1", "gemm"
    )
    words = "'gemm' has no code to reset the result, and block 'C_init' needs it: it is the start of a sum"
    assert words in refusal(s, s.loops("C_init")[-2], "gemm")


def test_code_that_fails_or_gives_nothing() -> None:
    naive = product(8, 8, 8)
    s = Schedule(naive, intrinsics={"gemm": Intrinsic("gemm", GEMM.meaning, GEMM.operands, lambda a, b: None)})  # type: ignore[misc, arg-type, return-value]
    with pytest.raises(ScheduleError, match="the compute code of intrinsic 'gemm' failed") as caught:
        s.tensorize("C", "gemm")
    assert "takes 2 positional arguments but 3 were given" in str(caught.value.why)
    s = Schedule(naive, intrinsics={"gemm": Intrinsic("gemm", GEMM.meaning, GEMM.operands, lambda a, b, c: None)})  # type: ignore[arg-type, return-value]
    with pytest.raises(ScheduleError, match="the compute code of intrinsic 'gemm' gives None, which is no statement"):
        s.tensorize("C", "gemm")
    assert str(s) == str(naive)


def test_nests_that_are_no_tile() -> None:
    s = tiled(product())
    s.decompose_reduction("C", "r_0")
    assert "the nest under 'j_0' is not perfect: it holds more than one block under its loops" in refusal(
        s, "j_0", "gemm"
    )
    s = tiled(product())
    assert "the extent m of loop 'i_0' is not constant\n  hint: split it first" in refusal(s, "i_0", "gemm")
    s.unroll("j_1")
    assert "loop 'j_1' is unrolled\n  hint: the instruction takes the place of its loops" in refusal(s, "i_1", "gemm")
    s = tiled(product())
    s.tensorize("i_1", "gemm")
    assert "block 'C' states what it reads and writes: its body is code already" in refusal(s, "C", "gemm")
    assert "there is no loop or block 'i_9'\n  hint: did you mean 'i_0'?" in refusal(s, "i_9", "gemm")
    assert "there is no intrinsic 'gem'\n  hint: did you mean 'gemm'?" in refusal(s, "C", "gem")
    with pytest.raises(ScheduleError, match="there are none: a Schedule takes them"):
        Schedule(product()).tensorize("C", "gemm")
    scan = parse_program(
        "program p(x: float32[8]) -> (y: float32[8]) { for t in 8 { block b(v: scan 8 = t) { y[v] = x[v] } } }"
    )
    x = tl.placeholder((8,), name="x")
    move = Intrinsic("move", tl.compute((8,), lambda i: x[i], "y"), (Operand("x"), Operand("y")), Call("move"))
    assert "loop 't' drives a scan iterator of 'b'" in refusal(Schedule(scan, intrinsics={"move": move}), "t", "move")
    twice = parse_program(
        "program p(x: float32[8]) -> (y: float32[8]) { for t in 8 { for u in 8 { block b(v: 8 = u) { y[v] = x[v] }"
        " } } }"
    )
    assert "loop 't' drives no iterator of 'b'" in refusal(Schedule(twice, intrinsics={"move": move}), "t", "move")


def moves(body: str, head: str = "x: float32[64]) -> (y: float32[64]", loops: str = "v: 16 = i") -> str:
    x = tl.placeholder((16,), name="x")
    operands = tuple(Operand(name, strides=(None,)) for name in "xy")
    move = Intrinsic("move", tl.compute((16,), lambda i: x[i] + 1.0, "y", axes=("i",)), operands, Call("move"))
    program = parse_program(f"program p({head}) {{ for i in 16 {{ block b({loops}) {{ {body} }} }} }}")
    return refusal(Schedule(program, intrinsics={"move": move}), "i", "move")


def test_places_that_no_tile_describes() -> None:
    assert "the tile of 'y' has gaps: what is written could not be said" in moves("y[v*2] = x[v] + 1.0f32")
    plane = tl.placeholder((4, 8), name="x")
    free = tuple(Operand(name, strides=(None, None)) for name in "xy")
    more = Intrinsic(
        "more", tl.compute((4, 8), lambda i, j: plane[i, j] + 1.0, "y", axes=("i", "j")), free, Call("more")
    )
    for place in ("p*2 + q", "q"):
        text = (
            "program p(a: float32[4, 8]) -> (y: float32[64]) { for i in 4 { for j in 8 { block b(p: 4 = i, q: 8 = j) {"
            " y[AT] = a[p, q] + 1.0f32 } } } }"
        )
        text = text.replace("AT", place)
        assert "steps of the tile store to the same element of 'y'" in refusal(
            Schedule(parse_program(text), intrinsics={"more": more}), "i", "more"
        )
    assert "'x' is walked backwards" in moves("y[v] = x[15 - v] + 1.0f32")
    assert "the index i//4 of 'x' is not linear in the loops of the tile\n  hint: split so that the tile" in moves(
        "y[v] = x[v//4] + 1.0f32"
    )
    assert "it reads and writes 'y', which the code would overwrite while it reads" in moves("y[v] = y[v + 1] + 1.0f32")
    assert "the body of block 'b' is not one store" in moves("y[v] = x[v] + 1.0f32 y[v] = x[v]")
    assert "is a reduction, the meaning of 'move' is none" in moves(
        "init { y[0] = 0.0f32 } y[0] = y[0] + x[v]", loops="v: reduce 16 = i"
    )


def one(meaning: Any, text: str, loop: str = "i", operands: str = "xy") -> str:
    """The refusal of an intrinsic of this meaning at a loop of the program."""
    given = tuple(Operand(name, strides=(None,)) for name in operands)
    return refusal(
        Schedule(parse_program(text), intrinsics={"it": Intrinsic("it", meaning, given, Call("it"))}), loop, "it"
    )


def test_formulas_that_only_look_alike() -> None:
    x, head = tl.placeholder((16,), name="x"), "program p(a: float32[64], b: float32[64]) -> (y: float32[64]) "
    index = tl.compute((8,), lambda i: cast_to(i, "float32") + x[i], "y", axes=("i",))
    text = head + "{ for o in 8 { for i in 8 { block c(v: 64 = o*8 + i) { y[v] = float32(v) + a[v] } } } }"
    assert "the value uses o*8 + i where the meaning has 'i'" in one(index, text)
    twice = tl.compute((8,), lambda i: x[i] + x[i] * 2.0, "y", axes=("i",))
    text = head + "{ for i in 8 { block c(v: 8 = i) { y[v] = a[v] + b[v]*2.0f32 } } }"
    assert "what stands for operand 'x' is not one tile of one buffer" in one(twice, text)
    square = tl.compute((4,), lambda i: x[i * i] + 1.0, "y", axes=("i",))
    assert "the meaning reads 'x' at i*i, which is no sum of axes times constants" in one(
        square, head + "{ for i in 4 { block c(v: 4 = i) { y[v] = a[v*v] + 1.0f32 } } }"
    )
    even = tl.compute((8,), lambda i: x[i * 2] + 1.0, "y", axes=("i",))
    assert "'x' moves by 1 in 'a', which is no multiple of 2" in one(
        even, head + "{ for i in 8 { block c(v: 8 = i) { y[v] = a[v] + 1.0f32 } } }"
    )


def test_sums_that_only_look_alike() -> None:
    x, r = tl.placeholder((8,), name="x"), tl.reduce_axis(8, "r")
    total = tl.compute((1,), lambda i: tl.sum(x[r], axis=r), "y", axes=("i",))

    def sums(block: str, body: str = "y[0] = y[0] + a[k]") -> str:
        return one(
            total,
            f"program p(a: float32[64]) -> (y: float32[64]) {{ for r in 8 {{ block c({block}) {{ init {{ y[0] = 0.0f32"
            f" }} {body} }} }} }}",
            "r",
        )

    assert "the sum does not go on from what it stores to: it reads y[1]" in sums(
        "k: reduce 8 = r", body="y[0] = y[1] + a[k]"
    )
    assert "the sum of block 'c' does not begin where its loops do" in sums("k: reduce 9 = r + 1")
    assert "loop 'r' drives a reduce iterator and a spatial iterator of 'c'" in sums("v: 8 = r, k: reduce 8 = r")
    # Loops outside the tile
    up = tl.compute((8,), lambda i: x[i] + 1.0, "y", axes=("i",))
    head, body = "program p(a: float32[64], n: int64[4]) -> (y: float32[64])", "{ y[v] = a[v] + 1.0f32 }"
    mixed = f"{head} {{ for o in 2 {{ for i in 8 {{ block c(v: 16 = o*8 + i, k: scan 2 = o) {body} }} }} }}"
    assert "loop 'o' drives a spatial and a scan iterator of 'c'" in one(up, mixed)
    loose = f"{head} {{ for q in 4 {{ for o in n[q] {{ for i in 8 {{ block c(v: 64 = o*8 + i) {body} }} }} }} }}"
    assert "the extent n[q] of loop 'o' has no bound that stays" in one(up, loose)


def test_vectors_that_do_not_lie_side_by_side() -> None:
    x = tl.placeholder((8,), name="x")
    move = Intrinsic(
        "move",
        tl.compute((8,), lambda i: x[i] + 0.5, "y", axes=("i",)),
        (Operand("x", strides=(None,)), Operand("y")),
        lambda a, b: b.store(a.load(8)),
    )
    naive = parse_program(
        "program p(a: float32[8, 4]) -> (y: float32[8]) { for i in 8 { block c(v: 8 = i) { y[v] = a[v, 2] + 0.5f32"
        " } } }"
    )
    with pytest.raises(ScheduleError, match="no vector of 'a' can be moved at once") as caught:
        Schedule(naive, intrinsics={"move": move}).tensorize("i", "move")
    assert "a vector of operand 'x' does not lie in the last dimension of 'a'" in str(caught.value)


def test_other_steps_may_not_change_what_the_code_took_for_granted() -> None:
    naive = parse_program("""program p(X: float32[8, 8], Y: float32[8, 24]) -> (Z: float32[8, 24]) {
      allocate T: float32[8, 24]
      for i in 8 { for j in 24 { for r in 8 { block C(vi: 8 = i, vj: 24 = j, vk: reduce 8 = r) {
        init { T[vi, vj] = 0.0f32 } T[vi, vj] = T[vi, vj] + X[vi, vk]*Y[vk, vj] } } } }
      for i1 in 8 { for j1 in 24 { block D(a: 8 = i1, b: 24 = j1) { Z[a, b] = T[a, b] } } } }""")
    s = Schedule(naive, checked=True, intrinsics={"gemm": GEMM})
    j = s.split("j", [None, 8])
    s.reorder(j[0], "i", j[1], "r")
    s.reverse_compute_at("D", j[0])
    s.tensorize("i", "gemm")
    check(s, naive)
    with pytest.raises(
        ScheduleError,
        match="changes a buffer whose shape and place are written into the code of 'C', which is tensorized",
    ) as caught:
        s.compact_buffer("T")
    assert "hint: compact_buffer first, tensorize 'C' last" in str(caught.value)
    with pytest.raises(ScheduleError, match="which is tensorized"):
        s.set_scope("C", "local")


LAST = tl.Reducer("last", 1, lambda d: (const(0, d[0]),), lambda x, y: (y[0],), commutative=False)
STAGE = tl.compute((4,), lambda j: const(1.0), "t")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Intrinsic("x", tl.placeholder((4,)), (), Call("x")), "its meaning is no single compute"),
        (lambda: Intrinsic("x", tl.compute((4,), lambda i: STAGE[i]), (Operand("y"),), Call("x")),
            "computes 't' on the way"),
        (lambda: Intrinsic("x", GEMM.meaning, (Operand("A"), Operand("C")), Call("x")),
            "one for each of A, B, then the result"),
        (lambda: Intrinsic("x", GEMM.meaning, (Operand("A"), Operand("B"), Operand("C", strides=(1,))), Call("x")),
            "has 2 dimension.s. and 1 stride.s."),
        (lambda: Intrinsic("x", GEMM.meaning, (Operand("A"), Operand("B", align=0), Operand("C")), Call("x")),
            "'B' is aligned to 0 bytes"),
        (lambda: Intrinsic("x", GEMM.meaning, (Operand("A"), Operand("B", align=96), Operand("C")), Call("x")),
            "'B' is aligned to 96 bytes"),
        (lambda: Intrinsic("x", tl.compute((tl.var("n") * 2,), lambda i: const(1.0)), (Operand("y"),), Call("x")),
            "instructions have constant shapes"),
        (lambda: Intrinsic("x", tl.compute((4,), lambda i: const(1.0)), (Operand("y"),), Call("x"), Call("z")),
            "its meaning reduces nothing"),
        (lambda: Intrinsic("x", tl.compute((4,), lambda i: tl.reduce(LAST, const(1.0), tl.reduce_axis(4))),
            (Operand("y"),), Call("x")), "'last' in any order"),
    ],
)  # fmt: skip
def test_declarations_that_contradict_themselves(make: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match="the intrinsic 'x' is ill declared") as caught:
        make()
    import re

    assert re.search(words, str(caught.value))


# -- meanings ---------------------------------------------------------------------------------------------------------


def test_one_instruction_has_one_meaning() -> None:
    other = gemm(4, 4, 4)
    with pytest.raises(ScheduleError, match="'gemm' and 'gemm' mean different things by the instruction 'gemm8x8'"):
        meanings([GEMM, other])
    assert meanings([GEMM, gemm()]).keys() == {"gemm8x8", "fill_zero", "fuse_gemm8x8_add"}


def test_an_operand_outside_its_buffer_is_an_error() -> None:
    text = "program p(x: float32[8, 8]) -> (y: float32[8, 8]) { @fill_zero(y[1, 0], 8) }"
    with pytest.raises(LoopError, match="operand 'C' does not lie in buffer 'y'") as caught:
        interpret(parse_program(text), [np.zeros((8, 8), np.float32)], intrinsics=meanings([GEMM]))
    assert "it takes elements 8 … 71 of 64" in str(caught.value)
    with pytest.raises(LoopError, match="operand 'C' is no address"):
        interpret(
            parse_program(text.replace("y[1, 0], 8", "3")), [np.zeros((8, 8), np.float32)], intrinsics=meanings([GEMM])
        )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_tiles_keep_the_meaning(data: Any) -> None:
    """Any tile sizes, orders, splits, forms and sizes, operands in any order: tensorized = naive, bit for bit."""
    draw = data.draw
    sizes = tuple(draw(st.integers(1, 4)) for _ in "mnk")
    m, n, k = (draw(st.sampled_from([f"{v}*{t}", t * draw(st.integers(1, 3))])) for v, t in zip("mnk", sizes))
    value = draw(st.sampled_from(["X[vi, vk]*Y[vk, vj]", "Y[vk, vj]*X[vi, vk]"]))
    naive = product(m, n, k, value, "int32", "0i32")
    s = tiled(naive, gemm(*sizes, dtype="int32"), sizes, draw(st.permutations([0, 1, 2])))  # type: ignore[arg-type]
    init = s.decompose_reduction("C", s.loops("C")[2]) if draw(st.booleans()) else None
    if draw(st.booleans()) and sizes[1] == 4:
        s.split("j_1", [2, 2])
    s.tensorize(s.loops("C")[3], "gemm")
    if init is not None and draw(st.booleans()):
        s.tensorize(init, "gemm")
    check(s, naive, {d: draw(st.integers(1, 3)) for d in "mnk"})


AROUND = """program p(X: int32[8, m*4], Y: int32[m*4, 12]) -> (W: int32[8, 12]) dims(m) {
  allocate V: int32[8, m*4]
  allocate T: int32[8, 12]
  allocate Z: int32[8, 12]
  for i0 in 8 { for r0 in m*4 { block before(p0: 8 = i0, p1: m*4 = r0) { V[p0, p1] = X[p0, p1] + 1i32 } } }
  for i in 8 { for j in 12 { for r in m*4 { block C(vi: 8 = i, vj: 12 = j, vk: reduce m*4 = r) {
    init { T[vi, vj] = 0i32 } T[vi, vj] = T[vi, vj] + V[vi, vk]*Y[vk, vj] } } } }
  for i1 in 8 { for j1 in 12 { block after(a: 8 = i1, b: 12 = j1) { Z[a, b] = T[a, b]*2i32 } } }
  for i2 in 8 { for j2 in 12 { block last(c: 8 = i2, d: 12 = j2) { W[c, d] = Z[c, d] - X[c, 0] } } }
}"""


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_steps_around_an_instruction_keep_the_meaning(data: Any) -> None:
    """Whatever other primitives accept once a block is an instruction is right; what would not be they refuse."""
    from tests.scheduling.test_random import one_step

    naive = parse_program(AROUND)
    s = tiled(naive, gemm(4, 4, 4, "int32"), (4, 4, 4))
    if data.draw(st.booleans()):
        s.decompose_reduction("C", "r_0")
    s.tensorize("i_1", "gemm")
    for _ in range(data.draw(st.integers(1, 8))):
        try:
            one_step(s, data.draw)
        except ScheduleError as error:
            assert error.why, error
            assert "ill-formed" not in error.what, error
    dims = {"m": data.draw(st.integers(1, 3))}
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(np.int32) for shape in ((8, dims["m"] * 4), (dims["m"] * 4, 12))]
    wanted = ((arrays[0] + 1) @ arrays[1]) * 2 - arrays[0][:, :1]
    functions = meanings(s.intrinsics.values())
    np.testing.assert_array_equal(interpret(s.program, arrays, dims, intrinsics=functions, shuffle_seed=1)["W"], wanted)
    assert str(replay(naive, Trace.from_json(s.trace.to_json()), s.intrinsics)) == str(s.program)
