"""An extension of griffe: docstrings of this project describe several parameters at once, `first, second: text`; each
becomes an entry of its own."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

TOGETHER = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): ")


def separate(docstring: str) -> str:
    """The docstring with an entry for each parameter below "Args:"."""
    lines: list[str] = []
    entry: list[str] = []
    names: list[str] = []
    inside = False
    for line in [*docstring.splitlines(), ""]:
        m = TOGETHER.match(line) if inside else None
        if names and (
            not line.strip() or m or len(line) - len(line.lstrip()) <= len(entry[0]) - len(entry[0].lstrip())
        ):
            lines += [
                text.replace(", ".join(names), name, 1) if k == 0 else text
                for name in names
                for k, text in enumerate(entry)
            ]
            names = []
        if m:
            names, entry = m["names"].split(", "), [line]
        elif names:
            entry.append(line)
        else:
            lines.append(line)
        inside = line.strip() == "Args:" or (inside and bool(line.strip()))
    return "\n".join(lines[:-1])


class Separate(Extension):
    """Applies `separate` to every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = separate(obj.docstring.value)
