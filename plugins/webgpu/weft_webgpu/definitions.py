"""Functions that a text in WGSL brings along, each only where it is used: those of `functions.wgsl`, and those that are
made for a dtype.

NaN and infinity are told by their bits: an implementation may assume that floats are neither (W3C, "WebGPU Shading
Language", section "Floating Point Evaluation").
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft_c_family.definitions import Definitions
from weft_c_family.language import short

_NAMES = {"//": "floordiv", "%": "floormod", "truncdiv": "truncdiv", "truncmod": "truncmod"}


@cache
def library() -> dict[str, str]:
    """The pieces of functions.wgsl: what each defines → its text."""
    found = {}
    for piece in (files("weft_webgpu") / "functions.wgsl").read_text().split("\n\n"):
        name = re.search(r"^(?:fn|struct|var<private>) (\w+)", piece, re.M)
        if name is not None:
            found[name[1]] = piece.strip()
    return found


@cache
def fingerprint() -> str:
    """Tells one functions.wgsl from another."""
    return hashlib.sha256("".join(library().values()).encode()).hexdigest()[:16]


class WgslDefinitions(Definitions):
    """As of C's family, in WGSL. Every method gives the name of a function, and adds it on first use."""

    def use(self, name: str) -> str:
        """A piece of functions.wgsl, with those that it uses before it."""
        if name not in self._texts:
            text = library()[name]
            for other in dict.fromkeys(re.findall(r"\bweft_\w+", text)):
                if other != name and other in library():
                    self.use(other)
            self._texts[name] = text
        return name

    def _define(self, name: str, result: str, parameters: str, *body: str) -> str:
        if name not in self._texts:
            for other in dict.fromkeys(x for line in body for x in re.findall(r"\bweft_\w+", line)):
                if other in library():
                    self.use(other)
            head = f"fn {name}({parameters}) -> {result} {{"
            one = f"{head} {body[0]} }}"
            short_enough = len(body) == 1 and len(one) <= 140
            self._texts[name] = one if short_enough else "\n".join([head, *("  " + line for line in body), "}"])
        return name

    # -- integers

    def extreme(self, symbol: str, d: DType) -> str:
        return self.use(f"weft_{symbol}_{short(d)}") if d.bits == 64 or d.is_float else symbol

    def absolute(self, d: DType) -> str:
        if d.bits == 64:
            return self.use("weft_abs_i64")
        if d.bits == 32:
            return "abs"
        return self._define(f"weft_abs_{short(d)}", "i32", "x: i32", f"return extractBits(abs(x), 0u, {d.bits}u);")

    def popcount(self, d: DType) -> str:
        if d.bits == 64:
            return self.use(f"weft_popcount_{short(d)}")
        t = self._type(d)
        mask = f" & {(1 << d.bits) - 1:#x}u" if d.bits < 32 else ""
        return self._define(f"weft_popcount_{short(d)}", t, f"x: {t}", f"return {t}(countOneBits(u32(x){mask}));")

    def division(self, symbol: str, d: DType) -> str:
        """// or % of signed integers, rounded down. WGSL's own round to zero; by zero they are by one, and the least
        value by -1 wraps ("Arithmetic Expressions")."""
        name = f"weft_{_NAMES[symbol]}_{short(d)}"
        if d.bits == 64:
            return self.use(name)
        t = self._type(d)
        crossed = "(a % b != 0) & ((a < 0) != (b < 0))"
        if symbol == "//":
            result = self.in_range(f"a / b - select(0, 1, {crossed})", d)
        else:
            result = f"a % b + select(0, b, {crossed})"
        return self._define(name, t, f"a: {t}, b: {t}", f"return {result};")

    def in_range(self, text: str, d: DType) -> str:
        """A word as an integer of `d`, modulo."""
        if d.bits >= 32:
            return text
        return f"extractBits({text}, 0u, {d.bits}u)" if d.kind == "int" else f"(({text}) & {(1 << d.bits) - 1:#x}u)"

    def shift(self, symbol: str, d: DType) -> str:
        """<< or >> by any number: by the width or more all bits are gone."""
        name = f"weft_{'shl' if symbol == '<<' else 'shr'}_{short(d)}"
        if d.bits == 64:
            return self.use(name)
        t, signed = self._type(d), d.kind == "int"
        inside = f"(b >= 0) & (b < {d.bits})" if signed else f"b < {d.bits}u"
        beyond = "0u" if not signed else "0" if symbol == "<<" else "select(0, -1, a < 0)"
        value = f"a {symbol} (u32(b) & 31u)"
        value = self.in_range(value, d) if symbol == "<<" else value
        return self._define(name, t, f"a: {t}, b: {t}", f"return select({beyond}, {value}, {inside});")

    # -- floats

    def to_integer(self, to: DType, of: DType) -> str:
        """float32 truncated; what is out of range as the nearest integer in it, NaN as 0."""
        name = f"weft_{short(to)}_of_f32"
        if to.bits == 64:
            return self.use(name)
        t, signed = self._type(to), to.kind == "int"
        least, most = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if signed else (0, (1 << to.bits) - 1)
        u = "" if signed else "u"
        bound = self.language.literal(float(least if signed else -1), dt.float32)
        return self._define(
            name, t, "x: f32",
            f"if (weft_isnan(x)) {{ return 0{u}; }}",
            f"if (x <= {bound}) {{ return {least}{u}; }}",
            f"if (x >= {self.language.literal(float(most + 1), dt.float32)}) {{ return {most}{u}; }}",
            f"return {t}(x);",
        )  # fmt: skip

    def floor_modulo(self, d: DType) -> str:
        return self.use("weft_floormod_f32")

    def widen(self, d: DType) -> str:
        """A float of few bits, carried as a word, as float32: exact."""
        name = f"weft_f32_of_{short(d)}"
        if d.name == "bfloat16":
            return self._define(name, "f32", "x: u32", "return bitcast<f32>(x << 16u);")
        if d.name == "float8_e8m0fnu":
            bits = "select(select(x << 23u, 0x00400000u, x == 0u), 0x7fc00000u, x == 255u)"
            return self._define(name, "f32", "x: u32", f"return weft_float({bits});")
        form = dt.FLOAT_FORMATS[d.name]
        top = form.exponent + form.mantissa
        ones, shifted = (1 << top) - 1, f"(size << {23 - form.mantissa}u)"
        lines = [f"let size = x & {ones:#x}u;"]
        if form.special == "fnuz":
            lines.append(f"if (x == {1 << top:#x}u) {{ return weft_float(0x7fc00000u); }}")
        # A subnormal is its mantissa times the least one.
        least = self.language.literal(2.0 ** (1 - form.bias - form.mantissa), dt.float32)
        lines += [
            f"var bits = {shifted} + {(127 - form.bias) << 23:#x}u;",
            f"if (size < {1 << form.mantissa:#x}u) {{ bits = bitcast<u32>(f32(size) * {least}); }}",
        ]
        if form.special == "ieee":
            lines.append(
                f"if (size >= {((1 << form.exponent) - 1) << form.mantissa:#x}u) {{ bits = {shifted} | 0x7f800000u; }}"
            )
        elif form.special == "fn":
            lines.append(f"if (size == {ones:#x}u) {{ bits = 0x7fc00000u; }}")
        lines.append(f"return weft_float(bits | ((x & {1 << top:#x}u) << {31 - top}u));")
        return self._define(name, "f32", "x: u32", *lines)

    def narrow(self, d: DType) -> str:
        """float32 as a float of few bits, carried as a word; rounded to even, in integers."""
        name, bits = f"weft_{short(d)}_of_f32", "let bits = bitcast<u32>(x);"
        if d.name == "bfloat16":
            return self._define(
                name, "u32", "x: f32", bits, "if (weft_isnan(x)) { return (bits >> 16u) | 0x40u; }",
                "return (bits + ((bits >> 16u) & 1u) + 0x7fffu) >> 16u;",
            )  # fmt: skip
        if d.name == "float8_e8m0fnu":
            # A power of two, ties upwards; what is not positive has no representation.
            return self._define(
                name, "u32", "x: f32", bits,
                "if (bits > 0x7f7fffffu || bits == 0u) { return 255u; }",
                "if (bits < 0x00800000u) { return select(1u, 0u, bits < 0x00600000u); }",
                "return (bits + 0x400000u) >> 23u;",
            )  # fmt: skip
        form = dt.FLOAT_FORMATS[d.name]
        top, cut = form.exponent + form.mantissa, 23 - form.mantissa
        ones, infinity = (1 << top) - 1, ((1 << form.exponent) - 1) << form.mantissa
        quiet = infinity | 1 << (form.mantissa - 1)
        nan = {"ieee": f"sign | {quiet:#x}u", "fn": f"sign | {ones:#x}u", "finite": "sign", "fnuz": f"{1 << top:#x}u"}
        lines = [
            bits, "let size = bits & 0x7fffffffu;", f"let sign = (bits & 0x80000000u) >> {31 - top}u;",
            f"if (weft_isnan(x)) {{ return {nan[form.special]}; }}", "var result = 0u;",
            f"if (size < {(128 - form.bias) << 23:#x}u) {{",
            # A subnormal: the mantissa with its first bit, shifted by as much as the exponent is too small.
            f"  let away = {128 - form.bias + cut}u - max(size >> 23u, 1u);",
            "  if (away < 32u) {",
            "    let whole = (size & 0x7fffffu) | select(0u, 0x800000u, size >= 0x800000u);",
            "    result = (whole + ((1u << away) >> 1u) - 1u + ((whole >> away) & 1u)) >> away;",
            "  }",
            "} else {",
            f"  result = (size + ((size >> {cut}u) & 1u) + {(1 << (cut - 1)) - 1:#x}u"
            f" - {(127 - form.bias) << 23:#x}u) >> {cut}u;",
            "}",
        ]  # fmt: skip
        if form.special == "fnuz":
            lines += ["if (result == 0u) { return 0u; }", f"if (result > {ones:#x}u) {{ return {1 << top:#x}u; }}"]
        else:
            lines.append(f"result = min(result, {infinity if form.special == 'ieee' else ones:#x}u);")
        return self._define(name, "u32", "x: f32", *lines, "return result | sign;")

    def soft_fma(self, d: DType) -> str:
        """a · b + c of narrow floats, computed in float32."""
        a, b, c = (f"{self.widen(d)}({x})" for x in "abc")
        return self._define(
            f"weft_fma_{short(d)}", "u32", "a: u32, b: u32, c: u32", f"return {self.narrow(d)}(fma({a}, {b}, {c}));"
        )

    def own(self, name: str, d: DType, *args: str) -> str:
        """A call of WGSL's own function, or of one of functions.wgsl."""
        if name in ("sqrt", "floor", "ceil", "trunc", "round", "abs", "fma"):
            return f"{name}({', '.join(args)})"
        if f"weft_{name}" not in library():
            raise CodegenError(f"WGSL has no function '{name}' that is accurate enough")
        return f"{self.use(f'weft_{name}')}({', '.join(args)})"
