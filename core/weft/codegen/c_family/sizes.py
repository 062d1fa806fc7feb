"""Formulas of sizes as text, for those who emit what stands around kernels: bindings of symbols, checks, launches."""

from __future__ import annotations

from collections.abc import Iterable

from weft.codegen.c_family.dialect import Dialect
from weft.codegen.c_family.formulas import SUM, Formulas
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range


class SizeFormulas:
    """Texts of integer formulas over symbols that are bound one after another.

    Args:
        dialect: the language.
        reserved: names that the text around them has for itself.
    """

    def __init__(self, dialect: Dialect, reserved: Iterable[str] = ()) -> None:
        self._formulas = Formulas(dialect)
        self._bound: set[str] = set()
        for name in reserved:
            self._formulas.fresh(name)

    def bind(self, name: str, values: Range | None = None) -> str:
        """What the symbol `name` is called in the text; `values` are those that it may have."""
        self._bound.add(name)
        self._formulas.ranges[name] = values or Range()
        return self._formulas.declare(name)

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
        return self._formulas.definitions.texts()
