"""From lowered loop programs to instructions."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.codegen.base import KernelCode
from weft.expr import nodes as e
from weft.expr.nodes import Expr, Var, const, walk
from weft.loop import nodes as loop
from weft.loop.nodes import Buffer, IntrinsicCall, Load, Program, Stmt, int_const, stmt_exprs, walk_stmts

from weft_wave.isa import FORMS, LANES, SCALARS, VECTORS, Instruction, encode

REGISTERS = "wave.v"
"""The scope of buffers that are vector registers: row r of a buffer is one."""
FUNCTIONS = frozenset({"fma", "sqrt", "floor", "ceil", "trunc", "round", "abs"})
DTYPES = frozenset({"float32", "int32", "bool"})
PREFETCH = "prefetch"
INTS: dict[type[Expr], str] = {
    e.Add: "add", e.Sub: "sub", e.Mul: "mul", e.Min: "min", e.Max: "max", e.Lt: "lt", e.Le: "le", e.Eq: "eq",
    e.Ne: "ne",
    e.FloorDiv: "floordiv", e.FloorMod: "floormod", e.TruncDiv: "truncdiv", e.TruncMod: "truncmod", e.BitAnd: "and",
    e.BitOr: "or",
    e.BitXor: "xor", e.And: "and", e.Or: "or", e.ShiftLeft: "shl", e.ShiftRight: "shr",
}  # fmt: skip
FLOATS: dict[type[Expr], str] = {
    e.Add: "add", e.Sub: "sub", e.Mul: "mul", e.Div: "div", e.Min: "min", e.Max: "max", e.Lt: "lt", e.Le: "le",
    e.Eq: "eq", e.Ne: "ne",
}  # fmt: skip
CONSTANTS, SPILL = 128, SCALARS - 1
"""The first register of constants, and the one that says where vectors are put aside."""
KNOWN = 48
"""How many integers are remembered until ways meet."""
VECTOR_NAMES = {"vfmin": "vfminimum", "vfmax": "vfmaximum"}
WRAPPING = frozenset({"add", "sub", "mul", "shl", "floordiv", "truncdiv"})
INSTRUCTION = re.compile(r"wave_(axpy|sum|max)(\d+)(_start|_update|)$")


class Lacks(Exception):
    """What the chip does not have; said by `check`."""


def lacks(program: Program) -> list[str]:
    """What of a lowered program the chip does not have, without generating code."""
    found: dict[str, None] = {}
    for b in program.params:
        if b.dtype.scalar.name not in DTYPES:
            found[f"values of {b.dtype.scalar.name}"] = None
    for stmt in walk_stmts(program.body):
        if isinstance(stmt, loop.Allocate) and stmt.buffer.dtype.scalar.name not in DTYPES:
            found[f"values of {stmt.buffer.dtype.scalar.name}"] = None
        for top in stmt_exprs(stmt):
            for x in walk(top):
                if x.dtype.lanes > LANES:
                    found[f"vectors of {x.dtype.lanes} elements"] = None
                name = x.dtype.scalar.name
                if name not in DTYPES and not isinstance(x, IntrinsicCall) and (name != "int64" or isinstance(x, e.Bitcast)):
                    found[f"values of {name}"] = None
                if isinstance(x, e.Binary) and type(x) not in (FLOATS if x.a.dtype.is_float else INTS):
                    found[f"{type(x).__name__} of {x.a.dtype.scalar.name}"] = None
                if isinstance(x, e.Call) and x.name not in FUNCTIONS:
                    found[f"the function {x.name}"] = None
        if isinstance(stmt, loop.Store | loop.Let) and stmt.value.dtype.scalar.name != "int64" and any(map(_widens, _data(stmt.value))):
            found["values of int64 that are no index"] = None
    return list(found)


def _data(x: Expr) -> Iterator[Expr]:
    """The parts of a formula, without what says where elements lie."""
    yield x
    if not isinstance(x, Load):
        for part in x.children():
            yield from _data(part)


def _widens(x: Expr) -> bool:
    return isinstance(x, e.Cast) and x.dtype.scalar.name == "int64" and x.value.dtype.scalar.name != "int64"


@dataclass(eq=False)
class Vector:
    """A value in vector registers, or in its place in memory, or in both."""

    lanes: int
    length: tuple[str, int]
    register: int | None = None
    slot: int | None = None
    pinned: int = 0
    wanted: int = 0
    kept: bool = False


@dataclass
class Kernel:
    """One kernel being written."""

    program: Program
    code: list[Instruction] = field(default_factory=list)
    labels: dict[int, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    scratch: list[Expr] = field(default_factory=list)
    variables: dict[str, int | Vector] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    rows: dict[str, tuple[int, int, list[int]]] = field(default_factory=dict)
    free_a: list[int] = field(default_factory=lambda: list(range(CONSTANTS - 1, 0, -1)))
    free_s: list[int] = field(default_factory=lambda: list(range(CONSTANTS - 1, -1, -1)))
    free_v: list[int] = field(default_factory=lambda: list(range(VECTORS - 1, -1, -1)))
    live: list[Vector] = field(default_factory=list)
    loaded: dict[object, Vector] = field(default_factory=dict)
    length: tuple[str, int] | None = None
    strip: tuple[Expr, ...] = ()
    strip_length: tuple[str, int] | None = None
    slots: int = 0
    free_slots: list[int] = field(default_factory=list)
    spilled: bool = False
    known: dict[Expr, int] = field(default_factory=dict)
    pure: dict[object, Vector] = field(default_factory=dict)
    fixed: list[int] = field(default_factory=list)
    certain: bool = True

    # instructions and labels

    def emit(self, name: str, *registers: int, imm: int = 0) -> None:
        used = iter(registers)
        d, a, b, c = (next(used) if bank != "." else 0 for bank in FORMS[name].fields)
        self.code.append(Instruction(name, d, a, b, c, imm))

    def label(self) -> int:
        self.labels[len(self.labels)] = -1
        return len(self.labels) - 1

    def here(self, label: int) -> None:
        self.labels[label] = len(self.code)
        self.forget()

    def forget(self) -> None:
        """What is known of registers does not hold where ways meet."""
        self.drop_loads()
        self.drop_pure()
        self.free_a += [n for n in dict.fromkeys(self.known.values()) if n not in self.free_a and n not in self.owned()]
        self.known.clear()
        self.length = None

    def owned(self) -> set[int]:
        """Registers that are more than what is known for the moment: variables, places, constants."""
        return {
            0,
            *self.places.values(),
            *(v for v in self.variables.values() if isinstance(v, int)),
            *self.constants.values(),
            *self.fixed,
        }

    # registers

    def get_a(self) -> int:
        if not self.free_a:
            raise Lacks(f"more than {SCALARS} integer registers")
        return self.free_a.pop()

    def get_s(self) -> int:
        if not self.free_s:
            raise Lacks(f"more than {SCALARS} scalar registers")
        return self.free_s.pop()

    def constant(self, value: int) -> int:
        """A register that holds it; the upper half is filled before a kernel begins, and nothing else is written
        there."""
        if value not in self.constants:
            if len(self.constants) >= SPILL - CONSTANTS:
                d = self.get_a()
                self.emit("li", d, imm=value)
                return d
            self.constants[value] = CONSTANTS + len(self.constants)
        return self.constants[value]

    def number(self, value: float) -> int:
        bits = _bits(value)
        if bits not in self.numbers:
            if len(self.numbers) >= SCALARS - CONSTANTS:
                d = self.get_s()
                self.emit("fli", d, imm=bits)
                return d
            self.numbers[bits] = CONSTANTS + len(self.numbers)
        return self.numbers[bits]

    @contextmanager
    def temporaries(self) -> Iterator[None]:
        """Scalar registers taken inside are free again after it."""
        a, s = list(self.free_a), list(self.free_s)
        yield
        held = set(self.known.values())
        self.free_a, self.free_s = [n for n in a if n not in held], s

    def get_v(self) -> int:
        if self.free_v:
            return self.free_v.pop()
        for known in (self.pure, self.loaded):
            for key, v in list(known.items()):
                if v.pinned == 0 and v.wanted == 0 and v.register is not None:
                    register = v.register
                    v.register = None
                    del known[key]
                    v.kept = False
                    self.live.remove(v)
                    if v.slot is not None:
                        self.free_slots.append(v.slot)
                        v.slot = None
                    return register
        for v in self.live:
            if v.pinned == 0 and v.register is not None:
                self.save(v)
                register = v.register
                v.register = None
                return register
        raise Lacks(f"more than {VECTORS} vector registers")

    def slot(self, v: Vector) -> None:
        if v.slot is None:
            if self.free_slots:
                v.slot = self.free_slots.pop()
            else:
                v.slot = self.slots
                self.slots += 1
            self.spilled = True

    def save(self, v: Vector) -> None:
        """Into memory; it stays in its register."""
        if v.slot is None:
            self.slot(v)
            before = self.length
            self.set_length(v.length)
            assert v.register is not None and v.slot is not None
            self.emit("vst", v.register, SPILL, self.constant(4), imm=v.slot * 4 * LANES)
            self.restore(before)

    def restore(self, before: tuple[str, int] | None) -> None:
        if before is not None:
            self.set_length(before)

    def vector(self, lanes: int) -> Vector:
        v = Vector(lanes, self.length or ("c", lanes))
        v.register = self.get_v()
        v.pinned = 1
        self.live.append(v)
        return v

    def use(self, v: Vector) -> int:
        """Its register, held until `done`."""
        v.pinned += 1
        if v.register is None:
            v.register = self.get_v()
            before = self.length
            self.set_length(v.length)
            assert v.slot is not None
            self.emit("vld", v.register, SPILL, self.constant(4), imm=v.slot * 4 * LANES)
            self.restore(before)
        return v.register

    def done(self, v: Vector) -> None:
        """No longer needed by one who used or made it."""
        v.pinned -= 1

    def want(self, v: Vector) -> None:
        """What was just computed need not stay in its register, but will be used."""
        v.pinned -= 1
        v.wanted += 1

    def unwant(self, v: Vector) -> None:
        v.wanted -= 1
        self.release(v)

    def release(self, v: Vector) -> None:
        """Never needed again, unless somebody keeps, wants or uses it."""
        if v.kept or v.wanted or v.pinned or v not in self.live:
            return
        self.live.remove(v)
        if v.register is not None:
            self.free_v.append(v.register)
            v.register = None
        if v.slot is not None:
            self.free_slots.append(v.slot)
            v.slot = None

    def drop_loads(self) -> None:
        for v in self.loaded.values():
            v.kept = False
            self.release(v)
        self.loaded.clear()

    def drop_pure(self) -> None:
        for v in self.pure.values():
            v.kept = False
            self.release(v)
        self.pure.clear()

    def park(self) -> None:
        """Every living vector goes to memory: control flow follows."""
        self.drop_loads()
        self.drop_pure()
        for v in self.live:
            if v.register is not None and v.pinned == 0:
                self.save(v)
                self.free_v.append(v.register)
                v.register = None

    def set_length(self, length: tuple[str, int]) -> None:
        if self.length != length:
            kind, value = length
            if kind == "c":
                self.emit("setvli", imm=value)
            else:
                self.emit("setvl", value)
            self.length = length

    def lanes(self, lanes: int) -> None:
        self.set_length(self.strip_length or ("c", lanes))

    # scalars

    def integer(self, x: Expr) -> int:
        """A register that holds it; not to be written."""
        if x in self.known:
            return self.known[x]
        a, s = list(self.free_a), list(self.free_s)
        result = self.integer_formula(x)
        if isinstance(x, e.Binary) and self.certain and len(self.known) < KNOWN and not e.has(x, Load):
            self.known[x] = result
        held = {result, *self.known.values()}
        self.free_a, self.free_s = [n for n in a if n not in held], s
        return result

    def integer_formula(self, x: Expr) -> int:
        if x.dtype.is_float:
            raise Lacks(f"an integer of {x.dtype}")
        match x:
            case e.Const():
                return self.constant(int(x.value.real if isinstance(x.value, complex) else x.value))
            case Var():
                known = self.variables[x.name]
                assert isinstance(known, int)
                return known
            case Load():
                return self.scalar_load(x)
        if isinstance(x, e.Add) and isinstance(x.b, e.Const) and x.dtype.name == "int64":
            source = self.integer(x.a)
            d = self.get_a()
            self.emit("addi", d, source, imm=int(x.b.value.real))
            return d
        if isinstance(x, e.Binary):
            if x.a.dtype.is_float:
                a, b = self.floating(x.a), self.floating(x.b)
                d = self.get_a()
                self.emit("f" + FLOATS[type(x)], d, a, b)
                return d
            a, b = self.integer(x.a), self.integer(x.b)
            d = self.get_a()
            if type(x) not in INTS:
                raise Lacks(f"{type(x).__name__} of integers")
            op = INTS[type(x)]
            if x.dtype.name == "int32" and op in ("shl", "shr"):
                b = self.shift(op, b)
            self.emit(op, d, a, b)
            if x.dtype.name == "int32" and op in WRAPPING:
                self.emit("narrow", d, d)
            return d
        match x:
            case e.Not():
                a = self.integer(x.a)
                d = self.get_a()
                self.emit("eq", d, a, self.constant(0))
                return d
            case e.Select():
                c, a, b = self.integer(x.cond), self.integer(x.a), self.integer(x.b)
                d = self.get_a()
                self.emit("select", d, c, a, b)
                return d
            case e.Cast():
                d = self.get_a()
                if x.value.dtype.is_float:
                    f = self.floating(x.value)
                    if x.dtype.is_bool:
                        self.emit("fne", d, f, self.number(0.0))
                    else:
                        self.emit("f2i", d, f)
                    return d
                a = self.integer(x.value)
                if x.dtype.is_bool and not x.value.dtype.is_bool:
                    self.emit("ne", d, a, self.constant(0))
                elif x.dtype.name == "int32" and x.value.dtype.name == "int64":
                    self.emit("narrow", d, a)
                else:
                    return a
                return d
            case e.Bitcast():
                if not x.value.dtype.is_float:
                    return self.integer(x.value)
                f = self.floating(x.value)
                d = self.get_a()
                self.emit("bits_f2i", d, f)
                return d
            case e.Call(name="abs"):
                a = self.integer(x.args[0])
                d = self.get_a()
                self.emit("sub", d, self.constant(0), a)
                self.emit("max", d, d, a)
                if x.dtype.name == "int32":
                    self.emit("narrow", d, d)
                return d
        raise Lacks(f"the integer formula {x}")

    def shift(self, op: str, b: int) -> int:
        """By 32 or more, or by less than none, nothing is left."""
        d = self.get_a()
        low = self.get_a()
        self.emit("lt", low, b, self.constant(0))
        self.emit("min", d, b, self.constant(32))
        self.emit("select", d, low, self.constant(32), d)
        return d

    def floating(self, x: Expr) -> int:
        """A register that holds it; not to be written."""
        a, s = list(self.free_a), list(self.free_s)
        result = self.floating_formula(x)
        held = set(self.known.values())
        self.free_a, self.free_s = [n for n in a if n not in held], [n for n in s if n != result]
        return result

    def floating_formula(self, x: Expr) -> int:
        if x.dtype.name != "float32":
            raise Lacks(f"values of {x.dtype.scalar.name}")
        match x:
            case e.Const():
                return self.number(float(x.value.real))
            case Var():
                known = self.variables[x.name]
                assert isinstance(known, int)
                return known
            case Load():
                return self.scalar_load(x)
            case e.Binary() if type(x) in FLOATS:
                a, b = self.floating(x.a), self.floating(x.b)
                d = self.get_s()
                self.emit("f" + FLOATS[type(x)], d, a, b)
                return d
            case e.Select():
                c, a, b = self.integer(x.cond), self.floating(x.a), self.floating(x.b)
                d = self.get_s()
                self.emit("fselect", d, c, a, b)
                return d
            case e.Cast():
                a = self.integer(x.value)
                d = self.get_s()
                self.emit("i2f", d, a)
                return d
            case e.Bitcast():
                if x.value.dtype.is_float:
                    return self.floating(x.value)
                a = self.integer(x.value)
                d = self.get_s()
                self.emit("bits_i2f", d, a)
                return d
            case e.Call():
                args = [self.floating(a) for a in x.args]
                d = self.get_s()
                self.emit("f" + x.name, d, *args)
                return d
        raise Lacks(f"the formula {x}")

    def address(self, b: Buffer, indices: Sequence[Expr]) -> tuple[int, int]:
        """Where an element lies: a register and a constant."""
        if b.name in self.rows:
            raise Lacks(f"an address in a register ({b.name})")
        index, size = _one(indices), b.dtype.bytes
        base = self.places[b.name]
        extra = 0
        while isinstance(index, e.Add) and isinstance(index.b, e.Const):
            extra += int(index.b.value.real)
            index = index.a
        if isinstance(index, e.Const):
            return base, (extra + int(index.value.real)) * size
        r = self.integer(index)
        d = self.get_a()
        self.emit("lea", d, base, r, imm=size)
        return d, extra * size

    def scalar_load(self, x: Load) -> int:
        floating = x.dtype.is_float
        d = self.get_s() if floating else self.get_a()
        skip = None
        if x.predicate is not None:
            p = self.integer(x.predicate)
            if floating:
                self.emit("fmov", d, self.number(0.0))
            else:
                self.emit("mov", d, self.constant(0))
            skip = self.label()
            self.emit("jump_zero", p, imm=skip)
        certain, self.certain = self.certain, self.certain and skip is None
        a, imm = self.address(x.buffer, x.indices)
        self.certain = certain
        self.emit("fld" if floating else "ld1" if x.dtype.is_bool else "ld4", d, a, imm=imm)
        if skip is not None:
            self.labels[skip] = len(self.code)
        return d

    # vectors

    def ramp(self, x: Expr) -> tuple[Expr, Expr] | None:
        """x as base + lane · stride, if it is that."""
        zero = const(0, x.dtype.scalar)
        match x:
            case e.Ramp():
                return x.base, x.stride
            case e.Broadcast():
                return x.value, zero
            case e.Add() | e.Sub():
                a, b = self.ramp(x.a), self.ramp(x.b)
                if a is None or b is None:
                    return None
                f = e.add if isinstance(x, e.Add) else e.sub
                return f(a[0], b[0]), f(a[1], b[1])
            case e.Mul():
                for one, other in ((x.a, x.b), (x.b, x.a)):
                    if isinstance(other, e.Broadcast):
                        a = self.ramp(one)
                        return None if a is None else (e.mul(a[0], other.value), e.mul(a[1], other.value))
        return None

    def compute(self, x: Expr) -> Vector:
        """x in a vector register, pinned once. Its user calls `finish` or `want`."""
        lanes = x.dtype.lanes
        self.lanes(lanes)
        if isinstance(x, Var | Load) or not self.certain or e.has(x, Load):
            return self.vector_formula(x, lanes)
        key = (x, self.length)
        if key in self.pure:
            self.use(self.pure[key])
            return self.pure[key]
        v = self.vector_formula(x, lanes)
        if not v.kept and v.lanes == lanes and all(v is not other for other in self.variables.values()):
            v.kept = True
            self.pure[key] = v
        return v

    def vector_formula(self, x: Expr, lanes: int) -> Vector:
        match x:
            case Var():
                known = self.variables[x.name]
                assert isinstance(known, Vector)
                self.use(known)
                return known
            case Load():
                return self.vector_load(x)
            case e.Broadcast():
                with self.temporaries():
                    r = self.floating(x.value) if x.value.dtype.is_float else self.integer(x.value)
                    v = self.vector(lanes)
                    self.emit("vfset" if x.value.dtype.is_float else "vset", v.register or 0, r)
                return v
            case e.Ramp():
                with self.temporaries():
                    a, b = self.integer(x.base), self.integer(x.stride)
                    v = self.vector(lanes)
                    self.emit("viota", v.register or 0, a, b)
                return v
        if isinstance(x, e.Binary):
            table = FLOATS if x.a.dtype.is_float else INTS
            if type(x) not in table:
                raise Lacks(f"{type(x).__name__} of {x.a.dtype.scalar}")
            name = ("vf" if x.a.dtype.is_float else "vi") + table[type(x)]
            return self.operation(VECTOR_NAMES.get(name, name), lanes, x.a, x.b)
        match x:
            case e.Not():
                return self.operation("vnot", lanes, x.a)
            case e.Select():
                return self.operation("vsel", lanes, x.cond, x.a, x.b)
            case e.Bitcast():
                return self.compute(x.value)
            case e.Cast():
                before, after = x.value.dtype, x.dtype
                if after.is_bool and not before.is_bool:
                    zero = e.Broadcast(const(0, before.scalar), lanes)
                    return self.compute(e.ne(x.value, zero))
                if before.is_float and not after.is_float:
                    return self.operation("vf2i", lanes, x.value)
                if after.is_float and not before.is_float:
                    return self.operation("vi2f", lanes, x.value)
                return self.compute(x.value)
            case e.Call(name="abs") if not x.dtype.is_float:
                return self.compute(e.maximum(x.args[0], e.sub(e.Broadcast(const(0, x.dtype.scalar), lanes), x.args[0])))
            case e.Call():
                return self.operation("vf" + x.name, lanes, *x.args)
        raise Lacks(f"the vector formula {x}")

    def operation(self, name: str, lanes: int, *operands: Expr) -> Vector:
        values = []
        for operand in operands:
            v = self.compute(operand)
            self.want(v)
            values.append(v)
        registers = [self.use(v) for v in values]
        self.lanes(lanes)
        result = self.vector(lanes)
        self.emit(name, result.register or 0, *registers)
        for v in values:
            self.done(v)
            self.unwant(v)
        return result

    def finish(self, v: Vector) -> None:
        self.done(v)
        self.release(v)

    def vector_load(self, x: Load) -> Vector:
        lanes, b = x.dtype.lanes, x.buffer
        if b.name in self.rows:
            row = self.row(b, _one(x.indices), lanes)
            v = self.vector(lanes)
            self.emit("vmov", v.register or 0, row)
            return v
        key = (b.name, x.indices, x.predicate, self.length)
        if key in self.loaded:
            v = self.loaded[key]
            self.use(v)
            return v
        predicates = [p for p in _conditions(x.predicate) if p not in self.strip]
        mask = None
        if predicates:
            mask = self.compute(_all(predicates))
            self.want(mask)
        v = self.access("vld", "vga", b, _one(x.indices), lanes, mask, None)
        if mask is not None:
            self.unwant(mask)
        v.kept = True
        self.loaded[key] = v
        return v

    def access(self, strided: str, indexed: str, b: Buffer, index: Expr, lanes: int, mask: Vector | None, value: Vector | None) -> Vector:
        """A load, if there is no value, or a store."""
        size = b.dtype.bytes
        suffix = ("b" if size == 1 else "") + ("m" if mask is not None else "")
        with self.temporaries():
            ramp = self.ramp(index)
            if ramp is not None:
                base, imm = self.address(b, (ramp[0],))
                step = int_const(ramp[1])
                if step is not None:
                    stride = self.constant(step * size)
                else:
                    r = self.integer(ramp[1])
                    stride = self.get_a()
                    self.emit("mul", stride, r, self.constant(size))
                held: list[Vector] = []
                name, operands = strided + suffix, [base, stride]
            else:
                i = self.compute(index)
                self.want(i)
                held = [i]
                base, imm = self.places[b.name], 0
                name, operands = indexed + suffix, [base, self.use(i)]
            if mask is not None:
                operands.append(self.use(mask))
            target = value
            if target is None:
                self.lanes(lanes)
                target = self.vector(lanes)
                register = target.register or 0
            else:
                register = self.use(target)
                self.lanes(lanes)
            self.emit(name, register, *operands, imm=imm)
            if value is not None:
                self.done(target)
            if mask is not None:
                self.done(mask)
            for v in held:
                self.done(v)
                self.unwant(v)
        return target

    def row(self, b: Buffer, index: Expr, lanes: int) -> int:
        """The register of a row of a buffer in registers."""
        ramp = self.ramp(index) if index.dtype.lanes > 1 else (index, const(1, dt.int64))
        at = int_const(ramp[0]) if ramp else None
        if ramp is None or at is None or int_const(ramp[1]) != 1:
            raise Lacks(f"the part {index} of registers ({b.name})")
        length, size, registers = self.rows[b.name]
        if length == 0:
            length = lanes
            self.drop_loads()
            self.drop_pure()
            if size % lanes or size // lanes > len(self.free_v) - 3:
                raise Lacks(f"{size} elements of {b.name} in rows of {lanes} in registers")
            registers.extend(self.free_v.pop() for _ in range(size // lanes))
            self.rows[b.name] = (length, size, registers)
        if length != lanes or at % length:
            raise Lacks(f"the part {index} of registers ({b.name})")
        return registers[at // length]

    # statements

    def write(self, s: Stmt) -> None:
        match s:
            case loop.Seq():
                for t in s.stmts:
                    self.write(t)
            case loop.For():
                self.for_(s)
            case loop.While():
                self.park()
                top, end = self.label(), self.label()
                self.here(top)
                with self.temporaries():
                    self.emit("jump_zero", self.integer(s.cond), imm=end)
                self.write(s.body)
                self.park()
                self.emit("jump", imm=top)
                self.here(end)
            case loop.If():
                self.park()
                other, end = self.label(), self.label()
                with self.temporaries():
                    self.emit("jump_zero", self.integer(s.cond), imm=other)
                self.write(s.then)
                self.park()
                if s.orelse is not None:
                    self.emit("jump", imm=end)
                self.here(other)
                if s.orelse is not None:
                    self.write(s.orelse)
                    self.park()
                self.here(end)
            case loop.Let():
                self.let(s)
            case loop.Allocate():
                self.allocate(s)
            case loop.Store():
                self.store(s)
            case loop.AtomicUpdate():
                old = Load(s.buffer, s.indices)
                op = {"add": e.add, "min": e.minimum, "max": e.maximum}[s.op]
                if s.value.dtype.lanes > 1:
                    raise Lacks("atomic updates of vectors")
                self.store(loop.Store(s.buffer, s.indices, op(old, s.value)))
            case loop.Evaluate():
                if s.call.name != PREFETCH:
                    self.call(s.call)
            case _:
                raise Lacks(f"the statement {type(s).__name__}")

    def for_(self, s: loop.For) -> None:
        if s.kind not in ("serial", "parallel"):
            raise Lacks(f"{s.kind} loops")
        self.park()
        i, end = self.get_a(), self.get_a()
        self.fixed += [i, end]
        with self.temporaries():
            self.emit("mov", end, self.integer(s.extent))
        self.emit("li", i)
        self.variables[s.var.name] = i
        top, out = self.label(), self.label()
        count = int_const(s.extent)
        if count is None or count < 1:
            self.emit("jump_less", self.constant(0), end, imm=top)
            self.emit("jump", imm=out)
        self.here(top)
        self.write(s.body)
        self.park()
        self.emit("addi", i, i, imm=1)
        self.emit("jump_less", i, end, imm=top)
        self.here(out)
        del self.variables[s.var.name]
        self.fixed = [n for n in self.fixed if n not in (i, end)]
        self.free_a += [i, end]

    def let(self, s: loop.Let) -> None:
        name = s.var.name
        if s.value.dtype.lanes > 1:
            v = self.compute(s.value)
            for known in (self.pure, self.loaded):
                for key in [k for k, other in known.items() if other is v]:
                    del known[key]
                    v.kept = False
            if v.kept or any(v is known for known in self.variables.values()):
                copy = self.vector(v.lanes)
                self.emit("vmov", copy.register or 0, v.register or 0)
                self.finish(v)
                v = copy
            v.kept = True
            self.done(v)
            self.variables[name] = v
            self.write(s.body)
            v.kept = False
            del self.variables[name]
            self.release(v)
            return
        floating = s.value.dtype.is_float
        d = self.get_s() if floating else self.get_a()
        with self.temporaries():
            if floating:
                self.emit("fmov", d, self.floating(s.value))
            else:
                self.emit("mov", d, self.integer(s.value))
        self.variables[name] = d
        self.drop_loads()
        self.write(s.body)
        self.drop_loads()
        del self.variables[name]
        (self.free_s if floating else self.free_a).append(d)

    def allocate(self, s: loop.Allocate) -> None:
        b = s.buffer
        size = _one(b.shape)
        if b.scope == REGISTERS:
            n = int_const(size)
            if n is None:
                raise Lacks("registers of a size that is not known")
            self.rows[b.name] = (0, n, [])
            self.write(s.body)
            self.free_v += self.rows.pop(b.name)[2]
            return
        dims = {d.name for d in self.program.dims}
        if not set(e.free_vars(size)) <= dims:
            raise Lacks(f"memory of a size that varies inside a kernel ({b.name})")
        self.scratch.append(e.mul(size, const(b.dtype.bytes, dt.int64)))
        place = self.get_a()
        self.places[b.name] = place
        self.emit("ld8", place, 0, imm=8 * (len(self.program.params) + len(self.scratch) - 1))
        self.write(s.body)
        self.drop_loads()
        self.free_a.append(place)

    def store(self, s: loop.Store) -> None:
        index = _one(s.indices)
        lanes = max(s.value.dtype.lanes, index.dtype.lanes)
        if s.buffer.name in self.rows:
            self.register_store(s, index, lanes)
            return
        if lanes == 1:
            self.scalar_store(s, index)
            return
        value = s.value if s.value.dtype.lanes == lanes else e.Broadcast(s.value, lanes)
        end: int | None = None
        conditions = _conditions(s.predicate)
        for p in conditions:
            limit = self.prefix(p)
            if limit is not None:
                self.drop_loads()
                known = int_const(limit)
                if known is None:
                    end = self.get_a()
                    self.fixed.append(end)
                    with self.temporaries():
                        self.emit("mov", end, self.integer(limit))
                self.strip, self.strip_length = (p,), ("c", max(known, 0)) if known is not None else ("r", end or 0)
                conditions.remove(p)
                break
        mask = None
        v = self.compute(value)
        self.want(v)
        if conditions:
            mask = self.compute(_all(conditions))
            self.want(mask)
        self.access("vst", "vsc", s.buffer, index, lanes, mask, v)
        if mask is not None:
            self.unwant(mask)
        self.unwant(v)
        self.drop_loads()
        if self.strip:
            self.strip, self.strip_length = (), None
        if end is not None:
            self.drop_pure()
            self.length = None
            self.fixed.remove(end)
            self.free_a.append(end)

    def prefix(self, p: Expr) -> Expr | None:
        """How many of the first lanes a condition lets pass, if it is such a condition; 0 or less is none."""
        if isinstance(p, e.Lt):
            a, b = self.ramp(p.a), self.ramp(p.b)
            if a is not None and b is not None and int_const(a[1]) == 1 and int_const(b[1]) == 0 and p.a.dtype.scalar.name == "int64":
                return e.minimum(e.sub(b[0], a[0]), const(p.dtype.lanes, dt.int64))
        return None

    def register_store(self, s: loop.Store, index: Expr, lanes: int) -> None:
        if s.predicate is not None:
            raise Lacks(f"conditions on registers ({s.buffer.name})")
        row = self.row(s.buffer, index, lanes)
        v = self.compute(s.value if s.value.dtype.lanes == lanes else e.Broadcast(s.value, lanes))
        self.emit("vmov", row, v.register or 0)
        self.finish(v)

    def scalar_store(self, s: loop.Store, index: Expr) -> None:
        with self.temporaries():
            end = None
            if s.predicate is not None:
                end = self.label()
                self.emit("jump_zero", self.integer(s.predicate), imm=end)
            certain, self.certain = self.certain, self.certain and end is None
            r = self.floating(s.value) if s.value.dtype.is_float else self.integer(s.value)
            a, imm = self.address(s.buffer, (index,))
            self.certain = certain
            self.emit("fst" if s.value.dtype.is_float else "st1" if s.buffer.dtype.bytes == 1 else "st4", a, r, imm=imm)
            if end is not None:
                self.labels[end] = len(self.code)
        self.drop_loads()

    def call(self, call: IntrinsicCall) -> None:
        """The chip's own instructions, which `tensorize` put there."""
        found = INSTRUCTION.match(call.name)
        if found is None:
            raise Lacks(f"the instruction {call.name}")
        kind, n, form = found[1], int(found[2]), found[3]
        c = call.args[-1]
        assert isinstance(c, Load)
        if kind == "axpy":
            row = self.row(c.buffer, _one(c.indices), n)
            with self.temporaries():
                self.lanes(n)
                if form != "_update":
                    self.emit("vfset", row, self.number(0.0))
                if form != "_start":
                    a, b, stride, _ = call.args
                    assert isinstance(a, Load) and isinstance(b, Load)
                    factor = self.floating(Load(a.buffer, a.indices))
                    v = self.line(b.buffer, _one(b.indices), stride, n)
                    self.emit("vmadd", row, factor, v.register or 0)
                    self.done(v)
            return
        with self.temporaries():
            base, imm = self.address(c.buffer, c.indices)
            if form == "_start":
                self.emit("fst", base, self.number(0.0 if kind == "sum" else float("-inf")), imm=imm)
            else:
                a, stride, _ = call.args
                assert isinstance(a, Load)
                self.lanes(n)
                v = self.line(a.buffer, _one(a.indices), stride, n)
                d = self.get_s()
                self.emit("vf" + kind, d, v.register or 0)
                self.done(v)
                if form == "_update":
                    old = self.get_s()
                    self.emit("fld", old, base, imm=imm)
                    self.emit({"sum": "fadd", "max": "fmax"}[kind], d, old, d)
                self.emit("fst", base, d, imm=imm)
        self.drop_loads()

    def line(self, b: Buffer, first: Expr, stride: Expr, n: int) -> Vector:
        """n elements of a buffer, which are perhaps in a register yet."""
        key = (b.name, first, stride, self.length)
        if key in self.loaded:
            v = self.loaded[key]
            self.use(v)
            return v
        with self.temporaries():
            base, imm = self.address(b, (first,))
            step = int_const(stride)
            if step is not None:
                by = self.constant(step * b.dtype.bytes)
            else:
                r = self.integer(stride)
                by = self.get_a()
                self.emit("mul", by, r, self.constant(b.dtype.bytes))
            v = self.vector(n)
            self.emit("vld", v.register or 0, base, by, imm=imm)
        v.kept = True
        self.loaded[key] = v
        return v

    # the whole

    def whole(self) -> KernelCode:
        """The kernel's code."""
        p = self.program
        for b in p.params:
            self.places[b.name] = self.get_a()
        for d in p.dims:
            self.variables[d.name] = self.get_a()
        fixed = [self.places[b.name] for b in p.params]
        dims = [self.variables[d.name] for d in p.dims]
        self.write(p.body)
        self.emit("halt")
        if self.spilled:
            self.scratch.append(const(self.slots * 4 * LANES, dt.int64))
        buffers = len(p.params) + len(self.scratch)
        prologue = [Instruction("ld8", r, imm=8 * n) for n, r in enumerate(fixed)]
        prologue += [Instruction("ld8", r, imm=8 * (buffers + n)) for n, r in enumerate(dims) if isinstance(r, int)]
        if self.spilled:
            prologue.append(Instruction("ld8", SPILL, imm=8 * (buffers - 1)))
        prologue += [Instruction("li", r, imm=value) for value, r in self.constants.items()]
        prologue += [Instruction("fli", r, imm=bits) for bits, r in self.numbers.items()]
        code = prologue + [i._replace(imm=self.labels[i.imm] + len(prologue)) if FORMS[i.name].immediate == "t" else i for i in self.code]
        return KernelCode(p.name, encode(code, buffers + len(p.dims)), tuple(self.scratch))


def _bits(value: float) -> int:
    try:
        word: int = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        word = 0x7F800000 if value > 0 else 0xFF800000
    return word


def _one(indices: Sequence[Expr]) -> Expr:
    if len(indices) > 1:
        raise Lacks("buffers of several dimensions")
    return indices[0] if indices else const(0, dt.int64)


def _conditions(p: Expr | None) -> list[Expr]:
    if p is None:
        return []
    return [*_conditions(p.a), *_conditions(p.b)] if isinstance(p, e.And) else [p]


def _all(conditions: Sequence[Expr]) -> Expr:
    result = conditions[0]
    for c in conditions[1:]:
        result = e.And(result, c)
    return result


class WaveCodegen:
    """Writes kernels of wave."""

    functions = FUNCTIONS

    def check(self, program: Program) -> list[str]:
        found = lacks(program)
        if found:
            return found
        try:
            Kernel(program).whole()
        except Lacks as error:
            return [str(error)]
        return []

    def compile(self, program: Program) -> KernelCode:
        return Kernel(program).whole()

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        try:
            done.set_result(self.compile(program))
        except Exception as error:  # it is the future's to raise it
            done.set_exception(error)
        return done
