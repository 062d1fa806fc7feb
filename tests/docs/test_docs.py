"""Every python block of docs/*.md runs, in order, in one namespace per file; a block of text behind one is what it
prints.

"console": lines that begin with `$` are what a reader types, in an empty folder; `weft …` and `pip install -e …` are
done (the latter for this process), and what they print is compared with the lines below, if there are any. `weft … >
FILE` writes it. "python FILE" is written into that file of the package that has been installed, which then is loaded
anew; "python in FILE" must stand there word for word.

In an expected text, a line that is only `…` stands for any number of lines. "text avx2" is compared where vectors have
256 bits and there are 16 registers. `--update-golden` rewrites texts that do not match and have no `…`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weft_testing.plugin import register

DOCS = Path(__file__).parents[2] / "docs"
AVX2 = "llvm -mcpu=x86-64-v3"
FENCE = re.compile(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Snippet:
    """A block and the text that stands behind it, if any; `line` in the file; `at` is where the text stands in it.
    `kind`: "python", "console", or what stands behind "python"."""

    code: str
    line: int
    kind: str = "python"
    expected: str | None = None
    where: str = ""
    at: tuple[int, int] = (0, 0)


def snippets(text: str) -> Iterator[Snippet]:
    found = list(FENCE.finditer(text))
    for m, following in zip(found, [*found[1:], None]):
        if m[1] not in ("python", "console") or m[2] == "norun":
            continue
        line = text[: m.start(3)].count("\n")
        if m[1] == "console" or m[2]:
            yield Snippet(m[3], line, m[2] or "console")
            continue
        if following is not None and following[1] == "text" and not text[m.end() : following.start()].strip():
            yield Snippet(m[3], line, "python", following[3], following[2], following.span(3))
        else:
            yield Snippet(m[3], line)


def matches(expected: str, printed: str) -> bool:
    parts = ["(?:.*\n)*?" if line == "…" else re.escape(line) + "\n" for line in expected.splitlines()]
    return (
        re.fullmatch("".join(parts), printed if printed.endswith("\n") or not printed else printed + "\n") is not None
    )


@pytest.fixture(autouse=True)
def no_plugin_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A page that fails must not leave its plugin to other tests. What a page makes, it makes in an empty folder."""
    from weft.plugins import host

    monkeypatch.chdir(tmp_path)
    before = [p.name for p in host().plugins]
    yield
    for name in {p.name for p in host().plugins} - {*before}:
        host().unregister(name)
    for module in [n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))]:
        del sys.modules[module]


class Reader:
    """Who types what a page says: packages that `weft plugin new` made become this process's plugins."""

    NOT_HERE = ("pytest", "weft conform")  # test_plugin_new.py does it in processes of their own

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.folder = Path.cwd()
        self.entries: dict[str, str] = {}

    def type(self, text: str) -> None:
        """One console block."""
        commands = re.findall(r"^\$ (.*)\n((?:[^$\n].*\n|\n)*)", text, re.M)
        assert commands, text
        for command, expected in commands:
            command = command.partition("  #")[0].strip()
            command, _, file = command.partition(" > ")
            printed = self.do(command)
            if file:
                (self.folder / file.strip()).write_text(printed)
                continue
            if expected.strip():
                lines = "\n".join(line.rstrip() for line in printed.rstrip().splitlines()) + "\n"
                assert matches(expected.rstrip() + "\n", lines), f"'{command}' prints\n{lines}"

    def do(self, command: str) -> str:
        if command.startswith("cd "):
            self.folder /= command[3:].strip()
            assert self.folder.is_dir()
            return ""
        if command.startswith("pip install -e "):
            self.install(self.folder / shlex.split(command)[3].partition("[")[0])
            return ""
        if command.startswith(self.NOT_HERE):
            return ""
        assert command.startswith("weft "), f"the runner does not know how to do '{command}'"
        from weft.cli.main import main

        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.chdir(self.folder), pytest.raises(SystemExit) as stop:
            main(shlex.split(command)[1:])
        assert not stop.value.code, out.getvalue()
        return out.getvalue()

    def install(self, package: Path) -> None:
        self.folder = package
        self.monkeypatch.syspath_prepend(str(package))
        self.entries = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"][
            "weft.plugins"
        ]
        self.load()

    def load(self) -> None:
        """The package's modules anew, as in a new process."""
        for name, module in self.entries.items():
            for loaded in [m for m in sys.modules if m.split(".")[0] == module.split(".")[0]]:
                del sys.modules[loaded]
            importlib.invalidate_caches()
            register(importlib.import_module(module), name)

    def write(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text)
        self.load()

    def compare(self, file: str, text: str) -> None:
        assert text in (self.folder / file).read_text(), f"not in {file}:\n{text}"


def run(path: Path, target: str | None, avx2: bool, update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    module = ModuleType(f"docs_{path.stem}")
    namespace = vars(module)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # a page may be a plugin, which is a module
    edits: list[tuple[tuple[int, int], str]] = []
    reader = Reader(monkeypatch)
    for s in snippets(text):
        if s.kind == "console":
            reader.type(s.code)
            continue
        if s.kind != "python":
            reader.compare(s.kind[3:], s.code) if s.kind.startswith("in ") else reader.write(s.kind, s.code)
            continue
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
        assert matches(s.expected, printed), (
            f"{path.name}:{s.line}: the block prints\n{printed}\nthe page says\n{s.expected}"
        )
    for (start, end), printed in reversed(edits):
        text = text[:start] + printed + text[end:]
    if edits:
        path.write_text(text)


def machine(target: str) -> Any:
    from weft.resolve import resolve_target

    return resolve_target(target).machine


def is_avx2(target: str) -> bool:
    m = machine(target)
    return (m.vector_bits, m.vector_registers) == (256, 16)


def pages() -> list[Path]:
    return [p for p in sorted(DOCS.glob("*.md")) if any(True for _ in snippets(p.read_text()))]


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.stem)
def test_blocks_run_and_print_what_the_page_says(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for link, _, heading in (found.partition("#") for found in re.findall(r"\]\(([^)\s]+)\)", text)):
        if not link.startswith(("http:", "https:")):
            page = path.parent / link if link else path
            assert page.exists(), f"{path.name} links to {link}"
            assert not heading or heading in headings(page), (
                f"{path.name} links to {link}#{heading}, which is no heading"
            )


def headings(page: Path) -> set[str]:
    return {
        slug(title)
        for title in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    }


def slug(title: str) -> str:
    """A heading as links name it: lower case, hyphens for spaces, no other punctuation."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
