"""Hooks of MkDocs: pages of the site whose source is not a page of docs/.

- index.md is the README of the repository; packages/NAME.md are the READMEs of its packages.
- api/MODULE.md is one page per public module (`weft_testing.public`), made from docstrings.

Links between them lead to the page of the site; a link to a file that has no page keeps its text alone.
"""

from __future__ import annotations

import ast
import importlib.util
import posixpath
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from weft_testing import public

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<marks>`{3,})(?P<language>\w+) (?P<rest>[^\n]+)$", re.M)
CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]*`|\[(?P<text>(?:[^\]`]|`[^`\n]*`)+)\]\((?P<target>[^)\s]+)\)", re.M | re.S
)


@cache
def sources() -> dict[str, str]:
    """File of the repository → page of the site, for READMEs."""
    found = {"README.md": "index.md", "docs/README.md": "index.md", "benchmarks/README.md": "packages/benchmarks.md"}
    for file in sorted(ROOT.glob("*/**/pyproject.toml")):
        readme = file.parent / "README.md"
        if readme.exists() and {"tests", "build"}.isdisjoint(file.relative_to(ROOT).parts):
            name = tomllib.loads(file.read_text())["project"]["name"]
            found[readme.relative_to(ROOT).as_posix()] = f"packages/{name}.md"
    return found


@cache
def assigned_together(module: str) -> frozenset[str]:
    """Names that a module assigns several of at once (`A, B = 1, 2`), which mkdocstrings does not find."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    tuples = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Tuple)]
    return frozenset(e.id for t in tuples for e in t.elts if isinstance(e, ast.Name))


def page_of(home: str, name: str) -> str:
    """The public module whose page describes a name that `home` defines: `home`, or, if that is not public, the
    innermost of the modules that pass it on."""
    if home in public.PUBLIC and name in public.public_names(home):
        return home
    passing = [m for m in public.PUBLIC if name in public.public_names(m) and public.home(m, name) == home]
    return max(passing, key=lambda m: (m.count("."), m))


def api_page(module: str) -> str:
    """The text of a public module's page: its docstring, then each public name."""
    parts = [
        f"# {module}\n\n::: {module}\n    options: {{members: false, show_root_heading: false, show_root_toc_entry:"
        " false}\n"
    ]
    for name in public.public_names(module):
        home = public.home(module, name)
        page = page_of(home, name)
        if page != module:
            parts.append(f"## {name}\n\nThe same as [`{page}.{name}`]({page}.md#{home}.{name}).\n")
        elif name in assigned_together(home):
            parts.append(f"## {name} {{: #{home}.{name} }}\n\nA constant.\n")
        else:
            parts.append(f"::: {home}.{name}\n")
    return "\n".join(parts)


def api_index() -> str:
    lines = [
        "# API reference\n",
        (
            "The modules and names that plugins and programs may import. A name that is not listed here may change with"
            " any version.\n"
        ),
    ]
    lines += [f"- [{m}]({m}.md): {', '.join(f'`{n}`' for n in public.public_names(m))}" for m in sorted(public.PUBLIC)]
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: Any) -> Files:
    texts = {page: (ROOT / file).read_text() for file, page in sources().items() if file != "docs/README.md"}
    texts |= {f"api/{module}.md": api_page(module) for module in sorted(public.PUBLIC)}
    texts["api/index.md"] = api_index()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_config(config: Any) -> Any:
    """Completes the navigation by what is generated."""
    packages = [{Path(p).stem: p} for p in sorted(sources().values()) if p.startswith("packages/")]
    modules: dict[str, list[str]] = {}
    for module in sorted(public.PUBLIC):
        modules.setdefault(
            ".".join(module.split(".")[:2]) if module.startswith("weft.") else module.split(".")[0], []
        ).append(f"api/{module}.md")
    groups = [{group: pages} if len(pages) > 1 else {group: pages[0]} for group, pages in modules.items()]
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = ["api/index.md", *groups]
        for part in entry.get("Reference", []):
            if isinstance(part, dict):
                part["Packages"] = packages
    return config


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    origin = next((file for file, found in sources().items() if found == uri), f"docs/{uri}")
    if uri.startswith("api/"):
        return markdown
    markdown = FENCE.sub(_fence, markdown)
    return CODE_OR_LINK.sub(lambda m: _link(m, origin, uri) if m["target"] else m[0], markdown)


def _fence(m: re.Match[str]) -> str:
    """What stands behind a fence's language is for the tests of docs; a file's name becomes the block's title."""
    file = re.fullmatch(r"(?:in )?(\S+\.\w+)", m["rest"])
    return f"{m['marks']}{m['language']}" + (f' title="{file[1]}"' if file else "")


def _link(m: re.Match[str], origin: str, uri: str) -> str:
    target, mark, heading = m["target"].partition("#")
    if not target or re.match(r"\w+:", target):
        return m[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    page = sources().get(file) or (
        file.removeprefix("docs/") if file.startswith("docs/") and (ROOT / file).is_file() else None
    )
    if page is None:
        return m["text"]
    return f"[{m['text']}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{mark}{heading})"
