"""What cache keys are made of: hashes of models, and fingerprints of installed plugins."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weft.plugins import BY_HAND, Plugin
from weft_runtime.threads import available_threads

_PROCESS = secrets.token_hex(8)


_PIECE = 4 << 20


def hash_file(path: Path) -> str:
    """sha256 of the sha256 of each 4 MiB of a file, which threads compute side by side: the content alone decides.

    Sizes and times tell nothing for certain: copies, archives and layers of images keep both while the bytes change.

    Raises:
        OSError: it cannot be read.
    """

    def digest(offset: int) -> bytes:
        # Both without Python's lock. Not mapped: a file that is cut short meanwhile would end the process.
        return hashlib.sha256(os.pread(file.fileno(), _PIECE, offset)).digest()

    with path.open("rb", buffering=0) as file:
        offsets = range(0, os.fstat(file.fileno()).st_size, _PIECE)
        if len(offsets) <= 1:
            return hashlib.sha256(b"".join(map(digest, offsets))).hexdigest()
        with ThreadPoolExecutor(min(len(offsets), available_threads()), "weft-hash") as pool:
            return hashlib.sha256(b"".join(pool.map(digest, offsets))).hexdigest()


def source_fingerprint(plugin: Plugin) -> str:
    """Name and version of a plugin's distribution, and a hash of its sources where they can change without a new
    version.

    What was registered by hand is known by its sources as they are when it is registered; without a file, in a
    notebook, as long as it is registered.
    """
    if plugin.distribution == BY_HAND:
        module = plugin.object.__name__ if isinstance(plugin.object, ModuleType) else type(plugin.object).__module__
        sources = _tree_hash(module.split(".")[0], plugin.serial)
        known = [f"{plugin.name}+{sources if sources != '-' else f'{_PROCESS}.{plugin.serial}'}"]
        return " ".join([*known, *_described(_every_library())])
    package = plugin.origin.split(":")[0].split(".")[0]
    known = [f"{plugin.distribution}=={plugin.version}+{_tree_hash(package)}"]
    return " ".join([*known, *_described(libraries(plugin.distribution))])


def _described(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{name}=={version}+{_tree_hash(name.replace('-', '_'))}" for name, version in found)


@cache
def _every_library() -> tuple[tuple[str, str], ...]:
    """The installed distributions `weft-NAME`, of which a plugin without a distribution may use any."""
    names = {canonicalize_name(d.name) for d in metadata.distributions() if d.name is not None}
    return tuple((name, metadata.version(name)) for name in sorted(names) if name.startswith("weft-"))


@cache
def libraries(distribution: str) -> tuple[tuple[str, str], ...]:
    """What a plugin's code is made with beside its own: names and versions of the installed distributions called
    `weft-NAME`, whose package is `weft_NAME`, that it asks for, and those that these ask for. They are no plugins, or
    their plugin may be out of use.
    """
    found: dict[str, str] = {}
    todo = [distribution]
    while todo:
        try:
            asked = metadata.requires(todo.pop()) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, asked):
            name = canonicalize_name(requirement.name)
            if (
                name.startswith("weft-")
                and name not in found
                and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
            ):
                try:
                    found[name] = metadata.version(name)
                except metadata.PackageNotFoundError:
                    continue
                todo.append(name)
    return tuple(sorted(found.items()))


@cache
def _tree_hash(package: str, serial: int = 0) -> str:
    """Of a package's files, or of a module's one; "-" where there are none, or where they belong to a version. Another
    `serial` looks again."""
    try:
        spec = importlib.util.find_spec(package)
        places = (
            [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
        )
    except ValueError:  # a script
        places = [getattr(sys.modules.get(package), "__file__", None)]
    root = Path(places[0]) if places and places[0] else None
    if root is None or not root.exists() or "site-packages" in root.parts:
        return "-"
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
