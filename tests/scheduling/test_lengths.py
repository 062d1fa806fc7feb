"""Intrinsics that take lengths and numbers: one declaration for every size up to what the instruction has."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import LoopError, ScheduleError
from weft.expr.nodes import le, maximum
from weft.loop.parser import parse_program
from weft.scheduling import Call, Intrinsic, Operand, Schedule, meanings, replay
from weft.tensor import language as tl
from weft_interpreter.interpret import interpret
from weft_testing.intrinsics import check_intrinsic

M, N = tl.var("m"), tl.var("n")


def larger(code: str = "vmax", **more: object) -> Intrinsic:
    a, b = tl.placeholder((M, N), name="A"), tl.placeholder((M, N), name="B")
    c = tl.compute((M, N), lambda i, j: maximum(a[i, j], b[i, j]), name="C", axes=["i", "j"])
    free = (None, None)
    operands = (
        Operand("A", ("near", "far"), strides=free, number=True),
        Operand("B", ("near", "far"), strides=free, number=True),
        Operand("C", "near", strides=free),
    )
    return Intrinsic("larger", c, operands, Call(code), limits=(le(M, 8), le(M * N, 64)), **more)  # type: ignore[arg-type]


def total() -> Intrinsic:
    a, k = tl.placeholder((N,), name="A"), tl.reduce_axis(N, "k")
    return Intrinsic(
        "total",
        tl.compute((1,), lambda i: tl.sum(a[k], axis=k), name="C", axes=["i"]),
        (Operand("A"), Operand("C")),
        Call("t"),
        limits=(le(N, 16),),
    )


ROWS = """
program p(x: float32[4, 6] in far, z: float32[4] in far) -> (y: float32[4, 6] in near, v: float32[4, 6] in near) {
  for i in 4 { for j in 6 { block C(bi: 4 = i, bj: 6 = j) { y[bi, bj] = max(x[bi, bj], 0.5f32) } } }
  for q in 4 { for r in 6 { block D(di: 4 = q, dj: 6 = r) { v[di, dj] = max(x[di, dj], z[di]) } } }
}
"""


def test_one_intrinsic_for_every_length_number_and_stride() -> None:
    table = {"larger": larger()}
    s = Schedule(parse_program(ROWS), checked=True, intrinsics=table)
    s.tensorize("j", "larger")
    s.tensorize("q", "larger")
    assert "@vmax(x[bi, 0], 0, 1, 0.5f32, y[bi, 0], 0, 1, 1, 6)" in str(s)
    assert "@vmax(x[0, 0], 6, 1, z[0], 1, 0, v[0, 0], 6, 1, 4, 6)" in str(s)
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    got = interpret(s.program, [x, z], intrinsics=meanings(table.values()))
    np.testing.assert_array_equal(got["y"], np.maximum(x, np.float32(0.5)))
    np.testing.assert_array_equal(got["v"], np.maximum(x, z[:, None]))
    assert str(replay(parse_program(ROWS), s.trace, table)) == str(s.program)


def test_a_reduction_of_any_length() -> None:
    text = (
        "program p(x: float32[11]) -> (y: float32[1]) { for k in 11 { block C(r: reduce 11 = k) { init { y[0] = 0.0f32"
        " } y[0] = y[0] + x[r] } } }"
    )
    s = Schedule(parse_program(text), checked=True, intrinsics={"total": total()})
    s.tensorize("C", "total")
    assert "@t(x[0], y[0], 11)" in str(s)
    (got,) = interpret(s.program, [np.arange(11, dtype=np.float32)], intrinsics=meanings([total()])).values()
    assert got[0] == 55
    check_intrinsic(total())


def test_lengths_beyond_the_limits() -> None:
    long = parse_program(ROWS.replace("6", "40"))
    with pytest.raises(
        ScheduleError, match=r"its lengths would be m = 4, n = 40: m\*n <= 64 does not hold\n  hint: split the loops"
    ):
        Schedule(long, intrinsics={"larger": larger()}).tensorize("q", "larger")
    text = (
        "program p(x: float32[2, 3, 4] in far) -> (y: float32[2, 3, 4] in near) { for a in 2 { for b in 3 { for c in 4"
        " { block C(u: 2 = a, v: 3 = b, w: 4 = c)"
    )
    text += " { y[u, v, w] = max(x[u, v, w], 0.0f32) } } } } }"
    with pytest.raises(
        ScheduleError,
        match=r"the tile runs over a: 2, b: 3, c: 4, the meaning over i: m, j: n\n  hint: name an inner loop",
    ):
        Schedule(parse_program(text), intrinsics={"larger": larger()}).tensorize("a", "larger")
    with pytest.raises(LoopError, match=r"its lengths .* do not meet m <= 8"):
        wide = (
            "program p(x: float32[9] in far) -> (y: float32[9] in near) { @vmax(x[0], 1, 1, 0.0f32, y[0], 1, 1, 9, 1) }"
        )
        interpret(parse_program(wide), [np.zeros(9, np.float32)], intrinsics=meanings([larger()]))


def test_memories_of_which_an_operand_lies_in_one() -> None:
    text = ROWS.replace("x: float32[4, 6] in far", "x: float32[4, 6] in elsewhere")
    with pytest.raises(ScheduleError, match=r"operand 'A' must lie in scope 'near' or 'far', 'x' lies in 'elsewhere'"):
        Schedule(parse_program(text), intrinsics={"larger": larger()}).tensorize("j", "larger")


def test_a_number_stands_for_operands_that_allow_it_only() -> None:
    plain = Intrinsic(
        "larger",
        larger().meaning,
        tuple(Operand(o.name, strides=(None, None)) for o in larger().operands),
        Call("vmax"),
    )
    with pytest.raises(ScheduleError, match="the formula of block 'C' is not that of the meaning"):
        Schedule(parse_program(ROWS), intrinsics={"larger": plain}).tensorize("j", "larger")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((le(tl.var("q"), 3),), "a limit speaks of 'q', which is no length"),
        ((le(2, M),), "its limits forbid lengths of 1"),
    ],
)
def test_limits_that_cannot_be(limits: tuple[object, ...], words: str) -> None:
    with pytest.raises(ScheduleError, match="the intrinsic 'larger' is ill declared") as caught:
        Intrinsic("larger", larger().meaning, larger().operands, Call("vmax"), limits=limits)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_code_is_compared_with_its_meaning_at_several_lengths() -> None:
    assert check_intrinsic(larger()) > 4 * 4 * len(larger().examples()) / 2
    assert {x.given for x in larger().examples()} >= {(1, 1), (8, 1), (1, 64)}
    wrong = Intrinsic(
        "larger",
        larger().meaning,
        larger().operands,
        lambda a, b, c, m, n: c.store(b[0, 0] if hasattr(b, "buffer") else b, 0, 0),
        limits=(le(M, 8),),
    )
    with pytest.raises(ScheduleError, match="the compute code of intrinsic 'larger' disagrees with its meaning"):
        check_intrinsic(wrong)


def scaled(dynamic: tuple[str, ...] = ()) -> Intrinsic:
    """C[i] = A[i]·n, with n alone and as a float: a formula that speaks of its length."""
    n = tl.var("n")
    a = tl.placeholder((n,), name="A")
    value = tl.compute((n,), lambda i: a[i] * n.astype("float32") + (n * 2 - i).astype("float32"), "C", axes=["i"])
    return Intrinsic("scaled", value, (Operand("A"), Operand("C")), Call("scaled"), dynamic=dynamic)


def test_a_formula_may_speak_of_its_length() -> None:
    """In a cast as anywhere: where lengths are given they are numbers."""
    assert "C[v_i] = A[v_i]*4.0f32 + float32(8 - v_i)" in str(scaled().at({"n": 4}).program())
    naive = parse_program(
        """program p(x: float32[12]) -> (y: float32[12]) {
      for g in 3 { for i in 4 { block B(a: 3 = g, b: 4 = i) { y[a*4 + b] = x[a*4 + b]*4.0f32 + float32(8 - b) } } } }"""
    )
    s = Schedule(naive, checked=True, intrinsics={"scaled": scaled()})
    s.tensorize("i", "scaled")
    x = np.arange(12, dtype=np.float32)
    got, want = (interpret(p, [x], intrinsics=meanings([scaled()]))["y"] for p in (s.program, naive))
    np.testing.assert_array_equal(got, want)
    mean = tl.reduce_axis(tl.var("m"), "m")
    a = tl.placeholder((tl.var("m"),), name="A")  # an axis that is named as its length
    total = Intrinsic(
        "total", tl.compute((), lambda: tl.sum(a[mean], axis=mean), "C"), (Operand("A"), Operand("C")), Call("total")
    )
    assert "A[v_m]" in str(total.at({"m": 3}).program())


def test_a_length_that_a_formula_speaks_of_does_not_end_early() -> None:
    naive = parse_program("""program p(x: float32[n]) -> (y: float32[n]) dims(n) {
      for g in (n + 3)//4 { for i in 4 { block B(a: (n + 3)//4 = g, b: 4 = i) where a*4 + b < n {
        y[a*4 + b] = x[a*4 + b]*4.0f32 + float32(8 - b) } } } }""")
    s = Schedule(naive, checked=True, intrinsics={"scaled": scaled(("n",))})
    with pytest.raises(ScheduleError) as caught:
        s.tensorize("i", "scaled")
    assert "the formula of 'scaled' speaks of the length 'n', which is then another" in str(
        caught.value
    ) and "pad_loop" in str(caught.value)


def test_one_instruction_has_one_limit() -> None:
    """Under whatever names; two that allow one instruction different lengths would each be held to the other's."""

    def copy(name: str, length: str, most: int | None) -> Intrinsic:
        n = tl.var(length)
        a = tl.placeholder((n,), name="A")
        limits = () if most is None else (le(n, most),)
        return Intrinsic(
            name, tl.compute((n,), lambda i: a[i], "C"), (Operand("A"), Operand("C")), Call("copy"), limits=limits
        )

    assert meanings([copy("short", "n", 8), copy("same", "m", 8)]).keys() == {"copy"}
    for most, text in ((300, "'other' m <= 300"), (None, "'other' any")):
        with pytest.raises(ScheduleError) as caught:
            meanings([copy("long", "n", 400), copy("other", "m", most)])
        assert "'long' and 'other' mean different things by the instruction 'copy'" in str(caught.value)
        assert f"they allow different lengths: 'long' n <= 400, {text}" in str(caught.value)
