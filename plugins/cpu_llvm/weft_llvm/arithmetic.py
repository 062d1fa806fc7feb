"""Values and operations on values, in LLVM IR text: everything about arithmetic and nothing about loops or buffers.

What LLVM would lower to a call of a C library is spelt out here: no process has those symbols when our loader maps an
image. fp16 without arithmetic in hardware, bfloat16, fp8 and fp4 ("soft" types) are carried as integers of their
storage width and computed in fp32, rounded after every operation, which is what numpy does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError

if TYPE_CHECKING:
    from weft_llvm.target import Isa


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: LLVM text (a name or a constant) of type `value_type(dtype)`. `impure` if a load went into it."""

    text: str
    dtype: DType
    impure: bool = False
    never_nan: bool = False


@dataclass
class Function:
    """Text of a function under construction. Stack slots go to the front of the entry block, where LLVM promotes
    them."""

    header: str
    slots: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    block: str = "entry"

    def text(self) -> str:
        return "\n".join([self.header + " {", "entry:", *self.slots, *self.lines, "}"])


class Arithmetic:
    """Emits instructions into the current function."""

    isa: Isa
    _fn: Function
    _counter: int
    _declared: dict[str, str]
    _helpers: dict[str, str]
    _metadata: list[str]
    _align_md: dict[int, str]
    _vectors: int

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.soft = frozenset(
            d.name
            for d in dt.all_dtypes()
            if d.is_float and d.bits < 32 and not (d.name == "float16" and "half" in isa.has)
        )
        self.x86 = isa.arch in ("x86_64", "i386", "i686")

    # -- text -----------------------------------------------------------------------------------------------------

    def _md(self, text: str) -> str:
        name = f"!{len(self._metadata)}"
        self._metadata.append(text.replace("!self", name))
        return name

    def _name(self, stem: str = "v") -> str:
        self._counter += 1
        return f"%{stem}{self._counter}"

    def _line(self, text: str) -> None:
        self._fn.lines.append("  " + text)

    def _op(self, text: str) -> str:
        name = self._name()
        self._fn.lines.append(f"  {name} = {text}")
        return name

    def _label(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}{self._counter}"

    def _start(self, label: str) -> None:
        self._fn.lines.append(f"{label}:")
        self._fn.block = label

    def _slot(self, type_: str, align: int = 0) -> str:
        name = self._name("slot")
        self._fn.slots.append(f"  {name} = alloca {type_}" + (f", align {align}" if align else ""))
        return name

    def _gep(self, type_: str, pointer: str, index: str, inbounds: bool = True) -> str:
        return (
            pointer
            if index == "0"
            else self._op(f"getelementptr {'inbounds ' if inbounds else ''}{type_}, ptr {pointer}, i64 {index}")
        )

    def _align(self, align: int) -> str:
        if align not in self._align_md:
            self._align_md[align] = self._md(f"!{{i64 {align}}}")
        return self._align_md[align]

    def _load_pointer(self, array: str, index: int, align: int) -> str:
        md = f", !align {self._align(align)}" if align > 1 else ""
        return self._op(f"load ptr, ptr {self._gep('ptr', array, str(index))}, align 8{md}")

    def intrinsic(self, result: str, name: str, *args: tuple[str, str]) -> str:
        """A call of an LLVM intrinsic, declared on first use; the name of its result, or "" if void."""
        types = ", ".join(t for t, _ in args)
        self._declared.setdefault(name, f"declare {result} @{name}({types})")
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self._line(text)
            return ""
        return self._op(text)

    def op(self, text: str, dtype: DType, *parts: Value, never_nan: bool = False) -> Value:
        """An instruction whose purity follows from the operands it was made of."""
        return Value(self._op(text), dtype, any(p.impure for p in parts), never_nan)

    # -- types ----------------------------------------------------------------------------------------------------

    def scalar_type(self, d: DType) -> str:
        if d.name in self.soft:
            return f"i{max(8, d.bits)}"
        match d.kind:
            case "bool":
                return "i1"
            case "int" | "uint":
                return f"i{d.bits}"
            case "handle":
                return "ptr"
        return {"float16": "half", "float32": "float", "float64": "double"}[d.name]

    def value_type(self, d: DType) -> str:
        if d.kind == "complex":
            part = self.value_type(part_of(d))
            return f"{{ {part}, {part} }}"
        base = self.scalar_type(d)
        return base if d.lanes == 1 else f"<{d.lanes} x {base}>"

    def memory_type(self, d: DType) -> str:
        base = "i8" if d.bits < 8 else self.scalar_type(d)
        return base if d.lanes == 1 else f"<{d.lanes} x {base}>"

    def llvm_suffix(self, d: DType) -> str:
        """The type as intrinsics' names spell it."""
        base = {"half": "f16", "float": "f32", "double": "f64"}.get(self.scalar_type(d), self.scalar_type(d))
        return base if d.lanes == 1 else f"v{d.lanes}{base}"

    # -- constants ------------------------------------------------------------------------------------------------

    def const(self, value: Any, d: DType) -> Value:
        if d.kind == "complex":
            part = part_of(d)
            re, im = (self.const(x, part) for x in (complex(value).real, complex(value).imag))
            t = self.value_type(part)
            return Value(f"{{ {t} {re.text}, {t} {im.text} }}", d)
        text = self._scalar_const(value, d.scalar)
        never_nan = d.is_float and value == value
        if d.lanes > 1:
            text = (
                "zeroinitializer"
                if text in ("0", "false", "0x0000000000000000")
                else f"splat ({self.scalar_type(d.scalar)} {text})"
            )
        return Value(text, d, never_nan=never_nan)

    def _scalar_const(self, value: Any, d: DType) -> str:
        if d.is_bool:
            return "true" if value else "false"
        if d.is_integer:
            return str(int(value))
        if d.name in self.soft or d.name == "float16":
            bits = int.from_bytes(d.numpy.type(value).tobytes(), "little")
            return str(bits) if d.name in self.soft else f"0xH{bits:04X}"
        if d.name == "float32":
            import numpy as np

            with np.errstate(all="ignore"):
                value = float(np.float32(value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"

    def zero(self, d: DType) -> Value:
        return self.const(0, d)

    # -- vectors --------------------------------------------------------------------------------------------------

    def splat(self, v: Value, lanes: int) -> Value:
        d = v.dtype.with_lanes(lanes)
        if lanes == 1 or v.dtype.lanes == lanes:
            return v
        if d.kind == "complex":
            re, im = self.parts(v)
            return self.join(self.splat(re, lanes), self.splat(im, lanes), d)
        self._vectors += 1
        if not v.text.startswith("%"):
            text = "zeroinitializer" if v.text in ("0", "false") else f"splat ({self.scalar_type(v.dtype)} {v.text})"
            return Value(text, d, v.impure, v.never_nan)
        t = self.value_type(d)
        one = self._op(f"insertelement {t} poison, {self.scalar_type(v.dtype)} {v.text}, i64 0")
        return self.op(
            f"shufflevector {t} {one}, {t} poison, <{lanes} x i32> zeroinitializer", d, v, never_nan=v.never_nan
        )

    def element(self, v: Value, lane: int) -> Value:
        d = v.dtype.scalar
        if v.dtype.lanes == 1:
            return v
        if d.kind == "complex":
            re, im = self.parts(v)
            return self.join(self.element(re, lane), self.element(im, lane), d)
        return self.op(f"extractelement {self.value_type(v.dtype)} {v.text}, i64 {lane}", d, v)

    def assemble(self, elements: list[Value]) -> Value:
        d = elements[0].dtype.with_lanes(len(elements))
        if d.kind == "complex":
            pairs = [self.parts(e) for e in elements]
            return self.join(self.assemble([p[0] for p in pairs]), self.assemble([p[1] for p in pairs]), d)
        self._vectors += 1
        t, text = self.value_type(d), "poison"
        for i, e in enumerate(elements):
            text = self._op(f"insertelement {t} {text}, {self.scalar_type(e.dtype)} {e.text}, i64 {i}")
        return Value(text, d, any(e.impure for e in elements))

    def each_lane(self, f: Callable[..., Value], *args: Value) -> Value:
        """`f` on scalars, lane by lane."""
        lanes = args[0].dtype.lanes
        return self.assemble([f(*(self.element(a, i) for a in args)) for i in range(lanes)]) if lanes > 1 else f(*args)

    def parts(self, v: Value) -> tuple[Value, Value]:
        """Real and imaginary part of a complex value."""
        t, part = self.value_type(v.dtype), part_of(v.dtype)
        return self.op(f"extractvalue {t} {v.text}, 0", part, v), self.op(f"extractvalue {t} {v.text}, 1", part, v)

    def join(self, re: Value, im: Value, d: DType) -> Value:
        t, part = self.value_type(d), self.value_type(re.dtype)
        first = self._op(f"insertvalue {t} poison, {part} {re.text}, 0")
        return self.op(f"insertvalue {t} {first}, {part} {im.text}, 1", d, re, im)

    # -- selection, comparison, logic -----------------------------------------------------------------------------

    def select(self, c: Value, a: Value, b: Value) -> Value:
        if a.dtype.kind == "complex":
            (ar, ai), (br, bi) = self.parts(a), self.parts(b)
            return self.join(self.select(c, ar, br), self.select(c, ai, bi), a.dtype)
        if c.text in ("true", "false"):
            return a if c.text == "true" else b
        t = self.value_type(a.dtype)
        return self.op(
            f"select {self.value_type(c.dtype)} {c.text}, {t} {a.text}, {t} {b.text}",
            a.dtype,
            c,
            a,
            b,
            never_nan=a.never_nan and b.never_nan,
        )

    def compare(self, symbol: str, a: Value, b: Value) -> Value:
        """One of < <= == != ; false with NaN but for !=."""
        d = dt.bool_.with_lanes(a.dtype.lanes)
        if a.dtype.name in self.soft:
            a, b = self.widen(a), self.widen(b)
        if a.dtype.kind == "complex":
            (ar, ai), (br, bi) = self.parts(a), self.parts(b)
            if symbol in ("<", "<="):  # lexicographic, as numpy orders
                less, same = self.compare("<", ar, br), self.compare("==", ar, br)
                return self.logic("or", less, self.logic("and", same, self.compare(symbol, ai, bi)))
            return self.logic(
                "and" if symbol == "==" else "or", self.compare(symbol, ar, br), self.compare(symbol, ai, bi)
            )
        t = self.value_type(a.dtype)
        if a.dtype.is_float:
            return self.op(f"fcmp {_FLOAT_PREDICATES[symbol]} {t} {a.text}, {b.text}", d, a, b)
        signed = "s" if a.dtype.kind == "int" else "u"
        predicate = {"<": signed + "lt", "<=": signed + "le", "==": "eq", "!=": "ne"}[symbol]
        return self.op(f"icmp {predicate} {t} {a.text}, {b.text}", d, a, b)

    def logic(self, op: str, a: Value, b: Value) -> Value:
        """and, or, xor of bools or integers."""
        return self.op(f"{op} {self.value_type(a.dtype)} {a.text}, {b.text}", a.dtype, a, b)

    def invert(self, a: Value) -> Value:
        return self.logic("xor", a, self.const(True, a.dtype))

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def binary(self, symbol: str, a: Value, b: Value, nsw: bool = False) -> Value:
        """The operation of a Binary node that needs no knowledge of ranges."""
        d = a.dtype
        if symbol in _FLOAT_PREDICATES:
            return self.compare(symbol, a, b)
        if d.name in self.soft:
            return self.narrow(self.binary(symbol, self.widen(a), self.widen(b)), d)
        if d.kind == "complex":
            return self._complex(symbol, a, b)
        if d.is_bool:
            op = {
                "+": "or",
                "*": "and",
                "min": "and",
                "max": "or",
                "and": "and",
                "or": "or",
                "&": "and",
                "|": "or",
                "^": "xor",
            }.get(symbol)
            if op is None:
                raise CodegenError(f"'{symbol}' of bools has no meaning", hint="cast to an integer first")
            return self.logic(op, a, b)
        t = self.value_type(d)
        if d.is_float:
            match symbol:
                case "+" | "-" | "*":
                    # Contraction to one rounding is the only liberty taken with floats.
                    name = {"+": "fadd", "-": "fsub", "*": "fmul"}[symbol]
                    return self.op(f"{name} contract {t} {a.text}, {b.text}", d, a, b)
                case "/":
                    return self.op(f"fdiv {t} {a.text}, {b.text}", d, a, b)
                case "min" | "max":
                    return self._extreme(symbol, a, b)
                case "truncmod":
                    return self.float_remainder(a, b)
                case "%":
                    return self._float_modulo(a, b)
                case "//":
                    return self.function("floor", self.op(f"fdiv {t} {a.text}, {b.text}", d, a, b))
                case "truncdiv":
                    return self.function("trunc", self.op(f"fdiv {t} {a.text}, {b.text}", d, a, b))
        else:
            match symbol:
                case "+" | "-" | "*":
                    name = {"+": "add", "-": "sub", "*": "mul"}[symbol]
                    return self.op(f"{name}{' nsw' if nsw else ''} {t} {a.text}, {b.text}", d, a, b)
                case "min" | "max":
                    name = f"llvm.{'s' if d.kind == 'int' else 'u'}{symbol}.{self.llvm_suffix(d)}"
                    return Value(self.intrinsic(t, name, (t, a.text), (t, b.text)), d, a.impure or b.impure)
                case "&" | "|" | "^" | "and" | "or":
                    return self.logic({"&": "and", "|": "or", "^": "xor"}.get(symbol, symbol), a, b)
                case "<<" | ">>":
                    return self._shift(symbol, a, b)
                case "//" | "%" | "truncdiv" | "truncmod":
                    return self.divide(symbol, a, b)
        raise CodegenError(f"'{symbol}' of {d} has no meaning")

    def _extreme(self, symbol: str, a: Value, b: Value) -> Value:
        """NaN if either is. x86's own instruction gives its second operand then, so one that is never NaN goes
        first."""
        d, t = a.dtype, self.value_type(a.dtype)
        impure = a.impure or b.impure
        if not self.x86:
            name = f"llvm.{symbol}imum.{self.llvm_suffix(d)}"
            return Value(self.intrinsic(t, name, (t, a.text), (t, b.text)), d, impure, a.never_nan and b.never_nan)
        if b.never_nan and not a.never_nan:
            a, b = b, a
        c = self._op(f"fcmp {'ogt' if symbol == 'max' else 'olt'} {t} {a.text}, {b.text}")
        mask = self.value_type(dt.bool_.with_lanes(d.lanes))
        r = self._op(f"select {mask} {c}, {t} {a.text}, {t} {b.text}")
        if not a.never_nan:
            nan = self._op(f"fcmp uno {t} {a.text}, {a.text}")
            r = self._op(f"select {mask} {nan}, {t} {a.text}, {t} {r}")
        return Value(r, d, impure, a.never_nan and b.never_nan)

    def _shift(self, symbol: str, a: Value, b: Value) -> Value:
        """LLVM leaves shifts by the width or more undefined; we do not."""
        d, t, bits = a.dtype, self.value_type(a.dtype), a.dtype.bits
        arithmetic = symbol == ">>" and d.kind == "int"
        op = "shl" if symbol == "<<" else "ashr" if arithmetic else "lshr"
        word = DType(f"uint{bits}", "uint", bits, d.lanes)
        unsigned = Value(b.text, word, b.impure)
        inside = self.compare("<", unsigned, self.const(bits, word))
        amount = self.select(inside, b, self.const(bits - 1 if arithmetic else 0, d))
        shifted = self.op(f"{op} {t} {a.text}, {amount.text}", d, a, b)
        return shifted if arithmetic else self.select(inside, shifted, self.zero(d))

    def divide(
        self, symbol: str, a: Value, b: Value, nonnegative: bool = False, safe: bool = False, by: int | None = None
    ) -> Value:
        """Integer division or remainder.

        Args:
            nonnegative: neither operand is negative (so that rounding down and towards zero agree).
            safe: the divisor is neither 0 nor -1. Else a divisor that would trap is replaced: both sides of a select
                are computed.
            by: the divisor's value, if it is a constant.
        """
        d, t = a.dtype, self.value_type(a.dtype)
        remainder = symbol in ("%", "truncmod")
        unsigned = d.kind == "uint" or nonnegative
        if by is not None and by > 0:
            safe = True
            shift = by.bit_length() - 1
            if by == 1 << shift and (unsigned or symbol in ("//", "%")):
                if remainder:
                    return self.op(f"and {t} {a.text}, {self.const(by - 1, d).text}", d, a)
                return self.op(f"{'lshr' if unsigned else 'ashr'} {t} {a.text}, {self.const(shift, d).text}", d, a)
        elif by is not None and by < -1:
            safe = True
        if not safe:
            bad = self.compare("==", b, self.zero(d))
            if d.kind == "int" and not nonnegative:
                lowest = self.compare("==", a, self.const(-(1 << (d.bits - 1)), d))
                bad = self.logic("or", bad, self.logic("and", lowest, self.compare("==", b, self.const(-1, d))))
            # Least value / -1 wraps to the least value, which is what division by 1 gives.
            b = self.select(bad, self.const(1, d), b)
        if unsigned:
            return self.op(f"{'urem' if remainder else 'udiv'} {t} {a.text}, {b.text}", d, a, b)
        rest = self.op(f"srem {t} {a.text}, {b.text}", d, a, b)
        if symbol == "truncmod":
            return rest
        quotient = rest if remainder else self.op(f"sdiv {t} {a.text}, {b.text}", d, a, b)
        if symbol == "truncdiv":
            return quotient
        if by is not None and by > 0:
            away = self.compare("<", rest, self.zero(d))
        else:
            opposite = self.compare("<", self.logic("xor", rest, b), self.zero(d))
            away = self.logic("and", opposite, self.compare("!=", rest, self.zero(d)))
        if remainder:
            return self.select(away, self.op(f"add {t} {rest.text}, {b.text}", d, rest, b), rest)
        return self.op(
            f"add {t} {quotient.text}, {self._op(f'sext {self.value_type(away.dtype)} {away.text} to {t}')}",
            d,
            quotient,
            away,
        )

    def float_remainder(self, a: Value, b: Value) -> Value:
        """fmod, exact. A long division on the bits: LLVM's frem would call the C library."""
        if a.dtype.lanes > 1:
            return self.each_lane(self.float_remainder, a, b)
        d, t = a.dtype, self.value_type(a.dtype)
        if d.name == "float16":
            return self.narrow_native(self.float_remainder(self.cast(a, dt.float32), self.cast(b, dt.float32)), d)
        name = f"weft.fmod.{self.llvm_suffix(d)}"
        if name not in self._helpers:
            self._helpers[name] = _fmod_text(name, t, d.bits)
        return self.op(f"call {t} @{name}({t} {a.text}, {t} {b.text})", d, a, b)

    def narrow_native(self, v: Value, d: DType) -> Value:
        return self.op(f"fptrunc {self.value_type(v.dtype)} {v.text} to {self.value_type(d)}", d, v)

    def _float_modulo(self, a: Value, b: Value) -> Value:
        """Sign of the divisor; a zero result too."""
        rest = self.float_remainder(a, b)
        zero = self.zero(a.dtype)
        opposite = self.logic("xor", self.compare("<", rest, zero), self.compare("<", b, zero))
        moved = self.op(f"fadd {self.value_type(a.dtype)} {rest.text}, {b.text}", a.dtype, rest, b)
        nonzero = self.compare("!=", rest, zero)
        return self.select(nonzero, self.select(opposite, moved, rest), self.function("copysign", zero, b))

    def _complex(self, symbol: str, a: Value, b: Value) -> Value:
        d = a.dtype
        (ar, ai), (br, bi) = self.parts(a), self.parts(b)
        f = self.binary
        match symbol:
            case "+" | "-":
                return self.join(f(symbol, ar, br), f(symbol, ai, bi), d)
            case "*":
                return self.join(f("-", f("*", ar, br), f("*", ai, bi)), f("+", f("*", ar, bi), f("*", ai, br)), d)
            case "/":
                # Smith: divide through by the larger part of the divisor, or squares overflow.
                larger = self.compare("<=", self.function("abs", bi), self.function("abs", br))
                p, q = self.select(larger, br, bi), self.select(larger, bi, br)
                ratio = f("/", q, p)
                scale = f("+", p, f("*", q, ratio))
                re1, im1 = f("+", ar, f("*", ai, ratio)), f("-", ai, f("*", ar, ratio))
                re2, im2 = f("+", f("*", ar, ratio), ai), f("-", f("*", ai, ratio), ar)
                return self.join(
                    f("/", self.select(larger, re1, re2), scale), f("/", self.select(larger, im1, im2), scale), d
                )
        raise CodegenError(f"'{symbol}' of {d} has no meaning")

    # -- functions ------------------------------------------------------------------------------------------------

    def function(self, name: str, *args: Value) -> Value:
        """A function of FUNCTIONS."""
        a = args[0]
        d, t = a.dtype, self.value_type(a.dtype)
        if d.name in self.soft:
            if name == "fma":
                # The product is exact in fp64 and the sum rounds to odd, so the last rounding is the only one.
                wide = [self.cast(x, dt.float64.with_lanes(d.lanes)) for x in args]
                return self.cast(self._odd_sum(self.binary("*", wide[0], wide[1]), wide[2]), d)
            result = self.function(name, *(self.widen(x) for x in args))
            return result if result.dtype.is_bool else self.narrow(result, d)
        flag = dt.bool_.with_lanes(d.lanes)
        match name:
            case "isnan":
                return self.op(f"fcmp uno {t} {a.text}, {a.text}", flag, a) if d.is_float else self.const(False, flag)
            case "isinf":
                return (
                    self.compare("==", self.function("abs", a), self.const(float("inf"), d))
                    if d.is_float
                    else self.const(False, flag)
                )
            case "popcount":
                return Value(self.intrinsic(t, f"llvm.ctpop.{self.llvm_suffix(d)}", (t, a.text)), d, a.impure)
            case "abs" if d.is_integer:
                if d.kind == "uint":
                    return a
                return Value(
                    self.intrinsic(t, f"llvm.abs.{self.llvm_suffix(d)}", (t, a.text), ("i1", "false")), d, a.impure
                )
            case "abs" if d.is_bool:
                return a
            case "floor" | "ceil" | "trunc" | "round" if d.is_integer or d.is_bool:
                return a
            case "floor" | "ceil" | "trunc" | "round" if "rounding" not in self.isa.has:
                return self._round_by_parts(name, a)
            case "fma" if "fma" not in self.isa.has:
                return self._fma_by_parts(*args)
        if not d.is_float:
            raise CodegenError(f"{name} of {d} has no meaning")
        llvm_name = {"round": "roundeven", "abs": "fabs"}.get(name, name)
        operands = [(t, x.text) for x in args]
        never = name in ("abs", "floor", "ceil", "trunc", "round") and a.never_nan
        return Value(
            self.intrinsic(t, f"llvm.{llvm_name}.{self.llvm_suffix(d)}", *operands),
            d,
            any(x.impure for x in args),
            never,
        )

    def _round_by_parts(self, name: str, a: Value) -> Value:
        """Rounding to an integer on CPUs without the instruction: adding 2^(mantissa) rounds, as hardware rounds to
        even."""
        d, t = a.dtype, self.value_type(a.dtype)
        limit = self.const(float(1 << (23 if d.bits == 32 else 52)), d)
        size = self.function("abs", a)
        # No contraction here: the sum must round.
        up = self.op(f"fadd {t} {size.text}, {limit.text}", d, size)
        rounded = self.op(f"fsub {t} {up.text}, {limit.text}", d, up)
        one, zero = self.const(1.0, d), self.zero(d)
        if name != "round":
            if name == "trunc":
                fix = self.select(self.compare("<", size, rounded), one, zero)
                rounded = self.op(f"fsub {t} {rounded.text}, {fix.text}", d, rounded, fix)
            else:
                signed = self.function("copysign", rounded, a)
                wrong = self.compare("<", a, signed) if name == "floor" else self.compare("<", signed, a)
                fix = self.select(wrong, one, zero)
                moved = self.op(
                    f"{'fsub' if name == 'floor' else 'fadd'} {t} {signed.text}, {fix.text}", d, signed, fix
                )
                rounded = self.function("abs", moved)
        result = self.function("copysign", rounded, a)
        return self.select(self.compare("<", size, limit), result, a)

    def _fma_by_parts(self, a: Value, b: Value, c: Value) -> Value:
        d = a.dtype
        if d.bits == 32:
            wide = dt.float64.with_lanes(d.lanes)
            wa, wb, wc = (self.cast(x, wide) for x in (a, b, c))
            return self.cast(
                self._odd_sum(self.op(f"fmul {self.value_type(wide)} {wa.text}, {wb.text}", wide, wa, wb), wc), d
            )
        # fp64 without the instruction: exact product in two parts (Dekker), one rounding almost always; two in rare
        # ties.
        t = self.value_type(d)

        def o(name: str, x: Value, y: Value) -> Value:
            return self.op(f"{name} {t} {x.text}, {y.text}", d, x, y)

        def split(x: Value) -> tuple[Value, Value]:
            s = o("fmul", x, self.const(134217729.0, d))
            high = o("fsub", s, o("fsub", s, x))
            return high, o("fsub", x, high)

        (ah, al), (bh, bl) = split(a), split(b)
        p = o("fmul", a, b)
        low = o(
            "fadd",
            o("fadd", o("fadd", o("fsub", o("fmul", ah, bh), p), o("fmul", ah, bl)), o("fmul", al, bh)),
            o("fmul", al, bl),
        )
        s = o("fadd", p, c)
        back = o("fsub", s, p)
        err = o("fadd", o("fsub", p, o("fsub", s, back)), o("fsub", c, back))
        exact = o("fadd", s, o("fadd", err, low))
        # Splitting overflows for huge operands; the plain sum is right there.
        return self.select(self.compare("==", exact, exact), exact, s)

    def _odd_sum(self, a: Value, b: Value) -> Value:
        """a + b in fp64 rounded to odd: the inexact last bit survives as a sticky one for a second rounding."""
        d, t = a.dtype, self.value_type(a.dtype)

        def o(name: str, x: Value, y: Value) -> Value:
            return self.op(f"{name} {t} {x.text}, {y.text}", d, x, y)

        s = o("fadd", a, b)
        back = o("fsub", s, a)
        err = o("fadd", o("fsub", a, o("fsub", s, back)), o("fsub", b, back))
        word = dt.int64.with_lanes(d.lanes)
        bits = self.bitcast(s, word)
        zero = self.zero(d)
        inexact = self.compare("!=", err, zero)
        even = self.compare("==", self.logic("and", bits, self.const(1, word)), self.zero(word))
        toward = self.logic("xor", self.compare("<", err, zero), self.compare("<", s, zero))
        step = self.select(toward, self.const(-1, word), self.const(1, word))
        moved = self.op(f"add {self.value_type(word)} {bits.text}, {step.text}", word, bits, step)
        finite = self.compare("==", err, err)
        use = self.logic("and", self.logic("and", inexact, even), finite)
        return self.bitcast(self.select(use, moved, bits), d)

    # -- conversions ----------------------------------------------------------------------------------------------

    def bitcast(self, v: Value, d: DType) -> Value:
        a, b = self.value_type(v.dtype), self.value_type(d)
        return Value(v.text, d, v.impure) if a == b else self.op(f"bitcast {a} {v.text} to {b}", d, v)

    def cast(self, v: Value, to: DType) -> Value:
        """Conversion of the value, as Cast; `to` has the lanes of `v`."""
        a, to = v.dtype, to.with_lanes(v.dtype.lanes)
        if a == to:
            return v
        f32 = dt.float32.with_lanes(a.lanes)
        if a.kind == "complex":
            if to.kind != "complex":
                re, im = self.parts(v)
                return self.logic("or", self.cast(re, to), self.cast(im, to)) if to.is_bool else self.cast(re, to)
            re, im = self.parts(v)
            return self.join(self.cast(re, part_of(to)), self.cast(im, part_of(to)), to)
        if to.kind == "complex":
            re = self.cast(v, part_of(to))
            return self.join(re, self.zero(re.dtype), to)
        if a.name in self.soft:
            wide = self.widen(v)
            return wide if to == f32 else self.cast(wide, to)
        s, t = self.value_type(a), self.value_type(to)
        if to.name in self.soft:
            if a.is_float:
                return self.narrow(self._to_odd_float32(v) if a.bits == 64 else self.cast(v, f32), to)
            return self.narrow(self.cast(v, f32), to)
        if to.is_bool:
            return self.compare("!=", v, self.zero(a))
        if a.is_float and to.is_float:
            if a.bits == 64 and to.bits == 16:
                v, s = self._to_odd_float32(v), self.value_type(f32)
            return self.op(
                f"{'fpext' if to.bits > a.bits else 'fptrunc'} {s} {v.text} to {t}", to, v, never_nan=v.never_nan
            )
        if a.is_float:
            return self._to_integer(v, to)
        if to.is_float:
            return self.op(f"{'sitofp' if a.kind == 'int' else 'uitofp'} {s} {v.text} to {t}", to, v, never_nan=True)
        if to.bits == a.bits:
            return Value(v.text, to, v.impure)
        return self.op(
            f"{'trunc' if to.bits < a.bits else 'sext' if a.kind == 'int' else 'zext'} {s} {v.text} to {t}", to, v
        )

    def _to_integer(self, v: Value, to: DType) -> Value:
        """Never poison. Saturating where that is cheap; where it is not (x86, 32 bits and more), out of range gives any
        value."""
        s, t = self.value_type(v.dtype), self.value_type(to)
        signed = to.kind == "int"
        if self.x86 and signed and to.bits >= 32:
            raw = self.op(f"fptosi {s} {v.text} to {t}", to, v)
            return self.op(f"freeze {t} {raw.text}", to, raw)
        if self.x86 and to.bits < 32 and v.dtype.scalar == dt.float32 and v.dtype.lanes > 1:
            # The intrinsic goes element by element; clamped, by way of int32, it does not.
            low, high = (-(1 << to.bits - 1), (1 << to.bits - 1) - 1) if signed else (0, (1 << to.bits) - 1)
            least, most = self.const(float(low), v.dtype), self.const(float(high), v.dtype)
            if not v.never_nan:
                v = self.select(self.compare("==", v, v), v, self.zero(v.dtype))
            v = self.select(self.compare("<", v, least), least, v)
            v = self.select(self.compare("<", most, v), most, v)
            return self.cast(self._to_integer(v, dt.int32.with_lanes(v.dtype.lanes)), to)
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{self.llvm_suffix(to)}.{self.llvm_suffix(v.dtype)}"
        return Value(self.intrinsic(t, name, (s, v.text)), to, v.impure)

    def nearest_integer(self, v: Value, to: DType) -> Value:
        """round(v) as int32."""
        if not self.x86 or v.dtype.scalar != dt.float64:
            return self.cast(self.function("round", v), to)
        # A sum with 1.5·2^52 rounds to an integer, halves to even, whose low bits are the sum's own; out of range it
        # gives any value, as the conversion does.
        s, word = self.value_type(v.dtype), dt.int64.with_lanes(v.dtype.lanes)
        total = self.op(f"fadd {s} {v.text}, {self.const(1.5 * 2.0**52, v.dtype).text}", v.dtype, v)
        return self.cast(self.bitcast(total, word), to)

    def _to_odd_float32(self, v: Value) -> Value:
        """fp64 → fp32 rounded to odd, so that the next rounding is right."""
        lanes = v.dtype.lanes
        f32, word = dt.float32.with_lanes(lanes), dt.int32.with_lanes(lanes)
        near = self.op(f"fptrunc {self.value_type(v.dtype)} {v.text} to {self.value_type(f32)}", f32, v)
        back = self.function(
            "abs", self.op(f"fpext {self.value_type(f32)} {near.text} to {self.value_type(v.dtype)}", v.dtype, near)
        )
        size = self.function("abs", v)
        bits = self.bitcast(near, word)
        t, mask = self.value_type(word), self.value_type(dt.bool_.with_lanes(lanes))
        beyond = self._op(f"zext {mask} {self.compare('<', size, back).text} to {t}")
        differ = f"fcmp one {self.value_type(v.dtype)} {size.text}, {back.text}"
        sticky = self._op(f"zext {mask} {self.op(differ, dt.bool_.with_lanes(lanes)).text} to {t}")
        low = self._op(f"sub {t} {bits.text}, {beyond}")
        return self.bitcast(self.op(f"or {t} {low}, {sticky}", word, v), f32)

    def _cast_lanes(self, op: str, v: Value, to: DType) -> Value:
        return self.op(f"{op} {self.value_type(v.dtype)} {v.text} to {self.value_type(to)}", to, v)

    def widen(self, v: Value) -> Value:
        """A soft float as fp32; exact."""
        lanes, d = v.dtype.lanes, v.dtype
        f32, word = dt.float32.with_lanes(lanes), dt.uint32.with_lanes(lanes)
        if not v.text.startswith("%") and lanes == 1:
            import numpy as np

            raw = np.array([int(v.text)], np.uint16 if d.bits == 16 else np.uint8).view(d.numpy)
            return self.const(float(raw[0]), f32)
        if d.name == "float16" and "f16c" in self.isa.has:
            half = self._half(lanes)
            raw16 = self._op(f"bitcast {self.value_type(d)} {v.text} to {half}")
            return self.op(f"fpext {half} {raw16} to {self.value_type(f32)}", f32, v)
        t = self.value_type(word)
        x = self.op(f"zext {self.value_type(d)} {v.text} to {t}", word, v)

        def i(op: str, a: Value, k: int) -> Value:
            return self.op(f"{op} {t} {a.text}, {self.const(k, word).text}", word, a)

        if d.name == "bfloat16":
            return self.bitcast(i("shl", x, 16), f32)
        if d.name == "float8_e8m0fnu":
            bits = self.select(self.compare("==", x, self.zero(word)), self.const(0x00400000, word), i("shl", x, 23))
            return self.bitcast(
                self.select(self.compare("==", x, self.const(255, word)), self.const(0x7FC00000, word), bits), f32
            )
        f = dt.FLOAT_FORMATS[d.name]
        top = f.exponent + f.mantissa
        size = i("and", x, (1 << top) - 1)
        sign = i("shl", i("and", x, 1 << top), 31 - top)
        # The exponent is rebased by a multiplication, which gets subnormals right, too.
        scaled = self.op(
            f"fmul {self.value_type(f32)} {self.bitcast(i('shl', size, 23 - f.mantissa), f32).text},"
            f" {self.const(2.0 ** (127 - f.bias), f32).text}",
            f32,
            size,
        )
        bits = self.bitcast(scaled, word)
        if f.special == "ieee":
            special = self.compare("<=", self.const(((1 << f.exponent) - 1) << f.mantissa, word), size)
            bits = self.select(special, i("or", i("shl", size, 23 - f.mantissa), 0x7F800000), bits)
        elif f.special == "fn":
            bits = self.select(
                self.compare("==", size, self.const((1 << top) - 1, word)), self.const(0x7FC00000, word), bits
            )
        bits = self.logic("or", bits, sign)
        if f.special == "fnuz":
            bits = self.select(self.compare("==", x, self.const(1 << top, word)), self.const(0x7FC00000, word), bits)
        return self.bitcast(bits, f32)

    def _half(self, lanes: int) -> str:
        return "half" if lanes == 1 else f"<{lanes} x half>"

    def narrow(self, v: Value, d: DType) -> Value:
        """fp32 as a soft float, rounded to even."""
        lanes = v.dtype.lanes
        d = d.with_lanes(lanes)
        word = dt.uint32.with_lanes(lanes)
        if d.name == "float16" and "f16c" in self.isa.has:
            half = self._half(lanes)
            raw = self._op(f"fptrunc {self.value_type(v.dtype)} {v.text} to {half}")
            return self.op(f"bitcast {half} {raw} to {self.value_type(d)}", d, v)
        t = self.value_type(word)

        def i(op: str, a: Value, k: int) -> Value:
            return self.op(f"{op} {t} {a.text}, {self.const(k, word).text}", word, a)

        def ii(op: str, a: Value, b: Value) -> Value:
            return self.op(f"{op} {t} {a.text}, {b.text}", word, a, b)

        def done(bits: Value) -> Value:
            return self.op(f"trunc {t} {bits.text} to {self.value_type(d)}", d, bits)

        bits = self.bitcast(v, word)
        nan = self.op(f"fcmp uno {self.value_type(v.dtype)} {v.text}, {v.text}", dt.bool_.with_lanes(lanes), v)
        if d.name == "bfloat16":
            carry = i("add", i("and", i("lshr", bits, 16), 1), 0x7FFF)
            rounded = i("lshr", ii("add", bits, carry), 16)
            return done(self.select(nan, i("or", i("lshr", bits, 16), 0x40), rounded))
        if d.name == "float8_e8m0fnu":
            # A power of two, ties upwards, as ml_dtypes has it; what is not positive has no representation.
            rounded = i("lshr", i("add", bits, 0x400000), 23)
            low = self.select(
                self.compare("<", bits, self.const(0x00600000, word)), self.zero(word), self.const(1, word)
            )
            rounded = self.select(self.compare("<", bits, self.const(0x00800000, word)), low, rounded)
            bad = self.logic(
                "or",
                self.logic("or", nan, self.compare("<", self.const(0x7F7FFFFF, word), bits)),
                self.compare("==", bits, self.zero(word)),
            )
            return done(self.select(bad, self.const(255, word), rounded))
        f = dt.FLOAT_FORMATS[d.name]
        top = f.exponent + f.mantissa
        cut = 23 - f.mantissa
        size = i("and", bits, 0x7FFFFFFF)
        sign = i("lshr", i("and", bits, 0x80000000), 31 - top)
        carry = i("add", i("and", i("lshr", size, cut), 1), (1 << (cut - 1)) - 1)
        normal = i("lshr", i("sub", ii("add", size, carry), (127 - f.bias) << 23), cut)
        # Adding a number whose last bit is the format's least one makes the hardware round a subnormal.
        magic = (127 - f.bias + cut + 1) << 23
        f32 = dt.float32.with_lanes(lanes)
        shifted = self.op(
            f"fadd {self.value_type(f32)} {self.bitcast(size, f32).text},"
            f" {self.bitcast(self.const(magic, word), f32).text}",
            f32,
            size,
        )
        small = i("sub", self.bitcast(shifted, word), magic)
        result = self.select(self.compare("<", size, self.const((128 - f.bias) << 23, word)), small, normal)
        ones = (1 << top) - 1
        match f.special:
            case "ieee":
                infinity = ((1 << f.exponent) - 1) << f.mantissa
                result = self.binary("min", result, self.const(infinity, word))
                result = self.select(nan, self.const(infinity | 1 << (f.mantissa - 1), word), result)
            case "fn":
                result = self.select(nan, self.const(ones, word), self.binary("min", result, self.const(ones, word)))
            case "finite":
                result = self.select(nan, self.zero(word), self.binary("min", result, self.const(ones, word)))
            case "fnuz":
                sign = self.select(self.compare("==", result, self.zero(word)), self.zero(word), sign)
                bad = self.logic("or", nan, self.compare("<", self.const(ones, word), result))
                return done(self.select(bad, self.const(1 << top, word), ii("or", result, sign)))
        return done(ii("or", result, sign))


_FLOAT_PREDICATES = {"<": "olt", "<=": "ole", "==": "oeq", "!=": "une"}


def _fmod_text(name: str, t: str, bits: int) -> str:
    """The exact remainder of two floats, one quotient bit per step (at most as many as exponents lie apart)."""
    w, mantissa = f"i{bits}", 23 if bits == 32 else 52
    sign, magnitude = 1 << (bits - 1), (1 << (bits - 1)) - 1
    infinity = ((1 << (bits - 1 - mantissa)) - 1) << mantissa
    hidden = 1 << mantissa

    def unpack(v: str) -> str:
        """Exponent %v.e and significand %v.m with m * 2^e, m below 2^(mantissa+1) and normalised."""
        return f"""
  %{v}.x = lshr {w} %{v}.s, {mantissa}
  %{v}.sub = icmp eq {w} %{v}.x, 0
  %{v}.f = and {w} %{v}.s, {hidden - 1}
  %{v}.lz = call {w} @llvm.ctlz.i{bits}({w} %{v}.f, i1 false)
  %{v}.sh = sub {w} %{v}.lz, {bits - 1 - mantissa}
  %{v}.shc = and {w} %{v}.sh, {bits - 1}
  %{v}.sm = shl {w} %{v}.f, %{v}.shc
  %{v}.se = sub {w} 1, %{v}.sh
  %{v}.nm = or {w} %{v}.f, {hidden}
  %{v}.m = select i1 %{v}.sub, {w} %{v}.sm, {w} %{v}.nm
  %{v}.e = select i1 %{v}.sub, {w} %{v}.se, {w} %{v}.x"""

    def signed(value: int) -> int:
        return value - (1 << bits) if value >> (bits - 1) else value

    return f"""declare {w} @llvm.ctlz.i{bits}({w}, i1)
define internal {t} @{name}({t} %a, {t} %b) #0 {{
entry:
  %ai = bitcast {t} %a to {w}
  %bi = bitcast {t} %b to {w}
  %sign = and {w} %ai, {signed(sign)}
  %a.s = and {w} %ai, {magnitude}
  %b.s = and {w} %bi, {magnitude}
  %c1 = icmp uge {w} %a.s, {infinity}
  %c2 = icmp ugt {w} %b.s, {infinity}
  %c3 = icmp eq {w} %b.s, 0
  %c4 = or i1 %c1, %c2
  %bad = or i1 %c4, %c3
  br i1 %bad, label %nan, label %test
nan:
  %p = fmul {t} %a, %b
  %q = fsub {t} %p, %p
  %r0 = fdiv {t} %q, %q
  ret {t} %r0
test:
  %less = icmp ult {w} %a.s, %b.s
  br i1 %less, label %same, label %work
same:
  ret {t} %a
work:{unpack("a")}{unpack("b")}
  br label %loop
loop:
  %m = phi {w} [ %a.m, %work ], [ %m2, %next ]
  %e = phi {w} [ %a.e, %work ], [ %e1, %next ]
  %d = sub {w} %m, %b.m
  %fits = icmp sge {w} %d, 0
  %m1 = select i1 %fits, {w} %d, {w} %m
  %more = icmp sgt {w} %e, %b.e
  br i1 %more, label %next, label %end
next:
  %m2 = shl {w} %m1, 1
  %e1 = sub {w} %e, 1
  br label %loop
end:
  %z = icmp eq {w} %m1, 0
  br i1 %z, label %zero, label %pack
zero:
  %zf = bitcast {w} %sign to {t}
  ret {t} %zf
pack:
  %lz = call {w} @llvm.ctlz.i{bits}({w} %m1, i1 true)
  %up = sub {w} %lz, {bits - 1 - mantissa}
  %nm = shl {w} %m1, %up
  %ne = sub {w} %e, %up
  %normal = icmp sgt {w} %ne, 0
  %f1 = sub {w} %nm, {hidden}
  %f2 = shl {w} %ne, {mantissa}
  %f3 = or {w} %f1, %f2
  %down = sub {w} 1, %ne
  %downc = and {w} %down, {bits - 1}
  %f4 = lshr {w} %nm, %downc
  %f5 = select i1 %normal, {w} %f3, {w} %f4
  %f6 = or {w} %f5, %sign
  %f = bitcast {w} %f6 to {t}
  ret {t} %f
}}"""


def part_of(d: DType) -> DType:
    return (dt.float32 if d.bits == 64 else dt.float64).with_lanes(d.lanes)
