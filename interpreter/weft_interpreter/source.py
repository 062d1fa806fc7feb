"""The Python source of an interpreted program: its lines, their statements, and the meaning of its names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from weft.errors import LoopError
from weft.expr.nodes import Var
from weft.loop.nodes import Buffer, Program, Stmt
from weft.loop.printer import excerpt


@dataclass
class Code:
    """Python source of a formula; `lo`, `hi` bound an integer; `depth` counts nested parentheses."""

    text: str
    lo: int = 0
    hi: int = 0
    depth: int = 0


@dataclass
class Storage:
    """A buffer in generated code: the array's variable, and its shape as source with bounds."""

    buffer: Buffer
    array: str
    shape: list[Code]
    writable: bool


_LOCAL = re.compile(r"\b_[vbtd](\d+)(?:_\w+)?\b")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


class Source:
    """Lines of the kernel and of functions beside it."""

    def __init__(self, program: Program, intrinsics: Mapping[str, Callable[..., Any]]) -> None:
        self.program, self.intrinsics = program, intrinsics
        self.globals: dict[str, Any] = {"np": np}
        self.lines: list[str] = []
        self.sources: list[Stmt | None] = []  # the statement that each line came from
        self.functions: list[str] = []  # lines of functions beside the kernel
        self.function_sources: list[Stmt | None] = []
        self.indent, self.nested, self.names = 1, 0, 0
        self.variables: dict[str, tuple[Var, Code]] = {}
        self.python_names: dict[str, str] = {}  # generated name → name in the program
        self.storage: dict[str, Storage] = {}
        self.constants: dict[tuple[str, str], str] = {}
        self.stmt: Stmt | None = None

    def fail(self, what: str, hint: str | None = None) -> NoReturn:
        raise LoopError(what, where=excerpt(self.program, at=self.stmt), hint=hint)

    def put(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)
        self.sources.append(self.stmt)

    def name(self, prefix: str, original: str | None = None) -> str:
        self.names += 1
        result = f"{prefix}{self.names}"
        if original is not None:
            result += "_" + re.sub(r"\W", "_", original)
            if prefix == "_v":
                self.python_names[result] = original
        return result

    def constant(self, value: Any, key: tuple[str, str]) -> str:
        if key not in self.constants:
            self.constants[key] = self.name("_k")
            self.globals[self.constants[key]] = value
        return self.constants[key]

    def bound(self, value: Any) -> str:
        name = self.name("_g")
        self.globals[name] = value
        return name

    def outlined(self, emit: Callable[[], Code | None]) -> str:
        """A call of a function of its own with what `emit` puts: Python refuses 100 levels of indentation."""
        lines, sources, indent, nested, names = self.lines, self.sources, self.indent, self.nested, self.names
        self.lines, self.sources, self.indent, self.nested = [], [], 1, 0
        code = emit()
        self.put("pass" if code is None else f"return {code.text}")
        found = {m.group(): int(m.group(1)) for line in self.lines for m in _LOCAL.finditer(_TEXT.sub("", line))}
        # Numbers only grow: what has a smaller one than this function was made outside of it.
        call = f"{self.name('_f')}({', '.join(sorted(name for name, number in found.items() if number <= names))})"
        self.functions += [f"def {call}:", *self.lines]
        self.function_sources += [None, *self.sources]
        self.lines, self.sources, self.indent, self.nested = lines, sources, indent, nested
        return call

    def scoped(self, var: Var, code: Code, body: Callable[[], None]) -> None:
        before = self.variables.get(var.name)
        self.variables[var.name] = (var, code)
        body()
        if before is None:
            del self.variables[var.name]
        else:
            self.variables[var.name] = before

    def find(self, buffer: Buffer) -> Storage:
        storage = self.storage.get(buffer.name)
        if storage is None:
            self.fail(f"interpret: buffer '{buffer.name}' does not exist here")
        if len(storage.buffer.shape) != len(buffer.shape) or storage.buffer.dtype != buffer.dtype:
            self.fail(
                f"interpret: buffer '{buffer.name}' is used as {buffer.dtype} of rank {len(buffer.shape)}, it is"
                " defined otherwise"
            )
        return storage

    def check(self, access: str, storage: Storage, indices: Sequence[Code]) -> None:
        tests = [f"0 <= {i.text} < {d.text}" for i, d in zip(indices, storage.shape) if i.lo < 0 or i.hi >= d.lo]
        if tests:
            shape = "".join(f"{d.text}, " for d in storage.shape)
            self.put(
                f"if not ({' and '.join(tests)}): _outside({access!r}, {storage.buffer.name!r}, ({shape}),"
                f" ({items(indices)}))"
            )


def number(value: int) -> Code:
    return Code(str(value) if value >= 0 else f"({value})", value, value)


def items(codes: Sequence[Code]) -> str:
    return "".join(f"{c.text}, " for c in codes)


def deepest(codes: Sequence[Code]) -> int:
    return max((c.depth for c in codes), default=0) + 1
