"""Recurrent networks on the CPU: a step's gates and states are computed panel by panel, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest

from weft import dtypes as dt
from weft.compilation import Compilation
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.resolve import resolve_target
from weft_ops.examples import floats
from weft_ops.recurrent import GATES, GRU, LSTM, RNN, RecurrentNetwork

STEPS, INPUT = 4, 6
NETWORKS = {
    "lstm": LSTM(1), "lstm_both": LSTM(1, "bidirectional"), "gru": GRU(1), "gru_after": GRU(1,
        linear_before_reset=True), "rnn": RNN(1, "reverse"),
}  # fmt: skip


def network(name: str, hidden: int) -> RecurrentNetwork:
    made = NETWORKS[name]
    return type(made)(**{**made.__dict__, "hidden": hidden})


def compiled(op: RecurrentNetwork, batch: int, dtype: str = "float32") -> tuple[Compilation, np.ndarray, np.ndarray]:
    """The compilation, what it computes, and the reference."""
    gates, directions = GATES[op.cell] * op.hidden, op.directions
    weights = [
        floats((directions, gates, n), dtype, -(n**-0.5), n**-0.5, seed=k) for k, n in enumerate((INPUT, op.hidden), 1)
    ]
    bias = floats((directions, 2 * gates), dtype, seed=3)
    b = GraphBuilder()
    x = b.input("x", tensor_type(dtype, (STEPS, batch, INPUT)))
    results = b.add_all(
        op, x, *(b.constant(w, f"w{k}") for k, w in enumerate(weights)), b.constant(bias, "bias"), None, None
    )
    b.output(results[0], "y")
    compilation = Compilation(resolve_target("llvm -threads=2"), cache=False)
    executable = compilation.run(b.build())
    data = floats((STEPS, batch, INPUT), dtype, seed=4)
    return compilation, executable.run({"x": data})["y"], op.reference(data, *weights, bias)[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("hidden", [5, 16, 50, 80])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_size(name: str, hidden: int, batch: int) -> None:
    op = network(name, hidden)
    compilation, got, want = compiled(op, batch)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    kernels = [k for k in compilation.kernels.values() if not k.name.startswith("matmul")]
    assert [k for k in kernels if k.rule == "recurrence"] and not [k for k in kernels if k.rule == "fallback"]
    assert not [k.name for k in kernels if "tile_declined" in str(k.scheduled)], (
        "weights are packed, so every product of a step has a tile"
    )


@pytest.mark.parametrize("steps", ["t", "steps", "rh_i0"])
def test_sizes_that_only_a_run_knows_whatever_they_are_called(steps: str) -> None:
    op = network("lstm", 20)
    weights = [floats((1, 80, n), "float32", -0.3, 0.3, seed=k) for k, n in enumerate((INPUT, 20), 1)]
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (Var(steps), Var("n"), INPUT)))
    lengths = b.input("lengths", tensor_type("int32", (Var("n"),)))
    b.output(b.add_all(op, x, *(b.constant(w, f"w{k}") for k, w in enumerate(weights)), None, lengths, None)[0], "y")
    executable = Compilation(resolve_target("llvm -threads=2"), cache=False).run(b.build())
    for t, n in ((1, 1), (5, 3)):
        data, ends = floats((t, n, INPUT), seed=t), np.arange(1, n + 1, dtype=np.int32)
        np.testing.assert_allclose(
            executable.run({"x": data, "lengths": ends})["y"],
            op.reference(data, *weights, None, ends)[0],
            rtol=0,
            atol=2e-6,
        )


def test_a_narrow_float() -> None:
    _, got, want = compiled(network("lstm", 24), 2, "float16")
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=2e-3)
    assert dt.dtype(got.dtype) == dt.float16


def test_weights_that_leave_the_second_cache_are_read_to_and_fro() -> None:
    for hidden, batch, to_and_fro in ((256, 1, True), (64, 1, False), (256, 3, False)):
        compilation, got, want = compiled(network("lstm", hidden), batch)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-6)
        (kernel,) = [k for k in compilation.kernels.values() if k.rule == "recurrence"]
        machine = resolve_target("llvm -threads=2").machine
        assert ("\nserpentine(" in str(kernel.trace)) == (to_and_fro and 4 * hidden * hidden * 4 > machine.caches[1])


def test_states_are_computed_where_their_gates_are() -> None:
    compilation, _, _ = compiled(network("lstm", 128), 1)
    (kernel,) = [k for k in compilation.kernels.values() if k.rule == "recurrence"]
    text = str(kernel.scheduled)
    step = text[text.index("for t in") :]
    panels = step[: step.index("block emit_copy")]
    assert panels.count(" parallel {") == 1, "one fork and join a step"
    assert "block next_c(" in panels and "block next_h(" in panels
    assert (
        panels.index(" parallel {")
        < panels.index("allocate rh:")
        < panels.index("block rh(")
        < panels.index("block next_c(")
    )


@pytest.mark.parametrize("hidden", [16, 50])
@pytest.mark.parametrize("name", ["lstm", "gru", "gru_after"])
def test_weights_that_a_run_gives_are_packed(name: str, hidden: int) -> None:
    op = network(name, hidden)
    gates, steps = GATES[op.cell] * hidden, 12
    shapes = {"x": (steps, 3, INPUT), "w": (1, gates, INPUT), "r": (1, gates, hidden)}
    b = GraphBuilder()
    b.output(b.add_all(op, *(b.input(k, tensor_type(dt.float32, s)) for k, s in shapes.items()))[0], "y")
    compilation = Compilation(resolve_target("llvm -threads=2"), cache=False)
    executable = compilation.run(b.build())
    data = {k: floats(s, lo=-0.3, hi=0.3) for k, s in shapes.items()}
    np.testing.assert_allclose(executable.run(data)["y"], op.reference(*data.values())[0], rtol=0, atol=2e-6)
    kernels = list(compilation.kernels.values())
    assert [k for k in kernels if "relayout" in k.name]
    assert not [k.name for k in kernels if "tile_declined" in str(k.scheduled)]
