"""The C runtime of Weft as files: `libweft.so` and `weft-run` for Linux, `weft.h`, and the sources.

They were compiled when this package's wheel was made, by zig's C compiler.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

__all__ = ["ARCHITECTURES", "include", "main", "prebuilt"]

ARCHITECTURES = ("x86_64", "aarch64", "arm", "riscv64")
"""By LLVM's names; arm is armv7 with hardware floating point."""
_FOLDER = Path(__file__).resolve().parent
_NAMES = {"AMD64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv8l": "arm"}


def include() -> Path:
    """The folder of weft.h."""
    inside = _FOLDER / "include"
    return inside if inside.is_dir() else _FOLDER.parent / "include"


def prebuilt(name: str, architecture: str | None = None) -> Path:
    """The path of `libweft.so` or `weft-run`.

    Args:
        architecture: one of ARCHITECTURES; this machine's without it.

    Raises:
        FileNotFoundError: there is none for that architecture, or this is a source tree in which none was built.
    """
    arch = architecture or _NAMES.get(platform.machine(), platform.machine())
    found = _FOLDER / "prebuilt" / arch / name
    if not found.is_file():
        known = ", ".join(sorted(p.parent.name for p in _FOLDER.glob(f"prebuilt/*/{name}"))) or "none"
        raise FileNotFoundError(
            f"there is no {name} for {arch} in {_FOLDER / 'prebuilt'}\n  why: it has those for {known}\n"
            "  hint: pip install weft-libweft, or in a source tree python -m libweft.build"
        )
    return found


def main() -> None:
    """`weft-run` of this machine in place of this process."""
    try:
        program = str(prebuilt("weft-run"))
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    if not os.access(program, os.X_OK):
        os.chmod(program, 0o755)  # installers may leave the permission out
    os.execv(program, ["weft-run", *sys.argv[1:]])
