"""`weft export -f wasm`: one WebAssembly file with code, weights and plan.

The file is the module of the model's segment, which any engine can place (`weft_llvm.link_wasm`), and behind it custom
sections: `weft.manifest`, the manifest of the archive as JSON; `weft.weights`, as in the archive; `weft.code.NAME`, the
modules of further segments. A model of several segments has no module in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from weft.errors import TargetError, UnsupportedError
from weft_llvm.link_wasm import MAGIC
from weft_llvm.wasm_bytes import text, unsigned

if TYPE_CHECKING:
    from weft_runtime import Executable

MAIN = "main"
PLAIN = frozenset({"Sizes", "WithSizes"})
"""Functions of the host that the JavaScript runtime has."""
_MOST = (1 << 32) - 1


def files(executable: Executable, name: str, options: Mapping[str, str]) -> dict[str, Iterator[bytes | memoryview]]:
    """The bytes of the file, in pieces.

    Raises:
        TargetError: the executable is for another machine.
        UnsupportedError: a step of its plan runs where Python is, or its weights are larger than WebAssembly's memory.
    """
    manifest = executable.manifest
    if manifest.machine not in ("wasm32", "any"):
        raise TargetError(
            f"'{manifest.name}' was compiled for {manifest.machine}, wasm is for wasm32",
            where=manifest.target,
            hint='compile it with -t "llvm -mtriple=wasm32"',
        )
    every = [*manifest.steps, *(s for plan in manifest.plans for s in plan.steps)]
    steps = [s for s in every if s.kind not in ("native", "if", "loop") and getattr(s, "function", "") not in PLAIN]
    if steps:
        raise UnsupportedError(
            f"'{manifest.name}' cannot be one WebAssembly file: {len(steps)} of its steps run where Python is",
            where="\n".join(map(str, steps[:20])),
            why="they handle strings, pictures, sequences or other devices",
            hint="cut the model before and behind them, or run it with weft_runtime",
        )
    stored = executable.stored()
    if stored.weights_bytes > _MOST:
        raise UnsupportedError(
            f"the weights of '{manifest.name}' take {stored.weights_bytes} bytes",
            why="a memory of WebAssembly has at most 4 GiB",
        )

    def pieces() -> Iterator[bytes | memoryview]:
        yield stored.code.get(MAIN, MAGIC)
        yield _head("weft.manifest", len(stored.manifest))
        yield stored.manifest
        if stored.weights_bytes:
            yield _head("weft.weights", stored.weights_bytes)
            yield from stored.weights
        for name, image in stored.code.items():
            if name != MAIN:
                yield _head(f"weft.code.{name}", len(image))
                yield image

    return {".wasm": pieces()}


def _head(name: str, size: int) -> bytes:
    """The head of a custom section whose content follows."""
    title = text(name)
    return b"\0" + unsigned(len(title) + size) + title
