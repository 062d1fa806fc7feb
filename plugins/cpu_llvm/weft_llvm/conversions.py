"""Selection, comparison and conversion of values, in LLVM IR text.

fp16 without arithmetic in hardware, bfloat16, fp8 and fp4 ("soft" types) are carried as integers of their storage width
and computed in fp32, rounded after every operation, which is what numpy does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from weft import dtypes as dt
from weft.dtypes import DType
from weft_llvm.instructions import Instructions, Value, part_of

FLOAT_PREDICATES = {"<": "olt", "<=": "ole", "==": "oeq", "!=": "une"}


class Conversions(Instructions, ABC):
    """Emits selections, comparisons and conversions into the current function."""

    @abstractmethod
    def binary(self, symbol: str, a: Value, b: Value, nsw: bool = False) -> Value:
        """The operation of a Binary node."""

    @abstractmethod
    def function(self, name: str, *args: Value) -> Value:
        """A function of FUNCTIONS."""

    # -- selection, comparison, logic -----------------------------------------------------------------------------

    def select(self, c: Value, a: Value, b: Value) -> Value:
        if a.dtype.kind == "complex":
            (ar, ai), (br, bi) = self.parts(a), self.parts(b)
            return self.join(self.select(c, ar, br), self.select(c, ai, bi), a.dtype)
        if c.text in ("true", "false"):
            return a if c.text == "true" else b
        t = self.value_type(a.dtype)
        if (
            "relaxed-simd" in self.isa.needs
            and a.dtype.is_float
            and a.dtype.name not in self.soft
            and c.dtype.lanes > 1
        ):
            return self._select_bits(c, a, b)
        return self.op(
            f"select {self.value_type(c.dtype)} {c.text}, {t} {a.text}, {t} {b.text}",
            a.dtype,
            c,
            a,
            b,
            never_nan=a.never_nan and b.never_nan,
        )

    def _select_bits(self, c: Value, a: Value, b: Value) -> Value:
        """`select` of floats by bits of 128 at a time. LLVM makes the lesser or greater of two numbers of a comparison
        and a selection, and of relaxed instructions the one that may give either operand where one is NaN."""
        d, t = a.dtype, self.value_type(a.dtype)
        lanes = 128 // d.bits
        word = f"i{d.bits}"
        wide, part = f"<{d.lanes} x {word}>", f"<{lanes} x {word}>"
        mask = self._op(f"sext {self.value_type(c.dtype)} {c.text} to {wide}")
        bits = [self._op(f"bitcast {t} {v.text} to {wide}") for v in (a, b)] + [mask]
        parts: list[str] = []
        for first in range(0, d.lanes, lanes):
            at = ", ".join(f"i32 {k if k < d.lanes else 'undef'}" for k in range(first, first + lanes))
            cut = [self._op(f"shufflevector {wide} {v}, {wide} poison, <{lanes} x i32> <{at}>") for v in bits]
            name = f"llvm.wasm.bitselect.v{lanes}{word}"
            parts.append(self.intrinsic(part, name, *((part, v) for v in cut)))
        while len(parts) > 1:
            at = ", ".join(f"i32 {k}" for k in range(2 * lanes))
            pairs = zip(parts[::2], [*parts[1::2], "poison"])
            parts = [self._op(f"shufflevector {part} {x}, {part} {y}, <{2 * lanes} x i32> <{at}>") for x, y in pairs]
            lanes, part = 2 * lanes, f"<{2 * lanes} x {word}>"
        if lanes > d.lanes:
            at = ", ".join(f"i32 {k}" for k in range(d.lanes))
            parts = [self._op(f"shufflevector {part} {parts[0]}, {part} poison, <{d.lanes} x i32> <{at}>")]
        text = self._op(f"bitcast {wide} {parts[0]} to {t}")
        return Value(text, d, c.impure or a.impure or b.impure, a.never_nan and b.never_nan)

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
            return self.op(f"fcmp {FLOAT_PREDICATES[symbol]} {t} {a.text}, {b.text}", d, a, b)
        signed = "s" if a.dtype.kind == "int" else "u"
        predicate = {"<": signed + "lt", "<=": signed + "le", "==": "eq", "!=": "ne"}[symbol]
        return self.op(f"icmp {predicate} {t} {a.text}, {b.text}", d, a, b)

    def logic(self, op: str, a: Value, b: Value) -> Value:
        """and, or, xor of bools or integers."""
        return self.op(f"{op} {self.value_type(a.dtype)} {a.text}, {b.text}", a.dtype, a, b)

    def invert(self, a: Value) -> Value:
        return self.logic("xor", a, self.const(True, a.dtype))

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
        if self.isa.arch == "arm":
            bits = self._rebased(size, f.mantissa, f.bias)
        else:
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

    def _rebased(self, size: Value, mantissa: int, bias: int) -> Value:
        """The bits of a soft float without its sign as those of an fp32, without subnormals on the way: vectors of
        32-bit Arm take them for zero. A subnormal is an integer times a power of two."""
        word, t = size.dtype, self.value_type(size.dtype)
        f32 = dt.float32.with_lanes(word.lanes)
        up = self.op(f"shl {t} {size.text}, {self.const(23 - mantissa, word).text}", word, size)
        normal = self.op(f"add {t} {up.text}, {self.const((127 - bias) << 23, word).text}", word, up)
        number = self.op(f"uitofp {t} {size.text} to {self.value_type(f32)}", f32, size)
        unit = self.const(2.0 ** (1 - bias - mantissa), f32)
        small = self.op(f"fmul {self.value_type(f32)} {number.text}, {unit.text}", f32, number)
        return self.select(self.compare("<", size, self.const(1 << mantissa, word)), self.bitcast(small, word), normal)

    def _half(self, lanes: int) -> str:
        return "half" if lanes == 1 else f"<{lanes} x half>"

    def _nearest_exponent(self, bits: Value, nan: Value) -> Value:
        """The bits of an fp32 as those of float8_e8m0fnu: a power of two, ties upwards, as ml_dtypes has it. What is
        not positive has no representation."""
        word, t = bits.dtype, self.value_type(bits.dtype)
        up = self.op(f"add {t} {bits.text}, {self.const(0x400000, word).text}", word, bits)
        rounded = self.op(f"lshr {t} {up.text}, {self.const(23, word).text}", word, up)
        low = self.select(self.compare("<", bits, self.const(0x00600000, word)), self.zero(word), self.const(1, word))
        rounded = self.select(self.compare("<", bits, self.const(0x00800000, word)), low, rounded)
        bad = self.logic(
            "or",
            self.logic("or", nan, self.compare("<", self.const(0x7F7FFFFF, word), bits)),
            self.compare("==", bits, self.zero(word)),
        )
        return self.select(bad, self.const(255, word), rounded)

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
            return done(self._nearest_exponent(bits, nan))
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
