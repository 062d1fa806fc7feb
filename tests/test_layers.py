"""The order of layers, and that nobody reaches into another's private names."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parents[1]


def sources() -> list[Path]:
    """Every module of the installed packages."""
    packages = [
        "weft",
        *(p for p in ("weft_llvm", "weft_onnx", "weft_darknet", "weft_torch") if _folder(p) is not None),
    ]
    return sorted(file for p in packages for file in (_folder(p) or Path()).rglob("*.py"))


def _folder(package: str) -> Path | None:
    import importlib.util

    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def test_import_contracts_hold() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())",
        "--no-cache",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONIOENCODING": "utf-8"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", sources(), ids=lambda f: "/".join(f.parts[-3:]))
def test_no_module_imports_a_private_name_of_another_package(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0].startswith("weft")
            and node.module != "__future__"
        ):
            private = [a.name for a in node.names if a.name.startswith("_")] + [
                p for p in (node.module or "").split(".") if p.startswith("_")
            ]
            same_package = (node.module or "").split(".")[:2] == module_name(file).split(".")[:2]
            assert not private or same_package, f"{file}:{node.lineno} imports {', '.join(private)} from {node.module}"


def module_name(file: Path) -> str:
    for package in ("weft", "weft_llvm", "weft_onnx", "weft_darknet", "weft_torch"):
        folder = _folder(package)
        if folder is not None and file.is_relative_to(folder):
            return ".".join((package, *file.relative_to(folder).with_suffix("").parts))
    return file.stem


@pytest.mark.parametrize("file", sources(), ids=lambda f: "/".join(f.parts[-3:]))
def test_modules_have_names_that_say_what_they_hold(file: Path) -> None:
    assert file.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}
    assert ast.get_docstring(ast.parse(file.read_text())) or not file.read_text().strip(), f"{file} has no docstring"


def test_every_public_module_is_found() -> None:
    assert len(sources()) > 100
    assert Path(weft.__file__ or "").parent == _folder("weft")
