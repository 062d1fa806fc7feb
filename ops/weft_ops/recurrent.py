"""Recurrent networks: LSTM, GRU and RNN as ONNX defines them.

A network is the input's projection for all steps at once (a matrix product), then a recurrence over time (`Recurrence`,
a scan).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis, scan
from weft.tensor.language import sum as sum_over
from weft_ops.backward_through_time import recurrence_gradient
from weft_ops.cell_states import CellFunction
from weft_ops.cells import DEFAULTS, GATES, Activation, Cell, activations
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul, reduction_tolerance
from weft_ops.examples import floats
from weft_ops.movement import Fill
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import (
    expect_kind,
    expect_rank,
    one_dtype,
    operands,
    show,
    tensor,
    unify,
    unify_shapes,
    widened,
)


@dataclass(frozen=True)
class Recurrence(Operator):
    """One direction of a recurrent network over time, its input already projected.

    Inputs: xw [steps, batch, gates·hidden] (input projection plus every bias that is outside of products with state), r
    [gates, hidden, hidden] (gate, unit, state; perhaps of a narrower float than the rest), h0 [batch, hidden], then,
    None if absent: c0 [batch, hidden] (lstm), lengths [batch] int32 or int64, peepholes [3·hidden] (lstm), rb [hidden]
    (gru with linear_before_reset: the recurrence bias of the hidden gate). Outputs: y [steps, batch, hidden], zero
    beyond a sequence's length; last h [batch, hidden]; for lstm also last c. Gates are in ONNX's order: lstm i, o, f,
    c; gru z, r, h. `clip` bounds what enters the activations. `reverse` runs from the last step to the first.
    """

    cell: Cell
    activations: tuple[str, ...] = ()
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    reverse: bool = False
    kind = "opaque"
    layout_role = "recurrence"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes or sizes that do not agree."""
        assumed: list[Assumption] = []
        xw, r, h0 = operands(types[:3], 3)
        dtype = one_dtype([xw, widened(r, xw), h0])
        expect_kind(dtype, ("float",))
        for t, rank, name in ((xw, 3, "xw"), (r, 3, "r"), (h0, 2, "h0")):
            expect_rank(t, rank, name)
        gates = GATES[self.cell]
        hidden = unify(r.shape[2], r.shape[1], "rows of r", assumed)
        unify(gates, r.shape[0], "gates of r", assumed)
        unify(as_dim(hidden * gates), xw.shape[2], "gates of xw", assumed)
        state = TensorType(dtype, (unify(xw.shape[1], h0.shape[0], "batch", assumed), hidden))
        self.functions()
        return Inferred(
            (TensorType(dtype, (xw.shape[0], *state.shape)), state, *((state,) if self.cell == "lstm" else ())), assumed
        )

    def functions(self) -> list[Activation]:
        names = self.activations or DEFAULTS[self.cell]
        if len(names) != len(DEFAULTS[self.cell]):
            raise GraphError(f"activations: expected {len(DEFAULTS[self.cell])} of them, got {names}")
        return activations(names, self.activation_alpha, self.activation_beta)

    def gate_functions(self) -> list[CellFunction]:
        """The activations as operators; those of what enters a gate with the bound."""
        clips = (self.clip, self.clip, None)
        return [CellFunction(a.name, a.alpha, a.beta, clip) for a, clip in zip(self.functions(), clips)]

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Backward through time; of what is computed before, `y` alone is kept."""
        return recurrence_gradient(self, builder, node, gradients)

    def multiply_adds(self, *shapes: Sequence[float] | None) -> float | None:
        given, weights = shapes[:2]
        return None if given is None or weights is None else math.prod(given) * weights[-1]

    def reference(self, *arrays: Array | None) -> Any:
        assert arrays[0] is not None
        # Lengths are the only operand that is no float.
        wide = [x if x is None or dt.dtype(x.dtype).is_integer else widen(x) for x in arrays]
        return tuple(rounded(v, dt.dtype(arrays[0].dtype)) for v in self.recur(*wide))

    def recur(self, *arrays: Array | None) -> tuple[Array, ...]:
        """The outputs by numpy, of operands that are wide and not rounded."""
        xw, r, h, c, lengths, peep, rb = (*arrays, *[None] * 4)[:7]
        assert xw is not None and r is not None and h is not None
        c = np.zeros_like(h) if c is None else c
        steps, hidden = xw.shape[0], r.shape[2]
        ys = np.zeros((steps, *h.shape), xw.dtype)
        f = self.functions()
        bound: Callable[..., Any] = (lambda v: v) if (top := self.clip) is None else (lambda v: np.clip(v, -top, top))
        for t in reversed(range(steps)) if self.reverse else range(steps):
            x = [xw[t][:, g * hidden : (g + 1) * hidden] for g in range(GATES[self.cell])]
            rec = [r[g].T for g in range(GATES[self.cell])]
            if self.cell == "lstm":
                p = [np.zeros(hidden)] * 3 if peep is None else np.split(peep, 3)
                i = f[0].value(bound(x[0] + h @ rec[0] + p[0] * c))
                forget = 1 - i if self.input_forget else f[0].value(bound(x[2] + h @ rec[2] + p[2] * c))
                new_c = forget * c + i * f[1].value(bound(x[3] + h @ rec[3]))
                o = f[0].value(bound(x[1] + h @ rec[1] + p[1] * new_c))
                new_h = o * f[2].value(new_c)
            elif self.cell == "gru":
                z = f[0].value(bound(x[0] + h @ rec[0]))
                reset = f[0].value(bound(x[1] + h @ rec[1]))
                inner = (
                    reset * (h @ rec[2] + (0 if rb is None else rb))
                    if self.linear_before_reset
                    else (reset * h) @ rec[2]
                )
                new_h, new_c = (1 - z) * f[1].value(bound(x[2] + inner)) + z * h, c
            else:
                new_h, new_c = f[0].value(bound(x[0] + h @ rec[0])), c
            live = np.ones((h.shape[0], 1), bool) if lengths is None else (t < lengths)[:, None]
            h, c = np.where(live, new_h, h), np.where(live, new_c, c)
            ys[t] = np.where(live, new_h, 0)
        return (ys, h, c) if self.cell == "lstm" else (ys, h)

    @algorithm("tensors")
    def direct(
        self,
        xw: Tensor,
        r: Tensor,
        h0: Tensor,
        c0: Tensor | None = None,
        lengths: Tensor | None = None,
        peep: Tensor | None = None,
        rb: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        wide = compute_dtype(xw.dtype)
        hidden = r.shape[2]
        batch = xw.shape[1]
        f = self.functions()
        gates = GATES[self.cell]

        def bound(x: Expr) -> Expr:
            return (
                x
                if self.clip is None
                else e.maximum(e.minimum(x, const(self.clip, x.dtype)), const(-self.clip, x.dtype))
            )

        def product(h: Tensor, first: int, count: int, name: str) -> Tensor:
            """h · rᵀ for `count` gates from `first`: [batch, count, hidden]."""
            k = reduce_axis(hidden, f"{name}_k")
            return compute(
                (batch, count, hidden),
                lambda b, g, j: sum_over(cast_to(h[b, k], wide) * cast_to(r[g + first, j, k], wide), k),
                name,
            )

        def live(t: Expr, b: Expr, new: Expr, old: Expr) -> Expr:
            return new if lengths is None else select(t < cast_to(lengths[b], dt.int64), new, old)

        def gate(t: Expr, product: Tensor, g: int) -> Any:
            return lambda b, j: cast_to(xw[t, b, j + as_dim(hidden * g)], wide) + product[b, g, j]

        def weight(g: int, j: Expr, c: Expr) -> Expr:
            assert peep is not None
            return cast_to(peep[j + as_dim(hidden * g)], wide) * c

        def lstm(t: Expr, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            rh = product(h, 0, gates, "rh")

            def before(g: int, b: Expr, j: Expr, c: Expr, peephole: int | None) -> Expr:
                value = gate(t, rh, g)(b, j)
                return bound(value if peep is None or peephole is None else value + weight(peephole, j, c))

            def next_c(b: Expr, j: Expr) -> Expr:
                i = f[0].formula(before(0, b, j, c[b, j], 0))
                forget = const(1.0, wide) - i if self.input_forget else f[0].formula(before(2, b, j, c[b, j], 2))
                return live(t, b, forget * c[b, j] + i * f[1].formula(before(3, b, j, c[b, j], None)), c[b, j])

            new_c = compute((batch, hidden), next_c, "next_c")
            new_h = compute(
                (batch, hidden),
                lambda b, j: live(
                    t, b, f[0].formula(before(1, b, j, new_c[b, j], 1)) * f[2].formula(new_c[b, j]), h[b, j]
                ),
                "next_h",
            )
            return new_h, new_c

        def gru(t: Expr, h: Tensor) -> tuple[Tensor]:
            two = product(h, 0, 3 if self.linear_before_reset else 2, "rh")
            z = compute((batch, hidden), lambda b, j: f[0].formula(bound(gate(t, two, 0)(b, j))), "z")
            reset = compute((batch, hidden), lambda b, j: f[0].formula(bound(gate(t, two, 1)(b, j))), "reset")
            offset = as_dim(hidden * 2)
            if self.linear_before_reset:
                bias: Callable[..., Any] = (
                    (lambda j: const(0.0, wide)) if rb is None else (lambda j: cast_to(rb[j], wide))
                )
                inner = compute((batch, 1, hidden), lambda b, _, j: reset[b, j] * (two[b, 2, j] + bias(j)), "inner")
            else:
                kept = compute((batch, hidden), lambda b, j: reset[b, j] * h[b, j], "kept")
                inner = product(kept, 2, 1, "inner")

            def next_h(b: Expr, j: Expr) -> Expr:
                candidate = f[1].formula(bound(cast_to(xw[t, b, j + offset], wide) + inner[b, 0, j]))
                return live(t, b, (const(1.0, wide) - z[b, j]) * candidate + z[b, j] * h[b, j], h[b, j])

            return (compute((batch, hidden), next_h, "next_h"),)

        def rnn(t: Expr, h: Tensor) -> tuple[Tensor]:
            rh = product(h, 0, 1, "rh")
            return (
                compute(
                    (batch, hidden),
                    lambda b, j: live(t, b, f[0].formula(bound(gate(t, rh, 0)(b, j))), h[b, j]),
                    "next_h",
                ),
            )

        first_h = compute((batch, hidden), lambda b, j: cast_to(h0[b, j], wide), "first_h")
        init = [first_h]
        if self.cell == "lstm":
            init.append(
                compute(
                    (batch, hidden), lambda b, j: const(0.0, wide) if c0 is None else cast_to(c0[b, j], wide), "first_c"
                )
            )
        step: Any = {"lstm": lstm, "gru": gru, "rnn": rnn}[self.cell]
        states = scan(xw.shape[0], init, step, name=self.cell, reverse=self.reverse)
        steps = xw.shape[0]
        end: Dim = 0 if self.reverse else as_dim(steps - 1)
        dtype = xw.dtype
        y = compute(
            (steps, batch, hidden),
            lambda t, b, j: cast_to(live(t, b, states[0][t, b, j], const(0.0, wide)), dtype),
            "y",
        )

        def last(state: Tensor, name: str) -> Tensor:
            return compute((batch, hidden), lambda b, j: cast_to(state[e.wrap(end, dt.int64), b, j], dtype), name)

        return (y, *(last(s, f"last_{n}") for s, n in zip(states, "hc")))

    def tolerance(self, *types: TensorType) -> float:
        hidden, steps = types[1].shape[2], types[0].shape[0]
        return reduction_tolerance(hidden) * (1 + (steps if isinstance(steps, int) else 16) / 4)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cells: tuple[Cell, ...] = ("lstm", "gru", "rnn")
        for cell in cells:
            g = GATES[cell]
            xw, r, h0 = floats((4, 2, 3 * g)), floats((g, 3, 3), seed=1), floats((2, 3), seed=2)
            c0 = floats((2, 3), seed=3) if cell == "lstm" else None
            yield Sample(cls(cell), (xw, r, h0, None, None, None, None), cell)
            yield Sample(
                cls(cell, reverse=True, clip=0.7),
                (xw, r, h0, c0, np.array([4, 2], np.int32), None, None),
                f"{cell}_reverse",
            )
        lengths = np.array([1, 3], np.int64)
        yield Sample(
            cls("lstm", input_forget=True),
            (floats((3, 2, 8)), floats((4, 2, 2)), floats((2, 2)), None, lengths, floats((6,)), None),
            "peepholes",
        )
        yield Sample(
            cls("lstm", ("HardSigmoid", "Affine", "ScaledTanh")),
            (floats((2, 1, 8)), floats((4, 2, 2)), floats((1, 2)), None, None, None, None),
            "other",
        )
        yield Sample(
            cls("gru", linear_before_reset=True),
            (floats((3, 2, 6)), floats((3, 2, 2)), floats((2, 2)), None, None, None, floats((2,))),
            "linear",
        )
        yield Sample(
            cls("gru", ("Softplus", "Softsign")),
            (floats((2, 1, 6)), floats((3, 2, 2)), floats((1, 2)), None, None, None, None),
            "soft",
        )
        for name in ("Relu", "LeakyRelu", "ThresholdedRelu", "Elu"):
            yield Sample(
                cls("rnn", (name,)),
                (floats((2, 1, 2)), floats((1, 2, 2)), floats((1, 2)), None, None, None, None),
                name.lower(),
            )
        yield Sample(
            cls("rnn"),
            (
                floats((2, 1, 2), "float16"),
                floats((1, 2, 2), "float16"),
                floats((1, 2), "float16"),
                None,
                None,
                None,
                None,
            ),
            "float16",
        )


def _part(vector: Array, first: int, count: int) -> Array:
    return vector[first : first + count]


@dataclass(frozen=True)
class RecurrentNetwork(Operator):
    """What LSTM, GRU and RNN share: ONNX's inputs, attributes and outputs.

    Inputs: X [steps, batch, input], W [directions, gates·hidden, input], R [directions, gates·hidden, hidden], then
    optional (None): B [directions, 2·gates·hidden], lengths [batch], h0 [directions, batch, hidden]; LSTM also c0, P
    [directions, 3·hidden]. Outputs: Y [steps, directions, batch, hidden], Y_h [directions, batch, hidden], LSTM also
    Y_c. With layout 1 batch comes first everywhere. Activations are listed for all directions, one after another.
    """

    hidden: int
    direction: Literal["forward", "reverse", "bidirectional"] = "forward"
    activations: tuple[str, ...] = ()
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    clip: float | None = None
    layout: int = 0
    kind = "composite"
    cell: ClassVar[Cell] = "lstm"

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def recurrence(self, d: int) -> Recurrence:
        n = len(DEFAULTS[self.cell])
        reverse = self.direction == "reverse" or d == 1
        names = self.activations[n * d : n * (d + 1)] if self.activations else ()

        def part(values: tuple[float, ...], users: tuple[str, ...]) -> tuple[float, ...]:
            before = sum(name.lower() in users for name in self.activations[: n * d])
            return values[before : before + sum(name.lower() in users for name in names)]

        alpha = part(
            self.activation_alpha, ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
        )
        beta = part(self.activation_beta, ("affine", "scaledtanh", "hardsigmoid"))
        return Recurrence(
            self.cell,
            names,
            alpha,
            beta,
            self.clip,
            getattr(self, "input_forget", False),
            getattr(self, "linear_before_reset", False),
            reverse,
        )

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes or sizes that do not agree."""
        assumed: list[Assumption] = []
        x, w, r = operands(types[:3], 3)
        dtype = one_dtype([x, w, r])
        expect_kind(dtype, ("float",))
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise GraphError(f"direction: expected forward, reverse or bidirectional, got '{self.direction}'")
        for t, name in ((x, "X"), (w, "W"), (r, "R")):
            expect_rank(t, 3, name)
        gates = GATES[self.cell]
        for t, shape, name in (
            (w, (self.directions, gates * self.hidden, x.shape[2]), "W"),
            (r, (self.directions, gates * self.hidden, self.hidden), "R"),
        ):
            for got, want in zip(t.shape, shape):
                unify(want, got, f"{name}: {show(t.shape)} for {show(shape)}", assumed)
        steps, batch = (x.shape[1], x.shape[0]) if self.layout else x.shape[:2]
        d, h = self.directions, self.hidden
        state = TensorType(dtype, (batch, d, h) if self.layout else (d, batch, h))
        y = TensorType(dtype, (batch, steps, d, h) if self.layout else (steps, d, batch, h))
        wanted = (
            ("B", (d, 2 * gates * h)),
            ("lengths", (batch,)),
            ("h", state.shape),
            ("c", state.shape),
            ("P", (d, 3 * h)),
        )
        for given, (name, dims) in zip(types[3:], wanted):
            if given is not None:
                unify_shapes(dims, tensor(given).shape, name, assumed)
        return Inferred((y, state, *((state,) if self.cell == "lstm" else ())), assumed)

    def bias(
        self, split: Callable[[int, int], Any], add: Callable[[Any, Any], Any], join: Callable[[Any, Any], Any]
    ) -> tuple[Any, Any]:
        """(the bias added to the projection, the recurrence bias kept for the cell); `split(first, count)` gives a part
        of B."""
        n = GATES[self.cell] * self.hidden
        return add(split(0, n), split(n, n)), None

    def reference(self, *arrays: Array | None) -> Any:
        x, w, r, b, lengths, h0, c0, p = (*arrays, *[None] * 5)[:8]
        assert x is not None and w is not None and r is not None
        dtype = dt.dtype(x.dtype)
        if self.layout:
            x = x.swapaxes(0, 1)
            h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
        results = []
        for d in range(self.directions):
            xw = widen(x) @ widen(w)[d].T
            rb = None
            if b is not None:
                bias, rb = self.bias(partial(_part, widen(b)[d]), np.add, lambda u, v: np.concatenate([u, v]))
                xw = xw + bias
            state = np.zeros((x.shape[1], self.hidden), xw.dtype)
            first = [state if s is None else widen(s)[d] for s in (h0, c0)]
            results.append(
                self.recurrence(d).recur(
                    xw,
                    widen(r)[d].reshape(-1, self.hidden, self.hidden),
                    *first,
                    lengths,
                    None if p is None else widen(p)[d],
                    rb,
                )
            )
        ys = np.stack([q[0] for q in results], 1)
        states = [np.stack([q[k] for q in results]) for k in range(1, len(results[0]))]
        if self.layout:
            ys, states = ys.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in states]
        return tuple(rounded(v, dtype) for v in (ys, *states))

    @algorithm("decompose")
    def project_then_recur(
        self, builder: GraphBuilder, x: Value, w: Value, r: Value, b: Value | None = None, lengths: Value | None = None,
        h0: Value | None = None, c0: Value | None = None, p: Value | None = None,
    ) -> tuple[Value, ...]:  # fmt: skip
        c = Composer(builder)
        if self.layout:
            x = c.transpose(x, (1, 0, 2))
            h0, c0 = (None if s is None else c.transpose(s, (1, 0, 2)) for s in (h0, c0))
        dtype, wide = x.dtype, compute_dtype(x.dtype)
        batch = x.shape[1]
        results = []
        for d in range(self.directions):
            weights = c.transpose(c.pick(w, 0, d), (1, 0))
            xw = c(MatMul(), c.cast(x, wide), c.cast(weights, wide))
            rb = None
            if b is not None:
                bias, rb = self.bias(
                    partial(c.slice, c.wide(c.pick(b, 0, d)), 0), c.add, lambda u, v: c.concat([u, v], 0)
                )
                xw = c.add(xw, bias)
            zero = None if h0 is not None else c(Fill(wide, (batch, self.hidden), 0))
            first_h = c.wide(c.pick(h0, 0, d)) if h0 is not None else zero
            first_c = c.wide(c.pick(c0, 0, d)) if c0 is not None else None
            peep = c.wide(c.pick(p, 0, d)) if p is not None else None
            gates = c.reshape(c.wide(c.pick(r, 0, d)), (GATES[self.cell], self.hidden, self.hidden))
            results.append(c.all(self.recurrence(d), xw, gates, first_h, first_c, lengths, peep, rb))
        steps = x.shape[0]
        ys = c.concat([c.reshape(q[0], (steps, 1, batch, self.hidden)) for q in results], 1)
        states = [
            c.concat([c.reshape(q[k], (1, batch, self.hidden)) for q in results], 0) for k in range(1, len(results[0]))
        ]
        if self.layout:
            ys, states = c.transpose(ys, (2, 0, 1, 3)), [c.transpose(s, (1, 0, 2)) for s in states]
        return tuple(c.cast(v, dtype) for v in (ys, *states))

    def tolerance(self, *types: TensorType) -> float:
        steps = types[0].shape[0]
        return reduction_tolerance(types[0].shape[2]) * (2 + (steps if isinstance(steps, int) else 16) / 2)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        n = GATES[cls.cell] * 3
        x = floats((4, 2, 5))

        def weights(d: int, dtype: str = "float32") -> tuple[Array, Array, Array]:
            return floats((d, n, 5), dtype, seed=1), floats((d, n, 3), dtype, seed=2), floats((d, 2 * n), dtype, seed=3)

        w, r, b = weights(1)
        yield Sample(cls(3), (x, w, r), "plain")
        yield Sample(cls(3, "reverse"), (x, w, r, b, np.array([4, 2], np.int32)), "reverse")
        w, r, b = weights(2)
        h0 = floats((2, 2, 3), seed=4)
        yield Sample(cls(3, "bidirectional"), (x, w, r, b, None, h0), "both")
        yield Sample(
            cls(3, "bidirectional", layout=1),
            (floats((2, 4, 5)), w, r, b, np.array([3, 4], np.int32), h0),
            "batch_first",
        )
        names = DEFAULTS[cls.cell][:-1] + ("LeakyRelu",) + DEFAULTS[cls.cell][:-1] + ("HardSigmoid",)
        yield Sample(cls(3, "bidirectional", names, (0.1, 0.3), (0.4,), clip=2.0), (x, w, r, b), "activations")
        w, r, b = weights(1, "float16")
        yield Sample(cls(3), (floats((2, 2, 5), "float16"), w, r, b), "float16")


@dataclass(frozen=True)
class LSTM(RecurrentNetwork):
    """Long short-term memory; see RecurrentNetwork. `input_forget` couples the two gates."""

    input_forget: bool = False
    cell = "lstm"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        x, w, r, b = floats((3, 2, 5)), floats((1, 12, 5), seed=1), floats((1, 12, 3), seed=2), floats((1, 24), seed=3)
        states = floats((1, 2, 3), seed=4), floats((1, 2, 3), seed=5)
        yield Sample(
            cls(3, input_forget=True),
            (x, w, r, b, np.array([1, 3], np.int32), *states, floats((1, 9), seed=6)),
            "everything",
        )


@dataclass(frozen=True)
class GRU(RecurrentNetwork):
    """Gated recurrent unit; see RecurrentNetwork. `linear_before_reset` applies the reset gate after the product."""

    linear_before_reset: bool = False
    cell = "gru"

    def bias(
        self, split: Callable[[int, int], Any], add: Callable[[Any, Any], Any], join: Callable[[Any, Any], Any]
    ) -> tuple[Any, Any]:
        h = self.hidden
        if not self.linear_before_reset:
            return super().bias(split, add, join)
        # The hidden gate's recurrence bias is inside the product with the reset gate.
        return join(add(split(0, 2 * h), split(3 * h, 2 * h)), split(2 * h, h)), split(5 * h, h)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        x, w, r, b = floats((3, 2, 5)), floats((1, 9, 5), seed=1), floats((1, 9, 3), seed=2), floats((1, 18), seed=3)
        yield Sample(cls(3, linear_before_reset=True), (x, w, r, b), "linear_before_reset")


@dataclass(frozen=True)
class RNN(RecurrentNetwork):
    """The simple recurrent network; see RecurrentNetwork."""

    cell = "rnn"


__all__ = ["GRU", "LSTM", "RNN", "Recurrence"]
