"""Mixed precision: which dtypes products have, losses beside those of float32, and the scale of float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.loop import batch, classifier
from tests.training.test_statistics import interpreted

import weft
from weft import dtypes as dt
from weft.errors import ExecutionError, GraphError, InputError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import Conv, Loop, MatMul, Multiply, ReduceMean, Softmax, Sqrt, Tanh
from weft_training.optimizers import SGD, AdamW
from weft_training.planning import plan_training
from weft_training.step import TrainingStep

BITS = {"bfloat16": 8, "float16": 11}
"""Of a rounded number, the leading one included."""


def made(precision: Any = None, **options: Any) -> TrainingStep:
    return weft.compile_training(classifier(), "cross_entropy", AdamW(), precision=precision, **options)


def copies(step: TrainingStep) -> dict[str, Any]:
    return {n: a.copy() for n, a in (step.parameters | step.states).items()}


@pytest.mark.parametrize("how", ["llvm", "interpreted"])
@pytest.mark.parametrize("precision", BITS)
def test_losses_follow_those_of_float32(precision: Any, how: str) -> None:
    """A number rounded to b bits is off by at most 2⁻ᵇ of it, by 2⁻ᵇ / √3 as a root mean square. Two operands and a
    result in three layers are nine roundings, that independently add to √3 · 2⁻ᵇ of a score; scores are of the size of
    one here, and the loss follows them with a slope of at most one. It is a mean over 32 examples: √(3 / 32) · 2⁻ᵇ, of
    which three times is 2⁻ᵇ. The parameters' paths, which come apart by roundings of gradients, get as much again."""
    narrow, wide = made(precision), made()
    assert all(a.dtype == np.float32 for a in (narrow.parameters | narrow.states).values() if a.shape)
    steps = 30 if how == "llvm" else 6
    losses = []
    for k in range(steps):
        got = interpreted(narrow, batch(k), 0.01) if how == "interpreted" else float(narrow(batch(k), 0.01)["loss"])
        losses.append((got, float(wide(batch(k), 0.01)["loss"])))
    differences = np.abs(np.subtract(*np.array(losses).T))
    assert narrow.steps == steps and differences.max() < 2 * 2.0 ** -BITS[precision]
    assert differences.max() > 0, "products are rounded"
    assert losses[-1][0] < losses[0][0]


def test_products_are_narrow_and_nothing_else() -> None:
    """Forward and backward, and in bodies of loops."""
    body = GraphBuilder("body")
    body.input("k", tensor_type("int64", []))
    state, weight = (body.input(n, tensor_type("float32", [4, 4])) for n in ("h", "w"))
    body.output(body.add(Tanh(), body.add(MatMul(), state, weight)))
    b = GraphBuilder("net")
    x = b.input("x", tensor_type("float32", [2, 3, 6, 6]))
    h = b.add(Conv(pads=(1, 1, 1, 1)), x, b.constant(np.full((4, 3, 3, 3), 0.1, np.float32), "filters"))
    h = b.add(Softmax(), b.add(ReduceMean((0, 1), False), h))
    h = b.add(MatMul(), h, b.constant(np.full((6, 4), 0.1, np.float32), "enter"))
    h = b.add(MatMul(), b.constant(np.full((4, 6), 0.1, np.float32), "turn"), h)
    trips = b.constant(np.array(3), "trips")
    matrix = b.constant(np.full((4, 4), 0.2, np.float32), "matrix")
    (h,) = b.add_all(Loop(body.build(), carried=1, count=3), trips, None, h, matrix)
    b.output(b.add(ReduceMean(), h), "y")
    for precision, dtype in (("bfloat16", dt.bfloat16), ("float16", dt.float16)):
        graph = plan_training(b.build(), None, SGD(), precision=precision).graph  # type: ignore[arg-type]
        found = [(type(n.op).__name__, n.output.dtype) for n in _all_nodes(graph)]
        products = [d for n, d in found if n in ("Conv", "ConvTranspose", "MatMul")]
        assert len(products) > 8 and set(products) == {dtype}
        assert not {d for n, d in found if n in ("Softmax", "ReduceMean", "ReduceSum", "Tanh", "Where")} & {dtype}
    step = weft.compile_training(b.build(), None, SGD(), precision="bfloat16")
    assert np.isfinite(step({"x": np.ones((2, 3, 6, 6), np.float32)}, 0.1)["loss"])


def _all_nodes(graph: Graph) -> list[Any]:
    from weft.graph.control import bodies

    return [m for n in graph.nodes for m in (n, *(k for body in bodies(n.op) for k in _all_nodes(body)))]


def test_only_float16_has_a_scale() -> None:
    assert made().scale is None and made("bfloat16").scale is None
    assert made("float16").scale == 2.0**16
    assert set(made("float16").states) - set(made("bfloat16").states) == {"loss_scale", "good_steps"}


@pytest.mark.parametrize("how", ["llvm", "interpreted"])
def test_gradients_that_overflow_halve_the_scale_and_change_nothing_else(how: str) -> None:
    step = made("float16")
    step.states["loss_scale"][...] = 2.0**40
    step.states["good_steps"][...] = 7
    before = copies(step)
    for k in range(2):
        if how == "llvm":
            assert np.isfinite(step(batch(0), 0.01)["loss"])
            assert step.steps == 0
        else:
            assert np.isfinite(interpreted(step, batch(0), 0.01))
        assert step.scale == 2.0 ** (39 - k) and step.states["good_steps"] == 0
    for name, array in before.items():
        if name not in ("loss_scale", "good_steps"):
            np.testing.assert_array_equal((step.parameters | step.states)[name], array)


def test_the_scale_doubles_behind_2000_good_steps() -> None:
    step = made("float16")
    step.states["good_steps"][...] = 1998
    for scale, good in ((2.0**16, 1999), (2.0**17, 0), (2.0**17, 1)):
        step(batch(0), 0.0)
        assert (step.scale, int(step.states["good_steps"])) == (scale, good)
    step.states["loss_scale"][...] = np.float32(2.0**127)
    step(batch(0), 0.0)
    assert step.scale == 2.0**126


@pytest.mark.parametrize("scale", [1.0, 2.0**12])
def test_gradients_are_clipped_without_the_scale(scale: float) -> None:
    """The parameters move by the rate times the greatest norm, up to float32's rounding of parameters of the size of
    one, 2⁻²⁴ of each of 1,400."""
    step = weft.compile_training(classifier(), "cross_entropy", SGD(), precision="float16", clip=0.01)
    step.states["loss_scale"][...] = scale
    before = copies(step)
    step(batch(0), 0.5)
    moved = [a.astype(np.float64) - before[n] for n, a in step.parameters.items()]
    assert np.sqrt(sum((m * m).sum() for m in moved)) == pytest.approx(0.5 * 0.01, abs=2.0**-24 * 1400**0.5)


@pytest.mark.parametrize("memory", ["cut", "sqrt"])
def test_what_is_kept_changes_no_bit(memory: str) -> None:
    step, want = made("float16", memory=memory), made("float16", memory="min-time")
    for k in range(3):
        a, b = (s(batch(k), rate=0.01)["loss"] for s in (step, want))
        assert a.tobytes() == b.tobytes()
    assert all(step.parameters[n].tobytes() == want.parameters[n].tobytes() for n in want.parameters)


def small(precision: Any) -> TrainingStep:
    """Its gradients are about 2⁻³⁰, which float16 has not."""
    b = GraphBuilder("small")
    x = b.input("x", tensor_type("float32", [4, 8]))
    y = b.add(MatMul(), x, b.constant(np.full((8, 2), 0.5, np.float32), "w"))
    b.output(b.add(ReduceMean(), b.add(Multiply(), y, b.constant(np.float32(2.0**-27), "c"))), "loss_of_it")
    return weft.compile_training(b.build(), None, SGD(), precision=precision)


def test_the_scale_keeps_gradients_that_float16_has_not() -> None:
    moved = {}
    for scale in (1.0, 2.0**16):
        step = small("float16")
        step.states["loss_scale"][...] = scale
        step({"x": np.ones((4, 8), np.float32)}, rate=2.0**20)
        moved[scale] = float(np.abs(step.parameters["w"] - 0.5).max())
    wide = small(None)
    wide({"x": np.ones((4, 8), np.float32)}, rate=2.0**20)
    assert moved[1.0] == 0 and moved[2.0**16] == pytest.approx(
        float(np.abs(wide.parameters["w"] - 0.5).max()), rel=1e-2
    )


def trainer(checkpoint: Path | None, scale: float | None = None) -> weft.Trainer:
    step = made("float16")
    if scale is not None:
        step.states["loss_scale"][...] = scale
    return weft.Trainer(step, batch, rate=0.01, checkpoint=checkpoint, every=100, progress=False)


def test_a_training_goes_on_with_the_same_bits_from_a_checkpoint(tmp_path: Path) -> None:
    """The first scale is too large: batches are done again until it fits; the checkpoint has scale and count."""
    want = trainer(None, 2.0**30)
    want.run(12)
    assert want.step.steps == 12 == len(want.losses) and want.step.scale is not None and want.step.scale < 2.0**30
    first = trainer(tmp_path / "c.safetensors", 2.0**30)
    first.run(5)
    second = trainer(tmp_path / "c.safetensors")
    assert second.step.scale == first.step.scale and second.step.states["good_steps"] == first.step.states["good_steps"]
    second.run(12)
    for name, array in copies(want.step).items():
        assert array.tobytes() == (second.step.parameters | second.step.states)[name].tobytes()
    assert first.losses + second.losses == want.losses


def test_gradients_that_no_scale_makes_finite_end_a_training() -> None:
    """The root of 0 has an infinite derivative, and a loss that is finite."""
    b = GraphBuilder("root")
    x = b.input("x", tensor_type("float32", [4]))
    weights = b.constant(np.ones(4, np.float32), "w")
    b.output(b.add(ReduceMean(), b.add(Sqrt(), b.add(Multiply(), x, weights))), "y")
    step = weft.compile_training(b.build(), None, SGD(), precision="float16")
    run = weft.Trainer(step, lambda k: {"x": np.full(4, float(k < 2), np.float32)}, rate=0.1, progress=False)
    with pytest.raises(ExecutionError, match="the gradients of step 3 are not finite, its loss is 0"):
        run.run(5)
    assert step.steps == 2 and np.isfinite(step.parameters["w"]).all() and step.scale == 0.5


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="precision: expected 'bfloat16', 'float16' or None, got 'float61'") as caught:
        made("float61")
    assert caught.value.hint == "did you mean 'float16'?"
    b = GraphBuilder("named")
    x = b.input("loss_scale", tensor_type("float32", [4, 8]))
    b.output(b.add(ReduceMean(), b.add(MatMul(), x, b.constant(np.ones((8, 2), np.float32), "w"))), "y")
    with pytest.raises(GraphError, match="inputs or parameters called loss_scale"):
        weft.compile_training(b.build(), None, precision="float16")


def test_results_may_be_called_as_what_the_step_has() -> None:
    b = GraphBuilder("named")
    x = b.input("x", tensor_type("float32", [4, 8]))
    h = b.add(MatMul(), x, b.constant(np.ones((8, 2), np.float32), "w"), name="loss_scale")
    b.output(b.add(ReduceMean(), b.add(Tanh(), h, name="step"), name="learning_rate"), "y")
    step = weft.compile_training(b.build(), None, AdamW(), precision="float16")
    step({"x": np.ones((4, 8), np.float32)}, 0.1)
    assert step.steps == 1 and step.scale == 2.0**16
