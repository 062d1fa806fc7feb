"""Text to programs: the inverse of `printer`; the grammar stands in docs/architecture.md.

parse_program(text) → Program          parse_stmt(text, variables, buffers) → Stmt
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, cast

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, LoopError, nearest
from weft.expr.nodes import Expr, Var
from weft.expr.parser import ExprParser, Token, Tokens, tokenize
from weft.loop.nodes import (
    LOOP_KINDS,
    TRUE,
    UNIT,
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    While,
    is_loop_kind,
)

Annotations = tuple[tuple[str, int | str], ...]


def parse_program(text: str) -> Program:
    """The program that `text` spells.

    Raises:
        ParseError: text that is no program, with the line and the column.
    """
    parser = _Parser(tokenize(text))
    program = parser.program()
    parser.end()
    return program


def parse_stmt(
    text: str, variables: Mapping[str, Var] | None = None, buffers: Mapping[str, Buffer] | None = None
) -> Stmt:
    """The statement (or several: a Seq) that `text` spells over the given variables and buffers.

    Raises:
        ParseError: text that is no statement.
    """
    parser = _Parser(tokenize(text))
    parser.variables.update(variables or {})
    parser.buffers.update(buffers or {})
    return parser.statements("")


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.variables: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}
        self.formulas = ExprParser(tokens, self.variables, self.buffers, IntrinsicCall)

    # -- pieces
    def end(self) -> None:
        if self.tokens.peek.kind != "end":
            self.tokens.fail(f"unexpected {self.tokens.shown()} after the program")

    def expr(self) -> Expr:
        token = self.tokens.peek
        try:
            return self.formulas.expr()
        except (LoopError, ExprError) as error:  # a Load of another rank is refused by its constructor
            self.fail(error, token)

    def fail(self, error: LoopError | ExprError, token: Token) -> NoReturn:
        self.tokens.fail(error.what, token, error.hint)

    def dtype(self) -> DType:
        token = self.tokens.peek
        try:
            return dt.dtype(self.tokens.name("a dtype"))
        except ExprError as error:
            self.fail(error, token)

    def variable(self) -> Var:
        name = self.tokens.name("the name of a variable")
        return Var(name, self.dtype() if self.tokens.accept("as") else dt.int64)

    @contextmanager
    def scope(self, *names: Var | Buffer) -> Iterator[None]:
        """Variables and buffers known inside."""
        tables = [cast(dict[str, Any], self.variables if isinstance(x, Var) else self.buffers) for x in names]
        before = [t.get(x.name) for t, x in zip(tables, names)]
        for t, x in zip(tables, names):
            t[x.name] = x
        yield
        for t, x, old in zip(reversed(tables), reversed(names), reversed(before)):
            if old is None:
                t.pop(x.name, None)
            else:
                t[x.name] = old

    def declaration(self) -> Buffer:
        name = self.tokens.name("the name of a buffer")
        self.tokens.expect(":")
        dtype = self.dtype()
        self.tokens.expect("[")
        shape = self.exprs("]")
        scope = self.tokens.name("a memory scope") if self.tokens.accept("in") else "global"
        align = self.tokens.integer("an alignment") if self.tokens.accept("align") else 64
        return Buffer(name, shape, dtype, scope, align)

    def exprs(self, end: str) -> tuple[Expr, ...]:
        items: list[Expr] = []
        while not self.tokens.accept(end):
            if items:
                self.tokens.expect(",")
            items.append(self.expr())
        return tuple(items)

    def listed(self) -> Iterator[None]:
        """Runs once per item of `( … , … )`."""
        self.tokens.expect("(")
        first = True
        while not self.tokens.accept(")"):
            if not first:
                self.tokens.expect(",")
            first = False
            yield

    def annotations(self) -> Annotations:
        result: list[tuple[str, int | str]] = []
        if self.tokens.accept("@"):
            while not result or self.tokens.accept(","):
                key = self.tokens.name("the name of an annotation")
                self.tokens.expect("=")
                result.append(
                    (
                        key,
                        (
                            _unquote(self.tokens.next().text)
                            if self.tokens.peek.kind == "string"
                            else self.tokens.integer("an integer or a string")
                        ),
                    )
                )
        return tuple(result)

    def buffer(self) -> Buffer:
        token = self.tokens.peek
        name = self.tokens.name("the name of a buffer")
        if name not in self.buffers:
            close = nearest(name, self.buffers)
            self.tokens.fail(f"unknown buffer '{name}'", token, f"did you mean '{close}'?" if close else None)
        return self.buffers[name]

    def element(self) -> tuple[Buffer, tuple[Expr, ...], Expr | None]:
        token = self.tokens.peek
        buffer = self.buffer()
        self.tokens.expect("[")
        try:
            indices, predicate = self.formulas.indices()
        except (LoopError, ExprError) as error:
            self.fail(error, token)
        if len(indices) != len(buffer.shape):
            self.tokens.fail(
                f"buffer '{buffer.name}' has {len(buffer.shape)} dimension(s), indexed with {len(indices)}", token
            )
        return buffer, indices, predicate

    # -- program
    def program(self) -> Program:
        tokens = self.tokens
        tokens.expect("program")
        name = tokens.name("the name of the program")
        dims = self.dims_ahead()
        self.variables.update((d.name, d) for d in dims)
        inputs = tuple(self.declaration() for _ in self.listed())
        tokens.expect("->")
        outputs = tuple(self.declaration() for _ in self.listed())
        self.buffers.update((b.name, b) for b in (*inputs, *outputs))
        if tokens.accept("dims"):
            tuple(self.variable() for _ in self.listed())
        aliases: list[tuple[int, int]] = []
        if tokens.accept("aliases"):
            for _ in self.listed():
                out = tokens.integer("the index of an output")
                tokens.expect("=")
                aliases.append((out, tokens.integer("the index of an input")))
        return Program(name, inputs, outputs, dims, self.braces(), tuple(aliases))

    def dims_ahead(self) -> tuple[Var, ...]:
        """The dims, which stand behind the shapes that use them."""
        tokens, start = self.tokens, self.tokens.at
        result: tuple[Var, ...] = ()
        for k in range(start, len(tokens.items) - 1):
            token, following = tokens.items[k], tokens.items[k + 1]
            if token.text == "{":
                break
            if token.kind == "name" and token.text == "dims" and not token.quoted and following.text == "(":
                tokens.at = k + 1
                result = tuple(self.variable() for _ in self.listed())
                break
        tokens.at = start
        return result

    # -- statements
    def braces(self) -> Stmt:
        self.tokens.expect("{")
        body = self.statements("}")
        self.tokens.expect("}")
        return body

    def statements(self, end: str) -> Stmt:
        """Statements up to, without, `end`."""
        items: list[Stmt] = []
        while self.tokens.peek.kind != "end" and not (end and self.tokens.at_text(end)):
            items.append(self.statement(end))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def statement(self, end: str) -> Stmt:
        tokens = self.tokens
        if tokens.at_text("@"):
            call = self.expr()
            assert isinstance(call, IntrinsicCall)
            if not tokens.at_text("within") or tokens.ahead().text != "(":
                return Evaluate(call)
            tokens.next()
            return Evaluate(call, tuple(self.region() for _ in self.listed()))
        method = _STATEMENTS.get(tokens.peek.text)
        if method is None or tokens.peek.quoted or tokens.ahead().text == "[":
            if tokens.peek.kind != "name" or tokens.ahead().text != "[":
                close = nearest(tokens.peek.text, _STATEMENTS)
                tokens.fail(
                    f"expected a statement, got {tokens.shown()}", hint=f"did you mean '{close}'?" if close else None
                )
            buffer, indices, predicate = self.element()
            tokens.expect("=")
            return Store(buffer, indices, self.expr(), predicate)
        tokens.next()
        return method(self, end)

    def for_(self, end: str) -> Stmt:
        var = self.variable()
        self.tokens.expect("in")
        extent = self.expr()
        kind = "serial"
        if self.tokens.peek.kind == "name":
            token = self.tokens.peek
            kind = self.tokens.name()
            if not is_loop_kind(kind):
                close = nearest(kind, LOOP_KINDS)
                known = "one of " + ", ".join([*LOOP_KINDS, f"{UNIT}NAME"])
                self.tokens.fail(
                    f"unknown kind of loop '{kind}'", token, f"did you mean '{close}'?" if close else known
                )
        annotations = self.annotations()
        with self.scope(var):
            return For(var, extent, self.braces(), kind, annotations)

    def while_(self, end: str) -> Stmt:
        return While(self.expr(), self.braces())

    def if_(self, end: str) -> Stmt:
        cond, then = self.expr(), self.braces()
        return If(cond, then, self.braces() if self.tokens.accept("else") else None)

    def let(self, end: str) -> Stmt:
        name = self.tokens.name("the name of a variable")
        dtype = self.dtype() if self.tokens.accept(":") else None
        self.tokens.expect("=")
        value = self.expr()
        var = Var(name, dtype or value.dtype)
        with self.scope(var):
            return Let(var, value, self.body(end))

    def allocate(self, end: str) -> Stmt:
        buffer = self.declaration()
        with self.scope(buffer):
            return Allocate(buffer, self.body(end))

    def body(self, end: str) -> Stmt:
        """What a definition is known in: its own braces, or all that follows inside the braces around it."""
        return self.braces() if self.tokens.at_text("{") else self.statements(end)

    def atomic(self, end: str) -> Stmt:
        token = self.tokens.peek
        buffer, indices, predicate = self.element()
        if predicate is not None:
            self.tokens.fail("an atomic update has no predicate", token, "put it under an if")
        token = self.tokens.next()
        op = {"+": "add", "min": "min", "max": "max"}.get(token.text)
        if op is None:
            self.tokens.fail(f"expected '+=', 'min=' or 'max=', got '{token.text}'", token)
        self.tokens.expect("=")
        return AtomicUpdate(buffer, indices, cast(Literal["add", "min", "max"], op), self.expr())

    def block(self, end: str) -> Stmt:
        tokens = self.tokens
        name = tokens.name("the name of a block")
        items = [self.iterator() for _ in self.listed()]
        iters, bindings = tuple(i for i, _ in items), tuple(b for _, b in items)
        with self.scope(*(i.var for i in iters)):
            predicate = self.expr() if tokens.accept("where") else TRUE
            reads = tuple(self.region() for _ in self.listed()) if tokens.accept("reads") else None
            writes = tuple(self.region() for _ in self.listed()) if tokens.accept("writes") else None
            annotations = self.annotations()
            tokens.expect("{")
            init = None
            if tokens.at_text("init") and tokens.ahead().text == "{":
                tokens.next()
                init = self.braces()
            body = self.statements("}")
            tokens.expect("}")
        return Block(name, iters, bindings, body, init, predicate, reads, writes, annotations)

    def iterator(self) -> tuple[BlockIter, Expr]:
        tokens = self.tokens
        var = self.variable()
        tokens.expect(":")
        kind = "spatial"
        # A dimension may be called reduce: the word is a kind only in front of a formula.
        if tokens.at_text("reduce", "scan") and (
            tokens.ahead().kind in ("number", "name") or tokens.ahead().text in ("(", "@")
        ):
            kind = tokens.name()
        extent = self.expr()
        tokens.expect("=")
        return BlockIter(var, extent, cast(Literal["spatial", "reduce", "scan"], kind)), self.expr()

    def region(self) -> Region:
        buffer = self.buffer()
        self.tokens.expect("[")
        ranges: list[tuple[Expr, Expr]] = []
        while not self.tokens.accept("]"):
            if ranges:
                self.tokens.expect(",")
            first = self.expr()
            self.tokens.expect("for")
            ranges.append((first, self.expr()))
        return Region(buffer, tuple(ranges))


_STATEMENTS = {
    "for": _Parser.for_, "while": _Parser.while_, "if": _Parser.if_, "let": _Parser.let, "allocate": _Parser.allocate,
    "atomic": _Parser.atomic,
    "block": _Parser.block,
}  # fmt: skip


def _unquote(text: str) -> str:
    result, escaped = [], False
    for c in text[1:-1]:
        if escaped:
            result.append("\n" if c == "n" else c)
            escaped = False
        elif c == "\\":
            escaped = True
        else:
            result.append(c)
    return "".join(result)
