"""Every python block of docs/*.md runs, in order, in one namespace per file; a block of text behind one is what it prints.

In an expected text, a line that is only `…` stands for any number of lines. "text avx2" is compared where vectors have 256 bits and there are 16
registers. `--update-golden` rewrites texts that do not match and have no `…`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
AVX2 = "llvm -mcpu=x86-64-v3"
FENCE = re.compile(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Snippet:
    """A python block and the text that stands behind it, if any; `line` in the file; `at` is where the text stands in it."""

    code: str
    line: int
    expected: str | None = None
    where: str = ""
    at: tuple[int, int] = (0, 0)


def snippets(text: str) -> Iterator[Snippet]:
    found = list(FENCE.finditer(text))
    for m, following in zip(found, [*found[1:], None]):
        if m[1] != "python" or m[2] == "norun":
            continue
        line = text[: m.start(3)].count("\n")
        if following is not None and following[1] == "text" and not text[m.end() : following.start()].strip():
            yield Snippet(m[3], line, following[3], following[2], following.span(3))
        else:
            yield Snippet(m[3], line)


def matches(expected: str, printed: str) -> bool:
    parts = ["(?:.*\n)*?" if line == "…" else re.escape(line) + "\n" for line in expected.splitlines()]
    return re.fullmatch("".join(parts), printed if printed.endswith("\n") or not printed else printed + "\n") is not None


@pytest.fixture(autouse=True)
def no_plugin_stays() -> Iterator[None]:
    """A page that fails must not leave its plugin to other tests."""
    from weft.plugins import host

    before = [p.name for p in host().plugins]
    yield
    for name in {p.name for p in host().plugins} - {*before}:
        host().unregister(name)


def run(path: Path, target: str | None, avx2: bool, update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    module = ModuleType(f"docs_{path.stem}")
    namespace = vars(module)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # a page may be a plugin, which is a module
    edits: list[tuple[tuple[int, int], str]] = []
    for s in snippets(text):
        code = s.code if target is None else s.code.replace('target="llvm"', f'target="{target}"')
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * s.line + code, str(path), "exec"), namespace)
        if s.expected is None:
            print(out.getvalue(), end="")
            continue
        if s.where == "avx2" and not avx2:
            continue
        printed = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"
        if update and "…" not in s.expected.splitlines():
            edits.append((s.at, printed))
            continue
        assert matches(s.expected, printed), f"{path.name}:{s.line}: the block prints\n{printed}\nthe page says\n{s.expected}"
    for (start, end), printed in reversed(edits):
        text = text[:start] + printed + text[end:]
    if edits:
        path.write_text(text)


def machine(target: str) -> Any:
    from weft.pipeline import resolve_target

    return resolve_target(target).machine


def is_avx2(target: str) -> bool:
    m = machine(target)
    return (m.vector_bits, m.vector_registers) == (256, 16)


def pages() -> list[Path]:
    return [p for p in sorted(DOCS.glob("*.md")) if any(True for _ in snippets(p.read_text()))]


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.stem)
def test_blocks_run_and_print_what_the_page_says(path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, None, is_avx2("llvm"), request.config.getoption("--update-golden"), monkeypatch)


@pytest.mark.parametrize("path", [p for p in pages() if "```text avx2" in p.read_text()], ids=lambda p: p.stem)
def test_texts_of_avx2_hold_on_wider_machines_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = machine("llvm").features
    if is_avx2("llvm") or "avx2" not in features:
        pytest.skip("compared already, or not runnable here")
    run(path, AVX2, True, False, monkeypatch)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda p: p.stem)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not link.startswith(("http:", "https:")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
