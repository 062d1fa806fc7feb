"""Text of programs; the grammar stands in docs/architecture.md, `parser` reads it back.

print_program(program)                                    the whole
print_stmt(stmt, {"i": "already bound to threadIdx.x"})   with `# <-- note` behind the marked loops, blocks and
                                                          buffers
excerpt(program, {"C": "here"})                           only the lines around the marks, for errors
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.nodes import Expr, Var
from weft.expr.printer import print_expr, print_name
from weft.loop.nodes import (
    TRUE,
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    Evaluate,
    For,
    If,
    Let,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    While,
)

Marks: TypeAlias = "Mapping[str, str] | Collection[str]"

_INDENT = "  "
_ATOMIC = {"add": "+", "min": "min", "max": "max"}


def print_program(program: Program, mark: Marks = (), at: Stmt | None = None, note: str = "here") -> str:
    """The program as text.

    Args:
        mark: names of loops, lets, blocks and buffers that get a trailing `# <-- here`, or name → note.
        at: one statement (by identity) to mark with `note`.
    """
    return "\n".join(_Printer(mark, at, note).program(program))


def print_stmt(stmt: Stmt, mark: Marks = (), at: Stmt | None = None, note: str = "here") -> str:
    """A statement as text; marks as in `print_program`."""
    return "\n".join(_Printer(mark, at, note).lines(stmt, 0))


def excerpt(program: Program, mark: Marks = (), at: Stmt | None = None, note: str = "here", around: int = 3) -> str:
    """The lines within `around` of a mark and the headers that enclose them; the whole text if it is short or has no
    mark."""
    lines = print_program(program, mark, at, note).split("\n")
    marked = [k for k, line in enumerate(lines) if "# <-- " in line]
    if len(lines) <= 40 or not marked:
        return "\n".join(lines)
    keep = {0}
    for k in marked:
        keep.update(range(max(0, k - around), min(len(lines), k + around + 1)))
        indent = _indent(lines[k])
        for above in range(k, -1, -1):
            if _indent(lines[above]) < indent:
                keep.add(above)
                indent = _indent(lines[above])
    result: list[str] = []
    last = -1
    for k in sorted(keep):
        if k != last + 1:
            result.append(" " * _indent(lines[last + 1]) + "...")
        result.append(lines[k])
        last = k
    return "\n".join(result if last == len(lines) - 1 else [*result, " " * _indent(lines[last + 1]) + "..."])


def print_buffer(buffer: Buffer) -> str:
    """The declaration of a buffer: `acc: float32[14, 16] in register align 32`."""
    text = f"{print_name(buffer.name)}: {buffer.dtype}[{_comma(buffer.shape)}]"
    if buffer.scope != "global":
        text += f" in {print_name(buffer.scope)}"
    return text if buffer.align == 64 else f"{text} align {buffer.align}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _comma(exprs: Collection[Expr]) -> str:
    return ", ".join(print_expr(e) for e in exprs)


def _variable(var: Var) -> str:
    return print_name(var.name) if var.dtype == dt.int64 else f"{print_name(var.name)} as {var.dtype}"


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _annotations(items: tuple[tuple[str, int | str], ...]) -> str:
    if not items:
        return ""
    return " @ " + ", ".join(f"{print_name(k)}={_string(v) if isinstance(v, str) else int(v)}" for k, v in items)


def _region(region: Region) -> str:
    return (
        f"{print_name(region.buffer.name)}["
        + ", ".join(f"{print_expr(lo)} for {print_expr(n)}" for lo, n in region.ranges)
        + "]"
    )


def _element(buffer: Buffer, indices: tuple[Expr, ...], predicate: Expr | None = None) -> str:
    return f"{print_name(buffer.name)}[{_comma(indices)}{'' if predicate is None else f'; {print_expr(predicate)}'}]"


def _iter(it: BlockIter, binding: Expr) -> str:
    kind = "" if it.kind == "spatial" else f"{it.kind} "
    return f"{_variable(it.var)}: {kind}{print_expr(it.extent)} = {print_expr(binding)}"


class _Printer:
    def __init__(self, mark: Marks, at: Stmt | None, note: str) -> None:
        self.marks = (
            dict(mark)
            if isinstance(mark, Mapping)
            else dict.fromkeys([mark] if isinstance(mark, str) else mark, "here")
        )
        self.at, self.note = at, note

    def program(self, p: Program) -> Iterator[str]:
        text = (
            f"program {print_name(p.name)}({', '.join(map(print_buffer, p.inputs))}) ->"
            f" ({', '.join(map(print_buffer, p.outputs))})"
        )
        if p.dims:
            text += f" dims({', '.join(map(_variable, p.dims))})"
        if p.aliases:
            text += f" aliases({', '.join(f'{out} = {into}' for out, into in p.aliases)})"
        yield self.marked(text + " {", None, p.name, *(b.name for b in p.params))
        yield from self.lines(p.body, 1)
        yield "}"

    def marked(self, line: str, stmt: Stmt | None, *names: str) -> str:
        notes = [self.marks[n] for n in names if n in self.marks]
        if stmt is not None and stmt is self.at:
            notes.append(self.note)
        return f"{line}  # <-- {'; '.join(notes)}" if notes else line

    def lines(self, stmt: Stmt, depth: int, last: bool = True) -> Iterator[str]:
        """`last`: nothing follows inside the same braces, so a definition's body needs none of its own."""
        tab = _INDENT * depth
        match stmt:
            case Seq():
                for k, s in enumerate(stmt.stmts):
                    yield from self.lines(s, depth, last and k == len(stmt.stmts) - 1)
            case For():
                kind = "" if stmt.kind == "serial" else f" {stmt.kind}"
                yield self.marked(
                    f"{tab}for {_variable(stmt.var)} in"
                    f" {print_expr(stmt.extent)}{kind}{_annotations(stmt.annotations)} {{",
                    stmt,
                    stmt.var.name,
                )
                yield from self.lines(stmt.body, depth + 1)
                yield tab + "}"
            case While():
                yield self.marked(f"{tab}while {print_expr(stmt.cond)} {{", stmt)
                yield from self.lines(stmt.body, depth + 1)
                yield tab + "}"
            case If():
                yield self.marked(f"{tab}if {print_expr(stmt.cond)} {{", stmt)
                yield from self.lines(stmt.then, depth + 1)
                if stmt.orelse is not None:
                    yield tab + "} else {"
                    yield from self.lines(stmt.orelse, depth + 1)
                yield tab + "}"
            case Let():
                text = f"let {print_name(stmt.var.name)}: {stmt.var.dtype} = {print_expr(stmt.value)}"
                yield from self.definition(text, stmt, stmt.var.name, stmt.body, depth, last)
            case Allocate():
                yield from self.definition(
                    f"allocate {print_buffer(stmt.buffer)}", stmt, stmt.buffer.name, stmt.body, depth, last
                )
            case Store():
                yield self.marked(
                    f"{tab}{_element(stmt.buffer, stmt.indices, stmt.predicate)} = {print_expr(stmt.value)}", stmt
                )
            case AtomicUpdate():
                yield self.marked(
                    f"{tab}atomic {_element(stmt.buffer, stmt.indices)} {_ATOMIC.get(stmt.op, stmt.op)}="
                    f" {print_expr(stmt.value)}",
                    stmt,
                )
            case Evaluate():
                boxes = f" within({', '.join(map(_region, stmt.within))})" if stmt.within else ""
                yield self.marked(tab + print_expr(stmt.call).removesuffix(" -> handle") + boxes, stmt)
            case Block():
                yield from self.block(stmt, depth)
            case _:
                raise LoopError(
                    f"cannot print a {type(stmt).__name__}", hint="statements are the classes of weft.loop.nodes"
                )

    def definition(self, text: str, stmt: Stmt, name: str, body: Stmt, depth: int, last: bool) -> Iterator[str]:
        tab = _INDENT * depth
        yield self.marked(tab + text if last else f"{tab}{text} {{", stmt, name)
        yield from self.lines(body, depth if last else depth + 1)
        if not last:
            yield tab + "}"

    def block(self, b: Block, depth: int) -> Iterator[str]:
        tab = _INDENT * depth
        if len(b.bindings) != len(b.iters):
            raise LoopError(f"block '{b.name}' has {len(b.iters)} iterator(s) and {len(b.bindings)} binding(s)")
        text = f"{tab}block {print_name(b.name)}({', '.join(map(_iter, b.iters, b.bindings))})"
        if b.predicate != TRUE:
            text += f" where {print_expr(b.predicate)}"
        if b.reads is not None:
            text += f" reads({', '.join(map(_region, b.reads))})"
        if b.writes is not None:
            text += f" writes({', '.join(map(_region, b.writes))})"
        yield self.marked(f"{text}{_annotations(b.annotations)} {{", b, b.name, *(i.var.name for i in b.iters))
        if b.init is not None:
            init = list(self.lines(b.init, depth + 2))
            if len(init) == 1 and "# <-- " not in init[0]:
                yield f"{tab}{_INDENT}init {{ {init[0].strip()} }}"
            else:
                yield f"{tab}{_INDENT}init {{"
                yield from init
                yield f"{tab}{_INDENT}}}"
        yield from self.lines(b.body, depth + 1)
        yield tab + "}"
