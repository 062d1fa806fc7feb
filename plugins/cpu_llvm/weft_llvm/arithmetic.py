"""Operations and functions of values, in LLVM IR text: everything about arithmetic and nothing about loops or buffers.

What LLVM would lower to a call of a C library is spelt out here: no process has those symbols when our loader maps an
image. Values are those of `weft_llvm.instructions`, their conversions are in `weft_llvm.conversions`.
"""

from __future__ import annotations

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft_llvm.conversions import FLOAT_PREDICATES, Conversions
from weft_llvm.instructions import Value


class Arithmetic(Conversions):
    """Emits operations and functions of values into the current function."""

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def binary(self, symbol: str, a: Value, b: Value, nsw: bool = False) -> Value:
        """The operation of a Binary node that needs no knowledge of ranges."""
        d = a.dtype
        if symbol in FLOAT_PREDICATES:
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
        if b.never_nan and not a.never_nan:
            a, b = b, a
        wasm = self.isa.arch == "wasm32"
        # WebAssembly has one that is a single instruction of x86, right where this operand is never NaN. Of a
        # comparison and a selection LLVM makes the relaxed one, which may give either operand if one is NaN.
        if wasm and a.never_nan and "simd128" in self.isa.needs and d.lanes > 1 and d.lanes * d.bits == 128:
            name = f"llvm.wasm.p{symbol}.{self.llvm_suffix(d)}"
            return Value(self.intrinsic(t, name, (t, b.text), (t, a.text)), d, impure, b.never_nan)
        # NEON's own, which LLVM takes for single numbers too, gives zero for subnormals; LLVM cannot compile that of
        # float64 for 32-bit Arm.
        if not self.x86 and self.isa.arch != "arm" and not (wasm and a.never_nan and d.lanes == 1):
            name = f"llvm.{symbol}imum.{self.llvm_suffix(d)}"
            return Value(self.intrinsic(t, name, (t, a.text), (t, b.text)), d, impure, a.never_nan and b.never_nan)
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
