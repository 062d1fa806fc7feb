"""Sizes of exported C on a Cortex-M4, by the compiler of PyPI's ziglang, where it is installed."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import CodegenError
from weft.forks import temporary_folder
from weft_c.toolchain import zig_environment

PROCESSOR = "Cortex-M4, zig cc -Os"
FLAGS = ("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m4", "-std=c99", "-Os", "-ffreestanding")
"""Options of zig's C compiler for a Cortex-M4 without an operating system."""
STRING_H = "#include <stddef.h>\nvoid *memcpy(void *to, const void *from, size_t bytes);\n"
MATH_H = (
    "".join(
        f"{t} {n}{f}({t} x);\n"
        for n in ("sqrt", "floor", "ceil", "trunc", "rint", "fabs")
        for t, f in (("float", "f"), ("double", ""))
    )
    + "".join(f"{t} {n}{f}({t} x, {t} y);\n" for n in ("copysign", "fmod") for t, f in (("float", "f"), ("double", "")))
    + "float fmaf(float x, float y, float z);\ndouble fma(double x, double y, double z);\n"
    + ('#define INFINITY __builtin_inff()\n#define NAN __builtin_nanf("")\n')
)
"""What such a compiler lacks of the C library's headers."""
_EXECUTABLE, _ALLOCATED, _NOBITS = 4, 2, 8


@dataclass(frozen=True)
class Sizes:
    """Bytes of code, of constants and of the deepest stack, on `processor`."""

    code: int
    constants: int
    stack: int
    processor: str = PROCESSOR


def measured(files: Mapping[str, bytes]) -> Sizes | None:
    """Sizes of a model's files (suffix → content) called model; None: ziglang is not installed.

    Raises:
        CodegenError: the compiler does not take them.
    """
    if importlib.util.find_spec("ziglang") is None:
        return None
    import os

    with temporary_folder("weft-size-") as folder:
        for suffix, content in files.items():
            (folder / f"model{suffix}").write_bytes(content)
        (folder / "string.h").write_text(STRING_H)
        (folder / "math.h").write_text(MATH_H)
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *FLAGS,
            "-I.",
            "-Wframe-larger-than=0",
            "-c",
            "model.c",
            "-o",
            "model.o",
        ]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **zig_environment()}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CodegenError("zig does not take the text of the model", where=done.stderr[:2000])
        code, constants = section_bytes((folder / "model.o").read_bytes())
        return Sizes(code, constants, stack_bytes(done.stderr))


def section_bytes(image: bytes) -> tuple[int, int]:
    """Bytes of code and of constants of an ELF object of 32 bits."""
    (headers,) = struct.unpack_from("<I", image, 32)
    size, count = struct.unpack_from("<HH", image, 46)
    code = constants = 0
    for k in range(count):
        _, kind, flags, _, _, length = struct.unpack_from("<IIIIII", image, headers + k * size)
        if flags & _ALLOCATED and kind != _NOBITS and kind != 0x70000001:  # tables of exceptions, which nobody needs
            if flags & _EXECUTABLE:
                code += length
            else:
                constants += length
    return code, constants


def stack_bytes(warnings: str) -> int:
    """The deepest stack, of what -Wframe-larger-than=0 says: the function that runs the model, a kernel, and a function
    that kernels share."""
    frames = re.findall(r"stack frame size \((\d+)\) .* in '(\w+)'", warnings)
    deepest = {"run": 0, "kernel": 0, "shared": 0}
    for size, name in frames:
        level = "run" if name.endswith("_run") else "shared" if name.startswith("weft_") else "kernel"
        deepest[level] = max(deepest[level], int(size))
    return sum(deepest.values())


__all__ = ["FLAGS", "MATH_H", "STRING_H", "Sizes", "measured", "section_bytes", "stack_bytes"]
