"""Changes to what a file describes, which keep its form whole: values of JSON, fields of protocol buffers, lines and
words of a text, numbers of a FlatBuffer. Each gives None for a file of another form.

Bytes that are changed at random mostly break the form, which a reader sees at once; these reach what comes after.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

MOST_FIELDS = 1 << 17
"""Of a message, counted through all levels: larger ones are taken as bytes."""
_NUMBERS = (0, 1, 2, 3, 5, 8, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_WORDS = ("", "0", "-1", "1e308", "nan", "x" * 300, "../x", "\0", "é", "[]", "()", "(0, 0)", "None", "float16", "int64")


# -- JSON -------------------------------------------------------------------------------------------------------------


def changed_json(data: bytes, rng: random.Random) -> bytes | None:
    """A document with one or two values or keys changed."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        document = json.loads(data)
        for _ in range(rng.randint(1, 2)):
            _change_value(document, document, rng)
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return None


def _change_value(document: Any, container: Any, rng: random.Random) -> None:
    """Changes something below a list or a dictionary of the document."""
    while container:
        keys = list(container) if isinstance(container, dict) else range(len(container))
        key = rng.choice(keys)
        if isinstance(container[key], (dict, list)) and container[key] and rng.random() < 0.85:
            container = container[key]
            continue
        kind = rng.randrange(8)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[rng.choice(_WORDS)] = container.pop(key)
        elif kind == 1:
            container.insert(key, container[key])
        elif kind == 2:
            other = rng.choice(keys)
            container[key], container[other] = container[other], container[key]
        else:
            container[key] = _other_value(document, container[key], rng)
        return


def _other_value(document: Any, value: Any, rng: random.Random) -> Any:
    if isinstance(value, str) and rng.random() < 0.7:
        return _other_word(value, rng)
    kind = rng.randrange(6)
    if kind < 3:
        number = rng.choice(_NUMBERS)
        return rng.choice((number, -number, number / 2, str(number)))
    if kind == 3:
        return rng.choice((None, True, False, [], {}, "", 1e308, float("nan"), -0.0))
    if kind == 4:
        return [value] * rng.choice((1, 2, 50))
    return json.loads(json.dumps(rng.choice(list(document.values()) if isinstance(document, dict) else document)))


def _other_word(word: str, rng: random.Random) -> str:
    """A text with a number in it changed, or another one."""
    numbers = list(re.finditer(r"-?\d+", word))
    if not numbers or rng.random() < 0.3:
        return rng.choice((*_WORDS, word[:-1], word + word, word.upper()))
    start, end = rng.choice(numbers).span()
    return f"{word[:start]}{rng.choice((1, -1)) * rng.choice(_NUMBERS)}{word[end:]}"


# -- protocol buffers -------------------------------------------------------------------------------------------------


@dataclass
class _Field:
    number: int
    kind: int
    """0: an integer; 1, 5: eight and four bytes; 2: bytes, or a message if they parse as one."""
    value: Any


def changed_message(data: bytes, rng: random.Random) -> bytes | None:
    """A message of protocol buffers with one or two fields changed at any level; lengths are right."""
    fields = _parsed(data, [MOST_FIELDS])
    if not fields:
        return None
    for _ in range(rng.randint(1, 2)):
        _change_field(fields, rng)
    return _written(fields)


def _parsed(data: bytes, left: list[int]) -> list[_Field] | None:
    """The fields of a message; None if the bytes are none. `left`: how many may still be read."""
    at, fields = 0, list[_Field]()
    while at < len(data):
        tag, at = _varint(data, at)
        kind, number = tag & 7, tag >> 3
        left[0] -= 1
        if at < 0 or left[0] < 0 or not 0 < number < 1 << 16:
            return None
        if kind == 0:
            value, at = _varint(data, at)
            if at < 0:
                return None
            fields.append(_Field(number, kind, value))
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if at < 0 or not 0 <= size <= len(data) - at:
            return None
        part = data[at : at + size]
        inner = _parsed(part, left) if kind == 2 and 1 < size < 1 << 22 and not _is_word(part) else None
        fields.append(_Field(number, kind, inner or part))
        at += size
    return fields


def _is_word(data: bytes) -> bool:
    return data.isascii() and data.decode().isprintable()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it, which is −1 if there is none."""
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    return 0, -1


def _change_field(fields: list[_Field], rng: random.Random) -> None:
    while True:
        k = rng.randrange(len(fields))
        chosen = fields[k]
        if not isinstance(chosen.value, list) or rng.random() < 0.1:
            break
        fields = chosen.value
    kind = rng.randrange(10)
    if kind == 0 and len(fields) > 1:
        del fields[k]
    elif kind == 1:
        fields.insert(k, chosen)
    elif kind == 2:
        other = rng.choice(fields)
        chosen.value, other.value = (
            (other.value, chosen.value) if other.kind == chosen.kind else (chosen.value, other.value)
        )
    elif kind == 3:
        chosen.number = rng.randint(1, 20)
    elif chosen.kind == 0:
        number = rng.choice((*_NUMBERS, chosen.value + 1, chosen.value - 1))
        chosen.value = (-number if rng.random() < 0.3 else number) & (1 << 64) - 1
    elif chosen.kind in (1, 5):
        chosen.value = rng.choice((bytes(8), b"\xff" * 8, b"\0\0\xc0\x7f" * 2, b"\0\0\x80\xff" * 2))[
            : len(chosen.value)
        ]
    elif isinstance(chosen.value, bytes):
        chosen.value = _other_bytes(chosen.value, rng)


def _other_bytes(data: bytes, rng: random.Random) -> bytes:
    if _is_word(data) and rng.random() < 0.9:
        return _other_word(data.decode(), rng).encode()
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 8))
    number = rng.choice(_NUMBERS) & (1 << 8 * size) - 1
    return rng.choice((data[:at], data + data[:at], data[:at] + number.to_bytes(size, "little") + data[at + size :]))


def _written(fields: list[_Field]) -> bytes:
    parts = []
    for field in fields:
        parts.append(_as_varint(field.number << 3 | field.kind))
        if field.kind == 0:
            parts.append(_as_varint(field.value))
            continue
        value = _written(field.value) if isinstance(field.value, list) else field.value
        parts += [_as_varint(len(value)), value] if field.kind == 2 else [value]
    return b"".join(parts)


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes((*parts, value))


# -- texts and FlatBuffers --------------------------------------------------------------------------------------------


def changed_text(data: bytes, rng: random.Random) -> bytes | None:
    """A text with one or two lines or words changed."""
    try:
        lines = data.decode().split("\n") if b"\0" not in data[:4096] else []
    except UnicodeDecodeError:
        return None
    if len(lines) < 2:
        return None
    for _ in range(rng.randint(1, 2)):
        k, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(10)
        if kind == 0 and len(lines) > 1:
            del lines[k]
        elif kind == 1:
            lines.insert(k, lines[other])
        elif kind == 2:
            lines[k], lines[other] = lines[other], lines[k]
        else:
            words = list(re.finditer(r"[\w.+-]+", lines[k]))
            others = re.findall(r"[\w.+-]+", lines[other])
            if words:
                start, end = rng.choice(words).span()
                word = rng.choice(others) if others and kind < 6 else _other_word(lines[k][start:end], rng)
                lines[k] = lines[k][:start] + word + lines[k][end:]
    return "\n".join(lines).encode()


def changed_flatbuffer(data: bytes, rng: random.Random) -> bytes | None:
    """A FlatBuffer that has an identifier, with one to three numbers changed."""
    if len(data) < 16 or not _is_word(data[4:8]) or int.from_bytes(data[:4], "little") >= len(data):
        return None
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        size = rng.choice((1, 2, 4))
        at = rng.randrange(8, min(len(data), 1 << 16) if rng.random() < 0.5 else len(data)) // size * size
        old = int.from_bytes(result[at : at + size], "little")
        number = rng.choice((*_NUMBERS, old + 1, old - 1, old + 4, -1)) & (1 << 8 * size) - 1
        result[at : at + size] = number.to_bytes(size, "little")
    return bytes(result)


__all__ = ["changed_flatbuffer", "changed_json", "changed_message", "changed_text"]
