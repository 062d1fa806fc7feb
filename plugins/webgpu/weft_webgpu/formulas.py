"""Formulas in WGSL, as `weft_c_family.formulas` writes them in C.

Integers of fewer than 32 bits are words in their range. An int64 is a word where its range says that it fits, else a
pair of words; a uint64 is a pair. An index of a buffer is computed modulo 2^32: sums, differences and products are
right so whatever their operands are, and every index is less than 2^30 (`weft_webgpu.limits.LARGEST`). What is not such
an operation (a quotient, a minimum, a comparison) takes words if the ranges of both operands fit, else pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range, add_ranges, multiply_ranges, negate_range
from weft.loop import nodes as lp
from weft.loop.nodes import Load
from weft_c_family import Dialect
from weft_c_family.formulas import COMPARISON, LOOSE, PRIMARY, PRODUCT, SUM, UNARY, Code, Formulas
from weft_webgpu.definitions import WgslDefinitions
from weft_webgpu.language import PAIR, WgslLanguage
from weft_webgpu.memory import Place

_WORD = (-(1 << 31), (1 << 31) - 1)
_RINGS = (ex.Add, ex.Sub, ex.Mul)


@dataclass(frozen=True)
class Pair(Code):
    """Text of an integer of 64 bits in a pair of words; any other Code of int64 is a word."""


class WgslFormulas(Formulas):
    """Writes formulas, and in `lines` what must stand in front of them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.language = WgslLanguage(dialect)
        self.definitions: WgslDefinitions = WgslDefinitions(self.language)
        self.places: dict[str, Place] = {}
        """Buffers by name."""
        self.pairs: set[str] = set()
        """Variables of int64 that are pairs."""
        self._known: dict[tuple[Expr, bool], Code] = {}

    # -- statements' formulas

    def begin(self, *roots: Expr) -> None:
        self._known = {}
        super().begin(*roots)

    def value(self, e: Expr, index: bool = False) -> Code:
        """The text of `e`. `index`: of an int64, its value modulo 2^32, a word."""
        of_index = e.dtype.scalar in (dt.int64, dt.int32)
        if e.dtype.scalar == dt.int64 and not index:
            index = self.fits(e)  # and then the word is the value
        index = index and of_index
        found = self._known.get((e, index))
        if found is not None:
            return found
        emit = getattr(self, "emit_" + type(e).__name__, None)
        if emit is None:
            raise CodegenError(f"'{self.dialect.name}' has no {type(e).__name__}", where=str(e))
        code: Code = emit(e, index)
        if index:
            code = self.word(code)
        if e in self._repeated:
            name = self.fresh("at" if e.dtype.is_integer else "part")
            self.lines.append(f"let {name}: {self.type_of_code(code, e.dtype)} = {code.text};")
            code = self._known[e, index] = self._like(code, name)
        return code

    def fits(self, *parts: Expr) -> bool:
        """Whether the ranges of integers are within that of int32."""
        return all(self.range(e).within(*_WORD) for e in parts)

    def _hoist(self, root: Expr) -> None:
        """Nothing: both sides of a Select are computed in any case, so what is repeated is named where it is met."""

    def type_of_code(self, code: Code, d: DType) -> str:
        """The type of a variable that holds it."""
        return "i32" if d.scalar == dt.int64 and not isinstance(code, Pair) else self.language.type(d)

    def word(self, code: Code, d: DType = dt.int64) -> Code:
        """An integer of 64 bits modulo 2^32, as i32 or u32."""
        if not isinstance(code, Pair):
            return code
        low = f"{code.at(PRIMARY)}.x"
        return Code(f"i32({low})") if d.kind == "int" else Code(low)

    def pair(self, code: Code) -> str:
        """An integer of 64 bits as a pair."""
        if isinstance(code, Pair):
            return code.text
        if code.text.lstrip("-").isdigit():
            return self.language.literal(int(code.text), dt.int64)
        return f"{self.definitions.use('weft_i64')}({code.text})"

    def extent(self, e: Expr) -> Code:
        """The text of an extent: a word, that of the nearest number where it does not fit."""
        code = self.value(e)
        return Code(f"{self.definitions.use('weft_extent')}({code.text})") if isinstance(code, Pair) else code

    def guarded(self, cond: Code, then: Callable[[], Code], orelse: Callable[[], Code], d: DType) -> Code:
        """Both are computed: nothing that is out of bounds, or divided by zero, does more than give some value."""
        a, b = then(), orelse()
        if d.scalar == dt.int64 and (isinstance(a, Pair) or isinstance(b, Pair)):
            return Pair(f"select({self.pair(b)}, {self.pair(a)}, {cond.text})")
        return self._like(a, f"select({b.text}, {a.text}, {cond.text})")

    def _like(self, code: Code, text: str) -> Code:
        return Pair(text) if isinstance(code, Pair) else Code(text)

    # -- leaves

    def literal(self, value: Any, d: DType) -> Code:
        d = d.scalar
        if d == dt.int64 and _WORD[0] <= int(value) <= _WORD[1]:
            text = str(int(value))
        else:
            text = self.language.literal(value, d)
        if text.startswith("weft_float"):
            self.definitions.use("weft_float")
        if d.is_integer and d.bits == 64 and text.startswith(PAIR):
            return Pair(text)
        return Code(text, UNARY if text[0] == "-" else PRIMARY)

    def emit_Const(self, e: ex.Const, index: bool) -> Code:
        if index and e.dtype.scalar == dt.int64:
            return self.literal((int(e.value) + (1 << 31)) % (1 << 32) - (1 << 31), dt.int64)
        return self.literal(e.value, e.dtype)

    def emit_Var(self, e: ex.Var, index: bool) -> Code:
        name, d = self.name_of(e.name), e.dtype.scalar
        text = f"{name}[{self.lane}]" if e.dtype.lanes > 1 else name
        return Pair(text) if d == dt.uint64 or (d == dt.int64 and e.name in self.pairs) else Code(text)

    def emit_Ramp(self, e: ex.Ramp, index: bool) -> Code:
        assert self.lane is not None
        d = e.dtype.scalar
        lane = ex.Var(" lane", d)
        unsigned = f"vec2<u32>(u32({self.lane}), 0u)" if d.bits == 64 else f"u32({self.lane})"
        self.names[lane.name] = unsigned if d.kind == "uint" else self.lane
        self.ranges[lane.name] = Range(0, e.lanes - 1)
        return self.value(ex.add(e.base, ex.mul(lane, e.stride)), index)

    # -- arithmetic

    def _emit_arithmetic(self, e: ex.Binary, index: bool) -> Code:
        d = e.dtype.scalar
        a, b = self.value(e.a, index), self.value(e.b, index)
        if d.is_bool:
            return self.logic("||" if e.symbol == "+" else "&&", a, b)
        if not d.is_integer:
            return self.floating(e.symbol, a, b, d)
        if index:
            return _infix(e.symbol, a, b)
        x, y = self.range(e.a), self.range(e.b)
        result = multiply_ranges(x, y) if e.symbol == "*" else add_ranges(x, y if e.symbol == "+" else negate_range(y))
        if d.bits == 64:
            function = {"+": "weft_add_64", "-": "weft_sub_64", "*": "weft_mul_64"}[e.symbol]
            return Pair(f"{self.definitions.use(function)}({self.pair(a)}, {self.pair(b)})")
        least, most = (-(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1) if d.kind == "int" else (0, (1 << d.bits) - 1)
        code = _infix(e.symbol, a, b)
        return code if d.bits == 32 or result.within(least, most) else self.narrowed(code, d)

    emit_Add = emit_Sub = emit_Mul = _emit_arithmetic

    def narrowed(self, wide: Code, d: DType) -> Code:
        """A word in the range of an integer of fewer bits, modulo."""
        return Code(self.definitions.in_range(wide.text, d))

    def _emit_extreme(self, e: ex.Binary, index: bool) -> Code:
        d = e.dtype.scalar
        if d.bits < 64 or not d.is_integer:
            return super()._emit_extreme(e, index)
        a, b = self.value(e.a), self.value(e.b)
        if not isinstance(a, Pair) and not isinstance(b, Pair):
            return Code(f"{e.symbol}({a.text}, {b.text})")
        return Pair(f"{self.definitions.extreme(e.symbol, d)}({self.pair(a)}, {self.pair(b)})")

    emit_Min = emit_Max = _emit_extreme

    def _emit_division(self, e: ex.Binary, index: bool) -> Code:
        d = e.dtype.scalar
        if not d.is_integer:
            return super()._emit_division(e, index)
        a, b = self.value(e.a), self.value(e.b)
        words = not isinstance(a, Pair) and not isinstance(b, Pair)
        if d == dt.int64 and words:
            d = dt.int32 if self.fits(e) or e.symbol in ("%", "truncmod") else d
        if d.bits == 64:
            return Pair(f"{self.definitions.division(e.symbol, d)}({self.pair(a)}, {self.pair(b)})")
        quotient = e.symbol in ("//", "truncdiv")
        positive = d.kind == "uint" or (self.range(e.a).within(0, None) and self.range(e.b).within(0, None))
        if positive or e.symbol.startswith("trunc"):
            code = _infix("/" if quotient else "%", a, b)
            return self.narrowed(code, d) if d.bits < 32 and quotient and not positive else code
        return Code(f"{self.definitions.division(e.symbol, d)}({a.text}, {b.text})")

    emit_FloorDiv = emit_FloorMod = emit_TruncDiv = emit_TruncMod = _emit_division

    def _emit_bits(self, e: ex.Binary, index: bool) -> Code:
        if not (e.dtype.is_integer and e.dtype.scalar.bits == 64):
            return super()._emit_bits(e, index)
        a, b = self.value(e.a), self.value(e.b)
        if isinstance(a, Pair) or isinstance(b, Pair):
            return Pair(f"({self.pair(a)} {e.symbol} {self.pair(b)})")
        return Code(f"{a.at(UNARY)} {e.symbol} {b.at(UNARY)}", LOOSE)

    emit_BitAnd = emit_BitOr = emit_BitXor = _emit_bits

    def _emit_shift(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a), self.value(e.b), e.dtype.scalar
        if d == dt.int64 and e.symbol == ">>" and not isinstance(a, Pair) and self.range(e.b).within(0, 31):
            d = dt.int32
        if d.bits == 64:
            return Pair(f"{self.definitions.shift(e.symbol, d)}({self.pair(a)}, {self.pair(b)})")
        if d.bits < 32 or not self.range(e.b).within(0, d.bits - 1):
            return Code(f"{self.definitions.shift(e.symbol, d)}({a.text}, {self.word(b).text})")
        return Code(f"{a.at(UNARY)} {e.symbol} u32({self.word(b).text})", LOOSE)

    emit_ShiftLeft = emit_ShiftRight = _emit_shift

    # -- truth

    def logic(self, op: str, a: Code, b: Code) -> Code:
        """Both sides are computed: && and || would be branches."""
        return Code(f"{a.at(PRIMARY)} {op[0]} {b.at(PRIMARY)}", LOOSE)

    def _emit_comparison(self, e: ex.Binary, index: bool) -> Code:
        d = e.a.dtype.scalar
        if d.is_bool:
            a, b = self.value(e.a), self.value(e.b)
            match e.symbol:
                case "<":
                    return self.logic("&&", Code("!" + a.at(PRIMARY), UNARY), b)
                case "<=":
                    return self.logic("||", Code("!" + a.at(PRIMARY), UNARY), b)
            return Code(f"{a.at(UNARY)} {e.symbol} {b.at(UNARY)}", COMPARISON)
        if not (d.is_integer and d.bits == 64):
            a, b = self.value(e.a), self.value(e.b)
            if d.name in self.language.soft:
                a, b = self.widen(a, d), self.widen(b, d)
            if d.is_float and e.symbol == "!=" and e.a == e.b:
                return Code(f"{self.definitions.use('weft_isnan')}({a.text})")
            return self._compared(e.symbol, a, b, d)
        a, b = self.value(e.a), self.value(e.b)
        if not isinstance(a, Pair) and not isinstance(b, Pair):
            return Code(f"{a.at(SUM)} {e.symbol} {b.at(SUM)}", COMPARISON)
        x, y = self.pair(a), self.pair(b)
        match e.symbol:
            case "==":
                return Code(f"all({x} == {y})")
            case "!=":
                return Code(f"any({x} != {y})")
        less = self.definitions.use(f"weft_lt_{'u64' if d.kind == 'uint' else 'i64'}")
        return Code(f"{less}({x}, {y})") if e.symbol == "<" else Code(f"!{less}({y}, {x})", UNARY)

    def _compared(self, symbol: str, a: Code, b: Code, d: DType) -> Code:
        """Floats differ unless they are equal: some compilers take != for false where one of them is NaN."""
        if d.is_float and symbol == "!=":
            return Code(f"!({a.at(SUM)} == {b.at(SUM)})", UNARY)
        return Code(f"{a.at(SUM)} {symbol} {b.at(SUM)}", COMPARISON)

    emit_Lt = emit_Le = emit_Eq = emit_Ne = _emit_comparison

    def emit_Select(self, e: ex.Select, index: bool) -> Code:
        return self.guarded(self.value(e.cond), lambda: self.value(e.a, index), lambda: self.value(e.b, index), e.dtype)

    # -- conversions

    def emit_Cast(self, e: ex.Cast, index: bool) -> Code:
        of, to = e.value.dtype.scalar, e.dtype.scalar
        return self.cast(self.value(e.value, index), of, to)

    def cast(self, a: Code, of: DType, to: DType) -> Code:
        if of == to:
            return a
        if of.name in self.language.soft:
            return self.cast(self.widen(a, of), dt.float32, to)
        if to.name in self.language.soft:
            return self.narrow(self.cast(a, of, dt.float32), to)
        if to.is_bool:
            if isinstance(a, Pair):
                return Code(f"any({a.text} != {PAIR}(0u, 0u))")
            return self._compared("!=", a, Code("0" if of == dt.int64 else self.language.literal(0, of)), of)
        if of.is_float and to.is_integer:
            text = f"{self.definitions.to_integer(to, of)}({a.text})"
            return Pair(text) if to.bits == 64 else Code(text)
        if to.is_float:
            if isinstance(a, Pair):
                return Code(
                    f"{self.definitions.use('weft_f32_of_' + ('u64' if of.kind == 'uint' else 'i64'))}({a.text})"
                )
            return Code(f"f32({a.text})")
        return self.converted(a, of, to)

    def converted(self, a: Code, of: DType, to: DType) -> Code:
        """An integer or a bool as an integer, modulo."""
        if of.is_bool:
            return Pair(f"{PAIR}(u32({a.text}), 0u)") if to == dt.uint64 else Code(
                f"{'i32' if to.kind == 'int' else 'u32'}({a.text})"
            )  # fmt: skip
        if to.bits == 64:
            if of.bits == 64:
                return Pair(self.pair(a)) if to == dt.uint64 or isinstance(a, Pair) else a
            if of.kind == "uint":
                if to == dt.int64 and of.bits < 32:
                    return Code(f"i32({a.text})")
                return Pair(f"{PAIR}({a.text}, 0u)")
            return a if to == dt.int64 else Pair(self.pair(a))
        word = self.word(a, of)
        signed = of.kind == "int"  # of the word's type
        wide = word if signed == (to.kind == "int") else Code(f"{'i32' if to.kind == 'int' else 'u32'}({word.text})")
        fits = to.bits == 32 or (of.bits <= to.bits and of.kind == to.kind) or (
            of.kind == "uint" and to.kind == "int" and of.bits < to.bits
        )  # fmt: skip
        return wide if fits else self.narrowed(wide, to)

    def emit_Bitcast(self, e: ex.Bitcast, index: bool) -> Code:
        a, of, to = self.value(e.value), e.value.dtype.scalar, e.dtype.scalar
        if of == to:
            return a
        if of.bits == 64:
            return Pair(self.pair(a))
        word = Code(f"bitcast<u32>({a.text})") if of == dt.float32 or of.kind == "int" else a
        if to == dt.float32:
            return Code(f"bitcast<f32>({word.text})")
        if to.kind == "int":
            word = Code(f"i32({word.text})")
        return word if to.bits == 32 or of.kind == to.kind else self.narrowed(word, to)

    # -- functions

    def emit_Call(self, e: ex.Call, index: bool) -> Code:
        d = e.args[0].dtype.scalar
        if not (d.is_integer and d.bits == 64):
            return super().emit_Call(e, False)
        a = self.value(e.args[0])
        match e.name:
            case "isnan" | "isinf":
                return Code("false")
            case "abs" if d.kind == "int":
                return Pair(f"{self.definitions.absolute(d)}({self.pair(a)})")
            case "popcount":
                return Pair(f"{self.definitions.popcount(d)}({self.pair(a)})")
            case "abs" | "floor" | "ceil" | "trunc" | "round":
                return a
        raise CodegenError(f"{e.name} of {d} has no meaning", where=str(e))

    def function(self, name: str, d: DType, args: Sequence[Code]) -> Code:
        if name in ("isnan", "isinf"):
            return Code(f"{self.definitions.use('weft_' + name)}({args[0].text})")
        return self.own(name, d, *args)

    # -- memory

    def at(self, b: lp.Buffer, indices: Sequence[Expr]) -> str:
        """The number of an element, as i32."""
        flat: Expr = ex.Const(0, dt.int64)
        for i, n in zip(indices, b.shape):
            if i.dtype.lanes > 1 and len(indices) > 1 and n.dtype.lanes == 1:
                n = ex.Broadcast(n, i.dtype.lanes)
            wide = ex.mul(flat, n) if flat.dtype.lanes == n.dtype.lanes else flat
            if wide.dtype.lanes != i.dtype.lanes:
                lanes = max(wide.dtype.lanes, i.dtype.lanes)
                wide, i = (x if x.dtype.lanes == lanes else ex.Broadcast(x, lanes) for x in (wide, i))
            if wide.dtype.scalar != i.dtype.scalar:
                i = ex.cast_to(i, wide.dtype.scalar)
            flat = ex.add(wide, i)
        code = self.value(flat, True)
        return f"i32({code.text})" if flat.dtype.scalar.kind == "uint" else code.text

    def element(self, b: lp.Buffer, indices: Sequence[Expr]) -> str:
        raise CodegenError(f"WGSL has no address of an element of buffer '{b.name}'")

    def _load(self, e: Load) -> Code:
        text = self.places[e.buffer.name].load(self.at(e.buffer, e.indices))
        d = e.buffer.dtype.scalar
        if d.is_integer and d.bits < 8:  # the upper bits of its byte may be anything
            return self.narrowed(Code(text), d)
        return Pair(text) if d.is_integer and d.bits == 64 else Code(text)


def _infix(symbol: str, a: Code, b: Code) -> Code:
    level = PRODUCT if symbol in "*/%" else SUM
    return Code(f"{a.at(level)} {symbol} {b.at(level - 1)}", level)
