"""Random bits of a state: Threefry, which is the same everywhere; what an engine chooses by itself is refused."""

from __future__ import annotations

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_ops.shapes import product
from weft_stablehlo.context import Context
from weft_stablehlo.registry import op

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@op("rng_bit_generator")
def rng_bit_generator(c: Context) -> list[Value]:
    """The state is a key and a counter; each element of the result is the block of the next count."""
    state, result = c.value(0), c.results[1]
    how = c.keyword("rng_algorithm")
    if how != "THREE_FRY" or state.dtype != dt.uint64 or state.shape != (2,) or result.dtype != dt.uint64:
        raise c.unsupported(f"{how} of a state {state.type} for {result.dtype}")
    shape = tuple(d or 0 for d in result.shape)
    count = int(product(shape))  # type: ignore[arg-type]
    key, counter = c.pick(state, 0, 0), c.pick(state, 0, 1)
    places = c.add(c.cast(c(ops.Iota(dt.int64, (count,), 0)), dt.uint64), counter)
    low, high = threefry(c, halves(c, key), halves(c, places))
    wide = c(ops.LeftShift(), c.cast(high, dt.uint64), 32)
    found = c.reshape(c(ops.BitwiseOr(), c.cast(low, dt.uint64), wide), shape)
    after = c.concat([c.reshape(key, (1,)), c.reshape(c.add(counter, count), (1,))], 0)
    return [after, found]


def halves(c: Context, x: Value) -> tuple[Value, Value]:
    """The lower and the upper 32 bits."""
    low = c.cast(c(ops.BitwiseAnd(), x, 0xFFFFFFFF), dt.uint32)
    return low, c.cast(c(ops.RightShift(), x, 32), dt.uint32)


def threefry(c: Context, key: tuple[Value, Value], x: tuple[Value, Value]) -> tuple[Value, Value]:
    """Threefry-2x32 with 20 rounds."""
    keys = (*key, c(ops.BitwiseXor(), c(ops.BitwiseXor(), key[0], key[1]), PARITY))
    a, b = c.add(x[0], keys[0]), c.add(x[1], keys[1])
    for step in range(5):
        for turn in ROTATIONS[step % 2]:
            a = c.add(a, b)
            turned = c(ops.BitwiseOr(), c(ops.LeftShift(), b, turn), c(ops.RightShift(), b, 32 - turn))
            b = c(ops.BitwiseXor(), a, turned)
        a = c.add(a, keys[(step + 1) % 3])
        b = c.add(c.add(b, keys[(step + 2) % 3]), step + 1)
    return a, b
