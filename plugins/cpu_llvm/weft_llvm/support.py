"""The runtime's own native code as LLVM IR: the worker pool, and memory for segments. The runtime ships it compiled,
for every architecture alike.

    python -m weft_llvm.support FOLDER          writes the images and their table; FOLDER is runtime/weft_runtime/images

A segment asks for memory while it runs. What answers is native code and never Python's: Python would run handlers of
signals there, and an exception that one of them raises cannot pass through native code.

Entries: those of `weft_llvm.pool` and `weft_llvm.memory`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from weft_llvm.link import Image, link
from weft_llvm.memory import emit_memory
from weft_llvm.pool import emit_pool
from weft_llvm.target import RESERVED
from weft_llvm.toolchain import Cpu, compile_object

CPUS = {
    "x86_64": Cpu("x86_64-unknown-linux-gnu", "x86-64", "", 2),
    "aarch64": Cpu("aarch64-unknown-linux-gnu", "generic", RESERVED["aarch64"], 2),
}
"""What the images are compiled for: every processor of an architecture. Their code asks the system for nothing but
`abi.IMPORTS`."""


def support_image(architecture: str) -> Image:
    """The image for an architecture of `CPUS`, the same on every machine."""
    cpu = CPUS[architecture]
    return link({"pool": compile_object(emit_pool(architecture), cpu), "memory": compile_object(emit_memory(), cpu)})


def write(folder: Path) -> None:
    """Writes an image for each architecture, and table.json: their hashes, their entries, and the version of LLVM that
    made them."""
    from llvmlite.binding import llvm_version_info

    table = {}
    for architecture in CPUS:
        image = support_image(architecture)
        (folder / f"{architecture}.bin").write_bytes(image.bytes)
        table[architecture] = {
            "sha256": hashlib.sha256(image.bytes).hexdigest(),
            "entries": dict(sorted(image.entries.items())),
        }
    text = json.dumps({"llvm": ".".join(map(str, llvm_version_info)), "images": table}, indent=1)
    (folder / "table.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
