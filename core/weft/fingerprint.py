"""What cache keys are made of: hashes of models, and fingerprints of installed plugins."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.plugins import Plugin


def hash_file(path: Path, digest: Any) -> None:
    """Adds the bytes of a file to `digest`."""
    with path.open("rb") as file:
        while chunk := file.read(8 << 20):
            digest.update(chunk)


def stamp_files(paths: Sequence[Path], digest: Any) -> None:
    """Adds place, size and time of files to `digest`: they stand for the bytes of external data."""
    for path in sorted(paths):
        stat = path.stat() if path.is_file() else None
        digest.update(repr((str(path), stat and (stat.st_size, stat.st_mtime_ns))).encode())


def source_fingerprint(plugin: Plugin) -> str:
    """Name and version of a plugin's distribution, and a hash of its sources where they can change without a new version."""
    package = plugin.origin.split(":")[0].split(".")[0]
    return f"{plugin.distribution}=={plugin.version}+{_tree_hash(package)}"


@cache
def _tree_hash(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return "-"
    root = Path(next(iter(spec.submodule_search_locations)))
    if "site-packages" in root.parts:
        return "-"
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
