"""Products by instructions of a warp: by whatever sizes and memories a target's intrinsics have, tensorized,
interpreted, and lowered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.kernels import agree, random_inputs, within_limits
from tests.gpu.test_contraction import convolution, product

from weft import dtypes as dt
from weft.errors import ChoiceError, CodegenError, LoopError, ScheduleError
from weft.expr.nodes import Var, cast_to
from weft.loop.nodes import Allocate, For, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling import Schedule, replay
from weft.scheduling.intrinsic import Call, Intrinsic, Operand, meanings
from weft.tensor.language import compute, placeholder, reduce_axis
from weft.tensor.language import sum as total
from weft_gpu.machines import grid_machine
from weft_gpu.passes import grid_passes
from weft_gpu.schedules.contraction import ContractionRule
from weft_gpu.schedules.fragments import instruction_sets
from weft_interpreter.interpret import interpret
from weft_testing.intrinsics import Run, check_intrinsic

MACHINE = grid_machine(
    "gpu", cores=2, shared=24 << 10, threads=32, threads_per_axis=(32, 32, 32), warp=4, resident=64, features={"matrix"}
)


def instruction_set(
    m: int, n: int, k: int, factor: dt.DType, result: dt.DType, across: bool, shared: bool
) -> list[Intrinsic]:
    """Instructions for C[i, j] += Σ A[i, k]·B, where B is [k, j] (`across`) or [j, k]; factors in shared memory, or in
    fragments."""
    name = f"mma_{m}_{n}_{k}_{factor}"
    a, b, r = (
        placeholder((m, k), factor, "A"),
        placeholder((k, n) if across else (n, k), factor, "B"),
        reduce_axis(k, "k"),
    )
    c = compute(
        (m, n),
        lambda i, j: total(cast_to(a[i, r], result) * cast_to(b[(r, j) if across else (j, r)], result), axis=r),
        "C",
    )
    places = ("shared", "shared", "fragment") if shared else ("fragment.a", "fragment.b", "fragment.c")
    operands = tuple(Operand(x, place) for x, place in zip("ABC", places))
    found = [Intrinsic(name, c, operands, Call(name), Call(f"{name}_zero"), Call(f"{name}_add"), ("matrix",))]

    def copy(label: str, shape: tuple[Any, ...], dtype: dt.DType, source: str, to: str) -> Intrinsic:
        x = placeholder(shape, dtype, "X")
        return Intrinsic(
            f"{name}_{label}",
            compute(shape, lambda i, j: x[i, j], "Y"),
            (Operand("X", source), Operand("Y", to)),
            Call(f"{name}_{label}"),
        )

    found.append(copy("store", (m, n), result, places[2], "shared"))
    if not shared:
        found += [
            copy("load_a", (m, k), factor, "shared", places[0]),
            copy("load_b", tuple(b.shape), factor, "shared", places[1]),
        ]
    return found


SETS = {
    "fragments": instruction_set(4, 4, 4, dt.float16, dt.float32, True, False),
    "shared": instruction_set(8, 4, 8, dt.float16, dt.float32, False, True),
    "bytes": instruction_set(4, 8, 4, dt.int8, dt.int32, False, True),
    "floats": instruction_set(4, 4, 2, dt.float32, dt.float32, True, True),
}


def scheduled(graph: Any, intrinsics: list[Intrinsic], **choices: str) -> tuple[Any, Schedule]:
    program = lower_group(graph, "kernel")
    s = Schedule(program, MACHINE, overrides=choices, checked=True, intrinsics={i.name: i for i in intrinsics})
    ContractionRule().apply(s)
    within_limits(s.program, MACHINE)
    return program, s


@pytest.mark.parametrize("lowered", [False, True], ids=["scheduled", "lowered"])
@pytest.mark.parametrize(
    ("name", "graph", "dims"),
    [
        ("fragments", product((8, 8), (8, 16), "float16"), {}),
        ("fragments", product((Var("m"), 12), (12, 20), "float16", after="bias"), {"m": 9}),
        ("fragments", product((3, 8, 9), (3, 9, 7), "float16"), {}),
        ("shared", product((20, 24), (24, 17), "float16", after="silu"), {}),
        ("shared", convolution((1, 3, 6, 6), (8, 3, 3, 3), dtype="float16", pads=(1, 1, 1, 1)), {}),
        ("floats", product((20, 24), (24, 17), after="bias"), {}),
        (
            "floats",
            convolution((Var("n"), 4, 5, 5), (8, 2, 3, 3), groups=2, strides=(2, 2), pads=(1, 1, 1, 1)),
            {"n": 2},
        ),
    ],
)
def test_products_in_fragments_mean_what_they_meant(name: str, graph: Any, dims: dict[str, int], lowered: bool) -> None:
    program, s = scheduled(graph, SETS[name])
    assert f'tensorize="{SETS[name][0].name}"' in str(s.program), s.program
    assert str(replay(program, s.trace, intrinsics=s.intrinsics)) == str(s.program)
    inputs = random_inputs(program, dims)
    want = interpret(program, inputs, dims)
    run = lower_program(s.program, frozenset({"exp"}), extra=grid_passes()) if lowered else s.program
    got = interpret(
        run,
        [x.reshape(-1) for x in inputs] if lowered else inputs,
        dims,
        intrinsics=meanings(SETS[name]),
        shuffle_seed=5,
    )
    agree(list(got.values()), list(want.values()), 64.0, str(run))


@pytest.mark.parametrize(("name", "features"), [("fragments", ()), ("shared", ()), ("floats", ("cp.async",))])
def test_operands_come_a_step_ahead(name: str, features: tuple[str, ...]) -> None:
    """With one barrier a step, as instructions say where they stay."""
    graph = product((8, 24), (24, 16), "float32" if features else "float16")
    machine = replace(MACHINE, features=MACHINE.features | set(features))
    program = lower_group(graph, "kernel")
    s = Schedule(
        program,
        machine,
        overrides={"warp_tile": "1x2 of 1x1 by 1 ahead"},
        checked=True,
        intrinsics={i.name: i for i in SETS[name]},
    )
    ContractionRule().apply(s)
    within_limits(s.program, MACHINE)
    assert "tensorize" in str(s.program) and "fragments_declined" not in str(s.program), s.program
    assert str(replay(program, s.trace, intrinsics=s.intrinsics)) == str(s.program)
    inputs = random_inputs(program)
    want = interpret(program, inputs)
    low = lower_program(s.program, frozenset(), extra=grid_passes(["cp.async"] if features else []))
    assert ("@copy_async" in str(low)) == bool(features)
    for p, shapes in ((s.program, inputs), (low, [x.reshape(-1) for x in inputs])):
        got = interpret(p, shapes, intrinsics=meanings(SETS[name]), shuffle_seed=5)
        agree(list(got.values()), list(want.values()), 64.0, str(p))
    steps = [
        x
        for x in walk_stmts(low.body)
        if isinstance(x, For) and x.kind == "serial" and "@barrier" in str(x) and SETS[name][0].name in str(x)
    ]
    assert [str(x).count("@barrier()") for x in steps[:1]] == [1], str(low)


def test_integer_products() -> None:
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops import MatMul

    g = GraphBuilder("bytes")
    g.output(
        g.add(
            MatMul(dt.int32), g.input("a", tensor_type("int8", (12, 20))), g.input("b", tensor_type("int8", (20, 24)))
        ),
        "y",
    )
    program, s = scheduled(g.build(), SETS["bytes"])
    assert "tensorize" in str(s.program)
    inputs = random_inputs(program)
    agree(
        list(interpret(s.program, inputs, intrinsics=meanings(SETS["bytes"])).values()),
        list(interpret(program, inputs).values()),
        0.0,
        str(s.program),
    )


def test_kits_are_whole_or_not_there() -> None:
    assert [k.product.name for k in instruction_sets(SETS["fragments"] + SETS["shared"])] == [
        "mma_4_4_4_float16",
        "mma_8_4_8_float16",
    ]
    (found,) = instruction_sets(SETS["shared"])
    assert (found.rows, found.columns, found.depth, found.loads) == (8, 4, 8, (None, None))
    assert found.orders == ((("row", 0), ("term", 0)), (("column", 0), ("term", 0)))
    assert (
        instruction_sets(SETS["shared"][:1]) == [] and instruction_sets(SETS["fragments"][:3]) == []
    )  # nothing stores the result, loads the right factor


def test_products_that_no_instruction_fits_are_tiled() -> None:
    for graph in (product((1, 8), (8, 16), "float16"), product((8, 8), (8, 16))):
        _, s = scheduled(graph, SETS["fragments"])
        assert "tensorize" not in str(s.program) and "shared" in str(s.program)


def test_instructions_of_warps_are_reached_by_all_their_threads() -> None:
    """Fragments are each thread's part in the text; the condition on lanes is one that only the interpreter asks."""
    _, s = scheduled(product((8, 8), (8, 16), "float16"), SETS["fragments"])
    low = lower_program(s.program, frozenset(), extra=grid_passes())
    text = str(low)
    assert "@whole_warp(" in text and "@mma_4_4_4_float16_add(" in text
    assert all(
        not x.buffer.scope.startswith("fragment") or "threadIdx" in text
        for x in walk_stmts(low.body)
        if isinstance(x, Allocate)
    )


def test_what_is_no_phase_of_warps() -> None:
    text = """program p(x: float32[4]) -> (y: float32[4]) {
      allocate f: float32[4, 4] in fragment
      for t in 4 threadIdx.x { @fill(f[t, 0]) }
      for u in 4 threadIdx.x { y[u] = x[u] }
    }"""
    with pytest.raises(LoopError, match=r"loop 't' is not one of warps(.|\n)*hint: bind warps to threadIdx.y"):
        lower_program(parse_program(text), frozenset(), extra=grid_passes())


# -- instructions by themselves ---------------------------------------------------------------------------------------


def by_warps(intrinsics: list[Intrinsic], broken: str = "") -> Run:
    """Runs lowered programs in the interpreter; `broken`: an instruction that does nothing."""
    functions = meanings(intrinsics)
    if broken:

        def nothing(*args: Any) -> None:
            pass

        nothing.addresses = True  # type: ignore[attr-defined]
        functions[broken] = nothing
    return lambda p: (
        lambda arrays: interpret(
            lower_program(p, frozenset(), extra=grid_passes()), arrays, intrinsics=functions, shuffle_seed=3
        )["result"]
    )


INSTRUCTIONS = [(which, i.name) for which, found in SETS.items() for i in found]


def calls(i: Intrinsic) -> list[str]:
    return [c.name for c in (i.compute, i.reset, i.update) if isinstance(c, Call)]


@pytest.mark.parametrize(("which", "name"), INSTRUCTIONS)
def test_instructions_are_tried_on_fragments_that_others_fill(which: str, name: str) -> None:
    i = next(i for i in SETS[which] if i.name == name)
    compared = check_intrinsic(i, run=by_warps(SETS[which]), copies=SETS[which], warp=4)
    assert compared == len(calls(i)) * 2 * 4 * 2  # forms, strides, kinds of data, places
    for broken in calls(i):
        with pytest.raises(
            ScheduleError, match=f"code of intrinsic '{name}' disagrees with its meaning(.|\n)*run, least strides"
        ):
            check_intrinsic(i, run=by_warps(SETS[which], broken), copies=SETS[which], warp=4)


def test_what_a_load_gets_wrong_is_seen_through_a_product() -> None:
    which = SETS["fragments"]
    with pytest.raises(ScheduleError) as caught:
        check_intrinsic(which[2], run=by_warps(which, "mma_4_4_4_float16_load_a"), copies=which, warp=4)
    assert "seen through 'mma_4_4_4_float16'" in str(caught.value) and " of warp 0 " in str(caught.value)


def test_fragments_that_nothing_fills_or_shows() -> None:
    product, store, load_a, load_b = SETS["fragments"]
    for given, what in (
        ([product, store, load_a], "no instruction brings a float16 matrix of 4 × 4 into scope 'fragment.b'"),
        ([product, product, store], "no instruction brings a float16 matrix of 4 × 4 into scope 'fragment.a'"),
        ([product, load_a, load_b], "no instruction takes a float32 matrix of 4 × 4 out of scope 'fragment.c'"),
    ):
        with pytest.raises(CodegenError, match=f"the intrinsic '{product.name}' cannot be tried by itself") as caught:
            check_intrinsic(product, run=by_warps(given), copies=given, warp=4)
        assert what in str(caught.value)


def test_products_that_only_products_fill() -> None:
    """A way that leads round and round is none."""
    a, b, r = placeholder((4, 4), name="A"), placeholder((4, 4), name="B"), reduce_axis(4, "k")
    c = compute((4, 4), lambda i, j: total(a[i, r] * b[r, j], axis=r), "C")
    square = Intrinsic("square", c, tuple(Operand(x, "fragment") for x in "ABC"), Call("square"))
    with pytest.raises(CodegenError, match="cannot be tried by itself"):
        check_intrinsic(square, run=by_warps([square]), copies=[square], warp=4)


def test_a_tile_that_the_instructions_have_not() -> None:
    """`warp_tile` is a choice among the tiles of the instruction set that `fragments` names, as any other choice."""
    intrinsics = [*SETS["fragments"], *instruction_set(4, 4, 8, dt.float16, dt.float32, False, True)]
    graph = product((8, 24), (24, 16), "float16")
    names = [i.name for i in intrinsics if i.reduction is not None]
    for name in names:
        _, s = scheduled(graph, intrinsics, fragments=name, warp_tile="1x2 of 1x1 by 1")
        assert {c.name: c.value for c in s.choices}["fragments"] == name
    with pytest.raises(
        ChoiceError, match=r"choice 'warp_tile' cannot be '1x1 of 1x1 by 1'.*\n.*\n  why: the options are"
    ):
        scheduled(graph, intrinsics, warp_tile="1x1 of 1x1 by 1")
