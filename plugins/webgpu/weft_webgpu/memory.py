"""Where buffers are in a text: how an element is read and written.

A buffer of the host-visible memory is a binding, an array of words, pairs of words or floats. Elements of one or two
bytes are packed into words: a write replaces the bits of its element by two atomic operations, so that neighbours in
a word may be written by other threads at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.dtypes import DType
from weft_c_family.language import Language


@dataclass
class Place:
    """A buffer in a text.

    Args:
        name: of the array.
        dtype: of its elements.
        language: the words of the text.
        packed: elements of one or two bytes lie in words.
        atomic: it is updated, or written in parts of words.
        base: where it begins in the array, in words: the text of a number; empty: at 0. Its array is then one of words
            that several buffers share.
        functions: what the text needs beside, by name.
        suffix: tells its functions from those of others.
    """

    name: str
    dtype: DType
    language: Language
    packed: bool = False
    atomic: bool = False
    base: str = ""
    functions: dict[str, str] = field(default_factory=dict)
    suffix: str = ""

    @property
    def word(self) -> str:
        """The type of what an access gives or takes, before it is converted."""
        if self.packed or self.base:
            return "u32"
        return "u32" if self.atomic and self.type == "f32" else self.type

    @property
    def type(self) -> str:
        """The type of an element."""
        return self.language.type(self.dtype)

    @property
    def declared(self) -> str:
        """The type of the array's elements."""
        return f"atomic<{self.word}>" if self.atomic else self.word

    def _read(self, at: str) -> str:
        where = f"{self.name}[{at}]"
        return f"atomicLoad(&{where})" if self.atomic else where

    def _place(self, at: str, scale: int = 1) -> str:
        """Where a word is; `at` is an element's number."""
        text = at if scale == 1 else f"{scale} * ({at})"
        return f"{self.base} + {text}" if self.base else text

    def _function(self, name: str, parameters: str, result: str, *lines: str) -> str:
        full = f"weft_{name}_{self.suffix}"
        self.functions[full] = f"fn {full}({parameters}){result} {{\n" + "".join(f"  {x}\n" for x in lines) + "}"
        return full

    def load(self, at: str) -> str:
        """The value of an element."""
        size = self.dtype.bytes
        if self.packed:
            shift = {1: 2, 2: 1}[size]
            where = self._place(f"(i >> {shift}u)")
            bits = f"(u32(i) & {(1 << shift) - 1}u) * {8 * size}u"
            signed = self.type == "i32"
            word = f"i32({self._read(where)})" if signed else self._read(where)
            t = "i32" if signed else "u32"
            get = self._function("get", "i: i32", f" -> {t}", f"return extractBits({word}, {bits}, {8 * size}u);")
            return f"({get}({at}) != 0u)" if self.type == "bool" else f"{get}({at})"
        if not self.base:
            text = self._read(at)
            return f"bitcast<f32>({text})" if self.atomic and self.type == "f32" else text
        if size == 8:
            low, high = self._read(self._place("i", 2)), self._read(self._place("i", 2) + " + 1")
            return f"{self._function('get', 'i: i32', ' -> vec2<u32>', f'return vec2<u32>({low}, {high});')}({at})"
        text = self._read(self._place(f"({at})"))
        return {"f32": f"bitcast<f32>({text})", "i32": f"i32({text})"}.get(self.type, text)

    def _bits(self, value: str) -> str:
        """A value as a word. A constant below 0 has a type first: it is no u32."""
        return {"f32": f"bitcast<u32>({value})", "i32": f"u32(i32({value}))"}.get(self.type, f"u32({value})")

    def store(self, at: str, value: str) -> str:
        """The statement that gives an element a value."""
        size = self.dtype.bytes
        if self.packed:
            shift = {1: 2, 2: 1}[size]
            mask = (1 << 8 * size) - 1
            put = self._function(
                "put", "i: i32, x: u32", "",
                f"let shift = (u32(i) & {(1 << shift) - 1}u) * {8 * size}u;",
                f"let at = {self._place(f'(i >> {shift}u)')};",
                f"atomicAnd(&{self.name}[at], ~({mask:#x}u << shift));",
                f"atomicOr(&{self.name}[at], (x & {mask:#x}u) << shift);",
            )  # fmt: skip
            return f"{put}({at}, {self._bits(value)});"
        if not self.base:
            if not self.atomic:
                return f"{self.name}[{at}] = {value};"
            return f"atomicStore(&{self.name}[{at}], {f'bitcast<u32>({value})' if self.type == 'f32' else value});"
        write = "atomicStore(&{}[{}], {});" if self.atomic else "{}[{}] = {};"
        if size == 8:
            put = self._function(
                "put", "i: i32, x: vec2<u32>", "",
                f"let at = {self._place('i', 2)};",
                write.format(self.name, "at", "x.x"), write.format(self.name, "at + 1", "x.y"),
            )  # fmt: skip
            return f"{put}({at}, {value});"
        word = value if self.type == "u32" else self._bits(value)
        return write.format(self.name, self._place(f"({at})"), word)

    def update(self, operation: str, at: str, value: str) -> str:
        """The statement that updates an element in one step, of floats by compare and exchange until it succeeds."""
        if self.type in ("i32", "u32") and (not self.base or self.type == "u32"):
            return f"atomic{operation.capitalize()}(&{self.name}[{self._place(f'({at})')}], {value});"
        old = "bitcast<f32>(old)" if self.type == "f32" else "i32(old)"
        test = f"{old} {'<' if operation == 'min' else '>'} x"
        if self.type == "f32":
            test = f"({test}) | ((old & 0x7fffffffu) > 0x7f800000u)"
        new = f"{old} + x" if operation == "add" else f"select(x, {old}, {test})"
        bits = "bitcast<u32>" if self.type == "f32" else "u32"
        function = self._function(
            operation, f"i: i32, x: {self.type}", "",
            f"let at = {self._place('i')};", f"var old = atomicLoad(&{self.name}[at]);",
            "loop {",
            f"  let result = atomicCompareExchangeWeak(&{self.name}[at], old, {bits}({new}));",
            "  if (result.exchanged) { break; }", "  old = result.old_value;",
            "}",
        )  # fmt: skip
        return f"{function}({at}, {value});"
