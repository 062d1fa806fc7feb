"""What a machine costs stands in `weft.rates` and in targets' tables: rules and passes have no such numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "core/weft/passes",
    "ops/weft_ops/passes",
    "core/weft/scheduling",
    "plugins/cpu_llvm/weft_llvm/schedules",
    "plugins/gpu/weft_gpu/schedules",
)
FILES = (
    "core/weft/mixed.py",
    "core/weft/outlines.py",
    "core/weft/lower/offers.py",
    "plugins/cpu_llvm/weft_llvm/target.py",
    *(f"plugins/{p}/weft_{p}/target.py" for p in ("cuda", "opencl", "metal")),
)
WORDS = re.compile(
    r"BANDWIDTH|LATENCY|CYCLES|CLOCK|SECONDS|OVERHEAD|UNHIDDEN|_RATE|RATE_|BYTES_PER|HERTZ|_HZ|GHZ|PARALLEL_WORK"
    r"|(GLOBAL|SHARED|MEMORY|CACHE)_BYTES"
)
EXPONENT = re.compile(r"[0-9.]e[+-]?[0-9]", re.IGNORECASE)
EXCEPTIONS = {
    ("core/weft/passes/place.py", "1e3"): "a time in milliseconds, for people",
    ("core/weft/passes/place.py", "1e6"): "a time in microseconds, for people",
    ("core/weft/passes/place.py", "1e9"): "a time in nanoseconds, for people",
    (
        "ops/weft_ops/passes/simplify_algebra.py",
        "1e-6",
    ): "how far a constant of a model may be from the one of a formula",
    ("plugins/metal/weft_metal/target.py", "1e6"): "megahertz of the families' table in hertz",
}
"""(file, number or name) → why it is no cost of a machine."""


def sources() -> list[Path]:
    return sorted([p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")] + [ROOT / f for f in FILES])


def constants(text: str) -> Iterator[tuple[int, str]]:
    """Line, and number with an exponent or name of a module's constant that speaks of a cost."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            spelled = ast.get_source_segment(text, node) or ""
            if EXPONENT.search(spelled):
                yield node.lineno, spelled
    for node in tree.body:
        single = [node.target] if isinstance(node, ast.AnnAssign) else []
        targets = node.targets if isinstance(node, ast.Assign) else single
        for name in (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
            if WORDS.search(name):
                yield node.lineno, name


def test_rules_and_passes_have_no_costs_of_their_own() -> None:
    found = [
        (str(p.relative_to(ROOT)), line, what)
        for p in sources()
        for line, what in constants(p.read_text(encoding="utf-8"))
    ]
    strange = [f"{file}:{line}: {what}" for file, line, what in found if (file, what) not in EXCEPTIONS]
    assert not strange, "put costs into weft.rates, or say in EXCEPTIONS why they are none:\n" + "\n".join(strange)
    unused = EXCEPTIONS.keys() - {(file, what) for file, _, what in found}
    assert not unused, f"exceptions of nothing: {unused}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("CLOCK = 3e9\n", ["3e9", "CLOCK"]),
        ("A, FMA_LATENCY = 1, 4\n", ["FMA_LATENCY"]),
        ("def f(x):\n    return x / 20.5E9\n", ["20.5E9"]),
        ("BYTES_PER_FLOP: float = 1 / 8\n", ["BYTES_PER_FLOP"]),
        ("MOST_BYTES = 64\nCHAIN = 256\nHALF = 0.5\nx = 'about 3e9'\n", []),
    ],
)
def test_what_is_found(text: str, what: list[str]) -> None:
    assert [name for _, name in constants(text)] == what
