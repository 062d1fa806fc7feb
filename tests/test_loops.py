"""Loops whose iterations native code runs: what they mean = what the runtime does iteration by iteration = what it does
natively, and when it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.errors import ArchiveError, InputError, WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Value, tensor_type
from weft_runtime.loops import NativeTrips

F = np.float32
INDEX, BOOL = TensorType(dt.int64, ()), TensorType(dt.bool_, ())


def graph(*inputs: Any, build: Callable[..., Any], name: str = "g") -> Graph:
    b = GraphBuilder(name)
    found = build(b, *(b.input(f"x{k}", t) for k, t in enumerate(inputs)))
    for v in found if isinstance(found, (list, tuple)) else [found]:
        b.output(v)
    return b.build()


def trip_by_trip(executable: weft.Executable) -> weft.Executable:
    """The same, as an archive that knows nothing of native loops."""
    manifest = executable.manifest
    assert manifest.loops is not None and "native code" in executable.plan
    sections = {k: s for k, s in manifest.sections.items() if k != manifest.loops}
    return weft.Executable(manifest.with_(loops=None, sections=sections), executable._code, executable._constants)


def named(executable: weft.Executable, inputs: list[Any]) -> dict[str, Any]:
    return {i.name: x for i, x in zip(executable.inputs, inputs)}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """From which iteration to which loops went natively."""
    found: list[tuple[int, int]] = []
    own = NativeTrips.__call__

    def spy(self: NativeTrips, k: int, *rest: Any) -> Any:
        result = own(self, k, *rest)
        found.append((k, result[0]))
        return result

    monkeypatch.setattr(NativeTrips, "__call__", spy)
    return found


def agree(g: Graph, *runs: list[Any], target: str = "llvm -threads=2") -> weft.Executable:
    executable = weft.compile(g, target)
    slow = trip_by_trip(executable)
    for inputs in runs:
        before = [np.array(x) for x in inputs]
        wanted = evaluate(g, inputs)
        for e in (executable, slow):
            results = list(e.run(named(e, inputs)).values())
            for want, got in zip(wanted, results, strict=True):
                assert got.dtype == want.dtype and got.shape == want.shape and got.flags.c_contiguous
                np.testing.assert_array_equal(got, want)
            assert not any(
                np.may_share_memory(a, b)
                for k, a in enumerate(results)
                for b in (*inputs, *results[:k])
                if isinstance(b, np.ndarray)
            )
        for x, y in zip(inputs, before):
            np.testing.assert_array_equal(x, y)
    return executable


# -- random loops


@dataclass(frozen=True)
class Course:
    """A loop over tensors of one shape but for their dtypes; `n` in a shape is open."""

    shape: tuple[int | str, ...]
    carried: tuple[str, ...]
    items: tuple[tuple[str, int, bool], ...]
    captured: tuple[str, ...]
    results: tuple[tuple[int, int, bool], ...]  # of which value, along which axis, backward
    tests: bool
    counts: bool


DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool")


@st.composite
def courses(draw: st.DrawFn) -> Course:
    shape = draw(st.sampled_from([(), (3,), ("n",), (2, "n"), ("n", 0), (1, 5)]))
    kinds, axes = st.sampled_from(DTYPES), st.integers(0, len(shape))
    items = draw(st.lists(st.tuples(kinds, axes, st.booleans()), max_size=2))
    tests = draw(st.booleans())
    return Course(
        shape,
        tuple(draw(st.lists(kinds, max_size=3))),
        tuple(items),
        tuple(draw(st.lists(kinds, min_size=1, max_size=2))),
        tuple(draw(st.lists(st.tuples(st.integers(0, 9), axes, st.booleans()), max_size=3))),
        tests,
        draw(st.booleans()) or not (tests or items),
    )


def loop(course: Course) -> Graph:
    """What is carried goes round, capped and counted up; results are of everything that an iteration sees."""
    c = course

    def body(b: GraphBuilder, i: Value, until: Value, *values: Value) -> Any:
        one, most = b.constant(np.array(1, F)), b.constant(np.array(100, F))
        plain = [b.add(ops.Cast(dt.float32), v) for v in values]
        carried = [
            b.add(ops.Minimum(), b.add(ops.Add(), plain[(j + 1) % len(c.carried)], plain[-1 - j % len(plain)]), most)
            for j in range(len(c.carried))
        ]
        carried = [b.add(ops.Cast(dt.dtype(of)), v) for of, v in zip(c.carried, carried)]
        number = b.add(ops.Cast(dt.float32), i)
        seen = [*values, *carried, *(b.add(ops.Subtract(), number, b.add(ops.Add(), v, one)) for v in plain)]
        test = [b.add(ops.Less(), i, until)] if c.tests else []
        return *test, *carried, *(b.add(ops.Identity(), seen[k % len(seen)]) for k, _, _ in c.results)

    # The body takes what it captures last; `until` is the first of it.
    types = [tensor_type(of, c.shape) for of in (*c.carried, *(of for of, _, _ in c.items))]
    captured = [tensor_type(of, c.shape) for of in c.captured]
    inner = graph(
        INDEX,
        *types,
        INDEX,
        *captured,
        build=lambda b, i, *vs: body(b, i, vs[len(types)], *vs[: len(types)], *vs[len(types) + 1 :]),
        name="body",
    )

    def build(b: GraphBuilder, trips: Value, going: Value, *values: Value) -> Any:
        op = ops.Loop(
            inner, len(c.carried), c.tests, None, tuple(a for _, a, _ in c.items), tuple(back for _, _,
                back in c.items),
            tuple(a for _, a, _ in c.results), tuple(back for _, _, back in c.results),
        )  # fmt: skip
        found = b.add_all(op, trips if c.counts else None, going, *values)
        return [b.add(ops.HostIdentity(), v) for v in found]

    wide = [tensor_type(of, (*c.shape[:a], "t", *c.shape[a:])) for of, a, _ in c.items]
    return graph(INDEX, BOOL, *types[: len(c.carried)], *wide, INDEX, *captured, build=build)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(courses().filter(lambda c: c.carried or c.results), st.data())
def test_random_loops(course: Course, data: st.DataObject) -> None:
    check_random(course, data)


@pytest.mark.full
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(courses().filter(lambda c: c.carried or c.results), st.data())
def test_many_random_loops(course: Course, data: st.DataObject) -> None:
    check_random(course, data)


def check_random(course: Course, data: st.DataObject) -> None:
    def array(of: str, shape: tuple[Any, ...]) -> Any:
        seed = np.random.default_rng(data.draw(st.integers(0, 99)))
        return seed.integers(0, 2 if of == "bool" else 9, shape).astype(dt.dtype(of).numpy)

    runs = []
    for _ in range(3):
        sizes = {"n": data.draw(st.integers(0, 4)), "t": data.draw(st.sampled_from((0, 1, 2, 3, 9, 70)))}
        shape = tuple(sizes.get(d, d) for d in course.shape)
        trips, until = data.draw(st.sampled_from((-1, 0, 1, 2, 5, 200))), data.draw(st.sampled_from((-1, 0, 1, 4, 150)))
        items = [array(of, (*shape[:a], sizes["t"], *shape[a:])) for of, a, _ in course.items]
        carried, captured = ([array(of, shape) for of in kinds] for kinds in (course.carried, course.captured))
        going = np.array(data.draw(st.integers(0, 9)) > 0)
        runs.append([np.array(trips), going, *carried, *items, np.array(until), *captured])
    agree(loop(course), *runs)


# -- when native code takes over


def test_trips_after_the_first_are_native(ran: list[tuple[int, int]]) -> None:
    g = loop(
        Course((2, "n"), ("float32",), (("float16", 2, True),), ("bool",), ((0, 1, True), (3, 0, False)), False, False)
    )
    inputs = [
        np.array(0),
        np.array(True),
        np.ones((2, 3), F),
        np.arange(60).reshape(2, 3, 10).astype(np.float16),
        np.array(0),
        np.ones((2, 3), bool),
    ]
    agree(g, inputs)
    assert ran == [(1, 10)]


@pytest.mark.needs("weft_c", "c")
@pytest.mark.parametrize("tests", [False, True])
def test_the_target_c_has_native_trips(ran: list[tuple[int, int]], tests: bool) -> None:
    g = loop(
        Course(
            (2, "n"),
            ("float32", "int64"),
            (("float32", 2, True), ("bool", 0, False)),
            ("bool",),
            ((0, 1, True), (3, 0, False)),
            tests,
            False,
        )
    )
    inputs = [
        np.array(0),
        np.array(True),
        np.ones((2, 3), F),
        np.zeros((2, 3), np.int64),
        np.arange(60, dtype=F).reshape(2, 3, 10),
    ]
    agree(g, [*inputs, np.arange(60).reshape(10, 2, 3) % 3 > 0, np.array(6), np.ones((2, 3), bool)], target="c")
    assert ran == [(1, 7 if tests else 10)]


def test_results_of_a_loop_without_a_number_of_trips_grow(ran: list[tuple[int, int]]) -> None:
    g = loop(Course(("n",), ("int64",), (), ("int64",), ((0, 0, False), (1, 1, True)), True, False))
    executable = agree(g, [np.array(0), np.array(True), np.zeros(3, np.int64), np.array(999), np.array([1, 2, 3])])
    assert ran == [(1, 1000)]
    for result in executable.run(
        named(executable, [np.array(0), np.array(True), np.zeros(3, np.int64), np.array(70), np.ones(3, np.int64)])
    ).values():
        assert result.base is None or result.base.nbytes < result.nbytes + 4096  # no room that nobody needs


def test_sizes_that_change_on_the_way(ran: list[tuple[int, int]]) -> None:
    """The iteration that gives other sizes, and those after it, go iteration by iteration."""

    def body(b: GraphBuilder, i: Value, x: Value) -> Any:
        count = b.add(ops.Maximum(), i, b.constant(np.array(5)))
        longer = b.add(ops.Iota(dt.int64, (b.symbol(count, 0),)))
        return b.add(ops.Add(), longer, b.add(ops.ReduceSum(None, False), x)), b.add(ops.ReduceMax(None, False), x)

    inner = graph(INDEX, tensor_type("int64", ("m",)), build=body, name="body")

    def build(b: GraphBuilder, trips: Value, x: Value) -> Any:
        return [
            b.add(ops.HostIdentity(), v)
            for v in b.add_all(ops.Loop(inner, 1, False, None, (), (), (0,), (False,)), trips, None, x)
        ]

    agree(
        graph(INDEX, tensor_type("int64", (5,)), build=build), [np.array(8), np.arange(5)], [np.array(4), np.arange(5)]
    )
    assert ran == [(1, 6), (1, 4)]


def test_a_trip_that_fails_says_which(ran: list[tuple[int, int]]) -> None:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    step = [
        helper.make_node("Gather", ["x", "at"], ["row"], axis=0),
        helper.make_node("Add", ["total", "row"], ["sum"]),
    ]
    inner = helper.make_graph(
        step, "body", [info("total", TensorProto.FLOAT, [2]), info("at", TensorProto.INT64, [])], [info("sum",
            TensorProto.FLOAT, [2])]
    )  # fmt: skip
    node = helper.make_node("Scan", ["zero", "places"], ["y"], body=inner, num_scan_inputs=1)
    ends = [
        info("zero", TensorProto.FLOAT, [2]),
        info("places", TensorProto.INT64, ["t"]),
        info("x", TensorProto.FLOAT, ["n", 2]),
    ]
    g = helper.make_graph([node], "g", ends, [info("y", TensorProto.FLOAT, [2])])
    executable = weft.compile(helper.make_model(g, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    inputs = {"zero": np.zeros(2, F), "places": np.array([0, 1, 1, 7, 0]), "x": np.ones((3, 2), F)}
    messages = []
    for e in (executable, trip_by_trip(executable)):
        with pytest.raises(WeftError) as caught:
            e.run(inputs)
        messages.append(str(caught.value))
    assert (
        messages[0] == messages[1]
        and "7" in messages[0].splitlines()[0]
        and "in iteration 3 of a loop, counted from 0" in messages[0]
    )
    assert ran == [(1, 3)]
    inputs["places"] = np.array([0, 1, 1, 2, 0])
    np.testing.assert_array_equal(executable.run(inputs)["y"], np.full(2, 5, F))


def test_two_threads_at_once() -> None:
    g = loop(
        Course((64,), ("float32", "float32"), (("float32", 0, False),), ("float32",), ((0, 0, False),), True, False)
    )
    executable = weft.compile(g, "llvm -threads=2")
    rng = np.random.default_rng(0)
    runs = [
        [
            np.array(0),
            np.array(True),
            *rng.integers(0, 9, (2, 64)).astype(F),
            rng.integers(0, 9, (300, 64)).astype(F),
            np.array(250),
            np.ones(64, F),
        ]
    ]
    runs += [[*runs[0][:2], runs[0][3], runs[0][2], runs[0][4][::-1], np.array(290), runs[0][6]]]
    wanted = [evaluate(g, r) for r in runs]
    wrong: list[Any] = []

    def call(inputs: list[Any], want: list[Any]) -> None:
        for _ in range(20):
            got = executable.run(named(executable, inputs)).values()
            wrong.extend(w for w, r in zip(want, got) if not np.array_equal(w, r))

    threads = [threading.Thread(target=call, args=pair) for pair in zip(runs, wanted)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_long_loop_can_be_interrupted() -> None:
    import _thread
    import signal

    g = loop(Course((4,), ("float32",), (), ("float32",), (), True, False))
    executable = weft.compile(g)
    inputs = named(
        executable, [np.array(0), np.array(True), np.zeros(4, F), np.array(1 << 27), np.ones(4, F)]
    )  # a minute, if nobody interrupts it
    timer = threading.Timer(0.3, _thread.interrupt_main)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            executable.run(inputs)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


# -- archives and targets


def small() -> Graph:
    return loop(Course((3,), ("float32",), (), ("float32",), ((0, 0, False),), False, True))


def test_saved_and_loaded(tmp_path: Path, ran: list[tuple[int, int]]) -> None:
    executable = weft.compile(small(), cache=False)
    inputs = [np.array(9), np.array(True), np.zeros(3, F), np.array(0), np.ones(3, F)]
    for k, e in enumerate((executable, trip_by_trip(executable))):
        e.save(tmp_path / f"{k}.weft")
        again = weft.Executable.load(tmp_path / f"{k}.weft")
        assert again.plan == e.plan and again.manifest.loops == e.manifest.loops
        for want, got in zip(evaluate(small(), inputs), again.run(named(again, inputs)).values()):
            np.testing.assert_array_equal(got, want)
    assert ran == [(1, 9)]


@pytest.mark.parametrize("name", ["gone", "pool"])
def test_an_archive_whose_loops_are_elsewhere(tmp_path: Path, name: str) -> None:
    executable = weft.compile(small(), cache=False)
    spoilt = weft.Executable(executable.manifest.with_(loops=None), executable._code, executable._constants)
    spoilt.manifest = executable.manifest.with_(loops=name)
    spoilt.save(tmp_path / "bad.weft")
    with pytest.raises(ArchiveError, match=f"'{name}', which runs loops, is no section with the entry 'repeat'"):
        weft.Executable.load(tmp_path / "bad.weft")


def test_a_plan_that_carries_what_is_of_another_type_is_not_run_natively(ran: list[tuple[int, int]]) -> None:
    """One that no compiler made: what is collected, float64, goes where int8 is taken."""

    def body(b: GraphBuilder, i: Value, x: Value, y: Value) -> Any:
        return b.add(ops.Negative(), x), b.add(ops.Cast(dt.float64), y)

    inner = graph(INDEX, tensor_type("float32", (4,)), tensor_type("int8", (4,)), build=body, name="body")
    g = graph(
        INDEX, tensor_type("float32", (4,)), tensor_type("int8", (4,)),
        build=lambda b, n, x, y: [b.add(ops.HostIdentity(), v) for v in b.add_all(ops.Loop(inner, 1, False, None, (),
            (), (0,), (False,)), n, None, x, y)],
    )  # fmt: skip
    executable = weft.compile(g, cache=False)
    loop_, *rest = executable.manifest.steps
    step = replace(loop_, carried=2, result_axes=(), result_backward=())  # type: ignore[arg-type, call-arg]
    manifest = executable.manifest.with_(steps=(step, *rest))
    assert manifest.trouble() is None
    spoilt = weft.Executable(manifest, executable._code, executable._constants)
    with pytest.raises(InputError, match="has dtype float64, expected int8") as caught:
        spoilt(np.array(9), np.ones(4, F), np.ones(4, np.int8))
    assert "in iteration 1 of a loop" in str(caught.value) and ran == []


def test_a_target_without_native_loops(monkeypatch: pytest.MonkeyPatch, ran: list[tuple[int, int]]) -> None:
    from weft_llvm.target import LlvmTarget

    monkeypatch.setattr(LlvmTarget, "loops", lambda self, target: None)
    executable = weft.compile(small(), cache=False)
    assert executable.manifest.loops is None and "native code" not in executable.plan
    inputs = [np.array(9), np.array(True), np.zeros(3, F), np.array(0), np.ones(3, F)]
    for want, got in zip(evaluate(small(), inputs), executable.run(named(executable, inputs)).values()):
        np.testing.assert_array_equal(got, want)
    assert ran == []


def test_bodies_of_several_steps_stay_with_the_runtime() -> None:
    def body(b: GraphBuilder, i: Value, x: Value) -> Any:
        even = b.add(ops.Equal(), b.add(ops.Mod(), i, b.constant(np.array(2))), b.constant(np.array(0)))
        branches = [
            graph(tensor_type("float32", (3,)), build=lambda b, v, op=op: b.add(op, v), name="part")
            for op in (ops.Negative(), ops.Relu())
        ]
        return b.add(ops.If(*branches), even, x, x)

    inner = graph(INDEX, tensor_type("float32", (3,)), build=body, name="body")
    g = graph(INDEX, tensor_type("float32", (3,)), build=lambda b, n, x: b.add(ops.Loop(inner, 1), n, None, x))
    executable = weft.compile(g, cache=False)
    assert executable.manifest.loops is None and "native code" not in executable.plan
    x = np.array([1, 2, 3], F)
    np.testing.assert_array_equal(executable(np.array(3), x), *evaluate(g, [np.array(3), x]))


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_its_code_is_for_every_architecture(architecture: str) -> None:
    from weft_llvm.native import loops_code
    from weft_llvm.target import isa

    code = loops_code(
        isa(f"{architecture}-unknown-linux-gnu", "generic" if architecture == "aarch64" else "x86-64", "")
    )
    assert code is not None
    assert list(code.entries) == ["repeat"] and code.architecture == architecture


def test_a_scan_of_onnx_goes_along_its_axes_in_its_directions(ran: list[tuple[int, int]]) -> None:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    step = [
        helper.make_node("MatMul", ["h", "u"], ["a"]),
        helper.make_node("Add", ["a", "row"], ["b"]),
        helper.make_node("Tanh", ["b"], ["g"]),
    ]
    step += [helper.make_node("Greater", ["g", "other"], ["more"]), helper.make_node("Identity", ["g"], ["y"])]
    row = [2, "w"]
    inner = helper.make_graph(
        step, "body", [info(n, TensorProto.FLOAT, row) for n in ("h", "row", "other")],
        [info("g", TensorProto.FLOAT, row), info("y", TensorProto.FLOAT, row), info("more", TensorProto.BOOL, row)],
    )  # fmt: skip
    course = {
        "scan_input_axes": [0, 2],
        "scan_input_directions": [1, 0],
        "scan_output_axes": [1, 2],
        "scan_output_directions": [0, 1],
    }
    node = helper.make_node(
        "Scan", ["h0", "x", "z"], ["last", "every", "flags"], body=inner, num_scan_inputs=2, **course
    )
    ends = [
        info("h0", TensorProto.FLOAT, row),
        info("u", TensorProto.FLOAT, ["w", "w"]),
        info("x", TensorProto.FLOAT, ["t", *row]),
    ]
    outputs = [
        info("last", TensorProto.FLOAT, row),
        info("every", TensorProto.FLOAT, [2, "t", "w"]),
        info("flags", TensorProto.BOOL, [2, "w", "t"]),
    ]
    g = helper.make_graph([node], "g", [*ends, info("z", TensorProto.FLOAT, [*row, "t"])], outputs)
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    executable = weft.compile(model)
    rng = np.random.default_rng(0)
    for t, w in ((100, 5), (2, 3), (1, 4)):
        shapes = {"h0": (2, w), "u": (w, w), "x": (t, 2, w), "z": (2, w, t)}
        inputs = {n: (rng.standard_normal(s) / 2).astype(F) for n, s in shapes.items()}
        h, every, flags = inputs["h0"], [], []
        for k in range(t):
            h = np.tanh(h @ inputs["u"] + inputs["x"][t - 1 - k])
            every.append(h)
            flags.append(h > inputs["z"][..., k])
        found = executable.run(inputs)
        np.testing.assert_allclose(found["last"], h, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["every"], np.stack(every, 1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found["flags"], np.stack(flags[::-1], 2))
    assert ran == [(1, 100)]
