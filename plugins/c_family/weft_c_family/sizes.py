"""Formulas of sizes as text, for those who emit what stands around kernels: bindings of symbols, checks, launches.

They are exact: where ranges do not exclude that a sum, difference, product or quotient leaves int64, a function computes it and notes so in the variable
`OVER` of the text around.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.dtypes import DType, int64
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft_c_family.dialect import Dialect
from weft_c_family.formulas import SUM, Code, Formulas

OVER = "over"
"""A bool of the text around the formulas; what notes an overflow in it is called with its address."""
_CHECKED = {
    "+": ("add", "(b > 0 && a > INT64_MAX - b) || (b < 0 && a < INT64_MIN - b)"),
    "-": ("sub", "(b < 0 && a > INT64_MAX + b) || (b > 0 && a < INT64_MIN + b)"),
    "*": (
        "mul",
        "a != 0 && b != 0 && (a == -1 ? b == INT64_MIN : b == -1 ? a == INT64_MIN : (a > 0) == (b > 0) ? "
        "(a > 0 ? a > INT64_MAX / b : a < INT64_MAX / b) : (a > 0 ? b < INT64_MIN / a : a < INT64_MIN / b))",
    ),
}


class _Exact(Formulas):
    """Formulas whose arithmetic of int64 notes where it leaves int64."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.checked: dict[str, str] = {}

    def integer(self, symbol: str, a: Code, b: Code, d: DType, plain: bool) -> Code:
        if plain or d != int64:
            return super().integer(symbol, a, b, d, plain)
        name, wrong = _CHECKED[symbol]
        self.checked[name] = (
            f"static inline int64_t {name}_exact(int64_t a, int64_t b, bool *over) {{\n"
            f"  if ({wrong}) {{\n    *over = true;\n    return 0;\n  }}\n  return a {symbol} b;\n}}"
        )
        return Code(f"{name}_exact({a.text}, {b.text}, &{OVER})")

    def _emit_division(self, e: ex.Binary, index: bool) -> Code:
        rest = e.symbol in ("%", "truncmod")
        if rest or e.dtype != int64 or not (-1 in self.range(e.b) and -(1 << 63) in self.range(e.a)):
            return super()._emit_division(e, index)
        self.checked["div"] = (
            "static inline int64_t divisor_exact(int64_t a, int64_t b, bool *over) {\n"
            "  if (a == INT64_MIN && b == -1) {\n    *over = true;\n    return 1;\n  }\n  return b;\n}"
        )
        a, b = self.value(e.a, index), self.value(e.b, index)
        return Code(f"{self.definitions.division(e.symbol, int64)}({a.text}, divisor_exact({a.text}, {b.text}, &{OVER}))")

    emit_FloorDiv = emit_TruncDiv = _emit_division


class SizeFormulas:
    """Texts of integer formulas over symbols that are bound one after another.

    Args:
        dialect: the language.
        reserved: names that the text around them has for itself.
    """

    def __init__(self, dialect: Dialect, reserved: Iterable[str] = ()) -> None:
        self._formulas = _Exact(dialect)
        self._bound: set[str] = set()
        for name in (OVER, *reserved):
            self._formulas.fresh(name)

    def bind(self, name: str, values: Range | None = None) -> str:
        """What the symbol `name` is called in the text; `values` are those that it may have."""
        self._bound.add(name)
        self._formulas.ranges[name] = values or Range()
        return self._formulas.declare(name)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """What the symbols may be."""
        return self._formulas.ranges

    def suppose(self, ranges: Mapping[str, Range]) -> None:
        """From here on, symbols are within these."""
        self._formulas.ranges.update(ranges)

    def knows(self, e: Expr) -> bool:
        """Whether every symbol of `e` is bound."""
        return ex.free_vars(e).keys() <= self._bound

    def range(self, e: Expr) -> Range:
        return self._formulas.range(e)

    def text(self, e: Expr) -> tuple[list[str], str]:
        """Statements that must stand in front, and the formula, which binds as tightly as a sum.

        Raises:
            CodegenError: a symbol is not bound, or the formula is not of integers.
        """
        for name in ex.free_vars(e):
            if name not in self._bound:
                raise CodegenError(f"symbol '{name}' is used before it is bound", hint=f"bound so far: {', '.join(sorted(self._bound)) or 'none'}")
        if any(not (n.dtype.is_integer or n.dtype.is_bool) or n.dtype.lanes != 1 for n in ex.walk(e)):
            raise CodegenError(f"'{e}' is no formula of a size", why="sizes are integers", hint="compute it in a kernel")
        f = self._formulas
        f.begin(e)
        value = f.value(e).at(SUM)
        lines, f.lines = f.lines, []
        return lines, value

    def type(self, d: DType) -> str:
        """Of an element of `d` in memory."""
        return self._formulas.language.memory_type(d)

    def definitions(self) -> list[str]:
        """The functions that the texts so far call."""
        return [*self._formulas.definitions.texts(), *self._formulas.checked.values()]
