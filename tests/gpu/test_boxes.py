"""Boxes of tensors that a machine copies to shared memory by itself: which loops become such copies, that they mean the
same, and CUDA's text of them."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu.shim import shims
from tests.gpu.shim.shims import ShimError
from tests.gpu.test_copies import lowered
from tests.gpu.test_grids import Writer, agree, group, inputs_of, joined, joined_if_warps_can, run

from weft.errors import LoopError, ScheduleWarning
from weft.loop.nodes import Evaluate, For, walk_stmts
from weft.loop.parser import parse_program
from weft_c_family import Emitter
from weft_cuda.dialect import CUDA
from weft_cuda.nvrtc import build, cubin
from weft_gpu.bulk_copies import BulkCopy
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel, Tensor
from weft_gpu.passes.bulk_copies import BoxNest, box_nest, is_box
from weft_gpu.passes.copy_async import copy_async

BOXES = """program boxes(x: float32[50, 160], w: float32[160]) -> (y: float32[64, 160]) {
  for b in 4 blockIdx.x {
    allocate s: float32[2, 2, 16, 16] in shared
    for r in 2 @box=1 { for i in 16 @box=1 { for l in 16 @box=1 { s[0, r, i, l] = select(b*16 + i < 50, x[b*16 + i, r*16 + l], 0.0f32) } } }
    for k in 5 {
      if k < 4 {
        for r1 in 2 @box=1 { for i1 in 16 @box=1 { for l1 in 16 @box=1 {
          s[(k + 1) % 2, r1, i1, l1] = select(b*16 + i1 < 50, x[b*16 + i1, k*32 + 32 + r1*16 + l1], 0.0f32)
        } } }
      }
      for t in 16 threadIdx.x { for u in 32 { y[b*16 + t, k*32 + u] = s[k % 2, u // 16, 15 - t, 15 - u % 16]*w[k*32 + t] } }
    }
  }
}"""  # noqa: E501
"""Pieces of 16 columns, of a tensor that ends within the fourth group's rows, a step ahead."""


def test_a_box_waits_for_the_barrier() -> None:
    program, after = parse_program(BOXES), lowered(BOXES)
    agree(program, after)
    text = str(after)
    assert text.count("@barrier()") == text.count("@await_copies()") == 2 and "align 128" in text
    assert "@copy_box(s[0], x[0], 0i32, int32(b*16), 0i32, 16, 50, 10, 1, 160, 16, 16, 16, 2)" in text
    calls = [s.call for s in walk_stmts(after.body) if isinstance(s, Evaluate) and s.call.name == "copy_box"]
    assert (
        len(calls) == 2
        and len({BulkCopy.of(c).tensor for c in calls}) == 1
        and [BulkCopy.of(c).call().call for c in calls] == calls
    )


def test_a_wait_stands_only_where_something_is_on_its_way() -> None:
    """A step that brings its own tile has two barriers, behind one of which nothing is."""
    after = lowered(PIECES)
    agree(parse_program(PIECES), after)
    assert (str(after).count("@barrier()"), str(after).count("@await_copies()"), str(after).count("@copy_box(")) == (
        2,
        1,
        1,
    ), str(after)
    assert played(PIECES)[1] == [True] * 3


def test_large_boxes() -> None:
    text = (
        PIECES.replace("float16", "int8")
        .replace("0.0f16", "0i8")
        .replace("[1000, 64]", "[1000, 256]")
        .replace("[4, 64, 8]", "[8, 256, 16]")
    )
    for change in (
        ("b in 16", "b in 4"),
        ("i in 64", "i in 256"),
        ("j in 4", "j in 8"),
        ("l in 8", "l in 16"),
        ("t in 64", "t in 256"),
    ):
        text = text.replace(*change)
    text = text.replace("b*64", "b*256").replace("k*32 + j*8", "k*128 + j*16")
    assert str(lowered(text)).count("@copy_box(") == 1
    assert played(text)[1] == [True] * 3


@pytest.mark.parametrize("k", [0, 1])
def test_no_wait_too_few_goes_unseen(k: int) -> None:
    pieces = str(lowered(BOXES)).split("@await_copies()")
    broken = parse_program("".join(["@await_copies()".join(pieces[: k + 1]), "@await_copies()".join(pieces[k + 1 :])]))
    with pytest.raises(AssertionError):
        agree(parse_program(BOXES), broken)


def played(text: str, change: tuple[str, str] = ("", ""), **options: object) -> tuple[Kernel, list[bool]]:
    """The kernel of a program, and whether it gives what the program does, for some orders of threads."""
    program = parse_program(text)
    code = GpuCodegen(CUDA).compile(lowered(text))
    kernel = Kernel.from_bytes(code.object, code.name)
    (launch,) = kernel.launches
    kernel = Kernel(kernel.name, (replace(launch, code=launch.code.decode().replace(*change).encode(), **options),))  # type: ignore[arg-type]
    inputs, good = inputs_of(program, 3), []
    want = run(program, inputs, 3)["y"]
    for seed in range(3):
        arrays = [shims.guarded(a) for a in (*inputs, np.zeros(want.shape, want.dtype))]
        shims.run(kernel, "cuda", arrays, [], seed=seed)
        good.append(np.array_equal(arrays[-1], want))
    return kernel, good


def test_cuda_runs_them() -> None:
    kernel, good = played(BOXES)
    assert all(good)
    (launch,) = kernel.launches
    assert launch.tensors == (Tensor(0, 4, (16, 50, 10), (640, 64), (16, 16, 2)),)
    assert (
        launch.code.decode().count("weft_copy_box(&s[") == 2
        and "const __grid_constant__ weft_tensor x_boxes)" in launch.code.decode()
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("  weft_await_boxes(weft_arrivals, weft_turn);\n  __sync", "  __sync"), ""),
        (
            ("x_boxes, weft_arrivals, 2048, 0,", "x_boxes, weft_arrivals, 2032, 0,"),
            "expects -16 bytes more than copies bring",
        ),
        (
            ("x_boxes, weft_arrivals, 2048, 0,", "x_boxes, weft_arrivals, 4096, 0,"),
            "expects 2048 bytes more than copies bring",
        ),
        (("  weft_begin_boxes(weft_arrivals);\n", ""), "there is no mbarrier"),
        (("weft_copy_box(&s[0]", "weft_copy_box(&s[4]"), "multiple of 128 bytes"),
        (("unsigned int weft_turn = 0", "unsigned int weft_turn = 1"), ""),
        (("weft_arrivals, 2048, 0, ", "weft_arrivals, 2048, "), "says where in 2 dims, its tensor has 3"),
    ],
)
def test_what_is_wrong_is_seen(change: tuple[str, str], said: str) -> None:
    """A protocol that is not kept: an error, or another result."""
    try:
        _, good = played(BOXES, change)
    except ShimError as error:
        assert said in str(error), error
    else:
        assert not said and not all(good)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_nvrtc_takes_them(arch: str) -> None:
    for dtype, zero in (("float32", "0.0f32"), ("float16", "0.0f16"), ("int8", "0i8")):
        text = BOXES.replace("float32", dtype).replace("0.0f32", zero)
        source = GpuCodegen(CUDA).source(lowered(text))
        assert source.count("weft_copy_box(") == 2 and cubin(source, arch, "boxes")[:4] == b"\x7fELF"


def test_where_shared_memory_is_asked_for_at_the_launch() -> None:
    """The mbarrier lies behind the rest of it."""
    text = BOXES.replace(
        "allocate s",
        "allocate large: float32[12288] in shared for t2 in 16 threadIdx.x { large[t2] = w[t2] } allocate s",
        1,
    )
    text = text.replace("*w[k*32 + t]", "*w[k*32 + t] + large[15 - t]")
    code = build(GpuCodegen(CUDA).source(lowered(text)), "sm_90", "boxes")
    assert code[:4] == b"WSHM" and int.from_bytes(code[4:8], "little") == 12288 * 4 + 4096 + 8


def test_a_language_without_them_says_so() -> None:
    assert Emitter(replace(CUDA, extension=None)).check(lowered(BOXES)) == ["intrinsic copy_box"]


def nest_of(text: str, change: tuple[str, str] = ("", "")) -> BoxNest | str:
    program = parse_program(text.replace(*change))
    nest = next(s for s in walk_stmts(program.body) if isinstance(s, For) and is_box(s))
    return box_nest(nest, {})


PIECES = """program pieces(a: float16[1000, 64]) -> (y: float16[1000]) {
  for b in 16 blockIdx.x { for k in 2 {
    allocate s: float16[4, 64, 8] in shared
    for i in 64 @box=1 { for j in 4 @box=1 { for l in 8 @box=1 { s[j, i, l] = select(b*64 + i < 1000, a[b*64 + i, k*32 + j*8 + l], 0.0f16) } } }
    for t in 64 threadIdx.x { if b*64 + t < 1000 { y[b*64 + t] = s[1, t, 3] } }
  } }
}"""  # noqa: E501


STORE = "{ s[j, i, l] = select(b*64 + i < 1000, a[b*64 + i, k*32 + j*8 + l], 0.0f16) }"


@pytest.mark.parametrize(
    ("change", "extents", "strides", "sizes"),
    [
        (("", ""), (8, 1000, 8), (1, 64, 8), (8, 64, 4)),  # columns by eights, each with its rows
        (("s: float16[4, 64, 8]", "s: float16[64, 4, 8]"), None, None, None),  # placed below
        (
            ("select(b*64 + i < 1000, a[b*64 + i, k*32 + j*8 + l], 0.0f16)", "a[i, k*32 + j*8 + l]"),
            (8, 1000, 8),
            (1, 64, 8),
            (8, 64, 4),
        ),
        (
            ("b*64 + i < 1000, a[b*64 + i,", "0 <= b*64 + i - 3 and b*64 + i < 1003, a[b*64 + i - 3,"),
            (8, 1000, 8),
            (1, 64, 8),
            (8, 64, 4),
        ),
        (("b*64 + i < 1000,", "i < 1000 - b*64 and k*4 + j < 8,"), (8, 1000, 8), (1, 64, 8), (8, 64, 4)),
        (("a[b*64 + i,", "a[(b*64 + i)*2 - b*64 - i,"), (8, 1000, 8), (1, 64, 8), (8, 64, 4)),
    ],
)
def test_boxes_as_tensors(change: tuple[str, str], extents: object, strides: object, sizes: object) -> None:
    found = (
        nest_of(PIECES, change)
        if extents is not None
        else nest_of(PIECES.replace(*change).replace("s[j, i, l]", "s[i, j, l]").replace("s[1, t", "s[t, 1"))
    )
    assert not isinstance(found, str), found
    t = found.box.tensor
    assert (t.extents, t.strides, t.sizes) == (
        (extents, strides, sizes) if extents is not None else ((64, 1000), (1, 64), (32, 64))
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("b*64 + i < 1000", "b*64 + i < 999"), "what b*64 + i < 999 leaves out is not what lies outside of 'a'"),
        (("b*64 + i < 1000", "b + j < 15"), "leaves out is not what"),
        (("b*64 + i < 1000", "k*32 + j*8 + l < 63"), "leaves out is not what"),
        (("0.0f16)", "-0.0f16)"), "it stores select"),
        (("0.0f16)", "1.0f16)"), "it stores select"),
        (("s[j, i, l]", "s[j, i, 7 - l]"), "loop 'l' moves -1 elements"),
        (("s[j, i, l] =", "s[j, 63 - i, l] ="), "moves -8 elements"),
        (("k*32 + j*8 + l]", "k*32 + j*8 + (7 - l)]"), "does not move forwards"),
        (("k*32 + j*8 + l]", "k*4 + j*8 + l]"), "it may begin, or 'a' end, within a piece of 8 elements"),
        (("k*32 + j*8 + l]", "k*32 + l*4 + j]"), "what lies side by side in the box lies 4 apart"),
        (("k*32 + j*8 + l]", "k*32 + j*4 + l]"), "its pieces along a dimension of 'a' overlap"),
        (("a: float16[1000, 64]", "a: float16[1000, 68]"), "within a piece of 8"),
        (("a[b*64 + i, k*32 + j*8 + l]", "a[b*64 + i, (k*32 + j*8 + l) % 64]"), "the indices of 'a' are no sums"),
        (
            ("select(b*64 + i < 1000, a[b*64 + i, k*32 + j*8 + l], 0.0f16)", "a[b*60, k*32 + j*8 + l]"),
            "does not move forwards along one dimension of 'a'",
        ),
        (
            ("s: float16[4, 64, 8]", "s: float16[4, 64, 16]"),
            "moves 16 elements in shared memory, where the faster ones fill 8",
        ),
        ((STORE, f"{{ if i < 5 {STORE} }}"), "a part of it is not copied"),
        (("for i in 64 @box=1 {", "for i in 64 vectorized @box=1 {"), "a For is in its loops"),
    ],
)
def test_which_loops_are_none(change: tuple[str, str], why: str) -> None:
    found = nest_of(PIECES, change)
    assert isinstance(found, str) and why in found, found


def test_what_is_zero_as_a_whole() -> None:
    text = PIECES.replace("b*64 + i < 1000", "b*64 + i < 1000 and b % 3 < 2 and k < 1")
    assert str(lowered(text)).count("@copy_box(") == 1 and "select(" in str(lowered(text))
    agree(parse_program(text), lowered(text))
    assert played(text)[1] == [True] * 3


def test_one_row_may_be_outside_too() -> None:
    text = """program one(x: float32[1, 4]) -> (y: float32[3, 4]) { for g in 3 blockIdx.x { allocate s: float32[4] in shared
      for l in 4 @box=1 { s[l] = select(0 <= g - 1 and g - 1 < 1, x[g - 1, l], 0.0f32) } for t in 4 threadIdx.x { y[g, t] = s[t] } } }"""  # noqa: E501
    assert "@copy_box" in str(lowered(text))
    agree(parse_program(text), lowered(text))


def test_rows_that_begin_anywhere() -> None:
    text = PIECES.replace("a: float16[1000, 64]", "a: float16[1000, 60]").replace(
        "for j in 4 @box=1", "for j in 1 @box=1"
    )
    found = nest_of(text.replace("k*32 + j*8 + l]", "k*32 + l]"))
    assert isinstance(found, str) and "60 elements of 'a' are no multiple of 16 bytes" in found


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (("s[0, r, i, l] =", "s[1, r, i, l] ="), 2),
        (
            ("*w[k*32 + t] } }", "*w[k*32 + t] } } for t3 in 16 threadIdx.x { s[k % 2, 0, t3, 0] = 1.0f32 }"),
            2,
        ),  # who stores there, too, is behind a barrier
        (("s[k % 2, u // 16,", "s[(k + 1) % 2, u // 16,"), 0),  # read without a wait: both are done at once
        (("@box=1 { s[0", "{ s[0"), 2),  # one mark is enough
        (("[2, 2, 16, 16] in shared", "[2, 2, 16, 16] in global"), 0),
        (("float32", "float64"), 2),
        (("x: float32[50, 160]", "x: float32[50, 163]"), 0),
        (("for r in 2 @box=1", "for r in 2 threadIdx.x @box=1"), 1),  # by two threads
        (("if k < 4 {", "if k < 4 { for t3 in 16 threadIdx.x { y[b*16 + t3, k] = s[k % 2, 1, t3, 0] }"), 2),
        ((" for k in 5 {", " for k in 0 {"), 0),  # the group would end before it is there
    ],
)
def test_which_become_copies(change: tuple[str, str], kept: int) -> None:
    text = BOXES.replace(*change).replace("0.0f32", "0.0f64" if "float64" in change else "0.0f32")
    if "global" in change[1]:
        with pytest.raises(Exception, match="global"):
            GpuCodegen(CUDA).source(lowered(text))
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ScheduleWarning)
        after = lowered(text)
    assert str(after).count("@copy_box(") == kept, str(after)
    assert bool(said) == ("box=1" in str(after) and "threadIdx" in str(after))
    assert all("is copied element by element, by one thread, which takes long: " in str(w.message) for w in said)
    if "s[1, r" not in change[1]:
        agree(parse_program(text), after, seeds=2)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """One box of a matrix, from somewhere within or outside, in an order of its own."""
    rows, columns = draw(st.sampled_from([(4, 8), (3, 16), (8, 4), (1, 32)]))
    height, width = draw(st.integers(1, 12)), draw(st.sampled_from([4, 8, 12, 16, 36]))
    piece = draw(st.sampled_from([p for p in (4, 8, 16) if columns % p == 0 and p <= columns]))
    outer = draw(st.booleans())  # pieces of a row outside of the rows, as they are
    top, left = draw(st.integers(-3, 14)), draw(st.integers(-2, 3)) * piece
    place = f"g*{rows} + i + {top}", f"g*{piece} + j*{piece} + l + {left}"
    exact = draw(st.sampled_from([0, 0, 0, 1]))
    cond = (
        f"0 <= {place[0]} and {place[0]} < {height - (exact if height > 1 else 0)} and 0 <= {place[1]} and {place[1]} <"
        f" {width}"
    )
    shape, at = ((columns // piece, rows, piece), "j, i, l") if outer else ((rows, columns // piece, piece), "i, j, l")
    loops = [("i", rows), ("j", columns // piece), ("l", piece)]
    order = draw(st.permutations(loops))
    nest = " { ".join(f"for {v} in {n} @box=1" for v, n in order)
    n = rows * columns
    seen = f"s[t // {shape[1] * piece}, t // {piece} % {shape[1]}, t % {piece}]"
    return f"""program g(x: float32[{height}, {width}]) -> (y: float32[3, {n}]) {{
  for g in 3 blockIdx.x {{
    allocate s: float32[{", ".join(map(str, shape))}] in shared
    {nest} {{ s[{at}] = select({cond}, x[{place[0]}, {place[1]}], 0.0f32) }} {"} " * (len(order) - 1)}
    for t in {n} threadIdx.x {{ y[g, t] = {seen} }}
  }}
}}"""


@settings(max_examples=40, deadline=None)
@given(programs())
def test_random_boxes_mean_the_same(text: str) -> None:
    program = parse_program(text)
    agree(program, lowered(text), seeds=2)


def test_random_boxes_are_some() -> None:
    """Of the random ones that end where their tensor does, most are boxes."""
    from hypothesis import find

    text = find(
        programs(), lambda t: "@copy_box" in str(lowered(t)), settings=settings(max_examples=200, deadline=None)
    )
    assert played(text)[1] == [True] * 3


class Boxer(Writer):
    """Every second phase is a box of what lies in global memory."""

    def phase(self, loops: tuple[str, ...]) -> str:
        if self.draw(st.booleans()):
            return super().phase(loops)
        i, by = self.fresh("i"), self.draw(st.integers(0, 5))
        half = f"({self.draw(st.sampled_from(loops))} + {self.draw(st.integers(0, 1))}) % 2" if loops else "1"
        to = self.draw(st.sampled_from([f"s[{i}]", f"d[{half}, {i}]"]))
        return f"for {i} in 12 @box=1 {{ {to} = select({i} + {by} < 12, x[{i} + {by}], 0) }}"


@st.composite
def groups(draw: st.DrawFn) -> str:
    text = group(Boxer(draw), "x[t]", "x[11 - t]")
    return text.replace("s: int64[12]", "s: int64[16]").replace(
        "d: int64[2, 12]", "d: int64[2, 16]"
    )  # halves at multiples of 128 bytes


@settings(max_examples=40, deadline=None)
@given(groups())
def test_random_groups_mean_the_same(text: str) -> None:
    program = parse_program(text)
    for found in joined_if_warps_can(program)[-1:]:
        after = copy_async(found)
        agree(program, after, seeds=3)
        for s in walk_stmts(after.body):  # a box that is left is awaited
            if isinstance(s, Evaluate) and s.call.name == "copy_box":
                assert "@await_copies" in str(after)


def test_random_groups_have_boxes() -> None:
    """Some in loops, where each half is filled while the other is read."""
    from hypothesis import find

    def fits(text: str) -> bool:
        try:
            low = str(copy_async(joined(parse_program(text))[-1]))
        except LoopError:
            return False
        return re.search(r"@copy_box\(d\[\(?k.*@await", low, re.S) is not None

    assert find(groups(), fits, settings=settings(max_examples=400, deadline=None))
