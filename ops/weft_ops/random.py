"""Random numbers: bits by a generator that counts, from which the frontends' operators compose their distributions.

Philox 4×32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of
multiplications turn the number of a block of four words, under a key, into those words. There is no state: any element
is computed by itself, and the same key gives the same numbers everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, Var, cast_to, const, wrap
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.loop.nodes import Buffer, For, If, Let, Stmt, Store, seq
from weft.tensor.language import Dim
from weft_ops.shapes import operands, static

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class RandomBits(Operator):
    """`count` random words, uint32, of a key, uint64[1]: four by four those of the blocks 0, 1, …"""

    count: Dim
    kind = "opaque"
    no_gradient = "its results are random integers"

    def infer(self, *types: Type | None) -> TensorType:
        (key,) = operands(types, 1)
        if key.dtype != dt.uint64 or key.shape != (1,):
            raise GraphError(f"expected a key uint64[1], got {key}")
        return TensorType(dt.uint32, (self.count,))

    def reference(self, *arrays: Array | None) -> Array:
        (key,) = arrays
        assert key is not None
        (count,) = static([self.count])
        block = np.arange(-(-count // 4), dtype=np.uint64)
        low, mask = np.uint64(32), np.uint64(_LOW)
        zero = np.zeros_like(block)
        words = [block & mask, block >> low, zero, zero]
        keys = [np.uint64(int(key[0]) & _LOW), np.uint64(int(key[0]) >> 32)]
        for _ in range(ROUNDS):
            a, b = words[0] * np.uint64(MULTIPLIERS[0]), words[2] * np.uint64(MULTIPLIERS[1])
            words = [(b >> low) ^ words[1] ^ keys[0], b & mask, (a >> low) ^ words[3] ^ keys[1], a & mask]
            keys = [np.uint64((int(k) + w) & _LOW) for k, w in zip(keys, WEYL)]
        return np.stack(words, -1).reshape(-1)[:count].astype(np.uint32)

    @algorithm("program")
    def blocks(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (key,), (y,) = inputs, outputs
        count = y.shape[0]
        block = Var("block", dt.int64)
        low, mask = const(32, dt.uint64), const(_LOW, dt.uint64)
        bound: list[tuple[Var, Expr]] = []

        def named(name: str, value: Expr) -> Var:
            bound.append((Var(name, dt.uint64), value))
            return bound[-1][0]

        at, given = cast_to(block, dt.uint64), named("key", key[0])
        words: list[Expr] = [
            named("word0", e.bitand(at, mask)),
            named("word1", e.shr(at, low)),
            const(0, dt.uint64),
            const(0, dt.uint64),
        ]
        keys: list[Expr] = [e.bitand(given, mask), e.shr(given, low)]
        for n in range(ROUNDS):
            k0, k1 = (named(f"key{n}_{i}", e.bitand(k, mask)) for i, k in enumerate(keys))
            a, b = (
                named(f"{s}{n}", w * const(m, dt.uint64)) for s, w, m in zip("ab", (words[0], words[2]), MULTIPLIERS)
            )
            mixed = (
                e.bitxor(e.bitxor(e.shr(b, low), words[1]), k0),
                e.bitand(b, mask),
                e.bitxor(e.bitxor(e.shr(a, low), words[3]), k1),
                e.bitand(a, mask),
            )
            words = [named(f"word{n}_{i}", w) for i, w in enumerate(mixed)]
            keys = [k + const(w, dt.uint64) for k, w in zip((k0, k1), WEYL)]
        stores: list[Stmt] = []
        for i, w in enumerate(words):
            place = block * 4 + i
            store = Store(y, (place,), cast_to(w, dt.uint32))
            stores.append(store if i == 0 else If(place < count, store))
        body = seq(*stores)
        for var, value in reversed(bound):
            body = Let(var, value, body)
        return For(block, e.ceildiv(wrap(count, dt.int64), 4), body, "parallel")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for count in (0, 1, 6, 40):
            yield Sample(cls(count), (np.array([0x0123456789ABCDEF], np.uint64),), str(count))
        yield Sample(cls(5), (np.array([0], np.uint64),), "zero")

    def tolerance(self, *types: Any) -> float:
        return 0.0


__all__ = ["RandomBits"]
