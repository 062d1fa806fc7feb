"""Which loops are which axes of an instruction: tensorize finds an assignment whenever there is one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.scheduling import Call, Intrinsic, Operand, Schedule, meanings
from weft.tensor import language as tl
from weft_interpreter.interpret import interpret

M, NB = tl.var("m"), tl.var("nb")
WIDTH = 64


def panel(width: int = WIDTH) -> Intrinsic:
    """C[i, b, l] += Σk A[i, k] · B[b, k, l]: rows of any number, panels of any number, `width` columns each."""
    k = tl.reduce_axis(4, "k")
    a, b = tl.placeholder((M, 4), name="A"), tl.placeholder((NB, 4, width), name="B")
    c = tl.compute((M, NB, width), lambda i, p, j: tl.sum(a[i, k] * b[p, k, j], axis=k), name="C", axes=["i", "p", "j"])
    operands = (
        Operand("A", strides=(None, 1)),
        Operand("B", strides=(None, None, 1)),
        Operand("C", strides=(None, None, 1)),
    )
    return Intrinsic("panel", c, operands, Call("panel"), Call("panel_zero"), Call("panel_add"))


def panels(m: int, nb: int, width: int = WIDTH) -> Program:
    """One product by panels, the loop over panels outermost."""
    return parse_program(
        f"""program p(A: float32[{m}, 4], B: float32[{nb}, 4, {width}]) -> (C: float32[{m}, {nb}, {width}]) {{
      for p in {nb} {{ for i in {m} {{ for j in {width} {{ for k in 4 {{ block S(bp: {nb} = p, bi: {m} = i, bj: {width} = j, rk: reduce 4 = k) {{
        init {{ C[bi, bp, bj] = 0.0f32 }} C[bi, bp, bj] = C[bi, bp, bj] + A[bi, rk]*B[bp, rk, bj] }} }} }} }} }} }}"""  # noqa: E501
    )


def agrees(naive: Program, s: Schedule) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, [int(str(d)) for d in b.shape]).astype(b.dtype.numpy) for b in naive.inputs]
    (want,), (got,) = (
        interpret(p, arrays, intrinsics=meanings(s.intrinsics.values())).values() for p in (naive, s.program)
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("m", [1, 3, 64])
@pytest.mark.parametrize("nb", [1, 2, 64])
def test_a_panel_of_any_rows_and_any_number_of_panels(m: int, nb: int) -> None:
    """Rows as many as columns, panels as many as rows, one row, one panel: extents alone do not tell the axes apart."""
    naive = panels(m, nb)
    s = Schedule(naive, checked=True, intrinsics={"panel": panel()})
    s.tensorize("S", "panel")
    assert f", {m}, {nb})" in str(s)
    if m * nb < 4096:
        agrees(naive, s)


def test_digits_of_one_axis_between_loops_of_others() -> None:
    naive = panels(6, 4, 8)
    s = Schedule(naive, checked=True, intrinsics={"panel": panel(8)})
    (i_0, i_1), (j_0, j_1), (p_0, p_1) = s.split("i", [None, 2]), s.split("j", [None, 2]), s.split("p", [None, 2])
    s.reorder(j_1, p_1, i_0, "k", j_0, i_1, p_0)
    s.tensorize("S", "panel")
    assert ", 6, 4)" in str(s)
    agrees(naive, s)


@pytest.mark.parametrize("fits", [True, False])
def test_loops_that_are_alike_are_tried_in_one_order(fits: bool) -> None:
    """Twelve equal loops of a sum that move nothing, and eight that move one index alike: no number of orders is tried,
    whether they match or not."""
    count = 4096 if fits else 4095
    k = tl.reduce_axis(count, "k")
    a = tl.placeholder((3,), name="A")
    times = Intrinsic(
        "times", tl.compute((3,), lambda i: tl.sum(a[i], axis=k), "C"), (Operand("A"), Operand("C")), Call("times")
    )
    heads, iters = (
        "".join(f"for l{n} in 2 {{ " for n in range(12)),
        ", ".join(f"r{n}: reduce 2 = l{n}" for n in range(12)),
    )
    naive = parse_program(
        f"""program p(x: float32[3]) -> (y: float32[3]) {{ for i in 3 {{ {heads} block S(b: 3 = i, {iters}) {{
      init {{ y[b] = 0.0f32 }} y[b] = y[b] + x[b] }} {"}" * 12} }} }}"""
    )
    s = Schedule(naive, checked=True, intrinsics={"times": times})
    with s.attempt() as tried:
        s.tensorize("S", "times")
    assert bool(tried) == fits
    if fits:
        agrees(naive, s)

    taps = [tl.reduce_axis(2, f"k{n}") for n in range(8)]
    wide = tl.placeholder((11,), name="A")

    def tap(i: Any) -> Any:
        return (
            wide[sum((t.var for t in taps), i)] if fits else wide[sum((t.var for t in taps[1:]), i + taps[0].var * 0)]
        )

    window = Intrinsic(
        "window",
        tl.compute((3,), lambda i: tl.sum(tap(i), axis=taps), "C"),
        (Operand("A"), Operand("C")),
        Call("window"),
    )
    heads, iters = (
        "".join(f"for l{n} in 2 {{ " for n in range(8)),
        ", ".join(f"r{n}: reduce 2 = l{n}" for n in range(8)),
    )
    naive = parse_program(
        f"""program p(x: float32[11]) -> (y: float32[3]) {{ for i in 3 {{ {heads} block S(b: 3 = i, {iters}) {{
      init {{ y[b] = 0.0f32 }} y[b] = y[b] + x[b + {" + ".join(f"r{n}" for n in range(8))}] }} {"}" * 8} }} }}"""
    )
    s = Schedule(naive, checked=True, intrinsics={"window": window})
    with s.attempt() as tried:
        s.tensorize("S", "window")
    assert bool(tried) == fits
    if fits:
        agrees(naive, s)


# -- the law: an assignment exists exactly if tensorize finds one
# --------------------------------------------------------


@dataclass(frozen=True)
class Nest:
    """Loops around y[…] += Π a[…]: extents and kinds in order, and of each access, per dimension, what a step of each
    loop moves."""

    extents: tuple[int, ...]
    kinds: tuple[str, ...]
    accesses: tuple[tuple[tuple[int, ...], ...], ...]

    def program(self) -> Program:
        names = [f"l{k}" for k in range(len(self.extents))]
        shapes = [[1 + sum(c * (n - 1) for c, n in zip(d, self.extents)) for d in access] for access in self.accesses]

        def element(name: str, access: tuple[tuple[int, ...], ...]) -> str:
            return f"{name}[{', '.join(' + '.join(f'v{k}*{c}' for k, c in enumerate(d) if c) or '0' for d in access)}]"

        a, b, y = (element(name, access) for name, access in zip("aby", self.accesses))
        iters = ", ".join(
            f"v{k}: {'reduce ' if kind == 'reduce' else ''}{n} = l{k}"
            for k, (n, kind) in enumerate(zip(self.extents, self.kinds))
        )
        heads = "".join(f"for {v} in {n} {{ " for v, n in zip(names, self.extents))
        init = f"init {{ {y} = 0.0f32 }} "
        shape = [", ".join(map(str, s)) for s in shapes]
        head = f"program p(a: float32[{shape[0]}], b: float32[{shape[1]}]) -> (y: float32[{shape[2]}])"
        return parse_program(f"{head} {{ {heads}block B({iters}) {{ {init}{y} = {y} + {a}*{b} }}{' }' * len(names)} }}")


def meaning(
    extents: tuple[int, ...], kinds: tuple[str, ...], accesses: tuple[tuple[tuple[int, ...], ...], ...]
) -> Intrinsic:
    """The instruction whose operand number q has, per dimension, one axis or none (a 0 or 1 of each)."""
    spatial = [k for k, kind in enumerate(kinds) if kind == "spatial"]
    reduced = {k: tl.reduce_axis(extents[k], f"x{k}") for k, kind in enumerate(kinds) if kind == "reduce"}

    def shape(access: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        return tuple(math.prod(n for n, c in zip(extents, d) if c) for d in access)

    a, b = tl.placeholder(shape(accesses[0]), name="a"), tl.placeholder(shape(accesses[1]), name="b")

    def value(*i: Any) -> Any:
        at = {**dict(zip(spatial, i)), **{k: r.var for k, r in reduced.items()}}

        def read(t: Any, access: tuple[tuple[int, ...], ...]) -> Any:
            return t[tuple(next((at[k] for k, c in enumerate(d) if c), 0) for d in access)]

        return tl.sum(read(a, accesses[0]) * read(b, accesses[1]), axis=list(reduced.values()))

    c = tl.compute(tuple(extents[k] for k in spatial), value, name="y", axes=[f"x{k}" for k in spatial])
    operands = tuple(Operand(n, strides=(None,) * len(acc)) for n, acc in zip("aby", accesses))
    return Intrinsic("it", c, operands, Call("it"), Call("it_zero"), Call("it_add"))


def exists(
    nest: Nest, kinds: tuple[str, ...], extents: tuple[int, ...], accesses: tuple[tuple[tuple[int, ...], ...], ...]
) -> bool:
    """Whether the loops can be given to the axes, in some order of digits, so that every operand lies as the meaning
    reads it, by trying them all."""
    axes = range(len(extents))
    for owners in itertools.product(axes, repeat=len(nest.extents)):
        if any(kinds[o] != k for o, k, n in zip(owners, nest.kinds, nest.extents) if n > 1):
            continue
        loops = [[k for k, o in enumerate(owners) if o == axis and nest.extents[k] > 1] for axis in axes]
        if any(math.prod(nest.extents[k] for k in ls) != n for ls, n in zip(loops, extents)):
            continue
        for orders in itertools.product(*(itertools.permutations(ls) for ls in loops)):
            weight = {}  # steps of its axis that a step of a loop is
            for order in orders:
                size = 1
                for k in reversed(order):
                    weight[k] = size
                    size *= nest.extents[k]
            if all(_lies(nest, q, orders, weight, accesses[q]) for q in range(3)):
                return True
    return False


def _lies(
    nest: Nest, q: int, orders: tuple[tuple[int, ...], ...], weight: dict[int, int], access: tuple[tuple[int, ...], ...]
) -> bool:
    """Whether each axis moves operand q by a constant distance, and not at all where the meaning says so."""
    for d in range(len(nest.accesses[q])):
        step = []
        for order in orders:
            per = {nest.accesses[q][d][k] / weight[k] for k in order}
            if len(per) > 1:
                return False
            step.append(per.pop() if per else 0)
        # An axis moves the operand exactly if the meaning says so: the same index of the meaning is the same element.
        for axis, s in enumerate(step):
            if s and not any(dim[axis] for dim in access):
                return False
    return True


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_assignment_exists_exactly_if_tensorize_finds_one(data: st.DataObject) -> None:
    """Axes of random extents, equal ones and those of one step among them, each cut into digits; loops in any order;
    sometimes one step of one loop is wrong, or one loop longer."""
    draw = data.draw
    count = draw(st.integers(1, 3))
    kinds = tuple(draw(st.sampled_from(["spatial", "reduce"])) for _ in range(count))
    if "spatial" not in kinds:
        kinds = ("spatial", *kinds[1:])
    if "reduce" not in kinds:
        kinds = (*kinds, "reduce")
    digits = [[draw(st.sampled_from([1, 2, 2, 3, 4])) for _ in range(draw(st.integers(1, 2)))] for _ in kinds]
    extents = tuple(map(math.prod, digits))
    spatial = [k for k, kind in enumerate(kinds) if kind == "spatial"]
    one = lambda k: tuple(int(j == k) for j in range(len(kinds)))
    uses = [
        sorted(draw(st.sets(st.sampled_from(range(len(kinds))), min_size=1)), key=lambda k: draw(st.integers(0, 9)))
        for _ in range(2)
    ]
    accesses = (*(tuple(one(k) for k in use) for use in uses), tuple(one(k) for k in spatial))
    x = meaning(extents, kinds, accesses)
    # The loops: each digit of each axis, in any order; operands have gaps of their own.
    loops = draw(st.permutations([(axis, d) for axis, ds in enumerate(digits) for d in range(len(ds))]))
    gaps = [[draw(st.sampled_from([1, 1, 2, 3])) if q < 2 else 1 for _ in acc] for q, acc in enumerate(accesses)]
    steps = [
        [[gap * math.prod(digits[a][d + 1 :]) if dim[a] else 0 for a, d in loops] for dim, gap in zip(acc, gs)]
        for acc, gs in zip(accesses, gaps)
    ]  # fmt: skip
    sizes = [digits[a][d] for a, d in loops]
    spoil = draw(st.sampled_from(["no", "no", "step", "extent"]))
    if spoil == "step":
        q, k = draw(st.integers(0, 1)), draw(st.integers(0, len(loops) - 1))
        dim = draw(st.integers(0, len(steps[q]) - 1))
        steps[q][dim][k] = draw(st.integers(0, 6))
    if spoil == "extent":
        k = draw(st.integers(0, len(loops) - 1))
        sizes[k] = draw(st.integers(1, 4))
    nest = Nest(tuple(sizes), tuple(kinds[a] for a, _ in loops), tuple(tuple(map(tuple, acc)) for acc in steps))
    naive = nest.program()
    s = Schedule(naive, intrinsics={"it": x})
    possible = exists(nest, kinds, extents, accesses)
    event(f"{'there is one' if possible else 'there is none'}, {spoil}")
    with s.attempt() as tried:
        s.tensorize("B", "it")
    assert bool(tried) == possible, f"{naive}\n{x.program()}\n{tried.error}"
    if tried:
        agrees(naive, s)
