"""ONNX's operator Gradient: what its attributes mean, and steps of training in one model."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from onnx import parser

import weft
from weft.errors import UnsupportedError

HEAD = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>'
GRADIENT = "ai.onnx.preview.training.Gradient"


def run(text: str, **inputs: Any) -> dict[str, Any]:
    model = parser.parse_model(HEAD + text)
    return dict(
        weft.compile(model, target="llvm", cache=False).run({k: np.asarray(v, np.float32) for k, v in inputs.items()})
    )


X, W = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 3.0, -0.5], np.float32)


def test_by_a_value_on_the_way() -> None:
    found = run(
        f"""g (float[3] x, float[3] w) => (float[3] dh, float[3] dw) {{
            h = Mul(x, x)
            y = Mul(h, w)
            dh, dw = {GRADIENT} <xs = ["h", "w"], y = "y"> (h, w)
        }}""",
        x=X,
        w=W,
    )
    np.testing.assert_allclose(found["dh"], W)
    np.testing.assert_allclose(found["dw"], X * X)


def test_no_gradient_passes_where_it_is_stopped() -> None:
    found = run(
        f"""g (float[3] x) => (float[3] dx) {{
            h = Tanh(x)
            kept = StopGradient(h)
            y = Mul(x, kept)
            dx = {GRADIENT} <xs = ["x"], y = "y"> (x)
        }}""",
        x=X,
    )
    np.testing.assert_allclose(found["dx"], np.tanh(X), rtol=1e-6)


def test_at_another_place() -> None:
    """The operands are values for what xs and zs name, which may be others than these have."""
    found = run(
        f"""g (float[3] x, float[3] w, float[3] other) => (float[3] y, float[3] dx) {{
            h = Mul(x, x)
            y = Mul(h, w)
            dx = {GRADIENT} <xs = ["x"], zs = ["w"], y = "y"> (other, x)
        }}""",
        x=X,
        w=W,
        other=X + 1,
    )
    np.testing.assert_allclose(found["y"], X * X * W)
    np.testing.assert_allclose(found["dx"], 2 * (X + 1) * X)


def test_it_may_stand_before_what_it_names_and_leave_outputs_out() -> None:
    found = run(
        f"""g (float[3] x, float[3] w) => (float[3] dw) {{
            "", dw = {GRADIENT} <xs = ["x", "w"], y = "y"> (x, w)
            y = Mul(x, w)
        }}""".replace('"", dw', "unused, dw"),
        x=X,
        w=W,
    )
    np.testing.assert_allclose(found["dw"], X)


def test_initialisers_are_variables() -> None:
    """What is computed of them alone is not folded before it is differentiated."""
    found = run(
        f"""g (float[3] x) => (float[3] dw)
        <float[3] w = {{1.0, 3.0, -0.5}}> {{
            s = Mul(w, w)
            p = Mul(s, x)
            y = Add(p, w)
            dw = {GRADIENT} <xs = ["w"], zs = ["x"], y = "y"> (w, x)
        }}""",
        x=X,
    )
    np.testing.assert_allclose(found["dw"], 2 * W * X + 1)


def test_second_derivatives() -> None:
    found = run(
        f"""g (float[3] x, float[3] w) => (float[3] dxx, float[3] dxw) {{
            a = Mul(x, x)
            b = Mul(a, x)
            y = Mul(b, w)
            dx = {GRADIENT} <xs = ["x"], zs = ["w"], y = "y"> (x, w)
            dxx, dxw = {GRADIENT} <xs = ["x", "w"], y = "dx"> (x, w)
        }}""",
        x=X,
        w=W,
    )
    np.testing.assert_allclose(found["dxx"], 6 * X * W)
    np.testing.assert_allclose(found["dxw"], 3 * X * X)


@pytest.mark.parametrize("trips", [3, 100])
def test_a_loop(trips: int) -> None:
    """Of few iterations it is written out, of many it is repeated."""
    found = run(
        f"""g (float[3] x, float[3] w) => (float[3] dx, float[3] dw)
        <int64 n = {{{trips}}}, bool on = {{1}}> {{
            last, all = Loop (n, on, x) <body = step (int64 k, bool go, float[3] s)
            => (bool more, float[3] t, float[3] u) {{
                more = Identity(go)
                p = Mul(s, w)
                t = Sin(p)
                u = Mul(t, t)
            }}>
            total = ReduceSum <keepdims = 0> (all)
            sum = ReduceSum <keepdims = 0> (last)
            y = Add(total, sum)
            dx, dw = {GRADIENT} <xs = ["x", "w"], y = "y"> (x, w)
        }}""",
        x=X,
        w=W / 3,  # larger ones make it chaotic
    )
    x, w = X.astype(np.float64), (W / 3).astype(np.float64)

    def value(x: Any, w: Any) -> Any:
        total = 0.0
        for _ in range(trips):
            x = np.sin(x * w)
            total = total + x * x
        return total + x

    step = 1e-6
    for name, plus, minus in (
        ("dx", value(x + step, w), value(x - step, w)),
        ("dw", value(x, w + step), value(x, w - step)),
    ):
        np.testing.assert_allclose(found[name], (plus - minus) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("optimiser", "state"), [("Momentum <alpha = 0.9, beta = 0.9, mode = \"standard\", norm_coefficient = 0.0>", 1),
                             ("Adagrad", 1), ("Adam", 2)]
)  # fmt: skip
def test_steps_of_training(optimiser: str, state: int) -> None:
    """A model whose step gives new weights: the loss falls."""
    states = [f"s{k}" for k in range(state)]
    model = parser.parse_model(
        HEAD
        + f"""g (float[8, 3] x, float[8, 1] wanted, float[3, 1] w, int64 t,
            {", ".join(f"float[3, 1] {s}" for s in states)})
        => (float loss, float[3, 1] new_w, {", ".join(f"float[3, 1] new_{s}" for s in states)})
        <float rate = {{0.1}}> {{
            p = MatMul(x, w)
            d = Sub(p, wanted)
            q = Mul(d, d)
            loss = ReduceMean <keepdims = 0> (q)
            dw = {GRADIENT} <xs = ["w"], zs = ["x", "wanted"], y = "loss"> (w, x, wanted)
            new_w, {", ".join(f"new_{s}" for s in states)}
                = ai.onnx.preview.training.{optimiser} (rate, t, w, dw, {", ".join(states)})
        }}"""
    )
    step = weft.compile(model, target="llvm", cache=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    given = {"x": x, "wanted": x @ np.array([[1], [-2], [0.5]], np.float32)}
    values = {k: np.zeros((3, 1), np.float32) for k in ("w", *states)}
    losses = []
    for t in range(30):
        found = step.run(given | values | {"t": np.array(t, np.int64)})
        losses.append(float(found["loss"]))
        values = {k: found[f"new_{k}"] for k in values}
    assert losses[-1] < 0.5 * losses[0]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weft_training", None)
    with pytest.raises(UnsupportedError, match="needs the package weft-training") as caught:
        run(f'g (float[3] x) => (float[3] dx) {{ y = Mul(x, x)\n dx = {GRADIENT} <xs = ["x"], y = "y"> (x) }}', x=X)
    assert caught.value.hint == "pip install weft-training"


def test_parameters_are_the_models_initialisers() -> None:
    """By name and shape, whatever the model makes of them before it uses them, and one for one that is used in two
    forms."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 3] x) => (float[4, 3] y)
        <float[3] bias = {0.5, -1.0, 2.0}, float[3, 1] scale = {1.0, 3.0, -0.5}, int64[2] row = {1, -1}> {
            flat = Reshape (bias, row)
            across = Transpose (scale)
            moved = Add (x, flat)
            scaled = Mul (moved, across)
            y = Add (scaled, bias)
        }"""
    )
    step = weft.compile_training(model, "squared_error")
    assert {n: a.shape for n, a in step.parameters.items()} == {"bias": (3,), "scale": (3, 1)}
    bias, scale = (step.parameters[n].astype(np.float64) for n in ("bias", "scale"))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    targets = np.ones((4, 3), np.float32)
    step({"x": x, "targets": targets}, rate=0.1)
    g = ((x + bias) * scale[:, 0] + bias - targets) * 2 / 12
    np.testing.assert_allclose(step.parameters["bias"], bias - 0.1 * (g * (scale[:, 0] + 1)).sum(0), rtol=1e-5)
    np.testing.assert_allclose(step.parameters["scale"][:, 0], scale[:, 0] - 0.1 * (g * (x + bias)).sum(0), rtol=1e-5)
