"""`weft export -f wasm`: one WebAssembly file with code, weights and plan.

The file is the module of the model's segment, which any engine can place (`weft_llvm.link_wasm`), and behind it custom
sections: `weft.manifest`, the manifest of the archive as JSON; `weft.weights`, as in the archive; `weft.code.NAME`, the
modules of further segments. A model of several segments has no module in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.errors import TargetError, UnsupportedError
from weft_llvm.link_wasm import MAGIC, text, unsigned
from weft_runtime.archive import hash_pieces, weights_pieces
from weft_runtime.plan import ANY, Branch, Native, Repeat, SectionInfo

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

MAIN = "main"
PLAIN = frozenset({"Sizes", "WithSizes"})
"""Functions of the host that the JavaScript runtime has."""
_MOST = (1 << 32) - 1


def parts(executable: Executable) -> Iterator[bytes | memoryview]:
    """The bytes of the file, in pieces.

    Raises:
        TargetError: the executable is for another machine.
        UnsupportedError: a step of its plan runs where Python is, or its weights are larger than WebAssembly's memory.
    """
    manifest = executable.manifest
    if manifest.machine not in ("wasm32", ANY):
        raise TargetError(
            f"'{manifest.name}' was compiled for {manifest.machine}, wasm is for wasm32",
            where=manifest.target,
            hint='compile it with -t "llvm -mtriple=wasm32"',
        )
    every = [*manifest.steps, *(s for plan in manifest.plans for s in plan.steps)]
    steps = [
        s for s in every if not isinstance(s, (Native, Branch, Repeat)) and getattr(s, "function", "") not in PLAIN
    ]
    if steps:
        raise UnsupportedError(
            f"'{manifest.name}' cannot be one WebAssembly file: {len(steps)} of its steps run where Python is",
            where="\n".join(map(str, steps[:20])),
            why="they handle strings, pictures, sequences or other devices",
            hint="cut the model before and behind them, or run it with weft_runtime",
        )
    digest, size = hash_pieces(weights_pieces(executable.constants))
    if size > _MOST:
        raise UnsupportedError(
            f"the weights of '{manifest.name}' take {size} bytes", why="a memory of WebAssembly has at most 4 GiB"
        )
    manifest = manifest.with_(weights=SectionInfo(digest, size) if executable.constants else None)
    return _pieces(executable, manifest.to_json(), size)


def _pieces(executable: Executable, manifest: bytes, weights: int) -> Iterator[bytes | memoryview]:
    code = executable.code
    yield code.get(MAIN, MAGIC)
    yield from _custom("weft.manifest", len(manifest))
    yield manifest
    if executable.constants:
        yield from _custom("weft.weights", weights)
        yield from weights_pieces(executable.constants)
    for name, image in code.items():
        if name != MAIN:
            yield from _custom(f"weft.code.{name}", len(image))
            yield image


def _custom(name: str, size: int) -> Iterator[bytes]:
    """The head of a custom section whose content follows."""
    title = text(name)
    yield b"\0" + unsigned(len(title) + size) + title
