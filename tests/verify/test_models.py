"""Values of all kinds, models of several targets and of many nodes, and how much is held at once."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.mixed import board
from tests.verify.planted import Planted, compiled, given, model, verify

from weft import dtypes as dt
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import Add, Argmax, BatchNorm, Cast, Conv, Floor, Less, Log, MatMul, Multiply, Relu, Subtract
from weft_testing.plugin import registered
from weft_testing.verify.measure import Bound
from weft_testing.verify.report import Blame, Verification
from weft_testing.verify.verify import Verifier


def only(found: Verification) -> Blame:
    (blame,) = found.blames
    return blame


def unary(*ops: Any, shape: tuple[int, ...] = (4, 8), dtype: str = "float32") -> Graph:
    b = GraphBuilder("chain")
    x = b.input("x", tensor_type(dtype, shape))
    for k, op in enumerate(ops):
        with b.named(f"n{k}"):
            x = b.add(op, x)
    b.output(x, "y")
    return b.build()


def test_nan_and_infinity_are_right_where_they_are_expected() -> None:
    x = np.array([-1.0, 0.0, 1.0, np.nan, np.inf, -np.inf, 2.0, 3.0], np.float32)
    right = Planted().verify(unary(Log(), shape=(8,)), {"x": x}, every=True)
    assert right.passed and np.isfinite(right.outputs[0].difference.relative)
    wrong = Planted(code=lambda text: text.replace("= log(", "= 0.0f32*log(")).verify(
        unary(Log(), shape=(8,)), {"x": x}
    )
    blame = only(wrong)
    assert (blame.stage, blame.operator, blame.names) == ("codegen", "Log", ("n0",))
    assert blame.difference is not None and blame.difference.wrong == 4 and blame.difference.ulp == np.inf
    assert wrong.as_data()["blames"][0]["difference"]["ulp"] is None  # JSON has no infinity


def test_integers_and_booleans_are_exact() -> None:
    b = GraphBuilder("integers")
    x, z = b.input("x", tensor_type("float32", (5, 9))), b.input("z", tensor_type("float32", (9,)))
    with b.named("less"):
        b.output(b.add(Less(), x, z), "smaller")
    with b.named("most"):
        b.output(b.add(Argmax(axis=1), x), "most")
    with b.named("floor"):
        b.output(b.add(Cast(dt.int32), b.add(Floor(), b.add(Multiply(), x, z))), "floor")
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((5, 9)).astype(np.float32), "z": random.standard_normal(9).astype(np.float32)}
    assert Planted().verify(b.build(), inputs, every=True).passed
    wrong = Planted(code=lambda text: text.replace(" < ", " <= ") if "bool" in text else text)
    inputs["z"] = inputs["x"][0].copy()
    found = wrong.verify(b.build(), inputs)
    assert [o.difference.wrong > 0 for o in found.outputs] == [True, False, False]
    assert only(found).names == ("less",)


def test_a_right_target_in_a_row_of_roundings_to_integers() -> None:
    """Sums that a target takes in another order fall on the other side of a half now and then: that is no error."""
    b = GraphBuilder("steps")
    x = b.input("x", tensor_type("float32", (16, 64)))
    w = b.constant(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32), "w")
    b.output(b.add(Floor(), b.add(MatMul(), x, w)), "y")
    inputs = {"x": np.random.default_rng(0).integers(-8, 8, (16, 64)).astype(np.float32) / 8}
    assert verify(b.build(), inputs, "llvm", every=True).passed


def test_layouts_and_their_padding() -> None:
    """llvm blocks channels; the kernels are held against the reference as they store."""
    b = GraphBuilder("blocked")
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return b.constant(random.standard_normal(shape).astype(np.float32), name)

    x = b.input("x", tensor_type("float32", ("n", 5, 9, 9)))
    y = b.add(Relu(), b.add(Conv(pads=(1, 1, 1, 1)), x, weight("w0", 13, 5, 3, 3)))
    norm = [weight(n, 11) for n in ("scale", "shift", "mean")]
    y = b.add(
        BatchNorm(),
        b.add(Conv(), y, weight("w1", 11, 13, 3, 3)),
        *norm,
        b.constant(np.ones(11, np.float32), "variance"),
    )
    b.output(y, "y")
    assert verify(b.build(), {"x": random.standard_normal((2, 5, 9, 9)).astype(np.float32)}, "llvm", every=True).passed


def test_of_several_targets_the_region_is_named() -> None:
    wrong = Planted(code=lambda text: text.replace(" - in", " + in"))
    with registered(sys.modules[board.__name__], "board"):
        found = wrong.verify(model(), given(), "board -ops=MatMul, planted")
    blame = only(found)
    assert (blame.stage, blame.operator, blame.names, blame.target) == (
        "codegen",
        "Subtract",
        ("layer1/bias",),
        "board -ops=MatMul, planted",
    )
    assert blame.region.startswith("planted")


def test_a_region_on_a_device_and_the_rest_on_the_host() -> None:
    with registered(sys.modules[board.__name__], "board"):
        found = verify(model("batch"), given(2), "board -ops=MatMul, llvm", every=True)
    assert found.passed


def test_the_c_compilers_emitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C is written for a subtraction is wrong; the program that it is made from is not."""
    from weft_c_family import Emitter

    right = Emitter.emit

    def wrong(self: Any, program: Any) -> Any:
        from dataclasses import replace

        emitted = right(self, program)
        return replace(emitted, source=emitted.source.replace(" - in2[", " + in2["))

    monkeypatch.setattr(Emitter, "emit", wrong)
    blame = only(verify(model(), given(), "c"))
    assert (blame.kind, blame.stage, blame.operator, blame.names) == ("kernel", "codegen", "Subtract", ("layer1/bias",))


def test_the_memory_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values that live at the same time get the same memory: every kernel alone is right."""
    from dataclasses import replace

    from weft import compilation

    right = compilation.plan_memory

    def wrong(*args: Any, **kwargs: Any) -> Any:
        plan = right(*args, **kwargs)
        return replace(plan, offsets=dict.fromkeys(plan.offsets, 0))

    monkeypatch.setattr(compilation, "plan_memory", wrong)
    b = GraphBuilder("fork")
    x = b.input("x", tensor_type("float32", (8, 8)))
    w = b.constant(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32), "w")
    y = b.add(MatMul(), x, w)
    z = b.add(MatMul(), y, w)
    b.output(b.add(MatMul(), b.add(MatMul(), y, z), z), "out")
    found = verify(b.build(), {"x": np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)}, "llvm")
    blame = only(found)
    assert blame.kind == "plan" and blame.why == "run one by one, the kernels give other results than together"
    assert blame.title.startswith("every kernel is right alone, not in the whole")


def test_what_rounding_does_is_nobodys_fault() -> None:
    """A difference of nearly equal sums: hardly a digit of it is right on any target, and every node is right by
    itself."""
    b = GraphBuilder("cancel")
    x = b.input("x", tensor_type("float32", (4, 256)))
    w = b.constant(np.ones((256, 4), np.float32), "w")
    with b.named("difference"):
        y = b.add(Subtract(), b.add(MatMul(), x, w), b.constant(np.float32(25600), "c"))
    b.output(y, "y")
    inputs = {"x": (100 + np.random.default_rng(0).standard_normal((4, 256)) * 1e-3).astype(np.float32)}
    assert verify(b.build(), inputs, "llvm", every=True).passed
    with registered(sys.modules[board.__name__], "board"):  # a user who wants five digits learns who takes them
        found = verify(b.build(), inputs, "board -ops=MatMul, llvm", bound=Bound(rtol=1e-5))
    blame = only(found)
    assert (blame.kind, blame.operator, blame.names) == ("rounding", "Add", ("difference",))
    assert blame.why.startswith("no node departs by itself; the relative error grows most here, ")


def test_many_nodes() -> None:
    """One of two hundred."""
    b = GraphBuilder("deep")
    x = b.input("x", tensor_type("float32", (2, 4)))
    random = np.random.default_rng(0)
    z = b.input("z", tensor_type("float32", (4,)))
    for k in range(66):
        with b.named(f"block{k}"):
            w = b.constant(np.linalg.qr(random.standard_normal((4, 4)))[0].astype(np.float32), f"w{k}")
            x = b.add(MatMul(), x, w)
            x = b.add(Subtract() if k == 40 else Add(), x, z)
            x = b.add(Multiply(), x, z)
    b.output(x, "y")
    inputs = {"x": random.standard_normal((2, 4)).astype(np.float32), "z": np.array([1, -1, 1, -1], np.float32)}
    blame = only(Planted(code=lambda text: text.replace(" - in", " + in")).verify(b.build(), inputs))
    assert (blame.operator, blame.names) == ("Subtract", ("block40",))


def test_intermediate_values_are_not_held() -> None:
    """Of a model that is three times as long as another no more is held at once."""

    def peak(layers: int) -> int:
        b = GraphBuilder("long")
        x = b.input("x", tensor_type("float32", (1024, 64)))
        w = b.constant(np.eye(64, dtype=np.float32)[::-1].copy(), "w")
        for _ in range(layers):
            x = b.add(Relu(), b.add(MatMul(), x, w))
        b.output(x, "y")
        verifier = Verifier(
            b.build(),
            compiled(b.build(), "llvm"),
            None,
            {"x": np.random.default_rng(0).random((1024, 64)).astype(np.float32)},
            every=True,
        )
        verifier._parts(verifier.subject)  # compiles
        tracemalloc.start()
        assert verifier.run().passed
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    value = 1024 * 64 * 4
    assert peak(24) < peak(8) + 2 * value
