"""Fourier transforms and windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.evaluate import evaluate
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Where
from weft_ops.comparison import Equal, LogicalOr
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul, reduction_tolerance
from weft_ops.examples import floats
from weft_ops.movement import Gather, Iota
from weft_ops.precision import compute_dtype, rounded
from weft_ops.shapes import (
    axis_of,
    dim_expr,
    dim_floordiv,
    expect_kind,
    expect_positive,
    is_one,
    operands,
    product,
    show,
    simplified,
    static,
    unify,
)


@dataclass(frozen=True)
class DFT(Operator):
    """The discrete Fourier transform along `axis` of x […, 1 or 2]: real, or real and imaginary parts last; the result
    has both (or one: see below).

    `length`: how many points (None: as many as there are); x is cut or padded with zeros to it. `inverse` divides by
    it. `onesided`: forward, only the first length // 2 + 1 points; inverse, x is such a half and the result is real
    (last axis 1; length None: 2·(points - 1)).
    """

    axis: int = -2
    inverse: bool = False
    onesided: bool = False
    length: Dim | None = None
    kind = "composite"

    def points(self, shape: Sequence[Dim]) -> tuple[int, Dim, Dim, int]:
        """(axis, length of the transform, points in the result, parts of a number of the result)."""
        axis = axis_of(self.axis, len(shape))
        if axis == len(shape) - 1:
            raise GraphError(f"axis: expected one before the last, got {self.axis}")
        half = self.inverse and self.onesided
        length = self.length if self.length is not None else as_dim(shape[axis] * 2 - 2) if half else shape[axis]
        count = as_dim(dim_floordiv(length, 2) + 1) if self.onesided and not self.inverse else length
        return axis, length, count, 1 if half else 2

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        if x.rank < 2 or x.shape[-1] not in (1, 2):
            raise GraphError(f"expected a last dimension of 1 or 2, got {show(x.shape)}")
        axis, _, count, parts = self.points(x.shape)
        return TensorType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 : -1], parts))

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        axis, length, count, parts = self.points(x.shape)
        n, m = static([length, count])
        z = x[..., 0].astype(np.complex128) + (1j * x[..., 1].astype(np.float64) if x.shape[-1] == 2 else 0)
        if self.inverse and self.onesided:
            return rounded(np.fft.irfft(z, n, axis)[..., None], dt.dtype(x.dtype))
        z = (np.fft.ifft if self.inverse else np.fft.fft)(z, n, axis)
        z = z.take(range(m), axis)
        return rounded(np.stack([z.real, z.imag], -1)[..., :parts], dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The transposed transform: the other way without its divisor, or with it; points that were cut have zero.
        Half a spectrum stands for the whole: it is taken with zeros for the rest, and given twice but for the points
        that are their own mirror image, the first one and the middle one."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, rank = Composer(builder), len(x.shape)
        axis, length, _, _ = self.points(x.shape)
        wide = c.wide(g)
        count = c.cast(c.dim(length), wide.dtype)
        if self.inverse:
            y = c.div(c(DFT(axis, False, self.onesided), wide), count)
            if self.onesided:
                points = y.shape[axis]
                k = c(Iota(dt.int64, (points, *(1 for _ in range(axis + 1, rank)))))
                alone = c(LogicalOr(), c(Equal(), k, 0), c(Equal(), c.mul(k, 2), c.dim(length)))
                y = c.mul(y, c(Where(), alone, c.number(1, y.dtype), c.number(2, y.dtype)))
        else:
            y = c.mul(c(DFT(axis, True, length=length), wide), count)
        missing = simplified(as_dim(x.shape[axis] - y.shape[axis]))
        if missing != 0:
            y = c.pad(y, [0] * rank + [missing if d == axis else 0 for d in range(rank)])
        return (c.cast(y if x.shape[-1] == 2 else c.slice(y, rank - 1, 0, 1), x.dtype),)

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        if algorithm != "factors":
            return None
        (x,) = operands(types, 1)
        axis, length, count, _ = self.points(x.shape)
        if not (isinstance(length, int) and isinstance(count, int) and isinstance(x.shape[axis], int)):
            return "the length is not known"
        if length <= 0:
            return "there are no points"
        points = length if length > MOST_POINTS or factors(length, 2)[1] else convolved(length)
        return None if points <= MOST_POINTS else f"{points} points turn by more constants than a model should hold"

    @algorithm("decompose")
    def factors(self, builder: GraphBuilder, x: Value) -> Value:
        """Products with matrices: `fourier`."""
        c = Composer(builder)
        axis, length, count, parts = self.points(x.shape)
        assert isinstance(length, int) and isinstance(count, int)
        lead, tail, given = x.shape[:axis], x.shape[axis + 1 : -1], x.shape[-1]
        half = self.inverse and self.onesided
        wanted = length // 2 + 1 if half else length
        v = c.slice(x, axis, 0, wanted) if isinstance(n := x.shape[axis], int) and n > wanted else x
        if v.shape[axis] != wanted:
            v = c.pad(
                v,
                [0] * len(x.shape) + [as_dim(wanted - v.shape[axis]) if d == axis else 0 for d in range(len(x.shape))],
            )
        # Real parts, then imaginary parts, of each line.
        rank = len(x.shape)
        v = c.transpose(c.wide(v), (*range(axis), *range(axis + 1, rank), axis))
        if half:
            # The second half mirrors the first, conjugate; the imaginary parts of the first point and of the middle one
            # do not count.
            j = np.arange(length)
            sign = np.where((j == 0) | (2 * j == length), 0.0, np.where(2 * j > length, -1.0, 1.0))
            v = c.gather(v, builder.constant(np.minimum(j, length - j), "mirror"), rank - 1)
            if given == 2:
                v = c.mul(v, builder.constant(np.stack([np.ones(length), sign]).astype(v.dtype.numpy), "conjugate"))
        v = c.reshape(v, (product([*lead, *tail]), given, length))
        y = fourier(c, v, length, count, parts, self.inverse, 1 / length if self.inverse else 1.0)
        y = c.reshape(y, (*lead, *tail, count, parts))
        return c.cast(c.transpose(y, (*range(axis), rank - 2, *range(axis, rank - 2), rank - 1)), x.dtype)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        wide = compute_dtype(x.dtype)
        axis, length, count, parts = self.points(x.shape)
        half = self.inverse and self.onesided
        scalar = is_one(x.shape[-1])
        # cos and sin of whole fractions of a turn, looked up by k·j modulo the length: the argument stays exact.
        cos = compute((length,), lambda i: turn(i, dim_expr(length), wide)[0], "cosines")
        sin = compute((length,), lambda i: turn(i, dim_expr(length), wide)[1], "sines")
        j = reduce_axis(length, "j")

        def formula(*index: Expr) -> Expr:
            k, part = index[axis], index[-1]
            lead, tail = index[:axis], index[axis + 1 : -1]
            place: Expr = j.var
            # The second half of a one-sided spectrum mirrors the first, conjugate.
            mirrored = j.var > dim_floordiv(length, 2)
            if half:
                place = select(mirrored, dim_expr(length) - j.var, place)
            inside = place < x.shape[axis]
            read: Callable[..., Any] = lambda p: select(
                inside, cast_to(x[(*lead, place, *tail, p)], wide), const(0, wide)
            )
            phase = (k * j.var) % length
            re, c, s = read(0), cos[phase], sin[phase]
            s = s if self.inverse else -s
            if scalar:
                return sum_over(re * select(e.eq(part, 0), c, s), j)
            im = read(1)
            if half:
                # irfft ignores the imaginary parts of the first point and of the middle one.
                real_point = e.or_(e.eq(j.var, 0), e.eq(j.var * 2, dim_expr(length)))
                im = select(real_point, const(0, wide), select(mirrored, -im, im))
            return sum_over(select(e.eq(part, 0), re * c - im * s, re * s + im * c), j)

        shape = (*x.shape[:axis], count, *x.shape[axis + 1 : -1], parts)
        total = compute(shape, formula, "dft")
        if not self.inverse and wide == x.dtype:
            return total
        scale: Callable[..., Any] = lambda v: v / cast_to(dim_expr(length), wide) if self.inverse else v
        return compute(shape, lambda *i: cast_to(scale(total[i]), x.dtype), "scaled")

    def tolerance(self, *types: TensorType) -> float:
        _, length, _, _ = self.points(types[0].shape)
        return 4 * reduction_tolerance(length)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 6, 1)),), "real")
        yield Sample(cls(1), (floats((2, 5, 3, 2)),), "complex")
        yield Sample(cls(-2, True), (floats((2, 6, 2)),), "inverse")
        yield Sample(cls(-2, False, True), (floats((7, 1)),), "onesided")
        for length in (None, 7):
            yield Sample(cls(-2, True, True, length), (floats((2, 5, 2)),), f"inverse_onesided_{length}")
        yield Sample(cls(), (floats((3, 48, 1)),), "factors")
        yield Sample(cls(1, True, True), (floats((2, 46, 3, 2)),), "factors_inverse")
        yield Sample(cls(-2, length=4), (floats((6, 1)),), "cut")
        yield Sample(cls(-2, length=8), (floats((6, 2)),), "padded")
        yield Sample(cls(), (floats((6, 1), "float16"),), "float16")


def turn(part: Expr, whole: Expr, dtype: DType) -> tuple[Expr, Expr]:
    """cos and sin of the angle part / whole of a full turn, 0 ≤ part < whole.

    The eighth of the turn is found in integers and the angle taken from its end nearest an axis, below an eighth: so
    values of opposite points are each other's negative and those on an axis exact, and what should cancel in a sum
    does.
    """
    eighth = part * 8 // whole
    rest = part * 8 - eighth * whole
    rest = select(e.eq(eighth % 2, 1), whole - rest, rest)
    angle = cast_to(rest, dtype) * (math.pi / 4) / cast_to(whole, dtype)
    swap = e.or_(e.eq(eighth % 4, 1), e.eq(eighth % 4, 2))
    near, far = call("cos", angle), call("sin", angle)
    cos, sin = select(swap, far, near), select(swap, near, far)
    left = e.and_(eighth >= 2, eighth < 6)
    return select(left, -cos, cos), select(eighth >= 4, -sin, sin)


MOST_AT_ONCE = 256
"""Points that are transformed by one product, at most."""
MOST_POINTS = 1 << 22
"""Points of a transform whose factors are constants of the model: some 100 bytes each, and more while they are made."""
PASS_COST = 32
"""Multiply-adds in whose time an element is turned and moved between two products."""


@cache
def factors(n: int, given: int) -> tuple[float, int]:
    """How lines of n points are transformed fastest: (multiply-adds, points of the transforms that are taken first).

    1 point: all are taken at once; 0: as a convolution. `given`: 1 for real numbers, 2 for complex ones.
    """
    ways = [(2.0 * given * n * n, 1)] if n <= MOST_AT_ONCE else []
    if n > MOST_AT_ONCE and n & (n - 1):
        m = convolved(n)
        ways.append((2 * factors(m, 2)[0] + 3.0 * PASS_COST * m, 0))
    for a in (a for a in range(2, min(n // 2, MOST_AT_ONCE) + 1) if n % a == 0):
        ways.append((a * factors(n // a, 2)[0] + (2.0 * given * a + PASS_COST) * n, a))
    return min(ways)


def convolved(n: int) -> int:
    """Points of the cyclic convolution that transforms n points: a power of two, none of which wraps into another's
    place."""
    return 1 << (2 * n - 2).bit_length()


def circle(phase: Array, n: int, inverse: bool) -> Array:
    """exp(∓2πi · phase / n), complex128; whole turns are taken off in integers."""
    cos, sin = (
        evaluate(x, {"i": phase % n, "n": np.int64(n)})
        for x in turn(Var("i", dt.int64), Var("n", dt.int64), dt.float64)
    )
    return np.asarray(cos + 1j * (sin if inverse else -sin))


def turned(c: Composer, v: Value, z: Array, axis: int) -> Value:
    """v times the complex constants z (one element along `axis`, counted from the end, where v has its real and
    imaginary parts, or real ones only)."""
    constant: Callable[[Array, str], Value] = lambda x, name: c.builder.constant(x.astype(v.dtype.numpy), name)
    same = c.mul(v, constant(np.concatenate([z.real, z.imag if v.shape[axis] == 1 else z.real], axis), "cosines"))
    if v.shape[axis] == 1:
        return same
    return c.add(same, c.mul(c.slice(v, axis, 1, 2, -1), constant(np.concatenate([-z.imag, z.imag], axis), "sines")))


def fourier(c: Composer, v: Value, n: int, count: int, parts: int, inverse: bool, scale: float) -> Value:
    """The first `count` points of the Fourier transforms of lines v [b, 1 or 2, n], real parts before imaginary ones,
    times `scale`: [b, count, parts].

    n = a·b points: a transforms of every b-th point, turned, then b points each transformed likewise (Bailey's four
    steps), down to products with matrices. A number of points with a large prime factor: a convolution with a chirp, by
    transforms of a power of two (Bluestein).
    """
    given, dtype, lines = v.shape[1], v.dtype, v.shape[0]
    assert isinstance(given, int)
    a = factors(n, given)[1]
    if a == 0:
        return chirped(c, v, n, count, parts, inverse, scale)

    def matrix(size: int, first: int) -> Array:
        """[part, point in, point out, part]."""
        z = circle(np.multiply.outer(np.arange(size), np.arange(first)), size, inverse)
        return np.stack([np.stack([z.real, z.imag], -1), np.stack([-z.imag, z.real], -1)])[:given]

    exact = MatMul(dtype)  # the matrix is no weight that may be rounded
    if a == 1:
        m = (matrix(n, count) * scale)[..., :parts].reshape(given * n, count * parts)
        y = c(exact, c.reshape(v, (lines, as_dim(given * n))), c.builder.constant(m.astype(dtype.numpy), "turns"))
        return c.reshape(y, (lines, count, parts))
    b, rest = n // a, -(-count // a)
    # [(point, part), (part, point)] by [(part, point), the others]
    m = matrix(a, a).transpose(2, 3, 0, 1).reshape(2 * a, given * a)
    y = c(exact, c.builder.constant(m.astype(dtype.numpy), "turns"), c.reshape(v, (lines, given * a, b)))
    y = turned(
        c,
        c.reshape(y, (lines, a, 2, b)),
        circle(np.multiply.outer(np.arange(a), np.arange(b)), n, inverse)[:, None],
        -2,
    )
    y = fourier(c, c.reshape(y, (as_dim(lines * a), 2, b)), b, rest, parts, inverse, scale)
    y = c.transpose(c.reshape(y, (lines, a, rest, parts)), (0, 2, 1, 3))
    return c.slice(c.reshape(y, (lines, rest * a, parts)), 1, 0, count)


def chirped(c: Composer, v: Value, n: int, count: int, parts: int, inverse: bool, scale: float) -> Value:
    """See `fourier`: k·j is (k² + j² - (k - j)²) / 2."""
    m, j = convolved(n), np.arange(n)
    chirp = circle(j * j, 2 * n, inverse)
    around = np.zeros(m, np.complex128)
    around[j], around[-j] = chirp.conj(), chirp.conj()
    y = c.pad(turned(c, v, chirp[None], -2), [0, 0, 0, 0, 0, m - n])
    y = turned(c, fourier(c, y, m, m, 2, False, 1.0), np.fft.fft(around)[:, None], -1)
    y = fourier(c, c.transpose(y, (0, 2, 1)), m, count, 2, True, scale / m)
    return c.slice(turned(c, y, chirp[:count, None], -1), 2, 0, parts)


@dataclass(frozen=True)
class STFT(Operator):
    """Short-time Fourier transforms: frames of `length` every `step` points of x [b, n, 1 or 2], times an optional
    window [length], each transformed.

    Result: [b, frames, length or length // 2 + 1 if `onesided`, 2].
    """

    step: Dim
    length: Dim
    onesided: bool = True
    kind = "composite"

    def frames(self, n: Dim) -> Dim:
        return as_dim(dim_floordiv(as_dim(n - self.length), self.step) + 1)

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, *window = operands([t for t in types if t is not None])
        expect_kind(x.dtype, ("float",))
        if x.rank != 3 or x.shape[2] not in (1, 2):
            raise GraphError(f"expected x [b, n, 1 or 2], got {show(x.shape)}")
        if window:
            unify(self.length, window[0].shape[0], "window", assumed)
        expect_positive(self.step, "step", assumed)
        expect_positive(self.length, "length of a frame", assumed)
        count = as_dim(dim_floordiv(self.length, 2) + 1) if self.onesided else self.length
        return Inferred(TensorType(x.dtype, (x.shape[0], self.frames(x.shape[1]), count, 2)), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, window = (*arrays, None)[:2]
        assert x is not None
        step, length, frames = static([self.step, self.length, self.frames(x.shape[1])])
        cut = np.stack([x[:, f * step : f * step + length] for f in range(frames)], 1).astype(np.float64)
        cut = cut if window is None else cut * window.astype(np.float64)[:, None]
        return DFT(-2, False, self.onesided).reference(cut).astype(x.dtype)

    @algorithm("decompose")
    def framed(self, builder: GraphBuilder, x: Value, window: Value | None = None) -> Value:
        c = Composer(builder)
        frames = self.frames(x.shape[1])
        first = c.mul(c(Iota(dt.int64, (frames, 1), 0)), c.dim(self.step))
        at = c.add(first, c(Iota(dt.int64, (1, self.length), 1)))
        cut = c.wide(c(Gather(1), x, at))
        if window is not None:
            cut = c.mul(cut, c.reshape(c.wide(window), (self.length, 1)))
        return c.cast(c(DFT(-2, False, self.onesided), cut), x.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return 4 * reduction_tolerance(self.length)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(2, 4), (floats((2, 11, 1)), floats((4,), lo=0, hi=1)), "window")
        yield Sample(cls(3, 5, False), (floats((1, 12, 2)),), "complex")


@dataclass(frozen=True)
class Window(Operator):
    """A window of `size` points: Hann, Hamming or Blackman; `periodic` divides the turn by size, else by size - 1."""

    name: Literal["hann", "hamming", "blackman"]
    size: Dim
    periodic: bool = True
    dtype: DType = dt.float32
    kind = "injective"

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        if self.name not in ("hann", "hamming", "blackman"):
            raise GraphError(f"name: expected hann, hamming or blackman, got '{self.name}'")
        expect_kind(self.dtype, ("float",), "dtype")
        return TensorType(self.dtype, (self.size,))

    @property
    def weights(self) -> tuple[float, float, float]:
        return {"hann": (0.5, 0.5, 0.0), "hamming": (25 / 46, 21 / 46, 0.0), "blackman": (0.42, 0.5, 0.08)}[self.name]

    def reference(self, *arrays: Array | None) -> Array:
        (n,) = static([self.size])
        turn = 2 * np.pi * np.arange(n) / max(n if self.periodic else n - 1, 1)
        a, b, c = self.weights
        return rounded(a - b * np.cos(turn) + c * np.cos(2 * turn), self.dtype)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        wide = compute_dtype(self.dtype)
        a, b, c = self.weights
        period = e.maximum(dim_expr(self.size if self.periodic else as_dim(self.size - 1)), 1)

        def formula(i: Expr) -> Expr:
            turn = cast_to(i, wide) * (2 * math.pi) / cast_to(period, wide)
            value = const(a, wide) - call("cos", turn) * b
            return cast_to(value if c == 0 else value + call("cos", turn * 2.0) * c, self.dtype)

        return compute((self.size,), formula, "window")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for name in ("hann", "hamming", "blackman"):
            yield Sample(cls(name, 10), (), name)
            yield Sample(cls(name, 7, False, dt.float64), (), f"{name}_symmetric")


__all__ = ["DFT", "STFT", "Window"]
