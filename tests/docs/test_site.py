"""The site: it builds without warnings, its links lead to headings, and every page and public name is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft_testing import public

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("material", "mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    found = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert not done.returncode, "\n".join(found) or done.stderr[-2000:]
    return folder


def test_every_page_of_docs_is_in_the_navigation(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for p in (ROOT / "docs").rglob("*.md")} - {
        "README.html"
    }
    assert len(pages) > 5
    every = {link for page in site.rglob("*.html") for link in _links(page, site)}
    assert sorted(pages - every) == []


def test_every_public_name_has_its_place(site: Path) -> None:
    for module in public.PUBLIC:
        text = (site / "api" / f"{module}.html").read_text()
        missing = [
            n
            for n in public.public_names(module)
            if not re.search(rf'id="(?:{re.escape(public.home(module, n))}\.{n}|{n.lower()})"', text)
        ]
        assert missing == [], module


def test_links_lead_to_pages_and_headings_of_the_site(site: Path) -> None:
    ids = {p: set(re.findall(r'\bid="([^"]+)"', p.read_text())) for p in site.rglob("*.html") if p.name != "404.html"}
    broken = []
    for page in ids:
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', page.read_text()):
            target, _, heading = link.partition("#")
            if re.match(r"\w+:|//", link):
                continue
            file = (page.parent / target).resolve() if target else page
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (
                heading and file in ids and heading not in ids[file] and not heading.startswith("__")
            ):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r'<(?:script|img|link)\b[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text()) == [], (
            page.name
        )


def _links(page: Path, site: Path) -> set[str]:
    found = (link.partition("#")[0] for link in re.findall(r'<a\b[^>]*?\bhref="([^":]+)"', page.read_text()))
    return {os.path.relpath(page.parent / link, site) for link in found if link}
