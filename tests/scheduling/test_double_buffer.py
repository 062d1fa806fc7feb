"""double_buffer: tiles brought one iteration ahead, in whatever memory they wait; the meaning kept, one barrier a
step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduling.nests import same
from tests.scheduling.test_tensorize import gemm

from weft.errors import ScheduleError
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.scheduling import Call, Intrinsic, Operand, Schedule, Trace, meanings, replay
from weft.scheduling.primitives.double_buffer import double_buffer
from weft.tensor import language as tl
from weft_gpu.passes import grid_passes
from weft_interpreter.interpret import interpret


def product(terms: str | int, rows: str | int = "n", columns: int = 4) -> Program:
    dims = ", ".join(d.split("*")[0] for d in (rows, terms) if isinstance(d, str))
    return parse_program(
        f"""program mm(x: float32[{rows}, {terms}], y: float32[{terms}, {columns}]) -> (z: float32[{rows}, {columns}]) dims({dims}) {{
      for i in {rows} {{ for j in {columns} {{ for k in {terms} {{ block S(bi: {rows} = i, bj: {columns} = j, rk: reduce {terms} = k) {{
        init {{ z[bi, bj] = 0.0f32 }} z[bi, bj] = z[bi, bj] + x[bi, rk]*y[rk, bj]
      }} }} }} }}
    }}"""  # noqa: E501
    )


def tiled(program: Program, rows: int, depth: int, specialized: bool) -> tuple[Schedule, list[str], str]:
    """A product in tiles of rows and terms, copies of its operands, and the loop over steps."""
    s = Schedule(program, checked=True)
    group, i = s.split("i", [None, rows])
    step, k = s.split("k", [None, depth])
    s.reorder(group, step, k, i, "j")
    result = s.stage_result("S", step, "register")
    start = s.decompose_reduction("S", step)
    for b in (start, "S", result):
        s.specialize(b)
    for b in (start, "S"):
        s.pad_tile(b)
    copies = []
    for _ in range(2):
        left, right = str(s.block("S").body.value).split(" + ", 1)[1], ""  # type: ignore[attr-defined]
        left, right = _factors(left)
        copies.append(s.stage("S", k, left if not copies else right, "shared"))
    if not specialized:
        s.reorder(i, "j", k)
    return s, copies, step


def _factors(term: str) -> tuple[str, str]:
    """The two factors of a product's text."""
    depth = 0
    for at, c in enumerate(term):
        depth += (c in "([") - (c in ")]")
        if c == "*" and depth == 0:
            return term[:at], term[at + 1 :]
    raise AssertionError(term)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    terms=st.one_of(st.integers(1, 9), st.just("m")), rows=st.integers(1, 3), depth=st.integers(1, 3),
    order=st.booleans(), threads=st.booleans(),
    through=st.sampled_from([(None, None), ("register", "register"), ("register", None)]), n=st.integers(1, 4),
    m=st.integers(0, 7),
)  # fmt: skip
def test_random_products_keep_the_meaning(
    terms: Any, rows: int, depth: int, order: bool, threads: bool, through: tuple[Any, Any], n: int, m: int
) -> None:
    program = product(terms)
    s, copies, step = tiled(program, rows, depth, order)
    group = s.loops("S")[0]
    if threads:
        for b in s.blocks():
            loops = [x for x in s.loops(b) if x not in (group, step)]
            if b == "S":
                s.reorder(*sorted(loops, key=lambda x: x.startswith("k")))
                loops = [x for x in loops if not x.startswith("k")]
            for x, axis in zip(loops[:2], ("threadIdx.y", "threadIdx.x")):
                s.bind(x, axis)  # type: ignore[arg-type]
        s.bind(group, "blockIdx.x")
    for copy, scope in zip(copies, through):
        s.double_buffer(copy, step, scope)
    same(program, s.program, {"n": n, "m": m})
    assert str(replay(program, Trace.from_json(s.trace.to_json()))) == str(s.program)
    lowered = lower_program(s.program, frozenset(), extra=grid_passes())
    rng, dims = np.random.default_rng(n), {d.name: {"n": n, "m": m}[d.name] for d in program.dims}
    x, y = (
        rng.integers(-4, 5, [{"n": n, "m": m}[str(d)] if str(d) in "nm" else int(str(d)) for d in b.shape])
        for b in program.inputs
    )
    for seed in range(2):
        got = interpret(
            lowered, [x.astype(np.float32).reshape(-1), y.astype(np.float32).reshape(-1)], dims, shuffle_seed=seed
        )["z"]
        np.testing.assert_array_equal(got.reshape(-1), (x @ y).reshape(-1), err_msg=str(lowered))


@pytest.mark.parametrize("through", [None, "register"])
def test_a_step_has_one_barrier(through: str | None) -> None:
    s, copies, step = tiled(product(40, 16), 4, 8, False)
    group = s.loops("S")[0]
    for b in s.blocks():
        loops = [x for x in s.loops(b) if x not in (group, step) and not (b == "S" and x.startswith("k"))]
        for x, axis in zip(loops[:2], ("threadIdx.y", "threadIdx.x")):
            s.bind(x, axis)  # type: ignore[arg-type]
    s.bind(group, "blockIdx.x")
    # In each step: what is staged is there, and nobody needs it any more.
    assert str(lower_program(s.program, frozenset(), extra=grid_passes())).count("@barrier()") == 2
    for copy in copies:
        s.double_buffer(copy, step, through)
    text = str(lower_program(s.program, frozenset(), extra=grid_passes()))
    before, _, loop = text.partition("for k_0 in 4 {")
    assert before.count("@barrier()") == 1 and loop.count("@barrier()") == 1, text


@pytest.mark.parametrize(
    ("prepare", "block", "words"),
    [
        (lambda s, copies, step: None, "S", "'S_register' is not allocated in 'k_0'"),
        (lambda s, copies, step: s.unroll(step), None, "loop 'k_0' is unrolled already"),
        (lambda s, copies, step: s.double_buffer(copies[0], step), None, "is not allocated in 'k_0'"),
    ],
)
def test_refusals(prepare: Any, block: str | None, words: str) -> None:
    s, copies, step = tiled(product(24, 8), 4, 8, True)
    prepare(s, copies, step)
    with pytest.raises(ScheduleError) as caught:
        s.double_buffer(block or copies[0], step)
    assert words in str(caught.value.why)


# -- instructions
# -------------------------------------------------------------------------------------------------------


def matrix_unit(tile: int, align: int) -> dict[str, Intrinsic]:
    """A product whose left factor is read where the copying instruction has put it, which has no registers in
    between."""
    product8 = gemm(
        tile,
        4,
        tile,
        A=Operand("A", scope="panels", align=align),
        B=Operand("B", strides=(None, 1)),
        C=Operand("C", scope="sums"),
    )
    x = tl.placeholder((tile, tile), name="X")
    moved = tl.compute((tile, tile), lambda i, j: x[i, j], "Y", axes=("i", "j"))
    return {
        "gemm": product8,
        "load": Intrinsic("load", moved, (Operand("X", strides=(None, 1)), Operand("Y", scope="panels")), Call("dma")),
    }


def ahead_of_the_unit(program: Program, tile: int, align: int, order: str) -> Schedule:
    """Panels are brought by one instruction and multiplied by another; `order`: which steps come first."""
    s = Schedule(program, checked=True, intrinsics=matrix_unit(tile, align))
    sums, panel = s.cache_write("S", "sums"), s.cache_read("S", "x", "panels")
    (i, row), (k, term) = s.split("i", [None, tile]), s.split("k", [None, tile])
    s.reorder(i, k, row, "j", term)
    s.reverse_compute_at(sums, i)
    s.compute_at(panel, k)
    for buffer in (*s.buffers("S"), *s.buffers(panel)):
        s.compact_buffer(buffer)
    steps = {
        "t": lambda: s.tensorize(row, "gemm"),
        "c": lambda: s.tensorize(panel, "load"),
        "d": lambda: first.append(s.double_buffer(panel, k)),
    }
    first: list[str] = []
    for step in order:
        steps[step]()
    if s.block(first[0]).annotation("tensorize") is None:
        s.tensorize(first[0], "load")
    return s


@pytest.mark.parametrize("order", ["tcd", "tdc", "cdt", "dtc"])
@pytest.mark.parametrize("terms", [24, "m*8"])
def test_an_instruction_reads_the_half_that_another_has_filled(order: str, terms: int | str) -> None:
    naive = product(terms, 16)
    s = ahead_of_the_unit(naive, 8, 256, order)
    text = str(s)
    assert (
        "@dma(x[" in text
        and "%2, 0, 0]" in text
        and "@fuse_gemm8x8_add(x_panels[" in text
        and "allocate x_panels: float32[2, 8, 8] in panels" in text
    )
    rng, dims = np.random.default_rng(0), {d.name: 3 for d in naive.dims}
    x, y = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 24), (24, 4)))
    got = interpret(s.program, [x, y], dims, intrinsics=meanings(s.intrinsics.values()))["z"]
    np.testing.assert_array_equal(got, x @ y)
    lowered = lower_program(s.program, frozenset(), extra=grid_passes())
    got = interpret(lowered, [x.reshape(-1), y.reshape(-1)], dims, intrinsics=meanings(s.intrinsics.values()))["z"]
    np.testing.assert_array_equal(got.reshape(16, 4), x @ y)
    assert str(replay(naive, Trace.from_json(s.trace.to_json()), s.intrinsics)) == text


def test_halves_of_instructions_are_as_aligned_as_the_operands_ask() -> None:
    """Not as the buffer is, whose alignment code of no known intrinsic takes for granted."""
    with pytest.raises(ScheduleError) as caught:
        ahead_of_the_unit(product(12, 12), 3, 8, "td")
    words = (
        "the second half of 'x_panels' begins after 36 bytes; the code of 'S' takes for granted that it is aligned to 8"
    )
    assert words in str(caught.value) and "hint: compact_buffer(…, align=…) before" in str(caught.value)
    for order in ("tdc", "cdt", "dtc"):
        s = ahead_of_the_unit(product(12, 12), 3, 4, order)
        x, y = np.arange(144, dtype=np.float32).reshape(12, 12) % 7, np.arange(48, dtype=np.float32).reshape(12, 4) % 5
        np.testing.assert_array_equal(
            interpret(s.program, [x, y], intrinsics=meanings(s.intrinsics.values()))["z"], x @ y
        )
    s = ahead_of_the_unit(product(12, 12), 3, 4, "tdc")
    step = next(k for k, x in enumerate(s.trace.steps) if x.do == "double_buffer")
    before = replay(product(12, 12), Trace(s.trace.steps[:step]), s.intrinsics)
    with pytest.raises(ScheduleError) as caught:
        double_buffer(before, "x_panels", "k_0")
    assert "aligned to 64" in str(caught.value) and "double_buffer first, tensorize later" in str(caught.value)


def test_an_instruction_brings_nothing_that_could_wait() -> None:
    s = ahead_of_the_unit(product(24, 16), 8, 64, "cdt")
    with pytest.raises(
        ScheduleError,
        match="what 'x_panels' brings cannot wait in 'register': it is an instruction, which moves all at once",
    ):
        s.double_buffer("x_panels", "k_0", "register")
