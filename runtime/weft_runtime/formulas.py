"""Formulas over sizes: text for people, postfix code in archives. Both are read without the compiler, every word
checked.

Text:

    formula := integer | true | false | name | a.dotted.name | `any name` | formula op formula | -formula | not formula
        | (formula)
             | min(…) | max(…) | truncdiv(a, b) | truncmod(a, b) | select(c, a, b) | int64(formula)
    op      := + - * // % < <= > >= == != and or          as Python has them; // and % round down, truncdiv and truncmod
                                                          towards zero

Postfix code is text, too: words with one space between them, `OPERATORS` and

    integer     puts it on the stack; decimal, of int64
    $k          puts the value of symbol number k on the stack

An operator takes its operands from the stack, the first one deepest, and puts its result there; at the end the stack
holds the formula's value. A truth value is 1 or 0; any other number than 0 counts as true. A result outside of int64
and a division by zero are errors, and an operand that is an error makes the result one, except that `and` and `or` do
not ask for their second operand where the first decides, and `select` only asks for the side that it takes.
`weft_formula` in `weft_abi.h` evaluates the same code in C.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from weft_runtime.errors import ArchiveError

Formula: TypeAlias = Callable[[Mapping[str, int]], int]
"""Symbols by name → the value of a formula, an int64."""
LONGEST = 10_000
"""Characters of a formula, as text or as code."""
DEEPEST = 64
"""Values on the stack; parentheses, calls and `not` inside one another."""
LEAST, MOST = -(1 << 63), (1 << 63) - 1

_Value: TypeAlias = "int | Exception"
_Word: TypeAlias = "int | str | tuple[str]"  # a number, an operator, a symbol's name


def _truncdiv(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


_BINARY: dict[str, Callable[[int, int], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "truncdiv": _truncdiv, "truncmod": lambda a, b: a - b * _truncdiv(a, b), "min": min, "max": max,
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
OPERATORS: dict[str, int] = {**dict.fromkeys(_BINARY, 2), "and": 2, "or": 2, "not": 1, "neg": 1, "select": 3}
"""Operators of postfix code, and how many operands each takes."""
_PRECEDENCE = {
    "or": 0,
    "and": 1,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "==": 3,
    "!=": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "//": 5,
    "%": 5,
}
_NOT, _COMPARISON, _SIGN, _ATOM = 2, 3, 6, 7
_CALLS = {"min": None, "max": None, "truncdiv": 2, "truncmod": 2, "select": 3, "int64": 1}
_TOO_DEEP = f"more than {DEEPEST} parentheses, calls and `not` are inside one another"
_MIRRORED = {">": "<", ">=": "<="}
_NAME = r"`[^`]*`|[^\W\d]\w*(?:\.\w+)*"
_TOKEN = re.compile(rf"\s*(?:([0-9]+)(?!\w)|({_NAME})(?![`\w])|(//|<=|>=|==|!=|[-+*%<>(),]))")
_RESERVED = {"and", "or", "not", "true", "false"}
_PLAIN = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
_INTEGER, _SYMBOL = re.compile(r"0|-?[1-9][0-9]{0,18}"), re.compile(r"\$(0|[1-9][0-9]{0,8})")


def formula(text: int | str) -> Formula:
    """The function from the symbols' values to the formula's, of its text.

    The function raises KeyError for a symbol without a value, ZeroDivisionError, and OverflowError where a number
    leaves int64.

    Raises:
        ArchiveError: the text is no such formula.
    """
    words = (text,) if isinstance(text, int) else _parsed(text)
    first = words[0]
    if len(words) == 1 and isinstance(first, int):
        return lambda env: first
    if len(words) == 1 and isinstance(first, tuple):
        name = first[0]
        return lambda env: env[name]
    return lambda env: _evaluate(words, env)


def symbol_of(text: int | str) -> str | None:
    """The symbol that is the whole formula, if it is one."""
    if isinstance(text, str) and re.fullmatch(_NAME, text) and text not in _RESERVED:
        return text.strip("`")
    return None


def to_postfix(text: str, number: Callable[[str], int]) -> str:
    """Postfix code of a formula's text.

    Args:
        number: that of a symbol, by its name.

    Raises:
        ArchiveError: the text is no formula, or it, its code, or the code's text is too long.
    """
    words = _parsed(text)
    _text(words)
    code = " ".join(f"${number(w[0])}" if isinstance(w, tuple) else str(w) for w in words)
    if len(code) > LONGEST:
        raise _too_long(len(code))
    return code


def from_postfix(code: str, names: Sequence[str]) -> str:
    """The text of postfix code.

    Args:
        names: of the symbols.

    Raises:
        ArchiveError: it is no such code, or its text would be too long.
    """
    return _text(_words(code, names))


def _text(words: Sequence[_Word]) -> str:
    stack: list[_Printed] = []
    for word in words:
        if isinstance(word, int):
            stack.append(_Printed(str(word), number=True))
        elif isinstance(word, tuple):
            stack.append(_Printed(_name(word[0])))
        else:
            count = OPERATORS[word]
            operands = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(_joined(word, operands))
        if len(stack[-1].text) > LONGEST:
            raise _too_long(len(stack[-1].text))
        if stack[-1].depth > DEEPEST:
            raise _bad_text(stack[-1].text, _TOO_DEEP)
    return stack[0].text


# -- code


def _words(code: str, names: Sequence[str]) -> tuple[_Word, ...]:
    """The words of postfix code, which leave one value on a stack that never holds more than DEEPEST."""
    if len(code) > LONGEST:
        raise _too_long(len(code))
    words: list[_Word] = []
    depth = 0
    for piece in code.split(" "):
        symbol = _SYMBOL.fullmatch(piece)
        if piece in OPERATORS:
            depth -= OPERATORS[piece] - 1
            words.append(piece)
            if depth < 1:
                raise _bad_code(code, f"there are too few operands for '{piece}'")
        elif symbol is not None:
            if int(symbol[1]) >= len(names):
                raise _bad_code(code, f"there are {len(names)} symbols, and no {piece}")
            words.append((names[int(symbol[1])],))
            depth += 1
        elif _INTEGER.fullmatch(piece) and LEAST <= int(piece) <= MOST:
            words.append(int(piece))
            depth += 1
        else:
            raise _bad_code(code, f"'{piece[:40]}' is no operator, symbol or integer of 64 bits")
        if depth > DEEPEST:
            raise _bad_code(code, f"more than {DEEPEST} values are on the stack")
    if depth != 1:
        raise _bad_code(code, f"it leaves {depth} values")
    return tuple(words)


def _evaluate(words: Sequence[_Word], env: Mapping[str, int]) -> int:
    stack: list[_Value] = []
    for word in words:
        if isinstance(word, int):
            stack.append(word)
        elif isinstance(word, tuple):
            known = env.get(word[0])
            stack.append(KeyError(word[0]) if known is None else _ranged(int(known)))
        elif word in _BINARY:
            b, a = stack.pop(), stack.pop()
            stack.append(a if isinstance(a, Exception) else b if isinstance(b, Exception) else _computed(word, a, b))
        elif word == "select":
            b, a, c = stack.pop(), stack.pop(), stack.pop()
            stack.append(c if isinstance(c, Exception) else a if c else b)
        elif word in ("and", "or"):
            b, a = stack.pop(), stack.pop()
            decided = isinstance(a, Exception) or bool(a) == (word == "or")
            value = a if decided else b
            stack.append(value if isinstance(value, Exception) else int(bool(value)))
        else:
            a = stack.pop()
            stack.append(a if isinstance(a, Exception) else int(not a) if word == "not" else _ranged(-a))
    (result,) = stack
    if isinstance(result, Exception):
        raise result
    return result


def _computed(word: str, a: int, b: int) -> _Value:
    try:
        return _ranged(int(_BINARY[word](a, b)))
    except ZeroDivisionError:
        return ZeroDivisionError("division by zero")


def _ranged(value: int) -> _Value:
    return value if LEAST <= value <= MOST else OverflowError("a number leaves 64 bits")


# -- text


@dataclass(frozen=True)
class _Printed:
    """The text of a formula, how tightly it binds, and how many parentheses, calls and `not` are inside one another."""

    text: str
    binds: int = _ATOM
    depth: int = 0
    number: bool = False

    def at(self, least: int) -> _Printed:
        """In parentheses where it binds less tightly than that."""
        return self if self.binds >= least else _Printed(f"({self.text})", _ATOM, self.depth + 1)


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name not in _RESERVED else f"`{name}`"


def _joined(word: str, operands: Sequence[_Printed]) -> _Printed:
    """What an operator makes of its operands."""
    first = operands[0]
    if word == "not":
        first = first.at(_NOT)
        return _Printed(f"not {first.text}", _NOT, first.depth + 1)
    if word == "neg":
        first = first.at(_ATOM + 1 if first.number else _SIGN)  # a sign in front of a number is the number's
        return _Printed(f"-{first.text}", _SIGN, first.depth)
    if word not in _PRECEDENCE:
        return _Printed(f"{word}({', '.join(o.text for o in operands)})", _ATOM, 1 + max(o.depth for o in operands))
    level = _PRECEDENCE[word]
    space = "" if level == _PRECEDENCE["*"] else " "
    a, b = first.at(level + (level == _COMPARISON)), operands[1].at(level + 1)
    return _Printed(f"{a.text}{space}{word}{space}{b.text}", level, max(a.depth, b.depth))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[_Word, ...]:
    if len(text) > LONGEST:
        raise _too_long(len(text))
    try:
        words = _Parser(text).whole()
    except RecursionError:  # where the caller is deep down itself
        raise _bad_text(text, _TOO_DEEP) from None
    return _words_checked(text, words)


def _words_checked(text: str, words: list[_Word]) -> tuple[_Word, ...]:
    depth = 0
    for word in words:
        depth += 1 - OPERATORS[word] if isinstance(word, str) else 1
        if depth > DEEPEST:
            raise _bad_text(text, f"more than {DEEPEST} values are needed at once")
    return tuple(words)


class _Parser:
    """Reads a text from left to right; `out` is its postfix code so far."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.out: list[_Word] = []
        self.kind, self.token = "", ""
        self.next()

    def fail(self, why: str = "") -> NoReturn:
        raise _bad_text(
            self.text,
            why or (f"invalid syntax at '{self.token[:40]}'" if self.kind != "end" else "invalid syntax at its end"),
        )

    def next(self) -> None:
        """Goes on to the next token."""
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            if self.text[self.at :].strip():
                self.token = self.text[self.at :].strip()
                self.fail()
            self.kind, self.token = "end", ""
            return
        self.at = found.end()
        number, name, sign = found.groups()
        self.kind, self.token = ("number", number) if number else ("name", name) if name else ("sign", sign)

    def take(self, token: str) -> None:
        if self.token != token or self.kind != "sign":
            self.fail()
        self.next()

    def whole(self) -> list[_Word]:
        self.binary(0)
        if self.kind != "end":
            self.fail()
        return self.out

    def binary(self, least: int) -> None:
        """Operators that bind at least so tightly, and their operands."""
        begin, most = len(self.out), _ATOM
        if self.token == "not" and self.kind == "name":
            if least > _NOT:
                self.fail()
            self.next()
            self.inside(_NOT)
            self.out.append("not")
        else:
            self.unary()
        while self.kind in ("sign", "name") and least <= (level := _PRECEDENCE.get(self.token, -1)) <= most:
            word = self.token
            self.next()
            middle = len(self.out)
            self.binary(level + 1)
            if word in _MIRRORED:
                self.out[begin:] = [*self.out[middle:], *self.out[begin:middle]]
            self.out.append(_MIRRORED.get(word, word))
            most = level - (level == _COMPARISON)  # a < b < c is none

    def inside(self, least: int) -> None:
        """What stands in parentheses, in a call or behind `not`."""
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(_TOO_DEEP)
        self.binary(least)
        self.depth -= 1

    def unary(self) -> None:
        """An operand with its signs."""
        signs = 0
        while self.kind == "sign" and self.token == "-":
            signs += 1
            self.next()
        if self.kind == "number":
            value = -int(self.token) if signs else int(self.token)
            if not LEAST <= value <= MOST:
                self.fail(f"{self.token[:40]} is beyond 64 bits")
            self.out.append(value)
            signs -= bool(signs)
            self.next()
        else:
            self.operand()
        self.out += ["neg"] * signs

    def operand(self) -> None:
        word = self.token
        if self.kind == "sign" and word == "(":
            self.next()
            self.inside(0)
            self.take(")")
        elif self.kind == "name" and word in ("true", "false"):
            self.out.append(int(word == "true"))
            self.next()
        elif self.kind == "name" and word not in _RESERVED:
            self.next()
            if self.kind == "sign" and self.token == "(":
                self.call(word)
            else:
                self.out.append((word.strip("`"),))
        else:
            self.fail()

    def call(self, word: str) -> None:
        if word not in _CALLS:
            self.fail(f"there is no function {word[:40]}")
        self.next()
        count = 0
        while True:
            self.inside(0)
            count += 1
            if count > 1 and _CALLS[word] is None:
                self.out.append(word)
            if self.kind != "sign" or self.token != ",":
                break
            self.next()
        self.take(")")
        if _CALLS[word] not in (None, count):
            self.fail(f"{word} takes {_CALLS[word]} operands, not {count}")
        if _CALLS[word] is not None and word != "int64":
            self.out.append(word)


def _too_long(length: int) -> ArchiveError:
    return ArchiveError(f"a formula has {length} characters", why=f"the longest that is read has {LONGEST}")


def _bad_text(text: str, why: str) -> ArchiveError:
    return ArchiveError(f"'{text[:80]}' is no formula over sizes", why=why)


def _bad_code(code: str, why: str) -> ArchiveError:
    return ArchiveError(f"'{code[:80]}' is no code of a formula", why=why)
