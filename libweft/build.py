"""Builds the C runtime with zig's compiler (`pip install ziglang`), in the root of the repository.

python -m libweft.build [FOLDER] [ARCH …]   libweft.so and weft-run of architectures, for weft_libweft or into FOLDER
python -m libweft.build bitcode             the runtime of exports, into weft-llvm: after every change of the sources
"""

from __future__ import annotations

import struct
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
SMALL = (
    "-mllvm", "-disable-lsr", "-mllvm", "-disable-machine-licm", "-mllvm", "-enable-pre=false",
    "-mllvm", "-inline-threshold=-15", "-fno-jump-tables", "-mllvm", "-disable-block-placement",
    "-mllvm", "-tail-merge-size=1", "-fno-strict-aliasing",
)  # fmt: skip
"""Of binaries: optimisations that make code faster and longer are off."""
_KEPT = (
    b".dynsym", b".dynstr", b".dynamic", b".gnu.version", b".gnu.version_r", b".text", b".ARM.attributes", b".shstrtab",
)  # fmt: skip
_NO_BITS, _DYNAMIC_SYMBOLS = 8, 11
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
    # zig has glibc for Arm, and not for Thumb, which is a third smaller and which all processors of armv7 have.
    thumb = ("-Xclang", "-target-feature", "-Xclang", "+thumb-mode") if arch == "arm" else ()
    out = folder / arch / "libweft.so"
    out.parent.mkdir(parents=True, exist_ok=True)
    compiler(
        "-target", shared_target(arch), *thumb, *FLAGS, *SMALL, *include_flags(), "-shared",
        "-s", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-Wl,--hash-style=gnu", "-Wl,--gc-sections", "-Wl,--build-id=none",
        "-Wl,-soname,libweft.so.1", *more, "library.c", "surroundings.c", "-o", out,
    )  # fmt: skip
    out.write_bytes(trimmed(out.read_bytes()))
    return out


def trimmed(library: bytes) -> bytes:
    """A shared library of ELF with the headers of those sections alone that linkers read: 560 bytes less."""
    wide = library[4] == 2
    header = struct.Struct("<IIQQQQIIQQ" if wide else "<IIIIIIIIII")
    word, table_field, counts, symbol_field = ("<Q", 40, 58, 6) if wide else ("<I", 32, 46, 14)
    (table,) = struct.unpack_from(word, library, table_field)
    size, count, names_at = struct.unpack_from("<HHH", library, counts)
    # name, kind, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [list(header.unpack_from(library, table + k * size)) for k in range(count)]
    strings, kept, names = sections[names_at][4], [0], b"\0"
    for k, section in enumerate(sections):
        name = library[strings + section[0] : library.index(b"\0", strings + section[0]) + 1]
        if name[:-1] in _KEPT:
            kept.append(k)
            section[0] = len(names)
            names += name
    parts, headers = bytearray(library[: max(s[4] + s[5] for s in sections if s[2] & 2 and s[1] != _NO_BITS)]), b""
    for k in kept:
        section = sections[k]
        if k > 0 and not section[2] & 2:  # no part of the memory
            content = names if k == names_at else library[section[4] : section[4] + section[5]]
            section[4:6] = len(parts), len(content)
            parts += content
        section[6] = kept.index(section[6]) if section[6] in kept else 0
        headers += header.pack(*section)
    at, length, each = next((s[4], s[5], s[9]) for s in sections if s[1] == _DYNAMIC_SYMBOLS)
    for place in range(at + symbol_field, at + length, each):  # the section that a symbol is in
        (k,) = struct.unpack_from("<H", parts, place)
        struct.pack_into("<H", parts, place, kept.index(k))
    parts += bytes(-len(parts) % 8)
    struct.pack_into(word, parts, table_field, len(parts))
    struct.pack_into("<HH", parts, counts + 2, len(kept), kept.index(names_at))
    return bytes(parts + headers)


def program(folder: Path, arch: str) -> Path:
    """weft-run, linked with musl, so that it needs nothing of the system."""
    # Thumb is a third smaller than Arm, and all processors of armv7 have it.
    target = "thumb-linux-musleabihf" if arch == "arm" else f"{ARCHITECTURES[arch]}-musl"
    out = folder / arch / "weft-run"
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = sorted((HERE / "run").glob("*.c"))
    compiler(
        "-target", target, *(f for f in FLAGS if f != "-fPIC"), *SMALL, *include_flags(),
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
