"""Loads and stores → LLVM IR text: masks, lanes far apart, buffers in registers.

Buffers in register scope are one stack slot per vector, which LLVM turns into registers.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.simplify import simplify
from weft.loop import nodes as lp
from weft.loop.nodes import Buffer, Load, Stmt
from weft_llvm.formulas import Formulas
from weft_llvm.instructions import Value, part_of
from weft_llvm.storage import Memory, Registers, constant_bytes, memory_bytes

CLOSE = 8
"""Elements from lane to lane up to which what lies between is loaded too: so many vectors and shuffles for one, instead
of a load a lane."""
MOST_INTERLEAVED = 8
"""Stores, each to every so many elements, that become one of all of them."""


class Accesses(Formulas, ABC):
    """Emits accesses to buffers into the current function."""

    @abstractmethod
    def emit_stmt(self, s: Stmt) -> None:
        """Emits a statement: a store may be written as several ones."""

    # -- loads ----------------------------------------------------------------------------------------------------

    def emit_Load(self, e: Load) -> Value:
        b = e.buffer
        if e.dtype.kind == "complex":
            part = part_of(b.dtype)
            half = replace(b, dtype=part, shape=(lp.int64(0),))
            flat = self._flat(b, e.indices)
            re, im = (self.emit_expr(Load(half, (ex.add(ex.mul(flat, 2), k),), e.predicate)) for k in (0, 1))
            return self.join(re, im, e.dtype)
        where = self._find(b)
        if isinstance(where, Registers):
            if e.predicate is not None:
                p = self.emit_expr(e.predicate)
                return self.select(self.splat(p, e.dtype.lanes), self._load_register(where, e), self.zero(e.dtype))
            return self._load_register(where, e)
        index = self._flat(b, e.indices)
        whole, mask = self._predicate(e.predicate, e.dtype.lanes)
        if whole is not None:
            return self._branch(
                whole, lambda: self._load_memory(where, index, e.dtype, mask), lambda: self.zero(e.dtype), e.dtype
            )
        return self._load_memory(where, index, e.dtype, mask)

    def _load_memory(self, where: Memory, index: Expr, d: DType, mask: Value | None) -> Value:
        one, element = d.scalar, self.memory_type(d.scalar)
        align = f", align {memory_bytes(d)}{where.annotations}"
        if d.lanes == 1:
            return self._from_memory(
                self._op(f"load {element}, ptr {self._place(element, where.pointer, index)}{align}"), d
            )
        stride = index.stride if isinstance(index, ex.Ramp) else None
        t, m = self.memory_type(d), self.value_type(dt.bool_.with_lanes(d.lanes))
        if isinstance(index, ex.Ramp) and isinstance(stride, ex.Const) and stride.value == 1:
            pointer = self._place(element, where.pointer, index.base, inbounds=mask is None)
            if mask is None:
                return self._from_memory(self._op(f"load {t}, ptr {pointer}{align}"), d)
            zero = "zeroinitializer"
            name = f"llvm.masked.load.{suffix(t)}.p0"
            self._declared.setdefault(name, f"declare {t} @{name}(ptr, {m}, {t})")
            text = self._op(
                f"call {t} @{name}(ptr align {memory_bytes(d)} {pointer}, {m} {mask.text}, {t}"
                f" {zero}){where.annotations}"
            )
            return self._from_memory(text, d)
        if isinstance(index, ex.Broadcast):
            if mask is None:
                return self.splat(self._load_memory(where, index.value, one, None), d.lanes)
            # One element for all lanes, read if any of them wants it: a gather would read it once per lane.
            wanted = self._any(mask)
            element_read = self._branch(
                wanted, lambda: self._load_memory(where, index.value, one, None), lambda: self.zero(one), one
            )
            return self.select(mask, self.splat(element_read, d.lanes), self.zero(d))
        if self._is_strided(index, d, mask is not None):
            return self._from_memory(self._load_strided(where, index, d, mask), d)
        if mask is None:
            return self.assemble(
                [
                    self._from_memory(self._op(f"load {element}, ptr {p}{align}"), one)
                    for p in self._pointers(where, index, element)
                ]
            )
        pointers = f"<{d.lanes} x ptr>"
        at = self._op(
            f"getelementptr {element}, ptr {where.pointer}, <{d.lanes} x i64>"
            f" {self.cast(self.emit_expr(index), dt.int64).text}"
        )
        name = f"llvm.masked.gather.{suffix(t)}.v{d.lanes}p0"
        self._declared.setdefault(name, f"declare {t} @{name}({pointers}, {m}, {t})")
        text = self._op(
            f"call {t} @{name}({pointers} align {memory_bytes(d)} {at}, {m} {mask.text}, {t}"
            f" zeroinitializer){where.annotations}"
        )
        return self._from_memory(text, d)

    def _is_strided(self, index: Expr, d: DType, masked: bool) -> TypeGuard[ex.Ramp]:
        """Whether lanes lie so close that what lies between them is loaded as well."""
        if not isinstance(index, ex.Ramp) or not isinstance(index.stride, ex.Const) or d.lanes & (d.lanes - 1):
            return False
        cheap = not masked or "avx512" in self.isa.has or ("avx" in self.isa.has and memory_bytes(d.scalar) in (4, 8))
        return abs(int(index.stride.value)) in range(1, min(CLOSE, d.lanes - 1) + 1) and cheap

    def _load_strided(self, where: Memory, index: ex.Ramp, d: DType, mask: Value | None) -> str:
        """Lanes close to each other: vectors of all elements from the first lane's to the last one's, none beyond, and
        what is wanted of them."""
        stride = lp.int_const(index.stride)
        assert stride is not None  # `_close` has seen to it
        element, t, n = self.memory_type(d.scalar), self.memory_type(d), d.lanes
        align = f", align {memory_bytes(d)}{where.annotations}"
        reach = abs(stride) * (n - 1) + 1
        base = self._place(element, where.pointer, index.base, inbounds=mask is None)
        if stride < 0:
            base = self._gep(element, base, str(1 - reach), inbounds=mask is None)
        places = [k * stride if stride > 0 else reach - 1 + k * stride for k in range(n)]
        result = ""
        done: set[int] = set()
        for start in (min(k * n, reach - n) for k in range(abs(stride))):
            lanes = {k: p - start for k, p in enumerate(places) if start <= p < start + n and k not in done}
            pointer = self._gep(element, base, str(start), inbounds=mask is None)
            if mask is None:
                part = self._op(f"load {t}, ptr {pointer}{align}")
            else:
                m, at = self.value_type(mask.dtype), {p: k for k, p in lanes.items()}
                picks = ", ".join(f"i32 {at.get(j, n)}" for j in range(n))
                wanted = self._op(f"shufflevector {m} {mask.text}, {m} zeroinitializer, <{n} x i32> <{picks}>")
                name = f"llvm.masked.load.{suffix(t)}.p0"
                self._declared.setdefault(name, f"declare {t} @{name}(ptr, {m}, {t})")
                part = self._op(
                    f"call {t} @{name}(ptr align {memory_bytes(d)} {pointer}, {m} {wanted}, {t}"
                    f" zeroinitializer){where.annotations}"
                )
            picks = ", ".join(
                f"i32 {n + lanes[k]}" if k in lanes else f"i32 {k}" if k in done else "i32 poison" for k in range(n)
            )
            result = self._op(f"shufflevector {t} {result or 'poison'}, {t} {part}, <{n} x i32> <{picks}>")
            done |= lanes.keys()
        return result

    def _pointers(self, where: Memory, index: Expr, element: str) -> list[str]:
        """The address of each lane: constant distances from one base where the stride is known, or element by
        element."""
        if isinstance(index, ex.Ramp):
            base = self._place(element, where.pointer, index.base)
            if isinstance(index.stride, ex.Const):
                return [self._gep(element, base, str(k * int(index.stride.value))) for k in range(index.lanes)]
            stride = self._index(index.stride)
            pointers = [base]
            for _ in range(index.lanes - 1):
                pointers.append(self._gep(element, pointers[-1], stride))
            return pointers
        v = self.emit_expr(index)
        return [
            self._gep(element, where.pointer, self.cast(self.element(v, k), dt.int64).text)
            for k in range(v.dtype.lanes)
        ]

    # -- stores ---------------------------------------------------------------------------------------------------

    def emit_Store(self, s: lp.Store) -> None:
        self._forget_loads()
        self._store(s)
        self._forget_loads()

    def _store(self, s: lp.Store) -> None:
        b = s.buffer
        lanes = max([i.dtype.lanes for i in s.indices] + [s.value.dtype.lanes])
        where = self._find(b)
        predicate = s.predicate
        if (
            b.dtype.is_bool
            and isinstance(s.value, Load)
            and not isinstance(where, Registers)
            and not isinstance(self._find(s.value.buffer), Registers)
        ):
            # A truth value that is only moved is a byte.
            source = replace(s.value.buffer, dtype=dt.uint8)
            b, s = replace(b, dtype=dt.uint8), replace(s, value=Load(source, s.value.indices, s.value.predicate))
        if predicate is not None and predicate.dtype.lanes == 1 and not isinstance(where, Registers):
            self.emit_stmt(lp.If(predicate, replace(s, predicate=None)))
            return
        value = self.splat(self.emit_expr(s.value), lanes)
        if b.dtype.kind == "complex":
            part = part_of(b.dtype)
            half = replace(b, dtype=part, shape=(lp.int64(0),))
            flat = ex.mul(self._flat(b, s.indices), 2)
            for k, v in enumerate(self.parts(value)):
                self._store_value(where, half, ex.add(flat, k), v, predicate)
        else:
            adds = any(isinstance(x, Load) and x.buffer == b for x in ex.walk(s.value))
            self._store_value(where, b, self._flat(b, s.indices), value, predicate, adds)

    def _store_value(
        self,
        where: Memory | Registers,
        b: Buffer,
        index: Expr,
        value: Value,
        predicate: Expr | None,
        adds: bool = False,
    ) -> None:
        """`adds`: the value is made of what the buffer held."""
        d = value.dtype
        if isinstance(where, Registers):
            if predicate is not None:
                p = self.splat(self.emit_expr(predicate), d.lanes)
                value = self.select(p, value, self._register(where, index, d))
            if self.isa.arch == "wasm32" and adds:
                value = self._in_order(value)
            self._store_register(where, index, value)
            return
        if d.lanes > 1 and index.dtype.lanes == 1:
            index = ex.Broadcast(index, d.lanes)
        mask = None if predicate is None else self.emit_expr(predicate)
        element, t = self.memory_type(d.scalar), self.memory_type(d)
        align = f", align {memory_bytes(d)}{where.annotations}"
        if d.lanes == 1:
            pointer = self._place(element, where.pointer, index)
            self._line(f"store {t} {self._to_memory(value)}, ptr {pointer}{align}")
            return
        if isinstance(index, ex.Ramp) and isinstance(index.stride, ex.Const) and index.stride.value == 1:
            pointer = self._place(element, where.pointer, index.base, inbounds=mask is None)
            if mask is None:
                self._line(f"store {t} {self._to_memory(value)}, ptr {pointer}{align}")
                return
            m = self.value_type(mask.dtype)
            name = f"llvm.masked.store.{suffix(t)}.p0"
            self._declared.setdefault(name, f"declare void @{name}({t}, ptr, {m})")
            self._line(
                f"call void @{name}({t} {self._to_memory(value)}, ptr align {memory_bytes(d)} {pointer}, {m}"
                f" {mask.text}){where.annotations}"
            )
            return
        if mask is None:
            for k, place in enumerate(self._pointers(where, index, element)):
                self._line(f"store {element} {self._to_memory(self.element(value, k))}, ptr {place}{align}")
            return
        m, pointers = self.value_type(mask.dtype), f"<{d.lanes} x ptr>"
        at = self._op(
            f"getelementptr {element}, ptr {where.pointer}, <{d.lanes} x i64>"
            f" {self.cast(self.emit_expr(index), dt.int64).text}"
        )
        name = f"llvm.masked.scatter.{suffix(t)}.v{d.lanes}p0"
        self._declared.setdefault(name, f"declare void @{name}({t}, {pointers}, {m})")
        self._line(
            f"call void @{name}({t} {self._to_memory(value)}, {pointers} align {memory_bytes(d)} {at}, {m}"
            f" {mask.text}){where.annotations}"
        )

    # -- registers ------------------------------------------------------------------------------------------------

    def _interleaved(self, stmts: Sequence[Stmt]) -> list[lp.Store]:
        """The stores at the beginning, first to last in memory, that fill each other's gaps: lanes n elements apart, n
        stores one element apart."""
        if not (
            isinstance(stmts[0], lp.Store) and len(stmts[0].indices) == 1 and stmts[0].buffer.dtype.kind != "complex"
        ):
            return []
        first, b = stmts[0].indices[0], stmts[0].buffer
        if (
            not isinstance(first, ex.Ramp)
            or not isinstance(first.stride, ex.Const)
            or isinstance(self._find(b), Registers)
        ):
            return []
        n, found = int(first.stride.value), dict[int, lp.Store]()
        if not 2 <= n <= min(MOST_INTERLEAVED, len(stmts)):
            return []
        for s in stmts[:n]:
            if not isinstance(s, lp.Store) or s.buffer != b or s.predicate != stmts[0].predicate:
                return []
            index = s.indices[0]
            if not isinstance(index, ex.Ramp) or index.stride != first.stride or index.lanes != first.lanes:
                return []
            if any(isinstance(x, Load) and x.buffer == b for x in ex.walk(s.value)):
                return []
            apart = simplify(ex.sub(index.base, first.base))
            if not isinstance(apart, ex.Const):
                return []
            found[int(apart.value)] = s
        start = min(found)
        if sorted(found) != list(range(start, start + n)) or (
            stmts[0].predicate is not None and stmts[0].predicate.dtype.lanes == 1
        ):
            return []
        return [found[start + k] for k in range(n)]

    def _store_interleaved(self, stores: Sequence[lp.Store]) -> None:
        """One store of all elements: a vector per store, shuffled into each other."""
        self._forget_loads()
        b, predicate = stores[0].buffer, stores[0].predicate
        where = self._find(b)
        assert isinstance(where, Memory) and isinstance(stores[0].indices[0], ex.Ramp)
        index, n = stores[0].indices[0], len(stores)
        d, whole = b.dtype.with_lanes(index.lanes), b.dtype.with_lanes(index.lanes * n)

        def shuffle(parts: list[tuple[str, int]], of: Callable[[int], str]) -> tuple[str, int]:
            """The lanes of several vectors in turn: (vector, lanes)."""
            if len(parts) == 1:
                return parts[0]
            if len(parts) % 2 == 0:
                (a, lanes), (c, _) = shuffle(parts[::2], of), shuffle(parts[1::2], of)
                picks = [k // 2 + k % 2 * lanes for k in range(2 * lanes)]
            else:  # one behind another first
                (a, lanes), count = parts[0], len(parts)
                for k, (c, _) in enumerate(parts[1:-1], 1):
                    t, joined = of(k * lanes), ", ".join(f"i32 {q}" for q in range((k + 1) * lanes))
                    behind = self._widened(c, lanes, k * lanes, of)
                    a = self._op(f"shufflevector {t} {a}, {t} {behind}, <{(k + 1) * lanes} x i32> <{joined}>")
                picks = [k % count * lanes + k // count for k in range(count * lanes)]
                c, lanes = self._widened(parts[-1][0], lanes, (count - 1) * lanes, of), (count - 1) * lanes
            order = ", ".join(f"i32 {q}" for q in picks)
            return self._op(f"shufflevector {of(lanes)} {a}, {of(lanes)} {c}, <{len(picks)} x i32> <{order}>"), len(
                picks
            )

        element = self.memory_type(d.scalar)
        values = [self._to_memory(self.splat(self.emit_expr(s.value), index.lanes)) for s in stores]
        text, _ = shuffle([(v, index.lanes) for v in values], lambda lanes: f"<{lanes} x {element}>")
        pointer = self._place(element, where.pointer, index.base, inbounds=predicate is None)
        t, align = self.memory_type(whole), memory_bytes(d)
        if predicate is None:
            self._line(f"store {t} {text}, ptr {pointer}, align {align}{where.annotations}")
        else:
            m = self.value_type(dt.bool_.with_lanes(index.lanes * n))
            mask, every = self.emit_expr(predicate), ", ".join(f"i32 {k // n}" for k in range(index.lanes * n))
            part = self.value_type(mask.dtype)
            wide = self._op(f"shufflevector {part} {mask.text}, {part} poison, <{index.lanes * n} x i32> <{every}>")
            name = f"llvm.masked.store.{suffix(t)}.p0"
            self._declared.setdefault(name, f"declare void @{name}({t}, ptr, {m})")
            self._line(f"call void @{name}({t} {text}, ptr align {align} {pointer}, {m} {wide}){where.annotations}")
        self._forget_loads()

    def _widened(self, v: str, lanes: int, to: int, of: Callable[[int], str]) -> str:
        """A vector of `lanes` lanes with others behind them, of no matter what."""
        if lanes == to:
            return v
        picks = ", ".join(f"i32 {k}" if k < lanes else "i32 poison" for k in range(to))
        return self._op(f"shufflevector {of(lanes)} {v}, {of(lanes)} poison, <{to} x i32> <{picks}>")

    def _register_lanes(self, b: Buffer, index: Expr) -> list[int]:
        """The elements that a constant index names."""
        base, stride, lanes = (
            (index.base, index.stride, index.lanes) if isinstance(index, ex.Ramp) else (index, lp.int64(1), 1)
        )
        if isinstance(index, ex.Broadcast):
            base, stride, lanes = index.value, lp.int64(0), index.lanes
        first, step = self._range(base), self._range(stride)
        if not (first.is_point and step.is_point):
            raise CodegenError(
                f"buffer '{b.name}' is in registers but its index is not constant",
                where=f"{b.name}[{index}] in kernel '{self.program.name}'",
                why="a register has no address",
                hint="unroll the loops over it, or put it in scope local",
            )
        assert first.lo is not None and step.lo is not None
        return [first.lo + k * step.lo for k in range(lanes)]

    def _locate(self, r: Registers, index: Expr) -> tuple[int, int, int]:
        """(slot, first lane in it, lanes) of a constant, contiguous access that stays in one slot."""
        at = self._register_lanes(r.buffer, index)
        slot, first = divmod(at[0], r.width)
        size = constant_bytes(r.buffer) // memory_bytes(r.buffer.dtype)
        contiguous = all(b - a == 1 for a, b in itertools.pairwise(at))
        if not contiguous or first + len(at) > r.width or at[0] < 0 or at[-1] >= size:
            why = (
                "an index is out of bounds" if at[0] < 0 or at[-1] >= size
                else f"the access is not a run of elements inside one vector of {r.width}, the widest one used on it"
            )  # fmt: skip
            raise CodegenError(
                f"buffer '{r.buffer.name}' is in registers but is not accessed by whole vectors",
                where=f"{r.buffer.name}[{index}] in kernel '{self.program.name}'",
                why=why,
                hint="align the accesses, or put it in scope local",
            )
        return slot, first, len(at)

    def _load_register(self, r: Registers, e: Load) -> Value:
        index = self._flat(r.buffer, e.indices)
        return self._register(r, index, e.dtype)

    def _register(self, r: Registers, index: Expr, d: DType) -> Value:
        if isinstance(index, ex.Broadcast):
            return self.splat(self._register(r, index.value, d.scalar), d.lanes)
        slot, first, lanes = self._locate(r, index)
        whole = d.with_lanes(r.width)
        t = self.value_type(whole)
        v = Value(self._op(f"load {t}, ptr {r.slots[slot]}"), whole, True)
        if lanes == r.width:
            return v
        if lanes == 1:
            return self.element(v, first)
        picks = ", ".join(f"i32 {first + k}" for k in range(lanes))
        return Value(self._op(f"shufflevector {t} {v.text}, {t} poison, <{lanes} x i32> <{picks}>"), d, True)

    def _in_order(self, value: Value) -> Value:
        """A sum in a register that is computed where it stands.

        LLVM's code for WebAssembly is trees of operations: it would compute one sum over all steps of an unrolled loop
        before the next one, and all operands of those steps would need registers at the same time.
        """
        t = self.value_type(value.dtype)
        if value.dtype.lanes * value.dtype.bits != 128 or "simd128" not in self.isa.needs:
            return value
        return replace(value, text=self._op(f'call {t} asm sideeffect "", "=r,0"({t} {value.text}) memory(none)'))

    def _store_register(self, r: Registers, index: Expr, value: Value) -> None:
        slot, first, lanes = self._locate(r, index)
        d = value.dtype.with_lanes(r.width)
        t = self.value_type(d)
        text = value.text
        if lanes < r.width:
            old = self._op(f"load {t}, ptr {r.slots[slot]}")
            if lanes == 1:
                text = self._op(f"insertelement {t} {old}, {self.scalar_type(d.scalar)} {value.text}, i64 {first}")
            else:
                part = self.value_type(value.dtype)
                spread = ", ".join(
                    f"i32 {k - first}" if first <= k < first + lanes else "i32 poison" for k in range(r.width)
                )
                wide = self._op(f"shufflevector {part} {value.text}, {part} poison, <{r.width} x i32> <{spread}>")
                blend = ", ".join(f"i32 {r.width + k if first <= k < first + lanes else k}" for k in range(r.width))
                text = self._op(f"shufflevector {t} {old}, {t} {wide}, <{r.width} x i32> <{blend}>")
        self._line(f"store {t} {text}, ptr {r.slots[slot]}")


def suffix(vector: str) -> str:
    """<8 x float> as v8f32, as intrinsics' names spell it."""
    lanes, _, element = vector.strip("<>").split(" ")
    return f"v{lanes}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
