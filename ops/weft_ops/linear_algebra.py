"""Einstein sums and determinants."""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.forks import cached_property
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import STEP, Array, Gradients, Operator, Sample, algorithm, touched
from weft.loop.nodes import Allocate, Buffer, For, If, Let, Stmt, Store, buffer, seq
from weft.tensor.language import Dim, Tensor, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Negative, Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul, reduction_tolerance
from weft_ops.examples import floats, integers
from weft_ops.filling import Fill, Iota
from weft_ops.indexing import nest
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.reduction import ReduceSum
from weft_ops.shapes import expect_kind, is_one, one_dtype, operands, product, show, unify

MINORS = 6
"""Rows of a matrix up to which the gradient of its determinant consists of determinants."""


@dataclass(frozen=True)
class Einsum(Operator):
    """Sums of products by an equation as numpy's: "bij,bjk->bik", with "..." for axes that broadcast; letters may
    repeat in a term (a diagonal)."""

    equation: str
    kind = "composite"

    @cached_property
    def parsed(self) -> tuple[list[str], str | None]:
        text = self.equation.replace(" ", "")
        left, arrow, right = text.partition("->")
        return left.split(","), right if arrow else None

    def terms(self, ranks: Sequence[int]) -> tuple[list[str], str]:
        """The operands' and the result's letters, with dots replaced by letters of their own.

        Raises:
            GraphError: the equation does not fit the ranks.
        """
        lefts, right = self.parsed
        if len(lefts) != len(ranks):
            raise GraphError(f"equation '{self.equation}': expected {len(lefts)} operand(s), got {len(ranks)}")
        free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in self.equation]
        counts = [rank - len(term.replace("...", "")) for term, rank in zip(lefts, ranks)]
        for term, rank, count in zip(lefts, ranks, counts):
            if count < 0 or (count > 0 and "..." not in term):
                raise GraphError(f"equation '{self.equation}': term '{term}' does not fit {rank} dimension(s)")
        dots = free[: max((c for term, c in zip(lefts, counts) if "..." in term), default=0)]
        expanded = [term.replace("...", "".join(dots[len(dots) - count :])) for term, count in zip(lefts, counts)]
        if right is None:
            letters = "".join(lefts).replace(".", "")
            right = "".join(dots) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        else:
            right = right.replace("...", "".join(dots))
        for c in right:
            if c not in "".join(expanded) or right.count(c) > 1:
                raise GraphError(
                    f"equation '{self.equation}': '{c}' in the result must stand once there and in some term"
                )
        return expanded, right

    def sizes(self, terms: Sequence[str], shapes: Sequence[Sequence[Dim]], assumed: list[Assumption]) -> dict[str, Dim]:
        sizes: dict[str, Dim] = {}
        for term, shape in zip(terms, shapes):
            for c, d in zip(term, shape):
                known = sizes.get(c)
                sizes[c] = (
                    d
                    if known is None or is_one(known)
                    else known
                    if is_one(d)
                    else unify(known, d, f"'{c}' of '{self.equation}'", assumed)
                )
        return sizes

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        given = operands(types)
        dtype = one_dtype(given)
        terms, right = self.terms([t.rank for t in given])
        sizes = self.sizes(terms, [t.shape for t in given], assumed)
        return Inferred(TensorType(dtype, tuple(sizes[c] for c in right)), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        wide = [widen(a) for a in arrays if a is not None]
        assert arrays[0] is not None
        return rounded(np.einsum(self.equation, *wide), dt.dtype(arrays[0].dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of each operand the sum of the gradient times the others, over all letters but its own."""
        (g,) = gradients
        xs = [x for x in node.inputs if x is not None]
        assert g is not None
        c = Composer(builder)
        terms, right = self.terms([len(x.shape) for x in xs])
        found: list[Value | None] = []
        for k, (x, term) in enumerate(zip(xs, terms)):
            others = [(t, y) for i, (t, y) in enumerate(zip(terms, xs)) if i != k] + [(right, g)]
            letters = "".join(dict.fromkeys(term))
            # A letter of size 1 broadcast: it is summed. One of this operand alone was summed: it broadcasts.
            kept = "".join(s for s in letters if any(s in t for t, _ in others) and not is_one(x.shape[term.index(s)]))
            total = c(Einsum(f"{','.join(t for t, _ in others)}->{kept}"), *(y for _, y in others))
            # Along the first axis of each letter, whatever stands where the letter is repeated.
            sizes = iter(total.shape)
            shape = [next(sizes) if s in kept and term.index(s) == i else 1 for i, s in enumerate(term)]
            total = c.broadcast(c.reshape(total, shape), x.shape)
            for i, s in enumerate(term):
                if (first := term.index(s)) != i:
                    rank = len(term)
                    lines = [
                        c(Iota(dt.int64, tuple(x.shape[d] if d == axis else 1 for d in range(rank)), axis))
                        for axis in (first, i)
                    ]
                    total = c(Where(), c(Equal(), *lines), total, c.number(0, total.dtype))
            found.append(total)
        return found

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        if algorithm == "direct":
            return None
        given = operands(types)
        terms, right = self.terms([t.rank for t in given])
        if any(len(set(t)) != len(t) for t in terms):
            return "a term repeats a letter"
        if algorithm == "by_pairs":
            return None if len(terms) > 2 else "it has not more than two operands"
        if algorithm == "by_sum":
            return None if len(terms) == 1 else "it has more than one operand"
        if len(terms) != 2:
            return "it has not two operands"
        sizes = self.sizes(terms, [t.shape for t in given], [])
        if any(is_one(d) and not is_one(sizes[c]) for t, x in zip(terms, given) for c, d in zip(t, x.shape)):
            return "an axis broadcasts"
        alone = self._alone(terms, right)
        if algorithm == "by_sums_first":
            return None if alone else "no letter is summed in one operand alone"
        if alone:
            return "a letter is summed in one operand alone"
        return None if any(c not in right for c in terms[0]) else "no product is summed"

    def _alone(self, terms: Sequence[str], right: str) -> str:
        """Letters of one operand alone that are summed."""
        return "".join(c for c in dict.fromkeys("".join(terms)) if c not in right and sum(c in t for t in terms) == 1)

    @algorithm("decompose")
    def by_pairs(self, builder: GraphBuilder, *xs: Value) -> Value:
        """The first two operands' product, summed over what nobody else needs, by the third, and so on."""
        c = Composer(builder)
        terms, right = self.terms([len(x.shape) for x in xs])
        total, term = c.wide(xs[0]), terms[0]
        for k, x in enumerate(xs[1:], 1):
            rest = "".join((*terms[k + 1 :], right))
            kept = (
                right
                if k == len(xs) - 1
                else "".join(letter for letter in dict.fromkeys(term + terms[k]) if letter in rest)
            )
            total = c(Einsum(f"{term},{terms[k]}->{kept}"), total, c.wide(x))
            term = kept
        return c.cast(total, xs[0].dtype)

    @algorithm("decompose")
    def by_sum(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        (term,), right = self.terms([len(x.shape)])
        gone = [k for k, letter in enumerate(term) if letter not in right]
        kept = [letter for letter in term if letter in right]
        summed = c(ReduceSum(tuple(gone), keepdims=False), x) if gone else x
        return c.transpose(summed, [kept.index(letter) for letter in right])

    @algorithm("decompose")
    def by_sums_first(self, builder: GraphBuilder, *xs: Value) -> Value:
        """Sums over letters of one operand alone, then the product."""
        c = Composer(builder)
        terms, right = self.terms([len(x.shape) for x in xs])
        kept = ["".join(letter for letter in term if letter not in self._alone(terms, right)) for term in terms]
        summed = [x if t == k else c(Einsum(f"{t}->{k}"), c.wide(x)) for x, t, k in zip(xs, terms, kept)]
        return c.cast(c(Einsum(f"{','.join(kept)}->{right}"), *map(c.wide, summed)), xs[0].dtype)

    @algorithm("decompose")
    def by_matmul(self, builder: GraphBuilder, a: Value, b: Value) -> Value:
        """A product of matrices whose rows and columns are the last axes of the result, where it has such; the letters
        before them are a batch that an operand may lack. Where either is short, or the result is of another order, all
        that is one operand's makes its side of the matrix.
        """
        c = Composer(builder)
        (left, other), right = self.terms([len(a.shape), len(b.shape)])
        sizes = self.sizes((left, other), (a.shape, b.shape), [])
        if right and right[-1] in left and right[-1] not in other:
            a, b, left, other = b, a, other, left
        rows, columns = (
            _last(right[: len(right) - len(_last(right, other, left))], left, other),
            _last(right, other, left),
        )
        batch = right[: len(right) - len(rows) - len(columns)]
        of: Callable[[str], Dim] = lambda letters: product([sizes[x] for x in letters])
        if not batch or not (_short(of(rows)) or _short(of(columns))):
            shared = batch
        else:
            shared = "".join(x for x in right if x in left and x in other)
            rows, columns = ("".join(x for x in right if x in mine and x not in shared) for mine in (left, other))
        summed = "".join(x for x in left if x not in right)

        def matrix(x: Value, term: str, *sides: str) -> Value:
            lead = shared[next((k for k, letter in enumerate(shared) if letter in term), len(shared)) :]
            order = [term.index(letter) for letter in (*lead, *"".join(sides)) if letter in term]
            return c.reshape(
                c.transpose(x, order), (*(sizes[letter] if letter in term else 1 for letter in lead), *map(of, sides))
            )

        result = c(MatMul(), matrix(a, left, rows, summed), matrix(b, other, summed, columns))
        order = (*shared, *rows, *columns)
        return c.transpose(c.reshape(result, [sizes[x] for x in order]), [order.index(x) for x in right])

    @algorithm("tensors")
    def direct(self, *xs: Tensor) -> Tensor:
        terms, right = self.terms([x.rank for x in xs])
        sizes = self.sizes(terms, [x.shape for x in xs], [])
        wide = compute_dtype(xs[0].dtype)
        axes = {c: reduce_axis(d, f"r_{c}") for c, d in sizes.items() if c not in right}

        def formula(*index: Expr) -> Expr:
            at: dict[str, Expr] = dict(zip(right, index)) | {c: axis.var for c, axis in axes.items()}
            value: Expr | None = None
            for x, term in zip(xs, terms):
                picked = tuple(const(0, dt.int64) if is_one(d) else at[c] for c, d in zip(term, x.shape))
                factor = cast_to(x[picked], wide)
                value = factor if value is None else value * factor
            assert value is not None
            return sum_over(value, list(axes.values())) if axes else value

        shape = [sizes[c] for c in right]
        total = compute(shape, formula, "einsum")
        return total if wide == xs[0].dtype else compute(shape, lambda *i: cast_to(total[i], xs[0].dtype), "rounded")

    def tolerance(self, *types: TensorType) -> float:
        terms, right = self.terms([t.rank for t in types])
        sizes = self.sizes(terms, [t.shape for t in types], [])
        return reduction_tolerance(product([d for c, d in sizes.items() if c not in right]))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        yield Sample(cls("bij,bjk->bik"), (f((2, 3, 4)), f((2, 4, 2), seed=1)), "batched")
        yield Sample(cls("ij->ji"), (f((3, 4)),), "transpose")
        yield Sample(cls("ij->i"), (f((3, 4)),), "sum")
        yield Sample(cls("i,i"), (f((5,)), f((5,), seed=1)), "dot")
        yield Sample(cls("...ii ->...i"), (f((2, 3, 3)),), "diagonal")
        yield Sample(cls("...ij,jk"), (f((2, 3, 4)), f((4, 2), seed=1)), "implicit")
        yield Sample(cls("ai,bi,ci->abc"), (f((2, 3)), f((2, 3), seed=1), f((2, 3), seed=2)), "three")
        yield Sample(cls("bhwc,hkc->bkhw"), (f((2, 3, 2, 4), "float16"), f((3, 5, 4), "float16", seed=1)), "float16")
        yield Sample(cls("bnd,dhk->bnhk"), (f((2, 3, 4)), f((4, 2, 3), seed=1)), "heads")
        yield Sample(cls("bchw,cd->bdhw"), (f((2, 3, 4, 5)), f((3, 6), seed=1)), "channels")
        yield Sample(cls("bij,jk->k"), (f((2, 3, 4)), f((4, 5), seed=1)), "alone")
        yield Sample(cls("ij,kj->ik"), (integers((3, 1), "int32"), integers((2, 4), "int32", seed=1)), "broadcast")
        yield Sample(cls("->"), (f(()),), "scalar")


def _last(letters: str, mine: str, other: str) -> str:
    """The letters at the end of the result that are one operand's alone."""
    found = ""
    for x in reversed(letters):
        if x not in mine or x in other:
            break
        found = x + found
    return found


def _short(size: Dim) -> bool:
    """A side of a matrix that makes no matrix of it."""
    return isinstance(size, int) and size < 4


@dataclass(frozen=True)
class Det(Operator):
    """The determinant of the last two axes, by elimination with row exchanges."""

    kind = "opaque"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The cofactors: up to `MINORS` rows the determinants of what is left without a row and a column, which are
        right for any matrix; else the determinant times the transposed inverse, which a singular matrix has none of."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, n, rank = Composer(builder), x.shape[-1], len(x.shape)
        wide = c.wide(x)
        last = (*range(rank - 2), rank - 1, rank - 2)
        if not isinstance(n, int) or n > MINORS:
            whole = c.reshape(c.wide(node.output), (*x.shape[:-2], 1, 1))
            cofactors = c.mul(whole, c.transpose(c(Inverse(), wide), last))
        elif n < 2:
            cofactors = c(Fill(wide.dtype, x.shape, 1))
        else:
            rest = builder.constant(np.array([[k for k in range(n) if k != i] for i in range(n)]), "rest")
            parts = c.gather(c.gather(wide, rest, rank - 2), rest, rank)  # […, row, rows, column, columns]
            order = (*range(rank - 2), rank - 2, rank, rank - 1, rank + 1)
            signs = np.where(np.add.outer(np.arange(n), np.arange(n)) % 2, -1, 1).astype(wide.dtype.numpy)
            cofactors = c.mul(c(Det(), c.transpose(parts, order)), builder.constant(signs, "signs"))
        each = c.reshape(c.wide(g), (*x.shape[:-2], 1, 1))
        return (c.cast(c.mul(cofactors, each), x.dtype),)

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        if x.rank < 2:
            raise GraphError(f"expected square matrices, got {show(x.shape)}")
        unify(x.shape[-2], x.shape[-1], "square matrix", assumed)
        return Inferred(TensorType(x.dtype, x.shape[:-2]), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return np.asarray(np.linalg.det(arrays[0].astype(np.float64)), dt.dtype(arrays[0].dtype).numpy)

    @algorithm("program")
    def eliminate(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x,), (y,) = inputs, outputs
        wide = compute_dtype(x.dtype)
        n, lead = x.shape[-1], x.shape[:-2]
        work = buffer("work", x.shape, wide)
        i, j, k, p, q, r, t = (Var(name, dt.int64) for name in ("i", "j", "k", "p", "q", "r", "t"))
        value, swap, factor = Var("value", wide), Var("swap", wide), Var("factor", wide)
        zero = const(0, dt.int64)
        best, total = buffer("best", (1,), dt.int64, "local"), buffer("total", (1,), wide, "local")

        def body(b: tuple[Var, ...]) -> Stmt:
            at: Callable[..., Any] = lambda row, column: work[(*b, row, column)]
            put: Callable[..., Any] = lambda row, column, v: Store(work, (*b, row, column), v)
            size: Callable[..., Any] = lambda row: call("abs", at(row, k))
            find = For(p, n, If(e.and_(p > k, size(best[0]) < size(p)), Store(best, (zero,), p)))
            exchange = If(e.ne(best[0], k), seq(
                For(q, n, Let(swap, at(k, q), seq(put(k, q, at(best[0], q)), put(best[0], q, swap)))),
                Store(total, (zero,), -total[0]),
            ))  # fmt: skip
            pivot = at(k, k)
            ratio = select(e.eq(pivot, 0), const(0, wide), at(r, k) / select(e.eq(pivot, 0), const(1, wide), pivot))
            below = For(
                r, n, If(r > k, Let(factor, ratio, For(t, n, If(t > k, put(r, t, at(r, t) - factor * at(k, t))))))
            )
            scale = Let(value, at(k, k), Store(total, (zero,), total[0] * value))
            step = For(k, n, seq(Store(best, (zero,), k), find, exchange, scale, below))
            copy = For(i, n, For(j, n, Store(work, (*b, i, j), cast_to(x[(*b, i, j)], wide))))
            return seq(copy, Allocate(best, Allocate(total, seq(
                Store(total, (zero,), const(1, wide)), step, Store(y, b, cast_to(total[0], x.dtype))
            ))))  # fmt: skip

        return Allocate(work, nest("b", lead, body, parallel=1))

    def tolerance(self, *types: TensorType) -> float:
        return 64.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((4, 4)),), "matrix")
        yield Sample(cls(), (floats((2, 3, 3)),), "batched")
        yield Sample(cls(), (np.array([[0, 1], [1, 0]], np.float32),), "exchange")
        yield Sample(cls(), (np.array([[1, 2], [2, 4]], np.float32),), "singular")
        yield Sample(cls(), (floats((3, 3), "float64"),), "float64")


@dataclass(frozen=True)
class Inverse(Operator):
    """The inverse of the last two axes, by elimination with row exchanges; infinite or NaN where there is none."""

    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        if x.rank < 2:
            raise GraphError(f"expected square matrices, got {show(x.shape)}")
        unify(x.shape[-2], x.shape[-1], "square matrix", assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """-yᵀ · g · yᵀ."""
        (g,) = gradients
        assert g is not None
        c, rank = Composer(builder), len(g.shape)
        y = c.transpose(c.wide(node.output), (*range(rank - 2), rank - 1, rank - 2))
        return (c.cast(c(Negative(), c(MatMul(), c(MatMul(), y, c.wide(g)), y)), g.dtype),)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        x = arrays[0].astype(np.float64)
        out = np.full(x.shape, np.nan)
        for at in np.ndindex(*x.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                out[at] = np.linalg.inv(x[at])
        return rounded(out, dt.dtype(arrays[0].dtype))

    @algorithm("program")
    def eliminate(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        """What makes the matrix the identity makes the identity its inverse."""
        (x,), (y,) = inputs, outputs
        wide = compute_dtype(x.dtype)
        n, lead = x.shape[-1], x.shape[:-2]
        left, right = buffer("left", x.shape, wide), buffer("right", x.shape, wide)
        i, j, k, p, q, r, t, u, v, w = (
            Var(name, dt.int64) for name in ("i", "j", "k", "p", "q", "r", "t", "u", "v", "w")
        )
        swap, other, factor, pivot = (Var(name, wide) for name in ("swap", "other", "factor", "pivot"))
        zero = const(0, dt.int64)
        best = buffer("best", (1,), dt.int64, "local")

        def body(b: tuple[Var, ...]) -> Stmt:
            def at(of: Buffer, row: Expr, column: Expr) -> Expr:
                return of[(*b, row, column)]

            def put(of: Buffer, row: Expr, column: Expr, value: Expr) -> Stmt:
                return Store(of, (*b, row, column), value)

            size: Callable[[Expr], Expr] = lambda row: call("abs", at(left, row, k))
            find = For(p, n, If(e.and_(p > k, size(best[0]) < size(p)), Store(best, (zero,), p)))
            exchange = If(e.ne(best[0], k), For(q, n, Let(swap, at(left, k, q), Let(other, at(right, k, q), seq(
                put(left, k, q, at(left, best[0], q)), put(left, best[0], q, swap),
                put(right, k, q, at(right, best[0], q)), put(right, best[0], q, other),
            )))))  # fmt: skip
            scaled = Let(pivot, at(left, k, k), For(u, n, seq(
                put(left, k, u, at(left, k, u) / pivot), put(right, k, u, at(right, k, u) / pivot)
            )))  # fmt: skip
            less: Callable[[Buffer], Stmt] = lambda of: put(of, r, t, at(of, r, t) - factor * at(of, k, t))
            clear = For(r, n, If(e.ne(r, k), Let(factor, at(left, r, k), For(t, n, seq(less(left), less(right))))))
            step = For(k, n, seq(Store(best, (zero,), k), find, exchange, scaled, clear))
            copy = For(i, n, For(j, n, seq(
                put(left, i, j, cast_to(x[(*b, i, j)], wide)), put(right, i, j, cast_to(e.eq(i, j), wide))
            )))  # fmt: skip
            result = For(v, n, For(w, n, put(y, v, w, cast_to(at(right, v, w), x.dtype))))
            return seq(copy, Allocate(best, step), result)

        return Allocate(left, Allocate(right, nest("b", lead, body, parallel=1)))

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        n = outputs[0].shape[-1]
        return None if not isinstance(n, int) else (STEP + 16 * n * n) * touched(*outputs)

    def tolerance(self, *types: TensorType) -> float:
        return 256.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        near: Callable[[Array], Array] = lambda x: (x + 3 * np.eye(x.shape[-1])).astype(x.dtype)
        yield Sample(cls(), (near(floats((4, 4))),), "matrix")
        yield Sample(cls(), (near(floats((2, 3, 3))),), "batched")
        yield Sample(cls(), (np.array([[0, 1], [2, 0]], np.float32),), "exchange")
        yield Sample(cls(), (near(floats((3, 3), "float16")),), "float16")
        yield Sample(cls(), (near(floats((3, 3), "float64")),), "float64")


__all__ = ["Det", "Einsum", "Inverse"]
