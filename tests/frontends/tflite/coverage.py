"""Which builtin operators of TFLite's schema are converted, and the section on TFLite in docs/frontends.md.

python -m tests.frontends.tflite.coverage              # the counts
python -m tests.frontends.tflite.coverage --update     # writes the section
"""

from __future__ import annotations

import sys
from pathlib import Path

from weft_tflite.refusals import REASONS
from weft_tflite.registry import COMPLEX, MOVES, QUANTIZED, REGISTRY
from weft_tflite.schema import BUILTINS

PAGE = Path(__file__).parents[3] / "docs" / "frontends.md"
BEGIN, END = "<!-- tflite: made by python -m tests.frontends.tflite.coverage --update -->", "<!-- tflite: end -->"
MARKS = ("CUSTOM",)
"""Operators that stand for others."""


def converted() -> list[str]:
    """Operators on numbers that are read."""
    own = set(REGISTRY.supported())
    return [name for name in BUILTINS if ("", name) in own or (COMPLEX, name) in own]


def quantized() -> list[str]:
    """Operators on quantised numbers that are read."""
    own = set(REGISTRY.supported())
    return [name for name in BUILTINS if (QUANTIZED, name) in own or name in MOVES]


def missing() -> list[str]:
    """Operators that are neither read nor refused with a reason."""
    known = {*converted(), *quantized(), *REASONS, *MARKS}
    return [name for name in BUILTINS if name not in known]


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def section() -> str:
    """The tables, as Markdown."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in REASONS.items():
        by_reason.setdefault(reason, []).append(name)
    lines = [
        BEGIN,
        "",
        f"Of {len(BUILTINS)} builtin operators {len({*converted(), *quantized()})} are read.",
        "",
        "| | operators |",
        "|---|---|",
        f"| floats and integers | {listed(converted())} |",
        f"| quantised | {listed(quantized())} |",
        "",
        "These are not read:",
        "",
        "| why | operators |",
        "|---|---|",
        *(f"| {reason} | {listed(names)} |" for reason, names in sorted(by_reason.items())),
        "",
        END,
    ]
    return "\n".join(lines)


def main() -> int:
    if "--update" in sys.argv[1:]:
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(before + section() + rest.partition(END)[2])
    print(f"{len({*converted(), *quantized()})} of {len(BUILTINS)} read, {len(quantized())} of them quantised,")
    print(f"{len(REASONS)} refused with a reason, missing: {', '.join(missing()) or 'none'}")
    return bool(missing())


if __name__ == "__main__":
    raise SystemExit(main())
