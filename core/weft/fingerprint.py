"""What cache keys are made of: hashes of models, and fingerprints of installed plugins."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.plugins import Plugin


def hash_files(path: Path, digest: Any) -> None:
    """Adds a model file to `digest`, and the stamp of every file beside it that may hold its external data."""
    with path.open("rb") as file:
        while chunk := file.read(8 << 20):
            digest.update(chunk)
    if path.stat().st_size < 64 << 20:
        # A model with external data is small; its data lie in the same folder. Size and time of the neighbours stand for their bytes.
        head = path.read_bytes()
        for other in sorted(path.parent.rglob("*")):
            if other != path and other.is_file() and other.name.encode() in head:
                stat = other.stat()
                digest.update(f"{other.relative_to(path.parent)}:{stat.st_size}:{stat.st_mtime_ns}".encode())


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
