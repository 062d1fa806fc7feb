"""Formulas as text: everything about values, nothing about loops.

Arithmetic means what `weft.expr` says it means, and nothing is left undefined: integers wrap, in unsigned words, unless
their ranges show that they need not; indices are plain, since an index that overflows is out of bounds anyway; what C
has no operator for is a helper function. What C leaves to the implementation (a word made signed, a negative number
shifted to the right) is as every compiler of the family has it. A vector is a loop over its lanes, so a formula is
always the text of one lane: `lane` is its number.

A formula that a statement uses twice becomes a constant in front of it. On a side of a Select such constants may stand
only where that side is chosen: the Select is an `if` then, else `?:`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range, add_ranges, multiply_ranges, negate_range, range_of
from weft.loop import nodes as lp
from weft.loop.nodes import Load
from weft_c_family.definitions import Definitions
from weft_c_family.dialect import Dialect
from weft_c_family.language import Language, identifier, part_of

# How tightly a text holds together, loosest last: what is looser than its place allows gets parentheses.
PRIMARY = 0
"""A name, a call, an element, or what is in parentheses."""
UNARY = 1
"""A sign, `!`, a conversion in C."""
PRODUCT = 2
"""`*`, `/`, `%`."""
SUM = 3
"""`+`, `-`."""
COMPARISON = 4
"""`<`, `<=`, `==`, `!=`."""
AND, OR = 5, 6
LOOSE = 7
"""Anything else."""

REPEATED = 10
"""Nodes of a formula from which on it is worth a name if it is used twice."""

_INT32 = (-(1 << 31), (1 << 31) - 1)
_EXTENT = Range(0, 1 << 47)  # a buffer of more elements fits into no memory


@dataclass(frozen=True)
class Code:
    """Text of a value. `word`: the same integer computed in an unsigned word, before it is converted back, for sums
    that go on."""

    text: str
    level: int = PRIMARY
    word: Code | None = None

    def at(self, level: int) -> str:
        """In a place that holds together what is at most as loose as `level`."""
        return self.text if self.level <= level else f"({self.text})"


class _Argument:
    """An argument of an intrinsic in its template: `{0}` is its value, `{0:address}` the address of an element."""

    def __init__(self, formulas: Formulas, e: Expr) -> None:
        self.formulas, self.e = formulas, e

    def __format__(self, spec: str) -> str:
        if spec == "address":
            if not isinstance(self.e, Load):
                raise CodegenError("an intrinsic takes the address of an element of a buffer", where=str(self.e))
            return "&" + self.formulas.element(self.e.buffer, self.e.indices)
        return self.formulas.value(self.e).at(PRIMARY)


class Formulas:
    """Writes formulas, and in `lines` what must stand in front of them."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.language = Language(dialect)
        self.definitions = Definitions(self.language)
        self.names: dict[str, str] = {}  # variables and buffers, as they are called here
        self.ranges: dict[str, Range] = {}
        self.lines: list[str] = []
        self.lane: str | None = None
        self._taken: set[str] = set()
        self._memo: dict[Expr, Code] = {}
        self._repeated: set[Expr] = set()
        self._impure: set[Expr] = set()

    # -- names

    def declare(self, name: str) -> str:
        """A name of its own for a new variable or buffer, which stands for `name` from now on."""
        text = self.names[name] = self.fresh(name)
        return text

    def fresh(self, stem: str) -> str:
        """A name of its own for something new."""
        wanted = text = identifier(stem, self.dialect.words)
        k = 1
        while text in self._taken:
            k += 1
            text = f"{wanted}_{k}"
        self._taken.add(text)
        return text

    def name_of(self, name: str) -> str:
        try:
            return self.names[name]
        except KeyError:
            raise CodegenError(
                f"'{name}' has no value here", hint="verify(program) finds uses before definitions"
            ) from None

    def range(self, e: Expr) -> Range:
        return range_of(e, self.ranges)

    def type_of(self, e: Expr) -> str:
        """The type of a variable that holds `e`: where the dialect has a narrower one for indices, and `e` fits,
        that."""
        fits = self.dialect.index and e.dtype == dt.int64 and self.range(e).within(*_INT32)
        return self.dialect.index if fits else self.language.type(e.dtype)

    def suppose_extents(self, buffers: Sequence[lp.Buffer]) -> None:
        """Variables that are dimensions of buffers are not negative and not beyond any memory."""
        for b in buffers:
            for d in b.shape:
                factor = d.a if isinstance(d, ex.Mul) and isinstance(d.b, ex.Const) else d
                if isinstance(factor, ex.Var):
                    self.ranges[factor.name] = _EXTENT

    # -- statements' formulas

    def begin(self, *roots: Expr) -> None:
        """A new statement that uses `roots`: what they share gets a name."""
        self._memo = {}
        self._repeated, self._impure = _repeated(roots)
        if self._repeated:
            for e in roots:
                self._hoist(e)

    def _hoist(self, root: Expr) -> None:
        """Names what is repeated in `root`, unless it loads something on a side that may not be chosen."""
        seen: set[tuple[Expr, bool]] = set()

        def visit(e: Expr, certain: bool) -> None:
            if (e, certain) in seen or (e, True) in seen:
                return
            seen.add((e, certain))
            for child, always in parts(e):
                visit(child, certain and always)
            if e in self._repeated and e not in self._memo and (certain or e not in self._impure):
                self.value(e)

        visit(root, True)

    def value(self, e: Expr, index: bool = False) -> Code:
        """The text of `e`. `index`: of a buffer, or a size: nothing in it overflows."""
        found = self._memo.get(e)
        if found is not None:
            return found
        emit = getattr(self, "emit_" + type(e).__name__, None)
        if emit is None:
            raise CodegenError(f"'{self.dialect.name}' has no {type(e).__name__}", where=str(e))
        code: Code = emit(e, index)
        if e in self._repeated:
            name = self.fresh("at" if e.dtype.is_integer else "part")
            self.lines.append(f"const {self.type_of(e)} {name} = {code.text};")
            code = self._memo[e] = Code(name)
        return code

    def guarded(self, cond: Code, then: Callable[[], Code], orelse: Callable[[], Code], d: DType) -> Code:
        """One of two values, of which the other is not computed."""
        sides = []
        for side in (then, orelse):
            outer, memo, self.lines, self._memo = self.lines, self._memo, [], dict(self._memo)
            code = side()
            sides.append((self.lines, code))
            self.lines, self._memo = outer, memo
        (before_a, a), (before_b, b) = sides
        if not before_a and not before_b:
            return Code(f"{cond.at(OR)} ? {a.at(COMPARISON)} : {b.at(COMPARISON)}", LOOSE)
        name = self.fresh("chosen")
        self.lines += [
            f"{self.language.type(d)} {name};",
            f"if ({cond.text}) {{",
            *("  " + x for x in before_a),
            f"  {name} = {a.text};",
            "} else {",
        ]
        self.lines += [*("  " + x for x in before_b), f"  {name} = {b.text};", "}"]
        return Code(name)

    # -- leaves

    def literal(self, value: Any, d: DType) -> Code:
        d = d.scalar
        if d.kind == "complex":
            re, im = (self.language.literal(x, part_of(d)) for x in (complex(value).real, complex(value).imag))
            return Code(f"{self.definitions.complex(d)}({re}, {im})")
        text = self.language.literal(value, d)
        return Code(text, UNARY if text[0] == "-" else PRIMARY)

    def emit_Const(self, e: ex.Const, index: bool) -> Code:
        return self.literal(e.value, e.dtype)

    def emit_Var(self, e: ex.Var, index: bool) -> Code:
        name = self.name_of(e.name)
        return Code(f"{name}[{self.lane}]" if e.dtype.lanes > 1 else name)

    def emit_Broadcast(self, e: ex.Broadcast, index: bool) -> Code:
        return self.value(e.value, index)

    def emit_Ramp(self, e: ex.Ramp, index: bool) -> Code:
        assert self.lane is not None
        d = e.dtype.scalar
        lane = ex.Var(" lane", d)
        self.names[lane.name] = self.lane if d == dt.int64 else f"({self.language.type(d)}){self.lane}"
        self.ranges[lane.name] = Range(0, e.lanes - 1)
        return self.value(ex.add(e.base, ex.mul(lane, e.stride)), index)

    # -- arithmetic

    def _emit_arithmetic(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a, index), self.value(e.b, index), e.dtype.scalar
        if d.is_bool:
            return self.logic("||" if e.symbol == "+" else "&&", a, b)
        if d.is_integer:
            x, y = self.range(e.a), self.range(e.b)
            result = (
                multiply_ranges(x, y) if e.symbol == "*" else add_ranges(x, y if e.symbol == "+" else negate_range(y))
            )
            least, most = (-(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1) if d.kind == "int" else (0, (1 << d.bits) - 1)
            if self.dialect.index and d == dt.int64 and not index and not result.within(*_INT32):
                # Operands may be of the narrower type, in which the result would overflow.
                wide = f"({self.language.type(d)})"
                if not a.text.startswith(wide):
                    a = self.converted(a, d, d)
            return self.integer(e.symbol, a, b, d, (index and d == dt.int64) or result.within(least, most))
        return self.floating(e.symbol, a, b, d)

    emit_Add = emit_Sub = emit_Mul = _emit_arithmetic

    def emit_Div(self, e: ex.Div, index: bool) -> Code:
        return self.floating("/", self.value(e.a), self.value(e.b), e.dtype.scalar)

    def integer(self, symbol: str, a: Code, b: Code, d: DType, plain: bool) -> Code:
        """+, - or * of integers; `plain`: it cannot overflow."""
        if plain or (d.kind == "uint" and d.bits >= 32):
            return _infix(symbol, a, b)
        if self.dialect.called and d.kind == "int" and d.bits >= 32:
            return Code(f"{self.definitions.wrapping(symbol, d)}({a.text}, {b.text})")
        word = self.language.word(d)

        def unsigned(x: Code) -> Code:
            suffix = self.dialect.suffixes.get("uint32", "")
            if suffix and x.text.isdigit():
                return Code(x.text + suffix)
            return x.word or (Code(f"({word}){x.at(UNARY)}", UNARY))

        # Words of 32 bits for what is narrower, too: a product of two uint16 overflows an int.
        wide = _infix(symbol, unsigned(a), unsigned(b))
        if d.bits < 8:
            return self.narrowed(wide, d)
        return Code(f"({self.language.type(d)})({wide.text})", UNARY, wide if d.bits >= 32 else None)

    def narrowed(self, wide: Code, d: DType) -> Code:
        """An integer in the range of an integer of fewer bits than eight."""
        return Code(f"{self.definitions.wrap(d)}(({self.dialect.types['int32']}){wide.at(UNARY)})")

    def floating(self, symbol: str, a: Code, b: Code, d: DType) -> Code:
        """+, -, * or / of floats and complex numbers."""
        if d.kind == "complex":
            return Code(f"{self.definitions.complex_operation(symbol, d)}({a.text}, {b.text})")
        if d.name in self.language.soft:
            return self.narrow(_infix(symbol, self.widen(a, d), self.widen(b, d)), d)
        return _infix(symbol, a, b)

    def widen(self, a: Code, d: DType) -> Code:
        return Code(f"{self.definitions.widen(d)}({a.text})")

    def narrow(self, a: Code, d: DType) -> Code:
        return Code(f"{self.definitions.narrow(d)}({a.text})")

    def logic(self, op: str, a: Code, b: Code) -> Code:
        level = AND if op == "&&" else OR
        # C mixes && and || without a word; compilers do warn.
        sides = [x.text if x.level <= COMPARISON or x.level == level else f"({x.text})" for x in (a, b)]
        return Code(f"{sides[0]} {op} {sides[1]}", level)

    def _emit_extreme(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a, index), self.value(e.b, index), e.dtype.scalar
        if d.is_bool:
            return self.logic("&&" if e.symbol == "min" else "||", a, b)
        if d.name in self.language.soft:
            return self.narrow(
                Code(
                    f"{self.definitions.extreme(e.symbol, dt.float32)}({self.widen(a, d).text},"
                    f" {self.widen(b, d).text})"
                ),
                d,
            )
        return Code(f"{self.definitions.extreme(e.symbol, d)}({a.text}, {b.text})")

    emit_Min = emit_Max = _emit_extreme

    def _emit_division(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a, index), self.value(e.b, index), e.dtype.scalar
        if d.is_integer:
            if self.range(e.a).within(0, None) and self.range(e.b).within(1, None):
                return _infix("/" if e.symbol in ("//", "truncdiv") else "%", a, b)
            power = _power_of_two(e.b)
            if power is not None and d.bits >= 32 and e.symbol == "//":
                return self.shifted_right(a, Code(str(power)), d)
            return Code(f"{self.definitions.division(e.symbol, d)}({a.text}, {b.text})")
        soft = d.name in self.language.soft
        f = dt.float32 if soft else d
        x, y = (self.widen(a, d), self.widen(b, d)) if soft else (a, b)
        match e.symbol:
            case "%":
                result = Code(f"{self.definitions.floor_modulo(f)}({x.text}, {y.text})")
            case "truncmod":
                result = self.own("fmod", f, x, y)
            case _:
                result = self.own("floor" if e.symbol == "//" else "trunc", f, _infix("/", x, y))
        return self.narrow(result, d) if soft else result

    emit_FloorDiv = emit_FloorMod = emit_TruncDiv = emit_TruncMod = _emit_division

    def _emit_bits(self, e: ex.Binary, index: bool) -> Code:
        a, b = self.value(e.a), self.value(e.b)
        if e.dtype.is_bool:
            return (
                Code(f"{a.at(UNARY)} != {b.at(UNARY)}", COMPARISON)
                if e.symbol == "^"
                else self.logic("&&" if e.symbol == "&" else "||", a, b)
            )
        return Code(f"{a.at(UNARY)} {e.symbol} {b.at(UNARY)}", LOOSE)

    emit_BitAnd = emit_BitOr = emit_BitXor = _emit_bits

    def _emit_shift(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a), self.value(e.b), e.dtype.scalar
        if d.bits < 32 or not self.range(e.b).within(0, d.bits - 1):
            return Code(f"{self.definitions.shift(e.symbol, d)}({a.text}, {b.text})")
        if e.symbol == ">>":
            return self.shifted_right(a, b, d)
        wide = Code(f"({self.language.word(d)}){a.at(UNARY)} << {b.at(UNARY)}", LOOSE)
        return wide if d.kind == "uint" else Code(f"({self.language.type(d)})({wide.text})", UNARY, wide)

    emit_ShiftLeft = emit_ShiftRight = _emit_shift

    def shifted_right(self, a: Code, b: Code, d: DType) -> Code:
        """a >> b, where b is less than the width of a."""
        if self.dialect.called and d.kind == "int":
            return Code(f"{self.definitions.shifted_right(d)}({a.text}, {b.text})")
        return Code(f"{a.at(UNARY)} >> {b.at(UNARY)}", LOOSE)

    # -- truth

    def emit_And(self, e: ex.And, index: bool) -> Code:
        return (
            self.logic("&&", self.value(e.a), self.value(e.b))
            if e.dtype.is_bool
            else self._emit_bits(ex.BitAnd(e.a, e.b), index)
        )

    def emit_Or(self, e: ex.Or, index: bool) -> Code:
        return (
            self.logic("||", self.value(e.a), self.value(e.b))
            if e.dtype.is_bool
            else self._emit_bits(ex.BitOr(e.a, e.b), index)
        )

    def emit_Not(self, e: ex.Not, index: bool) -> Code:
        return Code("!" + self.value(e.a).at(PRIMARY), UNARY)

    def _emit_comparison(self, e: ex.Binary, index: bool) -> Code:
        a, b, d = self.value(e.a), self.value(e.b), e.a.dtype.scalar
        if d.kind == "complex":
            return Code(f"{self.definitions.complex_operation(e.symbol, d)}({a.text}, {b.text})")
        if d.name in self.language.soft:
            a, b = self.widen(a, d), self.widen(b, d)
        if d.is_bool:
            match e.symbol:
                case "<":
                    return self.logic("&&", Code("!" + a.at(PRIMARY), UNARY), b)
                case "<=":
                    return self.logic("||", Code("!" + a.at(PRIMARY), UNARY), b)
        if d.kind == "uint" and _is_zero({"<": e.b, "<=": e.a}.get(e.symbol)):
            return Code("true" if e.symbol == "<=" else "false")  # of an unsigned number: compilers warn
        return Code(f"{a.at(SUM)} {e.symbol} {b.at(SUM)}", COMPARISON)

    emit_Lt = emit_Le = emit_Eq = emit_Ne = _emit_comparison

    def emit_Select(self, e: ex.Select, index: bool) -> Code:
        cond = self.value(e.cond)
        return self.guarded(cond, lambda: self._side(e.a, index), lambda: self._side(e.b, index), e.dtype)

    def _side(self, e: Expr, index: bool) -> Code:
        if self._repeated:
            self._hoist(e)
        return self.value(e, index)

    # -- conversions

    def emit_Cast(self, e: ex.Cast, index: bool) -> Code:
        return self.cast(self.value(e.value), e.value.dtype.scalar, e.dtype.scalar)

    def cast(self, a: Code, of: DType, to: DType) -> Code:
        """A value of one dtype as another, as Cast says."""
        if of == to:
            return a
        if of.kind == "complex":
            z = a.at(PRIMARY)
            if to.kind == "complex":
                part, other = part_of(of), part_of(to)
                return Code(
                    f"{self.definitions.complex(to)}({self.cast(Code(z + '.re'), part, other).text},"
                    f" {self.cast(Code(z + '.im'), part, other).text})"
                )
            if to.is_bool:
                return Code(f"{z}.re != 0 || {z}.im != 0", OR)
            return self.cast(Code(z + ".re"), part_of(of), to)
        if to.kind == "complex":
            return Code(
                f"{self.definitions.complex(to)}({self.cast(a, of, part_of(to)).text},"
                f" {self.language.literal(0.0, part_of(to))})"
            )
        if of.name in self.language.soft:
            return self.cast(self.widen(a, of), dt.float32, to)
        if to.name in self.language.soft:
            if of.is_float and of.bits == 64:
                return self.narrow(Code(f"{self.definitions.odd_float32()}({a.text})"), to)
            return self.narrow(self.cast(a, of, dt.float32), to)
        if to.is_bool:
            return Code(f"{a.at(SUM)} != {self.language.literal(0, of)}", COMPARISON)
        if of.is_float and to.is_integer:
            if to.bits < 8:
                byte = replace(to, name=f"{to.kind}8", bits=8)
                least, most = (
                    (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if to.kind == "int" else (0, (1 << to.bits) - 1)
                )
                inner = f"{self.definitions.to_integer(byte, of)}({a.text})"
                return Code(
                    f"{self.definitions.extreme('max', byte)}({least}, {self.definitions.extreme('min', byte)}({most},"
                    f" {inner}))"
                )
            return Code(f"{self.definitions.to_integer(to, of)}({a.text})")
        if to.is_integer and to.bits < 8:
            return self.narrowed(a, to)
        if to.is_integer and of.is_integer:
            return self.converted(a, of, to)
        return Code(f"({self.language.type(to)}){a.at(UNARY)}", UNARY)

    def converted(self, a: Code, of: DType, to: DType) -> Code:
        """An integer as one of eight bits or more."""
        if self.dialect.called and a.level > UNARY:
            return Code(f"{self.definitions.converted(to, of)}({a.text})")
        return Code(f"({self.language.type(to)}){a.at(UNARY)}", UNARY)

    def emit_Bitcast(self, e: ex.Bitcast, index: bool) -> Code:
        a, of, to = self.value(e.value), e.value.dtype.scalar, e.dtype.scalar
        if of == to:
            return a
        if all(d.is_integer or d.name in self.language.soft for d in (of, to)):
            return (
                self.narrowed(a, to)
                if to.is_integer and to.bits < 8
                else Code(f"({self.language.type(to)}){a.at(UNARY)}", UNARY)
            )
        return Code(f"{self.definitions.bits(to, of)}({a.text})")

    # -- functions

    def own(self, name: str, d: DType, *args: Code) -> Code:
        """A call of the language's own function."""
        return Code(self.definitions.own(name, d, *(a.at(LOOSE) for a in args)))

    def emit_Call(self, e: ex.Call, index: bool) -> Code:
        args, d = [self.value(a) for a in e.args], e.args[0].dtype.scalar
        a = args[0]
        if d.name in self.language.soft:
            if e.name == "fma":
                return Code(f"{self.definitions.soft_fma(d)}({', '.join(x.text for x in args)})")
            result = self.function(e.name, dt.float32, [self.widen(x, d) for x in args])
            return result if e.dtype.is_bool else self.narrow(result, d)
        if not d.is_float:
            match e.name:
                case "isnan" | "isinf":
                    return Code("false")
                case "abs" if d.kind == "int":
                    return Code(f"{self.definitions.absolute(d)}({a.text})")
                case "popcount":
                    return Code(f"{self.definitions.popcount(d)}({a.text})")
                case "abs" | "floor" | "ceil" | "trunc" | "round":
                    return a
            raise CodegenError(f"{e.name} of {d} has no meaning", where=str(e))
        return self.function(e.name, d, args)

    def function(self, name: str, d: DType, args: Sequence[Code]) -> Code:
        """A function of floats that the language computes with."""
        if name in self.dialect.functions:
            return self.own(name, d, *args)
        a = args[0].at(PRIMARY)
        match name:
            case "isnan":
                return Code(f"{a} != {a}", COMPARISON)
            case "isinf":
                infinity = self.language.literal(float("inf"), d)
                return Code(f"{self.definitions.own('abs', d, a)} == {infinity}", COMPARISON)
        raise CodegenError(f"the dialect '{self.dialect.name}' has no function '{name}'")

    # -- memory

    def element(self, b: lp.Buffer, indices: Sequence[Expr]) -> str:
        """An element of a buffer, as what can be assigned to."""
        flat: Expr = lp.int64(0)
        for i, n in zip(indices, b.shape):
            if i.dtype.lanes > 1 and len(indices) > 1:
                n = ex.Broadcast(n, i.dtype.lanes) if n.dtype.lanes == 1 else n
            flat = _add_index(ex.mul(flat, n) if flat.dtype.lanes == n.dtype.lanes else flat, i)
        return f"{self.name_of(b.name)}[{self.value(flat, True).text}]"

    def emit_Load(self, e: Load, index: bool) -> Code:
        if e.predicate is None:
            return self._load(e)
        zero = ex.Const(0, e.dtype.scalar)
        return self.guarded(
            self.value(e.predicate), lambda: self._load(e), lambda: self.literal(zero.value, zero.dtype), e.dtype
        )

    def _load(self, e: Load) -> Code:
        text, d = self.element(e.buffer, e.indices), e.buffer.dtype
        if d.is_integer and d.bits < 8:  # the upper bits of its byte may be anything
            return self.narrowed(Code(text), d)
        return Code(f"{text} != 0", COMPARISON) if d.is_bool else Code(text)

    def emit_IntrinsicCall(self, e: lp.IntrinsicCall, index: bool) -> Code:
        template = self.dialect.intrinsics.get(e.name)
        if template is None:
            raise CodegenError(f"the dialect '{self.dialect.name}' has no intrinsic '{e.name}'", where=str(e))
        return Code(template.format(*(_Argument(self, a) for a in e.args)), LOOSE)


def _power_of_two(e: Expr) -> int | None:
    """k where `e` is the constant 2^k."""
    if not isinstance(e, ex.Const) or int(e.value) < 1 or int(e.value) & (int(e.value) - 1):
        return None
    return int(e.value).bit_length() - 1


def _add_index(a: Expr, b: Expr) -> Expr:
    if a.dtype.lanes != b.dtype.lanes:
        a, b = (ex.Broadcast(a, b.dtype.lanes), b) if a.dtype.lanes == 1 else (a, ex.Broadcast(b, a.dtype.lanes))
    return ex.add(a, b)


def _infix(symbol: str, a: Code, b: Code) -> Code:
    level = PRODUCT if symbol in "*/%" else SUM
    return Code(f"{a.at(level)} {symbol} {b.at(level - 1)}", level)


def _is_zero(e: Expr | None) -> bool:
    e = e.value if isinstance(e, ex.Broadcast) else e
    return isinstance(e, ex.Const) and e.value == 0


def parts(e: Expr) -> list[tuple[Expr, bool]]:
    """What a formula is made of, and whether it is computed in any case."""
    if isinstance(e, ex.Select):
        return [(e.cond, True), (e.a, False), (e.b, False)]
    if isinstance(e, Load) and e.predicate is not None:
        return [(e.predicate, True), *((i, False) for i in e.indices)]
    return [(c, True) for c in e.children()]


def _repeated(roots: Sequence[Expr]) -> tuple[set[Expr], set[Expr]]:
    """What `roots` use more than once and is long to write; and what depends on memory. Each formula is visited once,
    however often it is used."""
    uses: dict[Expr, int] = {}
    order: list[Expr] = []

    def visit(e: Expr) -> None:
        uses[e] = uses.get(e, 0) + 1
        if uses[e] == 1:
            for c in e.children():
                visit(c)
            order.append(e)

    for root in roots:
        visit(root)
    found: set[Expr] = set()
    impure: set[Expr] = set()
    weights: dict[Expr, int] = {}
    for e in order:
        children = e.children()
        if isinstance(e, (Load, lp.IntrinsicCall)) or any(c in impure for c in children):
            impure.add(e)
        weight = 1 + sum(weights[c] for c in children)
        if uses[e] > 1 and weight >= REPEATED and not isinstance(e, lp.IntrinsicCall):
            found.add(e)
            weight = 1
        weights[e] = weight
    return found, impure
