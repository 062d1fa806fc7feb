"""`imports_beyond(package)`: what a plugin imports of Weft that is not public (`weft_testing.public`), so that a later
version may take it away."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from weft.errors import PluginError, nearest
from weft_testing.public import PACKAGES, PUBLIC, public_names


def imports_beyond(package: str | Path) -> list[str]:
    """A line for each import or use that is not public: file, line, what, and what is there instead. Empty if all is
    well. Nothing is imported.

    Args:
        package: the name of an installed package, a folder of sources, or one file.

    Raises:
        PluginError: no such package.
    """
    root = _root(package)
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    return [
        f"{file.relative_to(root) if file != root else file.name}:{line}: {what}"
        for file in files
        for line, what in _beyond(file, root.name)
    ]


def _root(package: str | Path) -> Path:
    if isinstance(package, Path):
        if not package.exists():
            raise PluginError(f"no file or folder '{package}'")
        return package
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise PluginError(f"no package '{package}'", hint="give the name that is imported, or a Path of sources")
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def _beyond(file: Path, own: str) -> Iterator[tuple[int, str]]:
    packages = {*PACKAGES} - {own}
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    modules: dict[str, str] = {}  # names bound to public modules
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if (top := a.name.split(".")[0]) in packages:
                    modules[a.asname or top] = a.name if a.asname else top
                    if a.name not in PUBLIC:
                        found.append((node.lineno, _line(a.name)))
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in packages:
            module = str(node.module)
            for a in node.names:
                whole = f"{module}.{a.name}"
                if whole in PUBLIC:
                    modules[a.asname or a.name] = whole
                elif a.name == "*" and module in PUBLIC:
                    continue
                elif not _has(module, a.name):
                    found.append((node.lineno, _line(whole)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (used := _dotted(node, modules)) is not None:
            module, _, name = used.rpartition(".")
            if (
                module in PUBLIC
                and used not in PUBLIC
                and not _has(module, name)
                and not any(p.startswith(used + ".") for p in PUBLIC)
            ):
                found.append((node.lineno, _line(used)))
    yield from sorted(set(found))


def _dotted(node: ast.Attribute, modules: dict[str, str]) -> str | None:
    """The name in full of `m.a.b`, where m is a module; only as far as modules go."""
    parts = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    return (
        ".".join([modules[value.id], *reversed(parts)]) if isinstance(value, ast.Name) and value.id in modules else None
    )


def _has(module: str, name: str) -> bool:
    return module in PUBLIC and name in public_names(module)


def _line(whole: str) -> str:
    module, _, name = whole.rpartition(".")
    elsewhere = next((f"{m}.{name}" for m in PUBLIC if m != module and name in public_names(m)), None)
    close = nearest(name, public_names(module)) if module in PUBLIC else None
    hint = f": use {elsewhere}" if elsewhere else f": did you mean {module}.{close}?" if close else ""
    return f"{whole} is not public{hint}"
