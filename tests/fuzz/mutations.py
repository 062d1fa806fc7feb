"""Changes of messages, JSON and lines that keep them well-formed and make their contents improbable."""

from __future__ import annotations

import json
import random
from typing import Any

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    7,
    8,
    16,
    255,
    1000,
    65536,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 3e38, -3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", " ", "x", "..", "/", "\0", "é", "NOTSET", "SAME_UPPER", "linear", "none", "x" * 300)


# -- protobuf ---------------------------------------------------------------------------------------------------------


def messages(message: Any) -> list[Any]:
    """A message and all in it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                found += messages(inner)
    return found


def _apart(message: Any) -> Any:
    """A copy that shares nothing: protobuf does not survive a message that is copied into itself."""
    return type(message).FromString(message.SerializeToString())


def _repeated(field: Any, message: Any) -> bool:
    value = getattr(message, field.name)
    return hasattr(value, "append") or hasattr(value, "add")


def change_message(message: Any, chance: random.Random) -> None:
    """One field of one of its messages gets another value, is copied from elsewhere, or goes."""
    everything = messages(message)
    chosen = chance.choice(everything)
    fields = list(chosen.DESCRIPTOR.fields)
    present = [f for f, _ in chosen.ListFields()]
    field = chance.choice(present) if present and chance.random() < 0.8 else chance.choice(fields)
    alike = [m for m in everything if m.DESCRIPTOR.full_name == chosen.DESCRIPTOR.full_name and m is not chosen]
    if _repeated(field, chosen):
        _change_list(chosen, field, alike, chance)
    elif field.type == field.TYPE_MESSAGE:
        if chance.random() < 0.3 or not alike:
            chosen.ClearField(field.name)
        else:
            getattr(chosen, field.name).CopyFrom(_apart(getattr(chance.choice(alike), field.name)))
    elif chance.random() < 0.1:
        chosen.ClearField(field.name)
    else:
        _set(chosen, field, _scalar(field, getattr(chosen, field.name), everything, chance))


def _set(message: Any, field: Any, value: Any) -> None:
    try:
        setattr(message, field.name, value)
    except (ValueError, TypeError):
        message.ClearField(field.name)  # beyond the field's range


def _change_list(message: Any, field: Any, alike: list[Any], chance: random.Random) -> None:
    values = getattr(message, field.name)
    count, way = len(values), chance.random()
    if way < 0.25 and count:
        del values[chance.randrange(count)]
    elif way < 0.4 and alike:
        more = list(getattr(chance.choice(alike), field.name))[: chance.choice((1, 2, 100))]
        values.extend(map(_apart, more) if field.type == field.TYPE_MESSAGE else more)
    elif field.type == field.TYPE_MESSAGE:
        if count and way < 0.7:
            values.add().CopyFrom(_apart(values[chance.randrange(count)]))
        elif count > 1:
            a, b = chance.randrange(count), chance.randrange(count)
            first, second = _apart(values[a]), _apart(values[b])
            values[a].CopyFrom(second)
            values[b].CopyFrom(first)
        else:
            values.add()
    else:
        at = chance.randrange(count + 1)
        old = values[at] if at < count else None
        new = _scalar(field, old, [message, *alike], chance)
        try:
            if at < count and way < 0.8:
                values[at] = new
            else:
                values.append(new)
        except (ValueError, TypeError):
            return


def _scalar(field: Any, old: Any, near: list[Any], chance: random.Random) -> Any:
    """Another value of a field: one that breaks things, one beside the old, or one of the same kind from elsewhere."""
    if field.type == field.TYPE_STRING:
        others = [v for m in near for f, v in m.ListFields() if f.type == f.TYPE_STRING and isinstance(v, str)]
        others += [
            v
            for m in near
            for f, vs in m.ListFields()
            if f.type == f.TYPE_STRING and not isinstance(vs, str)
            for v in vs
        ]
        return chance.choice(others) if others and chance.random() < 0.8 else chance.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return change_bytes(old or b"", chance)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return chance.choice(FLOATS)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return not old
    if field.cpp_type == field.CPPTYPE_ENUM:
        return chance.choice((*(v.number for v in field.enum_type.values), 99))
    number = old if isinstance(old, int) else 0
    return chance.choice((number + 1, number - 1, -number, chance.randrange(0, 30), *INTEGERS))


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    way = chance.random()
    if way < 0.3 or not changed:
        changed += bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 8))))
    elif way < 0.6:
        del changed[chance.randrange(len(changed)) :]
    else:
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


# -- JSON -------------------------------------------------------------------------------------------------------------


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in a tree."""
    found: list[tuple[Any, Any]] = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found.append((value, key))
        found += places(inner)
    return found


def change_json(tree: Any, chance: random.Random) -> None:
    """One value of the tree becomes another, is copied from elsewhere, or goes."""
    everything = places(tree)
    if not everything:
        return
    container, key = chance.choice(everything)
    way = chance.random()
    if way < 0.15:
        del container[key]
    elif way < 0.4:
        other, at = chance.choice(everything)
        container[key] = json.loads(json.dumps(other[at]))
    elif way < 0.5 and isinstance(container, list):
        container.append(json.loads(json.dumps(container[key])))
    elif way < 0.6 and isinstance(container, dict):
        container[chance.choice((*TEXTS, key + "x"))] = container.pop(key)
    else:
        old = container[key]
        near = (
            (old + 1, old - 1, -old)
            if isinstance(old, int)
            else (old + "x", old[:-1], f"({old})", f"{old} // 0", f"-{old}")
            if isinstance(old, str)
            else ()
        )
        container[key] = chance.choice((*near, *INTEGERS, *TEXTS, None, True, [], {}, 1.5, 1e300))


# -- lines ------------------------------------------------------------------------------------------------------------


def change_lines(data: bytes, chance: random.Random) -> bytes:
    """A line goes, comes twice, moves, or has another value behind its =."""
    lines = data.split(b"\n")
    at, way = chance.randrange(len(lines)), chance.random()
    if way < 0.2:
        del lines[at]
    elif way < 0.4:
        lines.insert(chance.randrange(len(lines) + 1), lines[at])
    elif way < 0.5:
        lines[at] = change_bytes(lines[at], chance)
    else:
        key = lines[at].partition(b"=")[0]
        value = chance.choice((*map(str, INTEGERS), *map(str, FLOATS), *TEXTS, "1,2,3", "-1,-4", "leaky"))
        lines[at] = key + b"=" + value.encode()
    return b"\n".join(lines)
