"""Text to formulas: the inverse of `printer`. `tokenize` and `ExprParser` are also the lower half of the loop-IR and
graph parsers.

    or > and > not > comparison (no chains) > | > ^ > & > << >> > + - > * / // % > literals, names, calls, A[i, j;
        predicate], @intrinsic(x) -> dtype
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import ExprError, ParseError, nearest
from weft.expr import nodes as n
from weft.expr.functions import FUNCTIONS
from weft.expr.nodes import Bitcast, Broadcast, Call, Cast, Const, Expr, Not, Ramp, Select, Var
from weft.expr.printer import SUFFIXES

_DTYPES = {suffix: dt.dtype(name) for name, suffix in SUFFIXES.items()}
_SUFFIX = "|".join(sorted(SUFFIXES.values(), key=len, reverse=True))
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<number>(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|inf|nan)(?:{_SUFFIX})(?!\w)|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>[^\W\d]\w*(?:\.\w+)*|`[^`\n]*`)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<op>->|<<|>>|<=|>=|==|!=|//|[-+*/%&|^<>=()\[\]{{}},;:@?!.])""",
    re.VERBOSE,
)
_NUMBER = re.compile(rf"(\d.*?|inf|nan)({_SUFFIX})?")
_PART = r"\s*(-?(?:[\d.]+(?:[eE][+-]?\d+)?|inf|nan))\s*"
_COMPLEX = re.compile(rf"{_PART},{_PART}\)")

_LEVELS: tuple[dict[str, type[n.Binary]], ...] = (
    {"|": n.BitOr}, {"^": n.BitXor}, {"&": n.BitAnd}, {"<<": n.ShiftLeft, ">>": n.ShiftRight},
    {"+": n.Add, "-": n.Sub}, {"*": n.Mul, "/": n.Div, "//": n.FloorDiv, "%": n.FloorMod},
)  # fmt: skip
_COMPARE: dict[str, type[n.Binary]] = {"<": n.Lt, "<=": n.Le, "==": n.Eq, "!=": n.Ne, ">": n.Lt, ">=": n.Le}
_NAMED: dict[str, type[n.Binary]] = {"min": n.Min, "max": n.Max, "truncdiv": n.TruncDiv, "truncmod": n.TruncMod}

Buffers: TypeAlias = "Mapping[str, Any] | Callable[[str], Any]"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text. `kind`: number, name, string, op, end. A backquoted name comes without its quotes, `quoted` is
    true."""

    kind: str
    text: str
    start: int
    line: int
    quoted: bool = False


def tokenize(text: str) -> Tokens:
    """The tokens of `text`; spaces and `# comments` are dropped.

    Raises:
        ParseError: a character that starts no token.
    """
    items: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            Tokens(text, [Token("end", text[at], at, line)]).fail(f"unexpected character {text[at]!r}")
        kind, piece = m.lastgroup or "", m.group()
        if kind == "space":
            line += piece.count("\n")
        else:
            quoted = piece[0] == "`"
            items.append(Token(kind, piece[1:-1] if quoted else piece, at, line, quoted))
        at = m.end()
    items.append(Token("end", "", len(text), line))
    return Tokens(text, items)


class Tokens:
    """A position in a list of tokens."""

    def __init__(self, text: str, items: list[Token]) -> None:
        self.text, self.items, self.at = text, items, 0

    @property
    def peek(self) -> Token:
        return self.items[self.at]

    def ahead(self, count: int = 1) -> Token:
        """The token `count` after the next one."""
        return self.items[min(self.at + count, len(self.items) - 1)]

    def next(self) -> Token:
        token = self.items[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def at_text(self, *texts: str) -> bool:
        """Whether the next token is one of these operators or words."""
        token = self.items[self.at]
        return token.text in texts and not token.quoted and token.kind in ("op", "name")

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this operator or word."""
        if self.at_text(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Takes this operator or word.

        Raises:
            ParseError: the next token is another.
        """
        if not self.at_text(text):
            self.fail(f"expected '{text}', got {self.shown()}")
        return self.next()

    def name(self, what: str = "a name") -> str:
        """Takes a name."""
        if self.peek.kind != "name":
            self.fail(f"expected {what}, got {self.shown()}")
        return self.next().text

    def integer(self, what: str = "an integer") -> int:
        """Takes a plain, possibly negative, integer."""
        sign = -1 if self.accept("-") else 1
        if not self.peek.text.isdigit():
            self.fail(f"expected {what}, got {self.shown()}")
        return sign * int(self.next().text)

    def shown(self) -> str:
        return "the end of the text" if self.peek.kind == "end" else f"'{self.peek.text}'"

    def fail(self, what: str, token: Token | None = None, hint: str | None = None) -> NoReturn:
        """Raises a ParseError that shows the line with the token marked."""
        token = token or self.peek
        start = self.text.rfind("\n", 0, token.start) + 1
        end = self.text.find("\n", token.start)
        source = self.text[start : end if end >= 0 else len(self.text)]
        column = token.start - start
        raise ParseError(what, where=f"line {token.line}, column {column + 1}\n{source}\n{' ' * column}^", hint=hint)


class ExprParser:
    """Parses formulas from `tokens`, leaving what follows them.

    Args:
        tokens: of `tokenize`; shared with the caller, who reads statements around the formulas.
        variables: name → Var (the mapping may grow while parsing goes on); None takes every name as an int64 variable.
        buffers: name → a thing that makes an element formula when indexed (a Buffer gives a Load, a Tensor a Read), or
            a function from name to it.
        intrinsic: (name, args, dtype) → formula, for `@name(args) -> dtype`.
    """

    def __init__(
        self,
        tokens: Tokens,
        variables: Mapping[str, Var] | None = None,
        buffers: Buffers | None = None,
        intrinsic: Callable[[str, tuple[Expr, ...], DType], Expr] | None = None,
    ) -> None:
        self.tokens, self.variables, self.buffers, self.intrinsic = tokens, variables, buffers, intrinsic

    def expr(self) -> Expr:
        """One formula.

        Raises:
            ParseError: no formula here, an unknown name, or operands of different dtypes.
        """
        left = self._and()
        while self.tokens.at_text("or"):
            left = self._binary(n.Or, self.tokens.next(), left, self._and())
        return left

    def exprs(self, end: str) -> tuple[Expr, ...]:
        """Formulas separated by commas up to and with the operator `end`; there may be none."""
        items: list[Expr] = []
        while not self.tokens.accept(end):
            if items:
                self.tokens.expect(",")
            items.append(self.expr())
        return tuple(items)

    def _binary(self, node: type[n.Binary], token: Token, a: Expr, b: Expr) -> Expr:
        try:
            return node(a, b)
        except ExprError as error:
            self.tokens.fail(
                error.what, token, "constants carry their dtype: 3 is int64, 3i32 is int32, 1.5f32 is float32"
            )

    def _and(self) -> Expr:
        left = self._not()
        while self.tokens.at_text("and"):
            left = self._binary(n.And, self.tokens.next(), left, self._not())
        return left

    def _not(self) -> Expr:
        if self.tokens.at_text("not"):
            token = self.tokens.next()
            value = self._not()
            if not value.dtype.is_bool:
                self.tokens.fail(f"'not' takes a bool, got {value.dtype}", token)
            return Not(value)
        left = self._infix(0)
        if self.tokens.at_text(*_COMPARE):
            token = self.tokens.next()
            right = self._infix(0)
            left = (
                self._binary(_COMPARE[token.text], token, right, left)
                if token.text[0] == ">"
                else self._binary(_COMPARE[token.text], token, left, right)
            )
            if self.tokens.at_text(*_COMPARE):
                self.tokens.fail("comparisons do not chain", hint="write a < b and b < c")
        return left

    def _infix(self, level: int) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        left = self._infix(level + 1)
        operators = _LEVELS[level]
        while self.tokens.at_text(*operators):
            token = self.tokens.next()
            left = self._binary(operators[token.text], token, left, self._infix(level + 1))
        return left

    def _unary(self) -> Expr:
        if self.tokens.accept("-"):
            token = self.tokens.peek
            if token.kind == "number":
                return self._number(self.tokens.next(), "-")
            return -self._unary()
        return self._atom()

    def _number(self, token: Token, sign: str = "") -> Const:
        m = _NUMBER.fullmatch(token.text)
        assert m is not None
        digits, suffix = m.group(1), m.group(2)
        whole = digits.isdigit()
        dtype = _DTYPES[suffix] if suffix else dt.int64 if whole else dt.float32
        if dtype.is_integer and not whole:
            self.tokens.fail(f"'{token.text}' is no integer", token)
        return Const(int(sign + digits) if whole and dtype.is_integer else float(sign + digits), dtype)

    def _dtype(self) -> DType:
        token = self.tokens.peek
        try:
            return dt.dtype(self.tokens.name("a dtype"))
        except ExprError as error:
            self.tokens.fail(error.what, token, error.hint)

    def _atom(self) -> Expr:
        tokens = self.tokens
        token = tokens.next()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "op" and token.text == "(":
            inner = self.expr()
            tokens.expect(")")
            return inner
        if token.kind == "op" and token.text == "@":
            return self._intrinsic()
        if token.kind != "name":
            tokens.fail(
                f"expected a formula, got {'the end of the text' if token.kind == 'end' else repr(token.text)}", token
            )
        if not token.quoted:
            if token.text in ("true", "false"):
                return Const(token.text == "true", dt.bool_)
            if tokens.at_text("("):
                return self._call(token)
        # A name is a buffer where it is indexed; `n [` cannot follow a variable in any grammar of ours.
        return self._element(token) if tokens.at_text("[") else self._var(token)

    def _var(self, token: Token) -> Expr:
        if self.variables is None:
            return Var(token.text)
        found = self.variables.get(token.text)
        if found is None:
            close = nearest(token.text, self.variables)
            self.tokens.fail(f"unknown variable '{token.text}'", token, f"did you mean '{close}'?" if close else None)
        return found

    def _element(self, token: Token) -> Expr:
        source = None
        if self.buffers is not None:
            source = self.buffers(token.text) if callable(self.buffers) else self.buffers.get(token.text)
        if source is None:
            close = nearest(token.text, self.buffers) if isinstance(self.buffers, Mapping) else None
            self.tokens.fail(f"unknown buffer '{token.text}'", token, f"did you mean '{close}'?" if close else None)
        self.tokens.expect("[")
        indices, predicate = self.indices()
        try:
            element: Expr = source[indices]
            if predicate is None:
                return element
            # A Load, whose class belongs to a layer above.
            return type(element)(source, element.indices, predicate)  # type: ignore[attr-defined, call-arg]
        except ExprError as error:
            self.tokens.fail(error.what, token)

    def indices(self) -> tuple[tuple[Expr, ...], Expr | None]:
        """What stands between `[`, already taken, and `]`: indices and, after `;`, a predicate."""
        items: list[Expr] = []
        while not self.tokens.at_text("]", ";"):
            if items:
                self.tokens.expect(",")
            items.append(self.expr())
        predicate = self.expr() if self.tokens.accept(";") else None
        self.tokens.expect("]")
        return tuple(items), predicate

    def _intrinsic(self) -> Expr:
        token = self.tokens.peek
        name = self.tokens.name("the name of an intrinsic")
        self.tokens.expect("(")
        args = self.exprs(")")
        dtype = self._dtype() if self.tokens.accept("->") else dt.handle
        if self.intrinsic is None:
            self.tokens.fail(
                f"an intrinsic call, @{name}, is no formula here", token, "intrinsics stand in loop programs only"
            )
        return self.intrinsic(name, args, dtype)

    def _call(self, token: Token) -> Expr:
        tokens, name = self.tokens, token.text
        tokens.expect("(")
        try:
            if name == "bitcast":
                dtype = self._dtype()
                tokens.expect(",")
                (value,) = self._args(token, 1)
                return Bitcast(value, dtype)
            if name == "ramp":
                base = self.expr()
                tokens.expect(",")
                stride = self.expr()
                tokens.expect(",")
                lanes = tokens.integer("the number of lanes")
                tokens.expect(")")
                return Ramp(base, stride, lanes)
            if name == "broadcast":
                value = self.expr()
                tokens.expect(",")
                lanes = tokens.integer("the number of lanes")
                tokens.expect(")")
                return Broadcast(value, lanes)
            if name == "select":
                cond, a, b = self._args(token, 3)
                return Select(cond, a, b)
            if name in _NAMED:
                a, b = self._args(token, 2)
                return _NAMED[name](a, b)
            if name in FUNCTIONS:
                function = FUNCTIONS[name]
                args = self._args(token, function.arity)
                if any(a.dtype != args[0].dtype for a in args):
                    tokens.fail(
                        f"the arguments of {name} differ in dtype: " + ", ".join(str(a.dtype) for a in args), token
                    )
                return Call(
                    name, args, dt.bool_.with_lanes(args[0].dtype.lanes) if function.result == "bool" else args[0].dtype
                )
            try:
                to = dt.dtype(name)
            except ExprError:
                close = nearest(
                    name,
                    [*FUNCTIONS, *_NAMED, "select", "bitcast", "ramp", "broadcast", *(d.name for d in dt.all_dtypes())],
                )
                tokens.fail(f"unknown function '{name}'", token, f"did you mean '{close}'?" if close else None)
            if to.kind == "complex" and (parts := self._complex()) is not None:
                return Const(parts, to)
            (value,) = self._args(token, 1)
            return Cast(value, to)
        except ExprError as error:
            tokens.fail(error.what, token, error.hint)

    def _complex(self) -> complex | None:
        """`1.0, -2.0)` after `complex64(`; None, nothing taken, if a formula to cast stands there."""
        m = _COMPLEX.match(self.tokens.text, self.tokens.peek.start)
        if m is None:
            return None
        while self.tokens.peek.start < m.end():
            self.tokens.next()
        return complex(float(m.group(1)), float(m.group(2)))

    def _args(self, token: Token, count: int) -> tuple[Expr, ...]:
        args = self.exprs(")")
        if len(args) != count:
            self.tokens.fail(f"{token.text} takes {count} argument(s), got {len(args)}", token)
        return args


def parse_expr(
    text: str,
    variables: Mapping[str, Var] | None = None,
    buffers: Buffers | None = None,
    intrinsic: Callable[[str, tuple[Expr, ...], DType], Expr] | None = None,
) -> Expr:
    """The formula that `text` spells; see ExprParser for the arguments.

    Raises:
        ParseError: text that is no formula, or that goes on after one.
    """
    tokens = tokenize(text)
    result = ExprParser(tokens, variables, buffers, intrinsic).expr()
    if tokens.peek.kind != "end":
        tokens.fail(f"unexpected {tokens.shown()} after the formula")
    return result
