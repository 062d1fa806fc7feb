"""Cases made from what a target declares: operators around products in tiles of its intrinsics, the intrinsics' plain
meanings, data that fill memories.

Sizes come from the declarations alone: a tile is what one execution of an intrinsic computes, and a case is whole (one
tile), ragged (one less, one more, primes) or several (tiles along every axis).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Cast, Expr, Mul, Var, free_vars, lt, transform, walk
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.graph.operator import Operator
from weft.machine import Scope
from weft.scheduling.intrinsic import Intrinsic
from weft.tensor.language import Compute, Read, Reduce, Tensor, placeholder
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, MatMul, reduction_tolerance
from weft_ops.movement import Transpose
from weft_ops.normalization import Softmax
from weft_ops.quantization import ConvInteger, Dequantize, MatMulInteger, QLinearConv, QLinearMatMul, Quantize
from weft_testing.conform.usage import is_product
from weft_testing.operands import values

Array: TypeAlias = np.ndarray[Any, Any]
Kind = Literal["whole", "ragged", "several", "fits", "exceeds", "rounds"]
Sizes: TypeAlias = tuple[int, ...]
"""Of a product: rows, columns, terms."""

BUDGET = 1 << 20
"""Multiply-adds of a case at most, unless one tile has more: a simulator in Python executes some millions a second."""
NOMINAL = (16, 16, 16)
"""The tile of products where no intrinsic multiplies float32."""
TERMS, ROWS = 8, 4
"""Terms of a product where an intrinsic adds one at a time, and rows where it computes one."""
LONGEST = 64
"""Of a length that an intrinsic leaves open, in a tile, in multiples of the least one."""
MOST_ELEMENTS = 1 << 12
"""Of a tile with open lengths."""
MOST_PIXELS = 1 << 8
"""Of a picture with rows of no more."""
NARROW = ("uint8", "int8")


@dataclass(frozen=True)
class Made:
    """A graph made for some intrinsics, or for a memory.

    Attributes:
        runs: the sizes of its symbols, for each run.
        ulps: the largest error in units in the last place of the greatest element; data are small integers, of which
            sums of products are exact.
        work: multiply-adds, or elements of a result; 0 where they are within the budget by construction.
    """

    name: str
    kind: Kind
    build: Callable[[], Graph]
    intrinsics: tuple[str, ...] = ()
    runs: tuple[Mapping[str, int], ...] = field(default=({},))
    ulps: float = 4.0
    work: int = 0

    def inputs(self) -> list[dict[str, Array]]:
        """For each run."""
        rng = np.random.default_rng(5)
        graph = self.build()

        def shape(v: Value, sizes: Mapping[str, int]) -> list[int]:
            return [sizes[d.name] if isinstance(d, Var) else int(str(d)) for d in v.shape]

        return [{v.name: _elements(v.dtype, shape(v, sizes), rng) for v in graph.inputs} for sizes in self.runs]


def _elements(dtype: DType, shape: Sequence[int], rng: np.random.Generator) -> Array:
    if dtype.bits > 8:
        return rng.integers(-4, 5, shape).astype(dtype.numpy)
    return values("random", dtype, math.prod(shape), rng).reshape(shape)


# -- tiles


@dataclass(frozen=True)
class Tile:
    """What one execution of an intrinsic multiplies: rows, columns, terms; 1 where it has no such axis."""

    rows: int
    columns: int
    terms: int
    left: DType
    right: DType
    result: DType

    @property
    def sizes(self) -> Sizes:
        return self.rows, self.columns, self.terms


def lengths_of(intrinsic: Intrinsic) -> Mapping[str, int]:
    """Lengths of a large tile, balanced; empty where it has none."""
    least = intrinsic.least
    sizes = dict(least)
    fixed = math.prod(n for _, n, _ in intrinsic.extents if isinstance(n, int))
    times = 2
    while times <= LONGEST and sizes:
        for v in sizes:
            longer = {**sizes, v: times * least[v]}
            if fixed * math.prod(longer.values()) <= MOST_ELEMENTS and intrinsic.allows(longer):
                sizes = longer
        times *= 2
    return sizes


def tile_of(intrinsic: Intrinsic) -> Tile | None:
    """The tile of a product of two matrices, rows and columns; None where an intrinsic is none."""
    if not is_product(intrinsic):
        return None
    given = intrinsic.at(lengths_of(intrinsic))
    assert given.reduction is not None
    product = next(n for v in given.reduction.values for n in walk(v) if isinstance(n, Mul))
    sides = [[n for n in walk(e) if isinstance(n, Read)] for e in (product.a, product.b)]
    left, right = ({v for r in reads for i in r.indices for v in free_vars(i)} for reads in sides)
    sizes = {"rows": 1, "columns": 1, "terms": 1, "both": 1}
    for v, n, kind in given.axes:
        sizes[
            (
                "terms"
                if kind == "reduce"
                else "both"
                if v.name in left & right
                else "rows"
                if v.name in left
                else "columns"
            )
        ] *= n
    if sizes["both"] > 1 or (sizes["rows"] == 1 and sizes["columns"] == 1 and sizes["terms"] == 1):
        return None  # element by element
    return Tile(
        sizes["rows"], sizes["columns"], sizes["terms"], sides[0][0].dtype, sides[1][0].dtype, given.meaning.dtype
    )


def prime_above(n: int) -> int:
    """The least prime greater than a number."""
    return next(p for p in range(n + 1, 2 * n + 3) if p > 1 and all(p % d for d in range(2, math.isqrt(p) + 1)))


def spread(tile: Sequence[int], budget: int, most: Sequence[int]) -> tuple[int, ...]:
    """As many tiles along each axis as `most` says, or fewer where that were more than the budget; one at least."""
    times = [1] * len(tile)
    while True:
        more = [
            k
            for k in range(len(tile))
            if times[k] < most[k]
            and math.prod(n * (t + (j == k)) for j, (n, t) in enumerate(zip(tile, times))) <= budget
        ]
        if not more:
            return tuple(n * t for n, t in zip(tile, times))
        times[min(more, key=lambda k: times[k] / most[k])] += 1


def grown(tile: Sequence[int], budget: int) -> Iterator[tuple[Kind, str, tuple[int, ...]]]:
    """Kind, name and sizes of the cases of a tile; axes of one element stay so."""
    base = tuple(tile)
    found: dict[tuple[int, ...], tuple[Kind, str]] = {}
    several, many = (
        [1 if n == 1 else most for n, most in zip(base, limits)] for limits in ([3, *[2] * len(base)], [8] * len(base))
    )
    candidates: list[tuple[Kind, str, tuple[int, ...]]] = [
        ("whole", "whole", base),
        ("several", "several", spread(base, budget, several)),
        ("ragged", "one more", tuple(n + (n > 1) for n in base)),
        ("ragged", "one less", tuple(max(1, n - 1) for n in base)),
        ("ragged", "primes", tuple(prime_above(n) if n > 1 else 1 for n in spread(base, budget // 4, several))),
        ("several", "many", spread(base, budget, many)),
        *(("ragged", f"{n + 1} of axis {k}", (*base[:k], n + 1, *base[k + 1 :])) for k, n in enumerate(base) if n > 1),
    ]
    for kind, name, sizes in candidates:
        if sizes not in found:
            found[sizes] = (kind, name)
            yield kind, name, sizes


# -- products


def products(intrinsics: Iterable[Intrinsic], budget: int = BUDGET, quick: bool = False) -> dict[str, Made]:
    """Operators around products in the tiles of intrinsics, by name.

    Args:
        quick: of each tile the product alone: whole, several, and one more.
    """
    tiles: dict[Tile, list[str]] = {}
    families: dict[str, list[Tile]] = {}
    for i in intrinsics:
        tile = tile_of(i)
        if tile is not None:
            tiles.setdefault(tile, []).append(i.name)
            families.setdefault(family(i), []).append(tile)
    if not any(t.left == t.right == dt.float32 for t in tiles):
        tiles[Tile(*NOMINAL, dt.float32, dt.float32, dt.float32)] = []
    ends = {min(f, key=_volume) for f in families.values()} | {max(f, key=_volume) for f in families.values()}
    found: dict[str, Made] = {}
    for tile, names in tiles.items():
        few = quick or (bool(names) and tile not in ends)
        for made in _around(tile, budget, few):
            before = found.get(made.name)
            found[made.name] = replace(
                made, intrinsics=tuple(dict.fromkeys((*(before.intrinsics if before else ()), *names)))
            )
    return found


def _volume(tile: Tile) -> int:
    return math.prod(tile.sizes)


def family(intrinsic: Intrinsic) -> str:
    """What intrinsics have in common that differ in the sizes of their tile alone."""
    reduce = intrinsic.reduction
    formula = [str(intrinsic.source.bodies[0])] if reduce is None else [reduce.reducer.name, *map(str, reduce.values)]
    return "; ".join([*formula, *(f"{t.dtype} in {o.scopes}" for o, t in zip(intrinsic.operands, intrinsic.tensors))])


def _around(tile: Tile, budget: int, few: bool) -> Iterator[Made]:
    base = (tile.rows, tile.columns, tile.terms if tile.terms > 1 else TERMS)
    cases = [*grown(base, budget)]
    whole, several, more, *others = cases
    if tile.rows == 1:
        cases += [
            ("several", "several rows", (ROWS, *several[2][1:])),
            ("ragged", "rows of one more", (ROWS + 1, *more[2][1:])),
        ]
    ragged = next((c for c in others if c[1] == "primes"), more)
    pictures = [(kind, word, (max(n, ROWS), *rest)) for kind, word, (n, *rest) in (whole, more)]
    for left, right in operands_of(tile):
        for kind, name, sizes in cases[:3] if few or (left, right) != (tile.left, tile.right) else cases:
            yield _product("MatMul", _matmul, left, right, tile, kind, name, sizes)
        if few:
            continue
        float_ = left.is_float
        groups: list[tuple[str, Builder]] = [
            ("batched MatMul", _batched),
            ("Conv 1x1", POINTWISE),
            ("Conv 3x3", WINDOW),
            ("Conv 3x3 strided", STRIDED),
        ]
        groups += [(f"MatMul to {tile.result}", _widened)] if float_ and tile.result != left else []
        groups += (
            [("MatMul with epilogue", _epilogue), ("Gemm", _transposed), ("MatMul of two inputs", _inputs)]
            if float_
            else []
        )
        groups += (
            [("QLinearMatMul", _qmatmul), ("QLinearConv", _qconv), ("QDQ", _qdq)]
            if left.bits == right.bits == 8
            else []
        )
        for name, build in groups:
            for kind, word, sizes in (
                pictures if build in PICTURES else (whole, several if build in (_epilogue, _widened) else more)
            ):
                yield _product(name, build, left, right, tile, kind, word, sizes)
        yield _open(left, right, tile, several[2], ragged[2])


def operands_of(tile: Tile) -> list[tuple[DType, DType]]:
    """Dtypes of operands that an intrinsic's hold without loss, their own first: products of 8 bits are multiplied in
    16 where nothing else does it."""
    found = [(tile.left, tile.right)]
    if tile.left.is_integer and tile.left.bits > 8:
        found += [(dt.dtype(a), dt.dtype(b)) for a in NARROW for b in NARROW]
    if tile.left.is_float and tile.left.bits < 32 and tile.result == dt.float32:
        found.append((dt.float32, dt.float32))  # where an option lets float32 be rounded to it
    return found


Builder: TypeAlias = Callable[["_Draft", DType, DType, DType, Sizes], Value]


def _product(
    name: str, build: Builder, left: DType, right: DType, tile: Tile, kind: Kind, word: str, sizes: Sizes
) -> Made:
    dtypes = str(left) if left == right else f"{left} x {right}"
    text = "x".join(map(str, sizes))

    def graph() -> Graph:
        d = _Draft("made")
        return d.built(build(d, left, right, tile.result, sizes))

    # Results of narrower floats are rounded once; transforms of 3×3 convolutions round as sums of their own.
    ulps = 2.0 if left.bits < 32 else reduction_tolerance(9 * sizes[2])
    return Made(f"{name} {dtypes} {text} {word}", kind, graph, ulps=ulps)


class _Draft:
    """A graph in the making, with constants of small integers."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.rng = np.random.default_rng(3)
        self.count = 0

    def input(self, dtype: DType, *shape: int | Var) -> Value:
        self.count += 1
        return self.builder.input(f"x{self.count}", tensor_type(str(dtype), shape))

    def constant(self, dtype: DType, *shape: int) -> Value:
        return self.given(_elements(dtype, shape, self.rng))

    def given(self, data: Array) -> Value:
        self.count += 1
        return self.builder.constant(data, f"c{self.count}")

    def __call__(self, op: Operator, *inputs: Value | None) -> Value:
        return self.builder.add(op, *inputs)

    def built(self, *outputs: Value) -> Graph:
        for k, v in enumerate(outputs):
            self.builder.output(v, f"y{k}")
        return self.builder.build()

    def product(self, result: DType, x: Value, w: Value) -> Value:
        if x.dtype.bits == 8:
            return self(MatMulInteger(), x, w)
        return self(MatMul(None if x.dtype == w.dtype and x.dtype.is_float else result), x, w)


def _matmul(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes, rows: int | Var | None = None) -> Value:
    m, n, k = sizes
    return d.product(result, d.input(left, m if rows is None else rows, k), d.constant(right, k, n))


def _widened(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    m, n, k = sizes
    return d(MatMul(result), d.input(left, m, k), d.constant(right, k, n))


def _inputs(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    m, n, k = sizes
    return d.product(result, d.input(left, m, k), d.input(right, k, n))


def _transposed(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    m, n, k = sizes
    y = d.product(result, d.input(left, m, k), d(Transpose((1, 0)), d.constant(right, n, k)))
    return d(Add(), y, d.constant(y.dtype, n))


def _epilogue(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    y = _matmul(d, left, right, result, sizes)
    y = d(Relu(), d(Add(), y, d.constant(y.dtype, sizes[1])))
    return d(Add(), y, d.input(y.dtype, sizes[0], sizes[1]))


def _batched(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    m, n, k = sizes
    return d.product(result, d.input(left, 2, m, k), d.input(right, 2, k, n))


def _conv(extent: int, stride: int = 1) -> Builder:
    """A convolution of a square picture, whose rows have as many pixels as the product has rows."""

    def build(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
        width, channels, depth = sizes
        pads = () if extent == 1 else (1, 1, 1, 1)
        height = min(width, max(2, MOST_PIXELS // width))
        x = d.input(left, 1, depth, stride * (height - 1) + 1, stride * (width - 1) + 1)
        w = d.constant(right, channels, depth, extent, extent)
        if left.bits == 8:
            return d(ConvInteger((stride, stride), pads), x, w)
        return d(
            Relu(), d(Conv((stride, stride), pads, dtype=None if left == right and left.is_float else result), x, w)
        )

    return build


POINTWISE, WINDOW, STRIDED = _conv(1), _conv(3), _conv(3, 2)


def _scale(d: _Draft, value: float) -> Value:
    return d.given(np.array(value, np.float32))


def _zero(d: _Draft, dtype: DType) -> Value:
    return d.given(np.array(0 if dtype.kind == "int" else 128, dtype.numpy))


def _qmatmul(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    m, n, k = sizes
    x, w = d.input(left, m, k), d.constant(right, k, n)
    return d(
        QLinearMatMul(),
        x,
        _scale(d, 0.5),
        _zero(d, left),
        w,
        _scale(d, 0.25),
        _zero(d, right),
        _scale(d, 8.0 * k),
        _zero(d, left),
    )


def _qconv(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    width, channels, depth = sizes
    x, w = d.input(left, 1, depth, 3, width), d.constant(right, channels, depth, 3, 3)
    zeros = [_zero(d, t) for t in (left, right, left)]
    bias = d.given(d.rng.integers(-99, 99, channels).astype(np.int32))
    scales = [_scale(d, s) for s in (0.5, 0.25, 64.0 * depth)]
    return d(
        QLinearConv((1, 1), (1, 1, 1, 1)), x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2], bias
    )


PICTURES = (POINTWISE, WINDOW, STRIDED, _qconv)


def _qdq(d: _Draft, left: DType, right: DType, result: DType, sizes: Sizes) -> Value:
    """As frameworks export quantised models: floats that are rounded to 8 bits and back around a product of floats."""
    m, n, k = sizes
    scale, zero = _scale(d, 0.5), _zero(d, left)
    x = d(Dequantize(), d(Quantize(left), d.input(dt.float32, m, k), scale, zero), scale, zero)
    w = d(Dequantize(), d.constant(right, k, n), _scale(d, 0.25), _zero(d, right))
    return d(Relu(), d(MatMul(), x, w))


def _open(left: DType, right: DType, tile: Tile, *runs: Sizes) -> Made:
    """A product whose number of rows is known only at run time."""
    columns, terms = runs[0][1:]

    def graph() -> Graph:
        d = _Draft("made")
        return d.built(_matmul(d, left, right, tile.result, (0, columns, terms), Var("rows", dt.int64)))

    dtypes = str(left) if left == right else f"{left} x {right}"
    rows = tuple({"rows": sizes[0]} for sizes in runs)
    ulps = 2.0 if left.bits < 32 else reduction_tolerance(terms)
    return Made(f"MatMul {dtypes} rows x {columns} x {terms}, of any rows", "several", graph, runs=rows, ulps=ulps)


# -- plain meanings


@dataclass(frozen=True)
class Meaning:
    """What an intrinsic means, of other sizes: a tensor, and the placeholders that it reads."""

    name: str
    kind: Kind
    intrinsic: str
    tensor: Tensor
    inputs: tuple[Tensor, ...]
    terms: int

    def arrays(self) -> list[Array]:
        """Data for the placeholders."""
        rng = np.random.default_rng(11)
        shapes = [[int(str(d)) for d in t.shape] for t in self.inputs]
        return [
            values("random" if t.dtype.bits == 8 else "extreme", t.dtype, math.prod(s), rng).reshape(s)
            for t, s in zip(self.inputs, shapes)
        ]


def meanings_of(intrinsics: Iterable[Intrinsic], budget: int = BUDGET, quick: bool = False) -> dict[str, Meaning]:
    """The plain meanings of intrinsics, whole, ragged and several, by name."""
    families: dict[str, list[Intrinsic]] = {}
    for i in intrinsics:
        families.setdefault(family(i), []).append(i)
    found = {}
    for members in families.values():
        volumes = [math.prod(n for _, n, _ in i.at(lengths_of(i)).axes) for i in members]
        for k, i in enumerate(members):
            given = i.at(lengths_of(i))
            cases = [*grown([n for _, n, _ in given.axes], budget)]
            few = quick or volumes[k] not in (min(volumes), max(volumes))
            truths = i.reduction is None and any(t.dtype.is_bool for t in i.tensors)
            for kind, word, sizes in cases[:3] if few else cases[:5]:
                terms = math.prod(n for n, (_, _, axis) in zip(sizes, given.axes) if axis == "reduce")
                for between in (False, True) if truths else (False,):
                    name = f"{i.name} {'x'.join(map(str, sizes))} {word}" + (", between float32" if between else "")
                    tensor, inputs = resized(given, sizes, between)
                    found[name] = Meaning(name, kind, i.name, tensor, inputs, terms)
    return found


def resized(intrinsic: Intrinsic, sizes: Sequence[int], between: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The meaning of an intrinsic of constant shapes with other extents of its axes, in their order, and its operands.

    Args:
        between: truths are made of float32, and become it: where they are nothing that a kernel is given, or gives.
    """
    extents = {v.name: n for (v, _, _), n in zip(intrinsic.axes, sizes)}
    source = intrinsic.source
    (body,) = source.bodies
    reads = [n for e in (body.values if isinstance(body, Reduce) else (body,)) for n in walk(e) if isinstance(n, Read)]
    corners = [{v: n - 1 for v, n in extents.items()}, dict.fromkeys(extents, 0)]
    tensors: dict[int, Tensor] = {}
    for t in intrinsic.tensors[:-1]:
        places = [r.indices for r in reads if r.tensor is t]
        shape = [1 + max(int(evaluate(p[d], c)) for p in places for c in corners) for d in range(t.rank)]
        tensors[id(t)] = placeholder(shape, dt.float32 if between and t.dtype.is_bool else t.dtype, t.name)

    def rule(n: Expr) -> Expr | None:
        if not isinstance(n, Read):
            return None
        read = Read(tensors[id(n.tensor)], n.indices)
        return lt(0.0, read) if read.dtype != n.dtype else read

    if isinstance(body, Reduce):
        axes = tuple(replace(a, extent=extents[a.var.name]) for a in body.axes)
        new: Expr = Reduce(body.reducer, tuple(transform(v, rule) for v in body.values), axes, body.index, body.init)
    else:
        new = transform(body, rule)
        if between and new.dtype.is_bool:
            new = Cast(new, dt.float32)
    result = tuple(extents[v.name] for v in source.axes)
    return Tensor(intrinsic.meaning.name, result, new.dtype, Compute(source.axes, result, (new,))), tuple(
        tensors.values()
    )


# -- memories


def capacities(scopes: Mapping[str, Scope], dtypes: Mapping[str, DType], quick: bool = False) -> dict[str, Made]:
    """Data that just fit a memory, just do not, or take several rounds, for each memory of a known size: element by
    element, rows, and a product.

    Args:
        dtypes: memory → of which elements; float32 where it says nothing.
        quick: element by element alone. Of memories of one size and dtype the first stands for all.
    """
    found: dict[str, Made] = {}
    seen: set[tuple[int, DType]] = set()
    for scope in scopes.values():
        if scope.size is None:
            continue
        dtype = dtypes.get(scope.name, dt.float32)
        if (scope.size, dtype) in seen:
            continue
        seen.add((scope.size, dtype))
        fits = scope.size // dtype.bytes
        for kind, count in _counts(fits):
            for name, build, work in [*_filling(dtype, count)][: 1 if quick else None]:
                made = Made(
                    f"{scope.name} {kind}: {name}, {count} {dtype}",
                    kind,
                    build,
                    ulps=reduction_tolerance(count),
                    work=work,
                )
                found[made.name] = made
    return found


def _counts(fits: int) -> list[tuple[Kind, int]]:
    return [("fits", fits), ("exceeds", fits + 1), ("rounds", 3 * fits + 7)]


def _filling(dtype: DType, count: int) -> Iterator[tuple[str, Callable[[], Graph], int]]:
    """Name, graph and work of cases of so many elements."""

    def elements() -> Graph:
        d = _Draft("made")
        return d.built(d(Relu(), d(Add(), d.input(dtype, count), d.input(dtype, count))))

    def rows() -> Graph:
        d = _Draft("made")
        return d.built(d(Softmax(), d.input(dtype, 3, count)))

    terms = math.isqrt(count)
    columns = -(-count // terms)

    def product() -> Graph:
        d = _Draft("made")
        return d.built(_matmul(d, dtype, dtype, dtype, (4, columns, terms)))

    yield "elements", elements, count
    if dtype.is_float or dtype.bits == 8:
        yield "matrix", product, 4 * terms * columns
    if dtype.is_float:
        yield "rows", rows, 3 * count
