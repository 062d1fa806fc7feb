"""Formulas of sizes as steps: exact arithmetic of int64, and of other integers as they wrap.

A number of a narrower type is held as the integer that it is, a uint64 as its bits. Of a formula that may leave int64 a
truth value says whether it did; who uses the formula asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.codegen.base import THREADS
from weft.codegen.steps import CTX, Advance, Checked, Compute, Kind, LoadElement, LoadField, Operand, Step, Ticks, Value
from weft.dtypes import DType, int64
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.ranges import Range, Ranges
from weft_runtime.abi import CONTEXT, Structure

INT64 = Range(-(1 << 63), (1 << 63) - 1)
_CHECKED = {ex.Add: "add", ex.Sub: "sub", ex.Mul: "mul"}
_BITS = {ex.BitAnd: "and", ex.BitOr: "or", ex.BitXor: "xor"}
_LOGIC = {ex.And: "both", ex.Or: "either"}
_COMPARE = {ex.Lt: "lt", ex.Le: "le", ex.Eq: "eq", ex.Ne: "ne"}


class Formulas:
    """Collects steps; `name` is the segment's, for errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[Step] = []
        self.env: dict[str, Operand] = {}
        self.ranges = Ranges({THREADS.name: Range(1, 1 << 20)})
        self.asked: set[Operand] = set()  # flags that are false from here on
        self._memo: dict[ex.Expr, Operand] = {}
        self._flags: dict[ex.Expr, Operand] = {}
        self._count = 0

    # -- steps
    def new(self, kind: Kind = "int") -> Value:
        self._count += 1
        return Value(f"v{self._count}", kind)

    def compute(self, op: str, *operands: Operand, kind: Kind = "int") -> Value:
        result = self.new(kind)
        self.steps.append(Compute(result, op, operands))
        return result

    def test(self, op: str, *operands: Operand) -> Value:
        return self.compute(op, *operands, kind="bool")

    def field(self, base: Value, structure: Structure, field: str) -> Value:
        described = next(f for f in structure.fields if f.name == field)
        result = self.new("pointer" if described.kind == "pointer" else "int")
        self.steps.append(LoadField(result, base, structure, field))
        return result

    def element(self, base: Value, kind: str, index: int) -> Value:
        result = self.new("pointer" if kind == "pointer" else "int")
        self.steps.append(LoadElement(result, base, kind, index))
        return result

    def advance(self, base: Value, bytes_: Operand) -> Value:
        if bytes_ == 0:
            return base
        result = self.new("pointer")
        self.steps.append(Advance(result, base, bytes_))
        return result

    def ticks(self) -> Value:
        result = self.new()
        self.steps.append(Ticks(result))
        return result

    # -- symbols
    def bind(self, name: str, value: Operand, values: Range) -> None:
        """A symbol has this value, which is one of `values`."""
        self.env[name] = value
        self.ranges = Ranges({**self.ranges.ranges, name: values})

    def suppose(self, ranges: Mapping[str, Range]) -> None:
        """From here on, symbols are within these."""
        self.ranges = Ranges(ranges)

    def known(self, e: ex.Expr) -> bool:
        """Whether every symbol of `e` is bound."""
        return all(name in self.env or v == THREADS for name, v in ex.free_vars(e).items())

    # -- formulas
    def flag(self, e: ex.Expr) -> Operand:
        """Whether `e`, which has been computed, left int64; False if it certainly did not."""
        found = self._flags.get(e, False)
        return False if found in self.asked else found

    def number(self, e: ex.Expr) -> Operand:
        """`e` as an integer, 1 or 0 for a truth value."""
        value = self.value(e)
        if not e.dtype.is_bool:
            return value
        return int(value) if isinstance(value, bool) else self.compute("int", value)

    def value(self, e: ex.Expr) -> Operand:
        """`e`, computed once.

        Raises:
            CodegenError: a symbol in it is not bound, or it is not of integers.
        """
        if e not in self._memo:
            self._width(e.dtype)
            self._memo[e] = self._emit(e)
        return self._memo[e]

    def _width(self, dtype: DType) -> int:
        if dtype.is_bool:
            return 1
        if not dtype.is_integer or dtype.lanes != 1 or dtype.bits < 8:
            hint = "shape formulas are integers; compute others in a kernel"
            raise CodegenError(f"a formula of a segment has dtype {dtype}", where=self.name, hint=hint)
        return dtype.bits

    def _emit(self, e: ex.Expr) -> Operand:
        match e:
            case ex.Const():
                return bool(e.value) if e.dtype.is_bool else ex.wrap_integer(int(e.value), int64)
            case ex.Var():
                return self._symbol(e)
            case ex.Not():
                value = self.test("not", self.value(e.a))
                self._inherit(e, e.a)
                return value
            case ex.Select():
                return self._select(e)
            case ex.Cast():
                return self._cast(e)
            case ex.Binary():
                return self._binary(e)
        why = f"{type(e).__name__} has no integer form here"
        raise CodegenError(f"a segment cannot compute '{e}'", where=self.name, why=why, hint="compute it in a kernel")

    def _symbol(self, e: ex.Var) -> Operand:
        if e == THREADS:
            threads = self.field(CTX, CONTEXT, "threads")
            return self.compute("select", self.test("lt", 1, threads), threads, 1)
        if e.name not in self.env:
            hint = "bound so far: " + (", ".join(self.env) or "none")
            raise CodegenError(f"symbol '{e.name}' is used before it is bound", where=self.name, hint=hint)
        return self._wrapped(self.env[e.name], e.dtype)

    def _select(self, e: ex.Select) -> Operand:
        cond, a, b = self.value(e.cond), self.value(e.a), self.value(e.b)
        value = self.compute("select", cond, a, b, kind="bool" if e.dtype.is_bool else "int")
        flags = self.flag(e.a), self.flag(e.b)
        chosen: Operand = False if flags == (False, False) else self.compute("select", cond, *flags, kind="bool")
        self._raise(e, self.flag(e.cond), chosen)
        return value

    def _cast(self, e: ex.Cast) -> Operand:
        value = self.value(e.value)
        self._inherit(e, e.value)
        if e.dtype.is_bool:
            return value if e.value.dtype.is_bool else self.test("ne", value, 0)
        if e.value.dtype.is_bool:
            return self.number(e.value)
        return self._wrapped(value, e.dtype)

    def _wrapped(self, value: Operand, dtype: DType) -> Operand:
        """The number of `dtype` with the lowest bits of an integer."""
        spare = 64 - self._width(dtype)
        if dtype.is_bool:
            return self.test("ne", value, 0)
        if spare == 0:
            return value
        if dtype.kind == "uint":
            return self.compute("and", value, (1 << dtype.bits) - 1)
        return self.compute("shr", self.compute("shl", value, spare), spare)

    def _raise(self, e: ex.Expr, *flags: Operand) -> None:
        result: Operand = False
        for flag in flags:
            if flag is not False and flag != result:
                result = flag if result is False else self.test("either", result, flag)
        if result is not False:
            self._flags[e] = result

    def _inherit(self, e: ex.Expr, *parts: ex.Expr) -> None:
        """`e` is as exact as what it is made of."""
        self._raise(e, *(self.flag(p) for p in parts))

    def _binary(self, e: ex.Binary) -> Operand:
        of = e.a.dtype
        a, b = self.value(e.a), self.value(e.b)
        self._inherit(e, e.a, e.b)
        wide = of.kind == "uint" and of.bits == 64
        if type(e) in _LOGIC:
            return self.test(_LOGIC[type(e)], a, b)
        if type(e) in _COMPARE:
            op = _COMPARE[type(e)]
            return self.test(f"u{op}" if wide and op in ("lt", "le") else op, a, b)
        if isinstance(e, (ex.Min, ex.Max)):
            below = self.test("ult" if wide else "lt", *((a, b) if isinstance(e, ex.Min) else (b, a)))
            return self.compute("select", below, a, b)
        if of.is_bool:  # & | ^ of truth values
            logic: dict[type, Callable[[], Operand]] = {
                ex.BitAnd: lambda: self.test("both", a, b), ex.BitOr: lambda: self.test("either", a, b),
                ex.BitXor: lambda: self.test("ne", a, b),
            }  # fmt: skip
            if type(e) in logic:
                return logic[type(e)]()
        if type(e) in _BITS:
            return self.compute(_BITS[type(e)], a, b)
        if type(e) in _CHECKED:
            return self._sum(e, a, b)
        if isinstance(e, (ex.FloorDiv, ex.FloorMod, ex.TruncDiv, ex.TruncMod)):
            return self._division(e, a, b)
        if isinstance(e, (ex.ShiftLeft, ex.ShiftRight)):
            return self._shift(e, a, b)
        raise CodegenError(
            f"a segment cannot compute '{e}'", where=self.name, why=f"{type(e).__name__} has no integer form here"
        )

    def _sum(self, e: ex.Binary, a: Operand, b: Operand) -> Operand:
        op = _CHECKED[type(e)]
        # Ranges take a symbol of which nothing is known for unbounded.
        if e.dtype != int64 or self.ranges.of(e).within(*INT64):
            return self._wrapped(self.compute(op, a, b), e.dtype)
        result, beyond = self.new(), self.new("bool")
        self.steps.append(Checked(result, beyond, op, a, b))
        self._raise(e, self.flag(e), beyond)
        return result

    def _division(self, e: ex.Binary, a: Operand, b: Operand) -> Operand:
        of = e.a.dtype
        rest = isinstance(e, (ex.FloorMod, ex.TruncMod))
        unsigned = of.kind == "uint"
        if isinstance(e.b, ex.Const):
            divisor = int(e.b.value)
            if divisor > 0 and divisor & (divisor - 1) == 0 and (unsigned or isinstance(e, (ex.FloorDiv, ex.FloorMod))):
                shift = divisor.bit_length() - 1
                return (
                    self.compute("and", a, divisor - 1)
                    if rest
                    else self.compute("ushr" if unsigned else "shr", a, shift)
                )
        else:
            # A size of zero may reach a divisor (the inferred dimension of an empty reshape); the processor would trap.
            b = self.compute("select", self.test("eq", b, 0), 1, b)
        if unsigned:
            wide = "u" if of.bits == 64 else ""
            return self.compute(f"{wide}rem" if rest else f"{wide}div", a, b)
        if of.bits == 64 and (self.flag(e.b) is not False or -1 in self.ranges.of(e.b)):
            # The least number by -1 is none of 64 bits; the processor would trap.
            wraps = self.test("both", self.test("eq", a, INT64.lo), self.test("eq", b, -1))
            b = self.compute("select", wraps, 1, b)
            if not rest:
                self._raise(e, self.flag(e), wraps)
        remainder = self.compute("rem", a, b)
        value = remainder if rest else self.compute("div", a, b)
        if isinstance(e, (ex.FloorDiv, ex.FloorMod)):
            crossed = self.test(
                "both", self.test("lt", self.compute("xor", remainder, b), 0), self.test("ne", remainder, 0)
            )
            value = self.compute("add", value, self.compute("select", crossed, b if rest else -1, 0))
        return self._wrapped(value, of)

    def _shift(self, e: ex.Binary, a: Operand, b: Operand) -> Operand:
        """A shift by the width or more has a value: no bit, or the sign, is left."""
        of, width = e.a.dtype, self._width(e.a.dtype)
        inside = self.test("ult", b, width)
        if isinstance(e, ex.ShiftRight) and of.kind == "int":
            return self.compute("shr", a, self.compute("select", inside, b, width - 1))
        amount = self.compute("select", inside, b, 0)
        shifted = self._wrapped(self.compute("shl" if isinstance(e, ex.ShiftLeft) else "ushr", a, amount), of)
        return self.compute("select", inside, shifted, 0)
