"""Stores that together transpose a matrix: vectors in registers, shuffled, instead of an element at a time.

The network of shuffles has two halves, as vector instructions have: within parts of 128 bits, neighbouring rows are
interleaved; then whole parts change places. Each shuffle is one instruction on x86 and AArch64. It is the usual
transposition by recursion (Eklundh, A fast computer method for matrix transposing, 1972), with the stages in an order
that those instructions have.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import cast

from weft.expr import nodes as ex
from weft.expr.simplify import simplify
from weft.loop import nodes as lp
from weft.loop.nodes import Load, Stmt
from weft_llvm.accesses import Accesses, suffix
from weft_llvm.storage import Memory, Registers, memory_bytes

PART = 16
"""Bytes within which every vector instruction set interleaves elements."""


class Transpositions(Accesses, ABC):
    """Emits such stores."""

    def _crossed(self, stmts: Sequence[Stmt]) -> list[lp.Store]:
        """The stores at the beginning whose lanes are columns of a matrix in memory: lanes as far apart as rows, each
        store one element after the one before. One alone is none."""
        first = stmts[0]
        if not isinstance(first, lp.Store) or len(first.indices) != 1 or first.buffer.dtype.kind == "complex":
            return []
        columns, predicate = first.indices[0], first.predicate
        if (
            not isinstance(columns, ex.Ramp)
            or not isinstance(columns.stride, ex.Const)
            or columns.lanes & (columns.lanes - 1)
            or (predicate is not None and predicate.dtype.lanes == 1)
            or isinstance(self._find(first.buffer), Registers)
        ):
            return []
        # Rows that overlapped would be written in another order.
        most = min(columns.lanes, int(columns.stride.value))
        found: list[lp.Store] = []
        for s in stmts[: max(0, most)]:
            if not isinstance(s, lp.Store) or s.buffer != first.buffer or s.predicate != predicate:
                break
            index = s.indices[0]
            if not isinstance(index, ex.Ramp) or (index.stride, index.lanes) != (columns.stride, columns.lanes):
                break
            apart = simplify(ex.sub(index.base, columns.base))
            if not isinstance(apart, ex.Const) or apart.value != len(found):
                break
            if any(isinstance(x, Load) and x.buffer == first.buffer for x in ex.walk(s.value)):
                break
            found.append(s)
        return found if len(found) > 1 else []

    def _store_crossed(self, stores: Sequence[lp.Store]) -> None:
        """A store of neighbouring elements for each lane."""
        self._forget_loads()
        b, predicate, count = stores[0].buffer, stores[0].predicate, len(stores)
        where, index = self._find(b), cast(ex.Ramp, stores[0].indices[0])
        assert isinstance(where, Memory) and isinstance(index.stride, ex.Const)
        lanes, stride = index.lanes, int(index.stride.value)
        element, t = self.memory_type(b.dtype), self.memory_type(b.dtype.with_lanes(lanes))

        def shuffle(a: str, c: str, picks: Sequence[int], of: str = t) -> str:
            text = ", ".join(f"i32 {k}" for k in picks)
            return self._op(f"shufflevector {of} {a}, {of} {c}, <{len(picks)} x i32> <{text}>")

        values = [self._to_memory(self.splat(self.emit_expr(s.value), lanes)) for s in stores]
        rows = crossed(values, lanes, PART // memory_bytes(b.dtype), shuffle)
        mask = None if predicate is None else self.emit_expr(predicate)
        pointer = self._place(element, where.pointer, index.base, inbounds=mask is None)
        width, align = self.memory_type(b.dtype.with_lanes(count)), memory_bytes(b.dtype)
        for k, row in enumerate(rows):
            text = row if count == lanes else shuffle(row, "poison", range(count))
            place = self._gep(element, pointer, str(k * stride), inbounds=mask is None)
            if mask is None:
                self._line(f"store {width} {text}, ptr {place}, align {align}{where.annotations}")
                continue
            m, each = self.value_type(mask.dtype), self.value_type(mask.dtype.with_lanes(count))
            wanted = shuffle(mask.text, "poison", [k] * count, m)
            name = f"llvm.masked.store.{suffix(width)}.p0"
            self._declared.setdefault(name, f"declare void @{name}({width}, ptr, {each})")
            self._line(
                f"call void @{name}({width} {text}, ptr align {align} {place}, {each} {wanted}){where.annotations}"
            )
        self._forget_loads()


def crossed(rows: Sequence[str], lanes: int, part: int, shuffle: Callable[[str, str, Sequence[int]], str]) -> list[str]:
    """The columns of a matrix whose rows are vectors.

    Args:
        rows: at most `lanes` vectors of `lanes` elements, a power of two; elements beyond the last row are poison.
        part: elements within which instructions interleave, a power of two.
        shuffle: (a, b, picks) → a vector of the elements of a and then b that are picked.

    Returns:
        `lanes` vectors, whose first elements are those of the rows.
    """
    part = min(part, lanes)

    def both(a: str, c: str, picks: Sequence[int]) -> str:
        return "poison" if a == c == "poison" else shuffle(a, c, picks)

    v = [*rows, *(["poison"] * (lanes - len(rows)))]
    for at in range(0, lanes, part):  # squares of part × part elements, side by side in each group of rows
        group = v[at : at + part]
        for _ in range(part.bit_length() - 1):
            halves: list[str] = []
            for a, c in zip(group[: part // 2], group[part // 2 :]):
                for half in (0, part // 2):
                    picks = [p + half + k // 2 + k % 2 * lanes for p in range(0, lanes, part) for k in range(part)]
                    halves.append(both(a, c, picks))
            group = halves
        v[at : at + part] = group
    parts = lanes // part
    columns = [""] * lanes
    for k in range(part):
        group = [v[at + k] for at in range(0, lanes, part)]
        for _ in range(parts.bit_length() - 1):
            joined: list[list[str]] = [[], []]
            for a, c in zip(group[::2], group[1::2]):
                for odd in (0, 1):
                    picks = [(2 * q + odd) * part + i for q in range(parts) for i in range(part)]
                    joined[odd].append(both(a, c, picks))
            group = joined[0] + joined[1]
        for q, text in enumerate(group):
            columns[q * part + k] = text
    return columns


__all__ = ["Transpositions", "crossed"]
