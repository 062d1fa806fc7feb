"""The chip: registers, memory, and what each instruction does to them. It knows nothing of Weft, and counts cycles."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any

import numpy as np

from weft_wave.isa import FORMS, LANES, Instruction

MEMORY = 64 << 20
LATENCY = {"memory": 12, "add": 6, "mul": 7, "div": 16, "logic": 2, "scalar": 1}
EACH = {"memory": 1, "add": 1, "mul": 1, "div": 4, "logic": 1}
"""Cycles from one element of a vector to the next."""
INT64 = 1 << 63
Code = Callable[[], "int | None"]


class Fault(RuntimeError):
    """What a kernel may not do."""


def _wrap(x: int) -> int:
    return x if -INT64 <= x < INT64 else (x + INT64) % (2 * INT64) - INT64


def _narrow(x: int) -> int:
    return (x + 0x80000000) % 0x100000000 - 0x80000000


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: _wrap(a + b),
    "sub": lambda a, b: _wrap(a - b),
    "mul": lambda a, b: _wrap(a * b),
    "floordiv": lambda a, b: _wrap(a // b) if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "truncdiv": lambda a, b: _wrap(_trunc_div(a, b)) if b else 0,
    "truncmod": lambda a, b: a - b * _trunc_div(a, b) if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: _wrap(a << b) if 0 <= b < 64 else 0,
    "shr": lambda a, b: a >> min(b, 63) if b >= 0 else (-1 if a < 0 else 0),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
}


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or a != a or b != b else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _least(a: float, b: float) -> float:
    return math.nan if a != a or b != b else min(a, b)


def _greatest(a: float, b: float) -> float:
    return math.nan if a != a or b != b else max(a, b)


FLOAT: dict[str, Callable[[float, float], float]] = {
    "fadd": lambda a, b: c_float(a + b).value,
    "fsub": lambda a, b: c_float(a - b).value,
    "fmul": lambda a, b: c_float(a * b).value,
    "fdiv": lambda a, b: c_float(_divide(a, b)).value,
    "fmin": _least,
    "fmax": _greatest,
}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "flt": lambda a, b: a < b,
    "fle": lambda a, b: a <= b,
    "feq": lambda a, b: a == b,
    "fne": lambda a, b: a != b,
}
UNARY: dict[str, Callable[[float], float]] = {
    "fsqrt": lambda a: c_float(math.sqrt(a)).value if a >= 0 else (a if a == 0 else math.nan),
    "ffloor": lambda a: float(np.floor(a)),
    "fceil": lambda a: float(np.ceil(a)),
    "ftrunc": lambda a: float(np.trunc(a)),
    "fround": lambda a: float(np.rint(a)),
    "fabs": abs,
}


def _zeros_divide(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(a: Any, b: Any, *, out: Any) -> None:
        out[...] = np.where(b == 0, 0, function(a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64))).astype(np.int32)

    return run


def _trunc_divide(a: Any, b: Any) -> Any:
    q = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), q, -q)


VECTOR_INT: dict[str, Callable[..., Any]] = {
    "viadd": np.add,
    "visub": np.subtract,
    "vimul": np.multiply,
    "vifloordiv": _zeros_divide(np.floor_divide),
    "vifloormod": _zeros_divide(np.mod),
    "vitruncdiv": _zeros_divide(_trunc_divide),
    "vitruncmod": _zeros_divide(np.fmod),
    "vimin": np.minimum,
    "vimax": np.maximum,
    "viand": np.bitwise_and,
    "vior": np.bitwise_or,
    "vixor": np.bitwise_xor,
    "vishl": np.left_shift,
    "vishr": np.right_shift,
    "vilt": np.less,
    "vile": np.less_equal,
    "vieq": np.equal,
    "vine": np.not_equal,
}
VECTOR_FLOAT: dict[str, Callable[..., Any]] = {
    "vfadd": np.add,
    "vfsub": np.subtract,
    "vfmul": np.multiply,
    "vfdiv": np.divide,
    "vfminimum": np.minimum,
    "vfmaximum": np.maximum,
}
VECTOR_COMPARE: dict[str, Callable[..., Any]] = {
    "vflt": np.less,
    "vfle": np.less_equal,
    "vfeq": np.equal,
    "vfne": np.not_equal,
}
VECTOR_UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "vfsqrt": np.sqrt,
    "vffloor": np.floor,
    "vfceil": np.ceil,
    "vftrunc": np.trunc,
    "vfround": np.rint,
    "vfabs": np.abs,
}
REDUCTIONS: dict[str, float] = {"vfsum": 0.0, "vfmax": -math.inf, "vfmin": math.inf}


class Chip:
    """One chip. `cycles` is the time since it was made."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = np.zeros(memory, np.uint8)
        self.words = self.memory.view(np.int32)
        self.floats = self.memory.view(np.float32)
        self.longs = self.memory.view(np.int64)
        self.a: list[int] = [0] * 256
        self.s: list[float] = [0.0] * 256
        self.vi = [np.zeros(LANES, np.int32) for _ in range(8)]
        self.vf = [v.view(np.float32) for v in self.vi]
        self.iota = np.arange(LANES, dtype=np.int64)
        self.vl = 0
        self.cycles = 0
        self.done = 0
        self.ready = [0] * 8
        self.units = dict.fromkeys(EACH, 0)

    def assemble(self, instructions: Sequence[Instruction]) -> list[Code]:
        """What each instruction does, bound to this chip."""
        return [self._code(i) for i in instructions]

    def run(self, code: Sequence[Code], arguments: int) -> None:
        """Runs a kernel to its end; `arguments` is the address of its arguments."""
        self.a[0] = arguments
        at, steps = 0, 0
        with np.errstate(all="ignore"):
            while at >= 0:
                to = code[at]()
                at = at + 1 if to is None else to
                steps += 1
        self.cycles = max(self.cycles + steps, self.done)

    def tick(self, unit: str, d: int, *sources: int) -> int:
        """A vector instruction starts as soon as its unit is free and its sources' first elements are there
        (chaining)."""
        ready = self.ready
        start = max(self.cycles, self.units[unit], *(ready[v] for v in sources)) if sources else max(self.cycles, self.units[unit])
        busy = self.vl * EACH[unit]
        self.units[unit] = start + busy
        self.cycles = start
        end = start + LATENCY[unit] + busy
        if end > self.done:
            self.done = end
        if d >= 0:
            ready[d] = start + LATENCY[unit]
        return end

    def place(self, address: int, size: int) -> int:
        """The index of an element of `size` bytes."""
        if not 0 <= address <= len(self.memory) - size:
            raise Fault(f"address {address} is outside the memory of {len(self.memory)} bytes")
        if address % size:
            raise Fault(f"address {address} is no multiple of {size}")
        return address // size

    def strided(self, address: int, stride: int, size: int) -> slice | Any:
        """The indices of VL elements."""
        first = self.place(address, size)
        if self.vl:
            self.place(address + (self.vl - 1) * stride, size)
        if stride % size:
            raise Fault(f"stride {stride} is no multiple of {size}")
        step = stride // size
        if step > 0:
            return slice(first, first + step * (self.vl - 1) + 1, step) if self.vl else slice(0, 0)
        return first + step * self.iota[: self.vl]

    def indexed(self, address: int, index: Any, mask: Any, size: int) -> Any:
        """The indices of VL elements that an index register names; those that are masked out may be anything."""
        first = self.place(address, size)
        at = index.astype(np.int64) + first
        if mask is not None:
            at = np.where(mask, at, first)
        if len(at) and (at.min() < 0 or at.max() >= len(self.memory) // size):
            raise Fault(f"an index leads to {at.min() * size} … {at.max() * size}, outside the memory of {len(self.memory)} bytes")
        return at

    def _code(self, i: Instruction) -> Code:
        name, d, a, b, c, imm = i
        A, S, VI, VF, m = self.a, self.s, self.vi, self.vf, self  # noqa: N806
        unit = FORMS[name].unit
        tick = self.tick

        if name in INTEGER:
            f = INTEGER[name]

            def integer() -> None:
                A[d] = f(A[a], A[b])

            return integer
        if name in FLOAT:
            g = FLOAT[name]

            def floating() -> None:
                S[d] = g(S[a], S[b])

            return floating
        if name in COMPARE:
            h = COMPARE[name]

            def compare() -> None:
                A[d] = int(h(S[a], S[b]))

            return compare
        if name in UNARY:
            u = UNARY[name]

            def unary() -> None:
                S[d] = u(S[a])

            return unary
        x: Any
        y: Any
        z: Any
        if name in VECTOR_INT or name in VECTOR_FLOAT or name in VECTOR_COMPARE:
            if name in VECTOR_INT:
                v, x, y, z = VECTOR_INT[name], VI[a], VI[b], VI[d]
            elif name in VECTOR_FLOAT:
                v, x, y, z = VECTOR_FLOAT[name], VF[a], VF[b], VF[d]
            else:
                v, x, y, z = VECTOR_COMPARE[name], VF[a], VF[b], VI[d]

            def vector() -> None:
                n = m.vl
                v(x[:n], y[:n], out=z[:n])
                tick(unit, d, a, b)

            return vector
        if name in VECTOR_UNARY:
            w, x, z = VECTOR_UNARY[name], VF[a], VF[d]

            def vector_unary() -> None:
                n = m.vl
                w(x[:n], z[:n])
                tick(unit, d, a)

            return vector_unary
        if name in REDUCTIONS:
            start, x = REDUCTIONS[name], VF[a]

            def reduction() -> None:
                values = x[: m.vl]
                if name == "vfsum":
                    while len(values) > 1:
                        half = (len(values) + 1) // 2
                        low = values[:half].copy()
                        low[: len(values) - half] += values[half:]
                        values = low
                    S[d] = float(values[0]) if len(values) else start
                else:
                    S[d] = float((np.max if name == "vfmax" else np.min)(values)) if len(values) else start
                m.cycles = tick(unit, -1, a)

            return reduction
        if name.startswith(("vld", "vst", "vga", "vsc")):
            return self._memory(i)
        return self._simple(i)

    def _memory(self, i: Instruction) -> Code:
        name, d, a, b, c, imm = i
        A, VI, m, tick = self.a, self.vi, self, self.tick  # noqa: N806
        masked = name.endswith("m")
        size = 1 if "b" in name else 4
        memory: Any = m.memory if size == 1 else m.words
        indexed = name.startswith(("vga", "vsc"))
        load = name.startswith(("vld", "vga"))
        vd, vc, vb = VI[d], VI[c], VI[b % 8]
        sources = [*([] if load else [d]), *([b] if indexed else []), *([c] if masked else [])]

        def access() -> None:
            n = m.vl
            mask: Any = vc[:n] != 0 if masked else None
            if indexed:
                where = m.indexed(A[a] + imm, vb[:n], mask, size)
            elif masked:
                address, stride = A[a] + imm, A[b]
                if stride % size or address % size:
                    raise Fault(f"address {address} or stride {stride} is no multiple of {size}")
                where = address // size + (stride // size) * m.iota[:n]
                used = where[mask]
                if len(used) and (used.min() < 0 or used.max() >= len(memory)):
                    raise Fault(f"addresses {used.min() * size} … {used.max() * size} are outside the memory of {len(m.memory)} bytes")
                where = np.where(mask, where, 0)
            else:
                where = m.strided(A[a] + imm, A[b], size)
            if load:
                if mask is None:
                    vd[:n] = memory[where]
                else:
                    vd[:n] = np.where(mask, memory[where], 0)
            elif mask is None:
                memory[where] = vd[:n]
            else:
                memory[where[mask]] = vd[:n][mask]
            tick("memory", d if load else -1, *sources)

        return access

    def _simple(self, i: Instruction) -> Code:
        name, d, a, b, c, imm = i
        A, S, VI, VF, m, tick = self.a, self.s, self.vi, self.vf, self, self.tick  # noqa: N806
        unit = FORMS[name].unit
        words, floats, longs, memory = m.words, m.floats, m.longs, m.memory

        def halt() -> int:
            return -1

        def jump() -> int:
            return imm

        def jump_zero() -> int | None:
            return imm if A[a] == 0 else None

        def jump_less() -> int | None:
            return imm if A[a] < A[b] else None

        def li() -> None:
            A[d] = imm

        def mov() -> None:
            A[d] = A[a]

        def addi() -> None:
            A[d] = _wrap(A[a] + imm)

        def lea() -> None:
            A[d] = _wrap(A[a] + A[b] * imm)

        def select() -> None:
            A[d] = A[b] if A[a] else A[c]

        def narrow() -> None:
            A[d] = _narrow(A[a])

        def fmov() -> None:
            S[d] = S[a]

        def fli() -> None:
            S[d] = struct.unpack("<f", struct.pack("<I", imm & 0xFFFFFFFF))[0]

        def fselect() -> None:
            S[d] = S[b] if A[a] else S[c]

        def f2i() -> None:
            A[d] = int(np.float32(S[a]).astype(np.int32))

        def i2f() -> None:
            A_ = A[a]
            S[d] = float(np.float32(A_))

        def bits_f2i() -> None:
            A[d] = struct.unpack("<i", struct.pack("<f", S[a]))[0]

        def bits_i2f() -> None:
            S[d] = struct.unpack("<f", struct.pack("<I", A[a] & 0xFFFFFFFF))[0]

        def ffma() -> None:
            S[d] = c_float(S[a] * S[b] + S[c]).value

        def ld8() -> None:
            A[d] = int(longs[m.place(A[a] + imm, 8)])

        def ld4() -> None:
            A[d] = int(words[m.place(A[a] + imm, 4)])

        def ld1() -> None:
            A[d] = int(memory[m.place(A[a] + imm, 1)])

        def fld() -> None:
            S[d] = float(floats[m.place(A[a] + imm, 4)])

        def st4() -> None:
            words[m.place(A[a] + imm, 4)] = _narrow(A[b])

        def st1() -> None:
            memory[m.place(A[a] + imm, 1)] = A[b] & 0xFF

        def fst() -> None:
            floats[m.place(A[a] + imm, 4)] = S[b]

        def setvl() -> None:
            m.vl = min(max(A[a], 0), LANES)

        def setvli() -> None:
            m.vl = imm

        def viota() -> None:
            n = m.vl
            VI[d][:n] = A[a] + A[b] * m.iota[:n]
            tick(unit, d)

        def vset() -> None:
            VI[d][: m.vl] = _narrow(A[a])
            tick(unit, d)

        def vfset() -> None:
            VF[d][: m.vl] = S[a]
            tick(unit, d)

        def vsel() -> None:
            n = m.vl
            VI[d][:n] = np.where(VI[a][:n] != 0, VI[b][:n], VI[c][:n])
            tick(unit, d, a, b, c)

        def vmov() -> None:
            n = m.vl
            VI[d][:n] = VI[a][:n]
            tick(unit, d, a)

        def vnot() -> None:
            n = m.vl
            np.equal(VI[a][:n], 0, VI[d][:n])
            tick(unit, d, a)

        def vmadd() -> None:
            n = m.vl
            x = VF[d][:n]
            np.add(x, VF[b][:n] * np.float32(S[a]), x)
            tick(unit, d, b, d)

        def vffma() -> None:
            n = m.vl
            VF[d][:n] = VF[a][:n].astype(np.float64) * VF[b][:n] + VF[c][:n]
            tick(unit, d, a, b, c)

        def vf2i() -> None:
            n = m.vl
            VI[d][:n] = VF[a][:n].astype(np.int32)
            tick(unit, d, a)

        def vi2f() -> None:
            n = m.vl
            VF[d][:n] = VI[a][:n]
            tick(unit, d, a)

        code: Code = locals()[name]
        return code
