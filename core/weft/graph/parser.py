"""Parser of the text of `printer`.

The scanner finds the end of a part by brackets and quotes. `weft.expr.parser` parses formulas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError, ParseError, WeftError, nearest
from weft.expr.parser import parse_expr
from weft.graph.layout import Layout, parse_layout
from weft.graph.nodes import Graph, Node, OpenType, OptionalType, SequenceType, SymbolSource, TensorType, Type, Value
from weft.graph.operator import Operator
from weft.tensor.language import as_dim

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_OPERATOR = re.compile(r"operator\s+[^\W\d]")
_IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
_SYMBOL = re.compile(r"[^\W\d]\w*(?:\.\w+)*|`[^`\n]*`")
_INTEGER = re.compile(r"-?\d+")
_RANK = re.compile(r"rank (\d+)\]")
_FLOAT = re.compile(r"-?(\d+\.\d*([eE][+-]?\d+)?|\d+[eE][+-]?\d+|inf|nan)")
_LAYOUT = re.compile(r"((split|permute)\([0-9, ]*\)\s?)+")
_SPACE = re.compile(r"\s+")
_OPEN, _CLOSE = "([{", ")]}"


def parse_graph(
    text: str,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    operators: Iterable[type[Operator]] | None = None,
) -> Graph:
    """The graph that printed as `text`.

    Args:
        constants: the data of `printer.constant_data`.
        operators: the operators that may occur; by default those that the hook `operators` gives, the core's and those
            of plugins. Group and Relayout always may.

    Raises:
        ParseError: the text is not a graph; shows the line and column.
        GraphError: two of `operators` have one name.
    """
    parser = _Parser(text, constants or {}, _installed() if operators is None else _given(operators))
    graph = parser.graph("")
    parser.space()
    if parser.at < len(text):
        parser.fail("text after the end of the graph")
    return graph


@dataclass(frozen=True)
class _Operators:
    """The operators of a text by name, the error of each name that is claimed more than once, and the reason why
    operators may be missing."""

    known: Mapping[str, type[Operator]]
    clashes: Mapping[str, WeftError] = field(default_factory=dict)
    trouble: str | None = None


def _installed() -> _Operators:
    # The graph layer stands below plugins: only a caller that names no operators reaches up, and only when it parses.
    import importlib

    found = importlib.import_module("weft.plugins")
    known, clashes = found.operator_claims()
    return _Operators(known, clashes, found.host().trouble("operators"))


def _given(operators: Iterable[type[Operator]]) -> _Operators:
    from weft.graph.group import Group
    from weft.graph.relayout import Relayout

    table: dict[str, type[Operator]] = {}
    given: list[type[Operator]] = [Group, Relayout, *operators]
    for op in given:
        other = table.setdefault(op.operator_name, op)
        if other is not op:
            pair = " and ".join(f"{c.__module__}.{c.__qualname__}" for c in (other, op))
            raise GraphError(
                f"two operators are called '{op.operator_name}': {pair}", hint="give one another `operator_name`"
            )
    return _Operators(table)


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, np.ndarray[Any, Any]], operators: _Operators) -> None:
        self.text, self.constants, self.operators, self.at = text, constants, operators, 0

    # -- scanning
    def fail(self, what: str, hint: str | None = None, at: int | None = None, why: str | None = None) -> NoReturn:
        at = min(self.at if at is None else at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        column = at - start
        shift = max(0, column - 100)
        raise ParseError(
            f"graph text, line {self.text.count(chr(10), 0, at) + 1}, column {column + 1}: {what}",
            where=f"{line[shift : shift + 160]}\n{' ' * (column - shift)}^",
            why=why,
            hint=hint,
        )

    def space(self) -> None:
        if match := _SPACE.match(self.text, self.at):
            self.at = match.end()

    def peek(self, token: str) -> bool:
        self.space()
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"expected '{token}'")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.space()
        found = pattern.match(self.text, self.at)
        if not found:
            self.fail(f"expected {what}")
        self.at = found.end()
        return found.group()

    def string(self) -> str:
        self.space()
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except ValueError:
            self.fail("expected a string")
        if not isinstance(value, str):
            self.fail("expected a string")
        return value

    def piece(self) -> str:
        """The text up to the next comma, bracket or line end outside brackets."""
        self.space()
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "`":
                self.at = max(self.at, self.text.find("`", self.at + 1))
            elif char in _OPEN:
                depth += 1
            elif char in _CLOSE:
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0 and char in ",\n":
                break
            self.at += 1
        return self.text[start : self.at].strip()

    # -- pieces
    def name(self) -> str:
        self.expect("%")
        return self.string() if self.text.startswith('"', self.at) else self.match(_WORD, "a value's name")

    def formula(self) -> Any:
        self.space()
        start = self.at
        text = self.piece()
        if not text:
            self.fail("expected a formula", at=start)
        try:
            return parse_expr(text)
        except WeftError as error:
            return self.fail(f"'{text}' is no formula: {error.what}", at=start)

    def layout(self) -> Layout:
        start = self.at
        text = self.match(_LAYOUT, "a layout").strip()
        try:
            return parse_layout(text)
        except WeftError as error:
            self.fail(error.what, at=start)

    def type(self) -> Type:
        self.space()
        start = self.at
        word = self.match(_IDENTIFIER, "a type")
        if word in ("sequence", "optional"):
            self.expect("(")
            element = self.type()
            self.expect(")")
            return SequenceType(element) if word == "sequence" else OptionalType(element)
        try:
            dtype = dt.dtype(word)
        except WeftError as error:
            self.fail(error.what, error.hint, at=start)
        self.expect("[")
        if self.take("..."):
            self.expect("]")
            return OpenType(dtype)
        if found := _RANK.match(self.text, self.at):
            self.at = found.end()
            return OpenType(dtype, int(found.group(1)))
        dims = []
        while not self.take("]"):
            dims.append(as_dim(self.formula()))
            if not self.take(",") and not self.peek("]"):
                self.fail("expected ',' or ']'")
        return TensorType(dtype, tuple(dims), self.layout() if self.take("@") else None)

    def attribute(self, path: str) -> Any:
        self.space()
        char = self.text[self.at : self.at + 1]
        if char == '"':
            return self.string()
        if char == "@":
            self.at += 1
            return self.layout()
        if re.compile(r'graph\s+[\w"]').match(self.text, self.at):
            return self.graph(path + "/")
        if _OPERATOR.match(self.text, self.at):
            self.match(_IDENTIFIER, "'operator'")
            self.space()
            start = self.at
            return self._operator(self.match(_IDENTIFIER, "an operator"), path, start)
        if char == "(":
            # A bracket opens a tuple unless it closes a part of a formula: "(n + 1)*2" has no comma, "(n + 1, )" has.
            start = self.at
            self.at += 1
            items: list[Any] = []
            commas = 0
            while not self.peek(")"):
                items.append(self.attribute(f"{path}.{len(items)}"))
                if self.take(","):
                    commas += 1
                elif not self.peek(")"):
                    break
            if self.take(")") and (commas or not items):
                return tuple(items)
            self.at = start
            return self.formula()
        start = self.at
        text = self.piece()
        if text in ("none", "true", "false"):
            return {"none": None, "true": True, "false": False}[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if text in {d.name for d in dt.all_dtypes()}:
            return dt.dtype(text)
        self.at = start
        return self.formula()

    # -- structure
    def graph(self, prefix: str) -> Graph:
        self.expect("graph")
        self.space()
        graph = Graph(self.string() if self.peek('"') else self.match(_WORD, "the graph's name"))
        values: dict[str, Value] = {}

        def define(value: Value) -> Value:
            if value.name in values:
                self.fail(f"value '{value.name}' is defined twice")
            values[value.name] = value
            return value

        def use(at: int, name: str) -> Value:
            if name not in values:
                close = nearest(name, values)
                self.fail(
                    f"value '{name}' is used and not defined before",
                    f"did you mean '{close}'?" if close else None,
                    at=at,
                )
            return values[name]

        self.expect("(")
        while not self.take(")"):
            name = self.name()
            self.expect(":")
            graph.inputs.append(define(Value(name, self.type())))
            if not self.take(",") and not self.peek(")"):
                self.fail("expected ',' or ')'")
        self.expect("symbols")
        self.expect("(")
        sources: list[tuple[int, str, str, int]] = []
        while not self.take(")"):
            symbol = self.match(_SYMBOL, "a symbol").strip("`")
            self.expect("=")
            at, name = self.at, self.name()
            self.expect("[")
            sources.append((at, symbol, name, int(self.match(_INTEGER, "an index"))))
            self.expect("]")
            if not self.take(",") and not self.peek(")"):
                self.fail("expected ',' or ')'")
        self.expect("{")
        while not self.peek("return"):
            self._line(graph, prefix, define, use)
        self.expect("return")
        while not self.take("}"):
            self.space()
            at = self.at
            value = use(at, self.name())
            graph.outputs.append(value)
            graph.output_names.append(self.string() if self.take("as ") else value.name)
            if not self.take(",") and not self.peek("}"):
                self.fail("expected ',' or '}'")
        for at, symbol, name, index in sources:
            graph.symbols[symbol] = SymbolSource(use(at, name), index)
        return graph

    def _line(self, graph: Graph, prefix: str, define: Any, use: Any) -> None:
        outputs = self._results()
        self.expect("=")
        self.space()
        start = self.at
        word = self.match(_IDENTIFIER, "an operator")
        if word == "const":
            at, name, type_ = outputs[0]
            define(Value(name, type_, constant=self._constant(prefix + name, type_, at)))
            return
        op = self._operator(word, prefix + outputs[0][1], start)
        self.expect("(")
        inputs: list[Value | None] = []
        while not self.take(")"):
            self.space()
            at = self.at
            inputs.append(None if self.take("_") else use(at, self.name()))
            if not self.take(",") and not self.peek(")"):
                self.fail("expected ',' or ')'")
        names = self._framework_names()
        graph.nodes.append(Node(op, inputs, [define(Value(n, t)) for _, n, t in outputs], names))

    def _results(self) -> list[tuple[int, str, Type]]:
        """The values that a line defines: place in the text, name, type."""
        found: list[tuple[int, str, Type]] = []
        while True:
            self.space()
            at = self.at
            if not self.peek("%"):
                self.fail("expected a value, 'return' or '}'")
            name = self.name()
            self.expect(":")
            found.append((at, name, self.type()))
            if not self.take(","):
                return found

    def _operator(self, word: str, value: str, start: int) -> Operator:
        """The operator called `word`, with its attributes; its sub-graphs' constants are keyed below `value`."""
        if (clash := self.operators.clashes.get(word)) is not None:
            self.fail(clash.what, clash.hint, at=start, why=clash.why)
        if word not in self.operators.known:
            close = nearest(word, self.operators.known)
            self.fail(
                f"there is no operator '{word}'",
                self.operators.trouble or (f"did you mean '{close}'?" if close else None),
                at=start,
            )
        self.expect("(")
        attributes: dict[str, Any] = {}
        known = [f.name for f in fields(self.operators.known[word])]
        while not self.take(")"):
            at = self.at
            key = self.match(_IDENTIFIER, "an attribute")
            if key not in known:
                self.fail(f"'{word}' has no attribute '{key}'", f"it has {', '.join(known) or 'none'}", at=at)
            self.expect("=")
            attributes[key] = self.attribute(f"{value}/{key}")
            if not self.take(",") and not self.peek(")"):
                self.fail("expected ',' or ')'")
        try:
            return self.operators.known[word](**attributes)
        except TypeError as error:
            self.fail(f"'{word}' does not take these attributes: {error}", at=start)

    def _framework_names(self) -> list[str]:
        """The names in the comment at the end of a line."""
        names = []
        line_end = self.text.find("\n", self.at)
        comment = self.text[self.at : line_end if line_end >= 0 else len(self.text)].lstrip(" ")
        if comment.startswith("#"):
            self.expect("#")
            names.append(self.string())
            while self.take(","):
                names.append(self.string())
        return names

    def _constant(self, key: str, type_: Type, at: int) -> np.ndarray[Any, Any]:
        if not isinstance(type_, TensorType):
            self.fail(f"a constant is a tensor, not a {type_}", at=at)
        line_end = self.text.find("\n", self.at)
        text = self.text[self.at : line_end if line_end >= 0 else len(self.text)].strip()
        if text:
            self.at += len(self.text[self.at : line_end if line_end >= 0 else len(self.text)])
        if key in self.constants:
            return np.asarray(self.constants[key])
        if not text:
            self.fail(f"constant '{key}' has no data", "pass it in `constants`", at=at)
        if text not in ("true", "false") and not _INTEGER.fullmatch(text) and not _FLOAT.fullmatch(text):
            self.fail(f"'{text}' is no constant's value", at=at)
        shape = tuple(d for d in type_.shape if isinstance(d, int))
        number: Any = (
            text == "true" if text in ("true", "false") else int(text) if _INTEGER.fullmatch(text) else float(text)
        )
        return np.full(shape, number, dtype=type_.dtype.numpy)
