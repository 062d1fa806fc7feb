"""Functions that emitted text brings along, each only where it is used: what the operators of C leave undefined or do
not have.

All of them are pure and take and give values, never pointers, so they are the same in every address space.
"""

from __future__ import annotations

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft_c_family.language import Language, part_of, short


class Definitions:
    """The helper functions of one text, in the order in which they may stand. Every method gives the name of a
    function, and adds it on first use."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._texts: dict[str, str] = {}

    def texts(self) -> list[str]:
        return list(self._texts.values())

    def _define(self, name: str, result: str, parameters: str, *body: str) -> str:
        if name not in self._texts:
            head = f"{self.language.dialect.function} {result} {name}({parameters})"
            # One line where it is a single statement.
            one = f"{head} {{ {body[0]} }}"
            self._texts[name] = (
                one
                if len(body) == 1 and len(one) <= 140
                else "\n".join([head + " {", *("  " + line for line in body), "}"])
            )
        return name

    def _type(self, d: DType) -> str:
        return self.language.type(d)

    # -- bits

    def bits(self, to: DType, of: DType) -> str:
        """The bits of a value as another type of the same width."""
        name = f"weft_bits_{short(to)}_{short(of)}"
        a, b = self._type(of), self._type(to)
        if self.language.dialect.bitcast:
            return self._define(name, b, f"{a} x", f"return {self.language.dialect.bitcast.format(to=b, value='x')};")
        return self._define(name, b, f"{a} x", f"{b} y;", "memcpy(&y, &x, sizeof y);", "return y;")

    def _words(self, d: DType) -> tuple[DType, str, str]:
        """The word as wide as a float, float → word, word → float."""
        w = dt.uint32 if d.bits == 32 else dt.uint64
        return w, self.bits(w, d), self.bits(d, w)

    # -- integers

    def extreme(self, symbol: str, d: DType) -> str:
        """min or max; NaN if either is."""
        t, less = self._type(d), "a < b" if symbol == "min" else "a > b"
        nan = " || a != a" if d.is_float else ""
        return self._define(f"weft_{symbol}_{short(d)}", t, f"{t} a, {t} b", f"return {less}{nan} ? a : b;")

    def wrap(self, d: DType) -> str:
        """An integer of fewer than eight bits of a wider one, modulo."""
        t, wide, top = self._type(d), self.language.dialect.types["int32"], 1 << d.bits
        low = f"x & {top - 1}"
        value = low if d.kind == "uint" else f"(({low}) ^ {top >> 1}) - {top >> 1}"
        return self._define(f"weft_wrap_{short(d)}", t, f"{wide} x", f"return ({t})({value});")

    def absolute(self, d: DType) -> str:
        t, w = self._type(d), self.language.word(d)
        return self._define(
            f"weft_abs_{short(d)}", t, f"{t} x", f"return x < 0 ? {self._wrapped(d, f'0U - ({w})x')} : x;"
        )

    def _wrapped(self, d: DType, text: str) -> str:
        return (
            f"{self.wrap(d)}(({self.language.dialect.types['int32']})({text}))"
            if d.bits < 8
            else f"({self._type(d)})({text})"
        )

    def division(self, symbol: str, d: DType) -> str:
        """//, %, truncdiv or truncmod of integers. By zero it is by one: the value is not wanted there. The least value
        by -1 wraps."""
        t = self._type(d)
        name = {"//": "floordiv", "%": "floormod", "truncdiv": "truncdiv", "truncmod": "truncmod"}[symbol]
        quotient = symbol in ("//", "truncdiv")
        by_one = "a" if quotient else "0"
        exact = f"({t})(a {'/' if quotient else '%'} b)"
        if d.kind == "uint":
            return self._define(f"weft_{name}_{short(d)}", t, f"{t} a, {t} b", f"return b == 0 ? {by_one} : {exact};")
        negative = self._wrapped(d, f"0U - ({self.language.word(d)})a")
        if self.language.dialect.called and d.bits >= 32:
            negative = f"{self.wrapping('-', d)}(0, a)"
        first = f"if (b == 0) return {by_one};"
        second = f"if (b == -1) return {negative if quotient else '0'};"
        if symbol.startswith("trunc"):
            return self._define(f"weft_{name}_{short(d)}", t, f"{t} a, {t} b", first, second, f"return {exact};")
        rest = f"const {t} rest = ({t})(a % b);"
        crossed = "rest != 0 && (rest < 0) != (b < 0)"
        result = f"return ({t})(a / b - ({crossed}));" if quotient else f"return ({t})({crossed} ? rest + b : rest);"
        return self._define(f"weft_{name}_{short(d)}", t, f"{t} a, {t} b", first, second, rest, result)

    def shift(self, symbol: str, d: DType) -> str:
        """<< or >> by any number: by the width or more all bits are gone."""
        t, w = self._type(d), self.language.word(d)
        inside = f"b < {d.bits}" if d.kind == "uint" else f"b >= 0 && b < {d.bits}"
        if self.language.dialect.called and d.kind == "int" and d.bits >= 32:
            inside = f"(b >= 0) && (b < {d.bits})"
            if symbol == ">>":
                result = f"return ({inside}) ? {self.shifted_right(d)}(a, b) : ((a < 0) ? -1 : 0);"
                return self._define(f"weft_shr_{short(d)}", t, f"{t} a, {t} b", result)
            word = f"const {w} word = ({inside}) ? (({w})a << ({w})b) : 0U;"
            return self._define(f"weft_shl_{short(d)}", t, f"{t} a, {t} b", word, f"return ({t})word;")
        if symbol == "<<":
            shifted = self._wrapped(d, f"({w})a << b")
            return self._define(f"weft_shl_{short(d)}", t, f"{t} a, {t} b", f"return {inside} ? {shifted} : 0;")
        beyond = "0" if d.kind == "uint" else f"({t})(a < 0 ? -1 : 0)"
        return self._define(f"weft_shr_{short(d)}", t, f"{t} a, {t} b", f"return {inside} ? ({t})(a >> b) : {beyond};")

    def wrapping(self, symbol: str, d: DType) -> str:
        """+, - or * of signed integers of 32 bits or 64, modulo."""
        t, w = self._type(d), self.language.word(d)
        name = {"+": "add", "-": "sub", "*": "mul"}[symbol]
        computed = f"const {w} word = ({w})a {symbol} ({w})b;"
        return self._define(f"weft_{name}_{short(d)}", t, f"{t} a, {t} b", computed, f"return ({t})word;")

    def converted(self, to: DType, of: DType) -> str:
        """An integer as another type, modulo."""
        a, b = self._type(of), self._type(to)
        return self._define(f"weft_{short(to)}_of_{short(of)}", b, f"{a} x", f"return ({b})x;")

    def shifted_right(self, d: DType) -> str:
        """>> of a signed integer by less than its width: compilers shift the sign in, which C leaves to them."""
        t = self._type(d)
        return self._define(f"weft_asr_{short(d)}", t, f"{t} a, {t} b", "return a >> b;")

    def popcount(self, d: DType) -> str:
        t, w = self._type(d), self._type(dt.uint64)
        own = self.language.dialect.types[f"uint{max(8, d.bits)}"]
        mask = f" & {(1 << d.bits) - 1}" if d.bits < 8 else ""
        count = [
            f"{w} n = ({own})(x{mask});",
            "n = n - ((n >> 1) & 0x5555555555555555ULL);",
            "n = (n & 0x3333333333333333ULL) + ((n >> 2) & 0x3333333333333333ULL);",
            "n = (n + (n >> 4)) & 0x0f0f0f0f0f0f0f0fULL;",
            self._returned(d, "(n * 0x0101010101010101ULL) >> 56"),
        ]
        suffix = self.language.dialect.suffixes.get("uint64", "")
        return self._define(f"weft_popcount_{short(d)}", t, f"{t} x", *(line.replace("ULL", suffix) for line in count))

    def _returned(self, d: DType, text: str) -> str:
        return f"return {self._wrapped(d, text)};"

    # -- floats

    def to_integer(self, to: DType, of: DType) -> str:
        """A float truncated; what is out of range as the nearest integer in it, NaN as 0."""
        t, f = self._type(to), self._type(of)
        literal = self.language.literal
        signed = to.kind == "int"
        low = literal(-float(1 << (to.bits - 1)), of) if signed else literal(-1.0, of)
        least, most = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if signed else (0, (1 << to.bits) - 1)
        below = (
            f"if (!(x {'>=' if signed else '>'} {low})) return"
            f" {f'x != x ? 0 : {literal(least, to)}' if signed else '0'};"
        )
        above = f"if (x >= {literal(float(most + 1), of)}) return {literal(most, to)};"
        return self._define(f"weft_{short(to)}_of_{short(of)}", t, f"{f} x", below, above, f"return ({t})x;")

    def floor_modulo(self, d: DType) -> str:
        """Sign of the divisor; a zero result too."""
        t = self._type(d)
        rest = self.own("fmod", d, "a", "b")
        zero = self.language.literal(0.0, d)
        return self._define(
            f"weft_floormod_{short(d)}", t, f"{t} a, {t} b",
            f"const {t} rest = {rest};", f"if (rest == {zero}) return {self.own('copysign', d, zero, 'b')};",
            f"return (rest < {zero}) != (b < {zero}) ? rest + b : rest;",
        )  # fmt: skip

    def own(self, name: str, d: DType, *args: str) -> str:
        """A call of the language's own function.

        Raises:
            CodegenError: the dialect has none.
        """
        template = self.language.dialect.functions.get(name)
        if template is None:
            raise CodegenError(f"the dialect '{self.language.dialect.name}' has no function '{name}'")
        return template.format(*args, f="f" if d.name == "float32" else "")

    def odd_sum(self) -> str:
        """a + b in float64 rounded to odd: the last bit stands for what was lost, so that a second rounding is
        right."""
        _, word, back = self._words(dt.float64)
        t, w = self._type(dt.float64), self._type(dt.uint64)
        return self._define(
            "weft_odd_sum", t, f"{t} a, {t} b",
            f"const {t} sum = a + b;", f"const {t} part = sum - a;",
            f"const {t} lost = (a - (sum - part)) + (b - part);", f"const {w} bits = {word}(sum);",
            "if (lost != lost || lost == 0.0 || (bits & 1U) != 0) return sum;",
            f"return {back}((lost < 0.0) != (sum < 0.0) ? bits - 1U : bits + 1U);",
        )  # fmt: skip

    def odd_float32(self) -> str:
        """float64 → float32 rounded to odd."""
        wide, f, u = self._type(dt.float64), self._type(dt.float32), self._type(dt.uint32)
        _, word, back = self._words(dt.float32)
        _, word64, back64 = self._words(dt.float64)
        mask = f"0x7fffffffffffffff{self.language.dialect.suffixes.get('uint64', '')}"
        return self._define(
            "weft_odd_f32", f, f"{wide} x",
            f"const {f} near = ({f})x;", f"const {wide} size = {back64}({word64}(x) & {mask});",
            f"const {wide} there = {back64}({word64}(({wide})near) & {mask});", f"const {u} bits = {word}(near);",
            "if (!(there < size) && !(size < there)) return near;",
            f"return {back}((size < there ? bits - 1U : bits) | 1U);",
        )  # fmt: skip

    def soft_fma(self, d: DType) -> str:
        """a · b + c of narrow floats, rounded once: the product is exact in float64 and the sum rounded to odd."""
        t, wide = self._type(d), self._type(dt.float64)
        a, b, c = (f"({wide}){self.widen(d)}({x})" for x in "abc")
        total = f"{self.odd_sum()}({a} * {b}, {c})"
        return self._define(
            f"weft_fma_{short(d)}",
            t,
            f"{t} a, {t} b, {t} c",
            f"return {self.narrow(d)}({self.odd_float32()}({total}));",
        )

    def widen(self, d: DType) -> str:
        """A float of few bits, carried as a word, as float32: exact."""
        name, t, f = f"weft_f32_of_{short(d)}", self._type(d), self._type(dt.float32)
        given = self.language.dialect.widen.get(d.name)
        if given is not None:
            return self._define(name, f, f"{t} x", f"return {given.format('x')};")
        _, word, back = self._words(dt.float32)
        u = self._type(dt.uint32)
        if d.name == "bfloat16":
            return self._define(name, f, f"{t} x", f"return {back}(({u})x << 16);")
        if d.name == "float8_e8m0fnu":
            return self._define(
                name, f, f"{t} x", f"return {back}(x == 255 ? 0x7fc00000U : x == 0 ? 0x00400000U : ({u})x << 23);"
            )
        form = dt.FLOAT_FORMATS[d.name]
        top = form.exponent + form.mantissa
        ones = (1 << top) - 1
        shifted = f"size << {23 - form.mantissa}"
        lines = [f"const {u} size = ({u})x & {ones:#x}U;"]
        if form.special == "fnuz":
            lines.append(f"if (x == {1 << top:#x}) return {back}(0x7fc00000U);")
        scale = self.language.literal(2.0 ** (127 - form.bias), dt.float32)
        # The exponent is rebased by a multiplication, which gets subnormals right, too.
        lines.append(f"{u} bits = {word}({back}({shifted}) * {scale});")
        if form.special == "ieee":
            lines.append(
                f"if (size >= {((1 << form.exponent) - 1) << form.mantissa:#x}U) bits = ({shifted}) | 0x7f800000U;"
            )
        elif form.special == "fn":
            lines.append(f"if (size == {ones:#x}U) bits = 0x7fc00000U;")
        lines.append(f"return {back}(bits | (({u})x & {1 << top:#x}U) << {31 - top});")
        return self._define(name, f, f"{t} x", *lines)

    def narrow(self, d: DType) -> str:
        """float32 as a float of few bits, carried as a word; rounded to even."""
        name, t, f = f"weft_{short(d)}_of_f32", self._type(d), self._type(dt.float32)
        given = self.language.dialect.narrow.get(d.name)
        if given is not None:
            return self._define(name, t, f"{f} x", f"return {given.format('x')};")
        _, word, back = self._words(dt.float32)
        u = self._type(dt.uint32)
        bits = f"const {u} bits = {word}(x);"
        if d.name == "bfloat16":
            nan = f"if (x != x) return ({t})(bits >> 16 | 0x40U);"
            return self._define(
                name, t, f"{f} x", bits, nan, f"return ({t})((bits + (bits >> 16 & 1U) + 0x7fffU) >> 16);"
            )
        if d.name == "float8_e8m0fnu":
            # A power of two, ties upwards; what is not positive has no representation.
            lines = [
                bits,
                "if (x != x || bits > 0x7f7fffffU || bits == 0) return 255;",
                "if (bits < 0x00800000U) return bits < 0x00600000U ? 0 : 1;",
            ]
            return self._define(name, t, f"{f} x", *lines, f"return ({t})((bits + 0x400000U) >> 23);")
        form = dt.FLOAT_FORMATS[d.name]
        top, cut = form.exponent + form.mantissa, 23 - form.mantissa
        ones, infinity = (1 << top) - 1, ((1 << form.exponent) - 1) << form.mantissa
        # Adding a number whose last bit is the format's least one makes the hardware round a subnormal.
        magic = f"{(127 - form.bias + cut + 1) << 23:#x}U"
        quiet = infinity | 1 << (form.mantissa - 1)
        nan = {"ieee": f"sign | {quiet:#x}U", "fn": f"sign | {ones:#x}U", "finite": "sign", "fnuz": f"{1 << top:#x}U"}[
            form.special
        ]
        lines = [
            bits, f"const {u} size = bits & 0x7fffffffU;", f"const {u} sign = (bits & 0x80000000U) >> {31 - top};",
            f"{u} result;",
            f"if (x != x) return ({t})({nan});",
            f"if (size < {(128 - form.bias) << 23:#x}U) result = {word}({back}(size) + {back}({magic})) - {magic};",
            f"else result = (size + (size >> {cut} & 1U) + {(1 << (cut - 1)) - 1:#x}U"
            f" - {(127 - form.bias) << 23:#x}U) >> {cut};",
        ]  # fmt: skip
        if form.special == "fnuz":
            lines += ["if (result == 0) return 0;", f"if (result > {ones:#x}U) return {1 << top:#x};"]
        else:
            most = infinity if form.special == "ieee" else ones
            lines.append(f"if (result > {most:#x}U) result = {most:#x}U;")
        return self._define(name, t, f"{f} x", *lines, f"return ({t})(result | sign);")

    # -- complex numbers

    def complex(self, d: DType) -> str:
        """(re, im) → a complex number; its type comes along."""
        part, t = self._type(part_of(d)), self._type(d)
        self._texts.setdefault(t, f"typedef struct {{ {part} re, im; }} {t};")
        return self._define(
            f"weft_make_{short(d)}", t, f"{part} re, {part} im", f"{t} z;", "z.re = re;", "z.im = im;", "return z;"
        )

    def complex_operation(self, symbol: str, d: DType) -> str:
        """An operation of two complex numbers; orders are lexicographic, as numpy's."""
        make, t, part = self.complex(d), self._type(d), self._type(part_of(d))
        if symbol in ("==", "!=", "<", "<="):
            name, joint = {"==": ("eq", "&&"), "!=": ("ne", "||"), "<": ("lt", ""), "<=": ("le", "")}[symbol]
            test = (
                f"a.re < b.re || (a.re == b.re && a.im {symbol} b.im)"
                if not joint
                else f"a.re {symbol} b.re {joint} a.im {symbol} b.im"
            )
            return self._define(
                f"weft_{name}_{short(d)}", self.language.dialect.types["bool"], f"{t} a, {t} b", f"return {test};"
            )
        match symbol:
            case "+" | "-":
                name, lines = (
                    {"+": "add", "-": "sub"}[symbol],
                    [f"return {make}(a.re {symbol} b.re, a.im {symbol} b.im);"],
                )
            case "*":
                name, lines = "mul", [f"return {make}(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);"]
            case "/":
                # Smith: divide through by the larger part of the divisor, or squares overflow.
                re, im = self.own("abs", part_of(d), "b.re"), self.own("abs", part_of(d), "b.im")
                name = "div"
                lines = [
                    f"const bool larger = {im} <= {re};",
                    f"const {part} ratio = larger ? b.im / b.re : b.re / b.im;",
                    f"const {part} scale = larger ? b.re + b.im * ratio : b.im + b.re * ratio;",
                    f"if (larger) return {make}((a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale);",
                    f"return {make}((a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale);",
                ]
            case _:
                raise CodegenError(f"'{symbol}' of {d} has no meaning")
        return self._define(f"weft_{name}_{short(d)}", t, f"{t} a, {t} b", *lines)
