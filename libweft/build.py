"""Builds the C runtime with zig's compiler (`pip install ziglang`), in the root of the repository.

python -m libweft.build [FOLDER] [ARCH …]   libweft.so and weft-run of architectures, for weft_libweft or into FOLDER
python -m libweft.build bitcode             the runtime of exports, into weft-llvm: after every change of the sources
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
RUNTIME = HERE / "runtime" if (HERE / "runtime").is_dir() else HERE.parent / "runtime" / "weft_runtime"
"""In a source distribution, what it has of weft-runtime lies beside this file."""
ABI = RUNTIME / "weft_abi.h"
INCLUDES = (HERE / "include", RUNTIME)
EXPORTS = HERE.parent / "plugins" / "cpu_llvm" / "weft_llvm" / "exports"
FLAGS = (
    "-std=gnu99", "-g0", "-Os", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",
    "-fvisibility=hidden", "-fPIC", "-fno-sanitize=all", "-fno-stack-protector", "-Wall", "-Wextra", "-Werror",
    "-D_FILE_OFFSET_BITS=64", "-fno-builtin",
)  # fmt: skip
BITCODE = {64: "x86_64-linux-musl", 32: "arm-linux-musleabihf"}
"""Any triple with pointers of so many bits: the module says nothing of it."""
ARCHITECTURES = {
    "x86_64": "x86_64-linux", "aarch64": "aarch64-linux", "arm": "arm-linux", "riscv64": "riscv64-linux",
}  # fmt: skip


def compiler(*arguments: str | Path) -> None:
    """Runs zig's C compiler.

    Raises:
        subprocess.CalledProcessError: it failed; what it wrote is in `output`.
    """
    command = [sys.executable, "-m", "ziglang", "cc", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=SOURCES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def include_flags() -> list[str]:
    return [f"-I{folder}" for folder in INCLUDES]


def write_bitcode(folder: Path = EXPORTS) -> None:
    """runtime64.bc and runtime32.bc."""
    for bits, target in BITCODE.items():
        compiler(
            "-target", target, *FLAGS, *include_flags(), "-DWEFT_EVERY_MACHINE", "-ffreestanding", "-fno-builtin",
            "-fno-strict-aliasing",
            "-fno-vectorize", "-fno-slp-vectorize", "-emit-llvm", "-c", "export.c",
            "-o", folder / f"runtime{bits}.bc",
        )  # fmt: skip


def shared_target(arch: str) -> str:
    """zig's target for Linux with glibc of 2012, or of RISC-V's first year; such programs run with musl, too."""
    return f"{ARCHITECTURES[arch]}-{'gnueabihf' if arch == 'arm' else 'gnu'}.{'2.27' if arch == 'riscv64' else '2.17'}"


def library(folder: Path, arch: str, *more: str) -> Path:
    """libweft.so for Linux."""
    out = folder / arch / "libweft.so"
    out.parent.mkdir(parents=True, exist_ok=True)
    compiler(
        "-target", shared_target(arch), *FLAGS, *include_flags(), "-shared",
        "-s", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-Wl,--hash-style=gnu", "-Wl,--gc-sections", "-Wl,--build-id=none",
        "-Wl,-soname,libweft.so.1", *more, "library.c", "surroundings.c", "-o", out,
    )  # fmt: skip
    return out


def program(folder: Path, arch: str) -> Path:
    """weft-run, linked with musl, so that it needs nothing of the system."""
    # Thumb is a third smaller than Arm, and all processors of armv7 have it.
    target = "thumb-linux-musleabihf" if arch == "arm" else f"{ARCHITECTURES[arch]}-musl"
    out = folder / arch / "weft-run"
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = sorted((HERE / "run").glob("*.c"))
    compiler(
        "-target", target, *(f for f in FLAGS if f != "-fPIC"), *include_flags(),
        "-static", "-s", "-Wl,--gc-sections", "-Wl,--build-id=none", *parts, "library.c",
        "surroundings.c", "-o", out,
    )  # fmt: skip
    return out


def main(words: list[str]) -> None:
    if words[:1] == ["bitcode"]:
        write_bitcode()
        return
    folder = Path(words[0] if words else HERE / "weft_libweft" / "prebuilt").resolve()
    for arch in words[1:] or ARCHITECTURES:
        for made in (library(folder, arch), program(folder, arch)):
            print(f"{made.stat().st_size:8} {made}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.output}\n{error}")
