"""Words of one dialect: types, literals, identifiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft_c_family.dialect import Dialect

KEYWORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if",
    "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof", "static", "struct",
    "switch", "typedef", "union",
    "unsigned", "void", "volatile", "while", "bool", "true", "false", "alignas", "alignof", "asm", "catch", "class",
    "constexpr", "decltype",
    "delete", "explicit", "export", "final", "friend", "mutable", "namespace", "new", "noexcept", "nullptr", "operator",
    "override", "private",
    "protected", "public", "static_assert", "template", "this", "thread_local", "throw", "try", "typeid", "typename",
    "using", "virtual", "and",
    "or", "not", "xor", "bitand", "bitor", "compl", "signbit", "isnan", "isinf", "half", "NULL", "INFINITY", "NAN",
})  # fmt: skip
"""Of C, C++ and their headers: no identifier is called so in any dialect."""

SHORT = {"int": "i", "uint": "u", "float": "f", "complex": "c"}


def short(d: DType) -> str:
    """A dtype in the names of helper functions: f32, i64, bf16, e4m3fn."""
    name = d.name
    if d.is_bool or name == "bfloat16":
        return {"bool": "bool", "bfloat16": "bf16"}[name]
    return name.split("_", 1)[1] if "_" in name else f"{SHORT[d.kind]}{d.bits}"


def identifier(name: str, reserved: frozenset[str] = frozenset()) -> str:
    """`name` as an identifier: other characters become underscores; no keyword, and nothing that helper functions are
    called."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name) or "_"
    if text[0].isdigit() or text.startswith(("weft_", "__")):
        text = "x" + text
    return text + "_" if text in KEYWORDS or text in reserved else text


class Language:
    """Types and literals of a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        floats = [d for d in dt.all_dtypes() if d.is_float and d.bits < 32]
        self.soft = frozenset(d.name for d in floats if d.name not in dialect.types)
        """Floats that are carried as words."""

    def has(self, d: DType) -> bool:
        """Whether values of `d` can be computed with."""
        if d.kind in ("string", "handle"):
            return False
        if d.kind == "complex":
            return part_of(d).name in self.dialect.types
        return d.name in self.soft or d.name in self.dialect.types or (d.is_integer and d.bits < 8)

    def type(self, d: DType) -> str:
        """Of a scalar value."""
        d = d.scalar
        if d.kind == "complex":
            return f"weft_{short(d)}"
        if d.name in self.soft:
            return self.dialect.types[f"uint{max(8, d.bits)}"]
        if d.is_integer and d.bits < 8:
            return self.dialect.types[f"{d.kind}8"]
        return self.dialect.types[d.name]

    def memory_type(self, d: DType) -> str:
        """Of an element of a buffer: a bool is a byte, 0 or 1."""
        return self.dialect.types["uint8"] if d.is_bool else self.type(d)

    def word(self, d: DType) -> str:
        """The unsigned integer in which arithmetic of an integer wraps: of 32 bits or 64."""
        return self.dialect.types["uint64" if d.bits > 32 else "uint32"]

    def literal(self, value: Any, d: DType) -> str:
        """A constant; negative ones begin with a minus."""
        d = d.scalar
        if d.is_bool:
            return "true" if value else "false"
        if d.kind == "complex":
            raise ValueError("a complex constant is a call of a helper function")
        if d.is_integer:
            return self._integer(int(value), d)
        if d.name in self.soft:
            return hex(int.from_bytes(d.numpy.type(value).tobytes(), "little"))
        if not math.isfinite(value):
            sign = "-" if value < 0 else ""
            word = self.dialect.nan if math.isnan(value) else self.dialect.infinity
            return sign + word if d.name == "float32" else f"{sign}({self.type(d)}){word}"
        # The shortest decimal that rounds to the value.
        text = repr(float(value)) if d.bits == 64 else str(np.float32(value))
        text = text if any(c in text for c in ".e") else text + ".0"
        default = "" if d.bits == 64 else self.dialect.suffixes.get("float32", "")
        return text + self.dialect.suffixes.get(d.name, default)

    def _integer(self, value: int, d: DType) -> str:
        suffix = self.dialect.suffixes.get(d.name, "")
        if d.kind == "uint":
            return (
                str(value)
                if d.bits < 32
                else str(value) + (suffix if value >> 32 else self.dialect.suffixes.get("uint32", ""))
            )
        if value == -(1 << 63):
            return f"(-{(1 << 63) - 1}{suffix} - 1)"
        if value == -(1 << 31):
            return "(-2147483647 - 1)"
        return str(value) + (suffix if not -(1 << 31) <= value < 1 << 31 else "")


def part_of(d: DType) -> DType:
    """Of a complex number the dtype of its parts."""
    return dt.float32 if d.bits == 64 else dt.float64
