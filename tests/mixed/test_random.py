"""Random graphs, random nodes of which two boards take: whatever is placed where, results are those of the graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mixed import board

import weft
import weft_ops as ops
from weft import dtypes
from weft.errors import ExecutionError, WeftError
from weft.expr.evaluate import evaluate as size
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.hooks import hookimpl
from weft.plugins import host
from weft.scheduling.rule import Rule
from weft.target import Target, TargetKind
from weft_runtime import device as devices
from weft_runtime.device import DeviceKind

OPERATORS = (
    "Add", "BroadcastTo", "Cast", "Concat", "Divide", "Exp", "Identity", "Less", "MatMul", "Maximum", "Multiply",
    "Negative", "ReduceMax", "ReduceSum",
    "Relu", "Reshape", "Sigmoid", "Slice", "Softmax", "Subtract", "Transpose", "Where",
)  # fmt: skip
NARROW = ("int8", "float16", "bfloat16", "bool", "int64", "float64")


class Second(board.Board):
    """Another board, with memory of its own."""

    name: ClassVar[str] = "second"

    def device(self, target: Target) -> str:
        return "second"


class SecondPlugin:
    @hookimpl
    def targets(self) -> Sequence[TargetKind]:
        return [Second()]

    @hookimpl
    def schedules(self, target: Target) -> Sequence[Rule]:
        return [board.Anything(target.options.ops)] if target.kind == "second" else []

    @hookimpl
    def devices(self) -> Sequence[DeviceKind]:
        return [DeviceKind("second", lambda: None, board.Interpreter)]


@pytest.fixture(autouse=True, scope="module")
def boards() -> Iterator[None]:
    before = devices.close_devices()
    host().register(board, "board")
    host().register(SecondPlugin(), "second")
    yield
    host().unregister("second")
    host().unregister("board")
    devices.close_devices(before)


class Network:
    """A graph that grows by one random operator at a time: rows known, none or symbolic; sizes that data say; narrow
    types."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw, self.builder = draw, GraphBuilder("random")
        self.random = np.random.default_rng(self.pick(range(1000)))
        self.rows: Any = self.pick((Var("n"), Var("n"), 0, 1, 3))
        self.values: list[Value] = [self.input("x", self.rows, 4)]
        if self.pick((False, True)):
            self.values.append(self.input("z", self.rows, 4))
        if isinstance(self.rows, Var) and self.pick((False, True)):
            self.values.append(self.input("double", self.rows * 2, 2))
        if self.pick((False, False, True)):
            self.values.append(self.shaped_by_data())

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def input(self, name: str, *shape: Any) -> Value:
        return self.builder.input(name, tensor_type("float32", shape))

    def add(self, op: Any, *inputs: Value) -> Value:
        value: Value = self.builder.add(op, *inputs)
        return value

    def constant(self, *shape: int) -> Value:
        return self.builder.constant(self.random.normal(size=shape).astype(np.float32))

    def shaped_by_data(self) -> Value:
        """12 elements in the shape that an input, or what a node makes of it, says."""
        sizes = self.builder.input("sizes", tensor_type("int64", (2,)))
        if self.pick((False, True)):
            sizes = self.add(ops.Maximum(), sizes, sizes)
        return self.add(
            ops.Reshape((self.builder.symbol(sizes, 0), self.builder.symbol(sizes, 1))), self.input("data", 12)
        )

    def one(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        found = [v for v in self.values if fits(v)]
        return found[self.pick(range(len(found)))] if found else None

    def step(self) -> None:
        grow = (
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.product,
            self.softmax,
            self.move,
            self.reduce,
            self.cast,
            self.where,
            self.shift,
        )
        value = self.pick(grow)()
        if value is not None:
            self.values.append(value)

    def unary(self) -> Value:
        return self.add(self.pick((ops.Relu(), ops.Sigmoid(), ops.Negative(), Identity())), self.floats())

    def floats(self, like: Value | None = None, rank: int | None = None, columns: int = 0) -> Any:
        def fits(v: Value) -> bool:
            last = v.shape[-1] if v.shape else None
            return (
                v.dtype.name == "float32"
                and (like is None or v.shape == like.shape)
                and (rank is None or len(v.shape) == rank)
                and (not columns or (isinstance(last, int) and last >= columns))
            )  # fmt: skip

        return self.one(fits)

    def binary(self) -> Value:
        x = self.floats()
        return self.add(self.pick((ops.Add(), ops.Multiply(), ops.Maximum(), ops.Subtract())), x, self.floats(like=x))

    def shift(self) -> Value | None:
        x = self.floats(columns=1)
        return x and self.add(ops.Add(), x, self.constant(*((x.shape[-1],) if self.pick((False, True)) else ())))

    def product(self) -> Value | None:
        x = self.floats(rank=2, columns=1)
        return x and self.add(ops.MatMul(), x, self.constant(x.shape[1], self.pick((4, 2, 1))))

    def softmax(self) -> Value | None:
        x = self.floats(columns=1)
        return x and self.add(ops.Softmax(-1), x)

    def reduce(self) -> Value | None:
        x = self.floats(rank=2)
        return x and self.add(self.pick((ops.ReduceSum((1,), True), ops.ReduceSum((0,), False))), x)

    def cast(self) -> Value:
        return self.add(ops.Cast(dtypes.dtype(self.pick(NARROW))), self.floats())

    def where(self) -> Value:
        x = self.floats()
        y = self.floats(like=x)
        return self.add(ops.Where(), self.add(ops.Less(), x, y), x, y)

    def move(self) -> Value | None:
        x = self.one(lambda v: len(v.shape) == 2)
        if x is None:
            return None
        rows, columns = x.shape
        match self.pick(range(4)):
            case 0:
                return self.add(ops.Transpose((1, 0)), x)
            case 1:
                return self.add(ops.Reshape((rows * columns,)), x)
            case 2 if isinstance(columns, int) and columns > 1:
                return self.add(ops.Slice((0, 1), (rows, columns - 1)), x)
            case _:
                other = self.one(lambda v: len(v.shape) == 2 and v.shape[0] == rows and v.dtype == x.dtype)
                return other and self.add(ops.Concat(1), x, other)

    def graph(self) -> Graph:
        """Outputs of any kind: what nothing uses, an input, a constant, one value twice."""
        used = {id(v) for n in self.builder.graph.nodes for v in n.inputs}
        ends = [v for v in self.values if id(v) not in used and v.producer is not None]
        others = [self.pick(self.values) for _ in range(self.pick((0, 1, 2)))]
        for k, v in enumerate([*ends, *others] or self.values[:1]):
            self.builder.output(v, f"out{k}")
        if self.pick((False, False, True)):
            self.builder.output(self.constant(3), "constant")
        return self.builder.build()


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[Graph, str]:
    network = Network(draw)
    for _ in range(network.pick(range(1, 9))):
        network.step()
    taken = [",".join(o for o in OPERATORS if network.pick((False, True))) for _ in range(2)]
    target = ", ".join(f"{name} -ops={ops_}" if ops_ else name for name, ops_ in zip(("board", "second"), taken))
    return network.graph(), f"{target}, llvm -threads=1"


def arrays(graph: Graph, rows: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for v in graph.inputs:
        shape = tuple(d if isinstance(d, int) else int(size(d, {"n": rows})) for d in v.shape)
        found[v.name] = random.normal(size=shape).astype(np.float32)
    if "sizes" in found:
        found["sizes"] = np.array([(1, 12), (3, 4), (12, 1), (2, 6)][rows % 4], np.int64)
    return found


def close(got: dict[str, Any], wanted: Sequence[Any]) -> None:
    for (name, a), b in zip(got.items(), wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        # A narrow value may round the other way: by one, if it is an integer.
        relative, absolute = (2e-2, 1.0) if a.dtype.itemsize < 4 else (1e-4, 1e-4)
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=relative, atol=absolute, err_msg=name
        )


def check(case: tuple[Graph, str], folder: Path) -> None:
    graph, target = case
    text = str(graph)
    mixed = weft.compile(graph, target, cache=False)
    assert str(graph) == text, "the graph is the caller's"
    mixed.save(folder / "m.weft")
    for executable in (mixed, weft.Executable.load(folder / "m.weft")):
        for rows in (3, 0, 1):
            given_ = arrays(graph, rows)
            try:
                wanted = evaluate(graph, given_)
            except WeftError:  # sizes that do not fit each other: of what data say, that is
                with pytest.raises(WeftError):
                    executable.run(given_)
                continue
            got = executable.run(given_)
            close(got, wanted)
            assert not any(np.shares_memory(a, b) for a in got.values() for b in given_.values()), (
                "results own their memory"
            )


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_results_are_those_of_the_graph(case: tuple[Graph, str], tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.full
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_results_are_those_of_many_graphs(case: tuple[Graph, str], tmp_path: Path) -> None:
    check(case, tmp_path)


def chain() -> Graph:
    """Symbolic rows, from board to board to host and back."""
    g = GraphBuilder("chain")
    x = g.input("x", tensor_type("float32", (Var("n"), 4)))
    y = g.add(ops.Relu(), x)
    z = g.add(ops.Sigmoid(), y)
    w = g.add(ops.Softmax(-1), z)
    g.output(g.add(ops.Relu(), g.add(ops.Subtract(), w, y)), "out")
    return g.build()


def test_threads_and_failures_of_two_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of several sizes at once; every seventh launch fails: that call says so, and no other is wrong."""
    graph = chain()
    executable = weft.compile(graph, "board -ops=Relu,Subtract, second -ops=Sigmoid, llvm -threads=1", cache=False)
    assert executable.manifest.devices == ("board", "second")
    launch, count = board.Interpreter.launch, 0

    def fails_at_times(self: Any, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count % 7 == 0:
            raise OSError("lost")
        launch(self, *arguments)

    monkeypatch.setattr(board.Interpreter, "launch", fails_at_times)
    failed: list[str] = []
    wrong: list[Exception] = []

    def call(rows: int) -> None:
        x = arrays(graph, rows, seed=rows)
        wanted = evaluate(graph, x)
        for _ in range(8):
            try:
                close(executable.run(x), wanted)
            except ExecutionError as error:
                failed.append(str(error))
            except Exception as error:  # noqa: BLE001 - to be looked at by the test's own thread
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(rows,)) for rows in (1, 5, 0, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert failed and all("OSError: lost" in text for text in failed)
