"""Exports for other machines: what their files are made of, and, with --full, what they compute under qemu and wine."""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.libweft.test_libweft import PROGRAM, _expected

import weft
from weft.errors import TargetError
from weft_llvm.exports.inside import inside
from weft_llvm.exports.objects import _object
from weft_llvm.features import _ARM_UNUSED, _X86_ALWAYS, _X86_UNUSED
from weft_runtime.cpu_features import known_features
from weft_runtime.feature_bits import _ARM, _ARM64, _RISCV, _X86
from weft_testing.models import mlp

LINUX = {
    "aarch64-linux-gnu": (64, 183, 65536),
    "aarch64-linux-android": (64, 183, 65536),
    "armv7-linux-gnueabihf": (32, 40, 65536),
    "armv7-linux-androideabi": (32, 40, 65536),
    "riscv64-linux-gnu": (64, 243, 4096),
}
FUNCTIONS = {
    "weft_api_version", "weft_open", "weft_open_memory", "weft_close", "weft_describe", "weft_input", "weft_output",
    "weft_run", "weft_release",
}  # fmt: skip
WINE = shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")
"""Debian's package wine64 puts it where only its package wine looks."""


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


@pytest.mark.parametrize("triple", LINUX)
def test_shared_libraries(triple: str, tmp_path: Path) -> None:
    """Segments are aligned to the largest pages, none is written and executed, the C library is named."""
    bits, machine, page = LINUX[triple]
    weft.export(mlp(), tmp_path / "m.so", target=f"llvm -mtriple={triple}")
    data = (tmp_path / "m.so").read_bytes()
    wide = bits == 64
    assert data[:6] == b"\x7fELF" + bytes([2 if wide else 1, 1])
    assert struct.unpack_from("<HH", data, 16) == (3, machine)
    table = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)[0]
    size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
    dynamic, loads = None, []
    for k in range(count):
        at = table + k * size
        if wide:
            kind, flags, offset, address, _, stored, room, align = struct.unpack_from("<IIQQQQQQ", data, at)
        else:
            kind, offset, address, _, stored, room, flags, align = struct.unpack_from("<IIIIIIII", data, at)
        assert offset + stored <= len(data)
        if kind == 1:
            assert align == page and (address - offset) % page == 0 and flags & 3 != 3 and room >= stored
            loads.append((address // page, -(-(address + room) // page), flags))
        elif kind == 2:
            dynamic = (offset, stored)
        elif kind == 0x6474E551:
            assert not flags & 1, "the stack is not executable"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(loads)), "no page has two protections"
    assert dynamic is not None
    word = 8 if wide else 4
    tags: dict[int, list[int]] = {}
    for at in range(dynamic[0], sum(dynamic), 2 * word):
        tag, value = struct.unpack_from("<QQ" if wide else "<II", data, at)
        tags.setdefault(tag, []).append(value)
    assert 22 not in tags, "no relocation of code"
    strings = tags[5][0]
    assert _text(data, strings + tags[1][0]) == ("libc.so" if "android" in triple else "libc.so.6")
    assert _text(data, strings + tags[14][0]) == "m.so"
    symbols, chains = tags[6][0], struct.unpack_from("<II", data, tags[4][0])[1]
    given = set()
    for k in range(1, chains):
        at = symbols + k * tags[11][0]
        name, section = (
            struct.unpack_from("<I", data, at)[0],
            struct.unpack_from("<H", data, at + (6 if wide else 14))[0],
        )
        if section:
            given.add(_text(data, strings + name))
    assert given == FUNCTIONS


@pytest.mark.parametrize(("triple", "system", "processor"), [
    ("aarch64-apple-darwin", "macos", 0x0100000C), ("arm64-apple-ios", "ios", 0x0100000C),
    ("x86_64-apple-darwin", "macos", 0x01000007),
])  # fmt: skip
def test_objects_of_apple(triple: str, system: str, processor: int, tmp_path: Path) -> None:
    weft.export(mlp(), tmp_path / "m.o", "macho-obj", target=f"llvm -mtriple={triple}", options={"system": system})
    data = (tmp_path / "m.o").read_bytes()
    magic, kind, _, filetype, count, _, _ = struct.unpack_from("<7I", data)
    assert (magic, kind, filetype) == (0xFEEDFACF, processor, 1)
    at, found, platform = 32, set(), None
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if command == 2:
            symbols, number, strings, _ = struct.unpack_from("<4I", data, at + 8)
            for k in range(number):
                name, what, section = struct.unpack_from("<IBB", data, symbols + 16 * k)
                if what & 1 and section and not what & 0x10:  # external, defined, not private
                    found.add(_text(data, strings + name))
        elif command == 0x32:
            platform = struct.unpack_from("<I", data, at + 8)[0]
        at += size
    assert found == {f"_{name}" for name in FUNCTIONS}
    assert platform == {"macos": 1, "ios": 2}[system]


def test_objects_of_windows(tmp_path: Path) -> None:
    weft.export(mlp(), tmp_path / "m.o", "obj", target="llvm -mtriple=x86_64-pc-windows-gnu")
    assert struct.unpack_from("<H", (tmp_path / "m.o").read_bytes())[0] == 0x8664


@pytest.mark.parametrize("triple", ["s390x-linux-gnu", "i686-linux-gnu"])
def test_machines_of_another_layout_are_refused(triple: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"'mlp' was compiled for {triple}, exports are of little-endian machines"):
        weft.export(mlp(), tmp_path / "m.so", target=f"llvm -mtriple={triple}")


def _runs(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), np.float32), _expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.needs("ziglang", "qemu")
@pytest.mark.parametrize("arch", ["aarch64", "arm", "riscv64"])
def test_programs_of_other_machines(arch: str, tmp_path: Path) -> None:
    """An object in a static program with musl, weft-run with an archive, and, where glibc for it is installed, a shared
    library."""
    from libweft import build

    triple = next(t for t in LINUX if t.split("-")[0].removesuffix("v7") == arch)
    (tmp_path / "main.c").write_text(PROGRAM)
    target, qemu = f"llvm -mtriple={triple}", f"qemu-{arch}"
    if shutil.which(qemu) is None:
        qemu += "-static"
    weft.export(mlp(), tmp_path / "m.o", "obj", target=target)
    musl = f"{arch}-linux-musl{'eabihf' if arch == 'arm' else ''}"
    include = f"-I{build.INCLUDES[0]}"
    build.compiler("-target", musl, "-static", include, tmp_path / "main.c", tmp_path / "m.o", "-o", tmp_path / "main")
    _runs([qemu, "./main"], tmp_path)

    exe = weft.compile(mlp(), target)
    exe.save(tmp_path / "m.weft")
    x = (np.arange(64) % 7 - 3).astype(np.float32)[None]
    np.save(tmp_path / "x.npy", x)
    run = build.program(tmp_path, arch)
    command = [qemu, str(run), "m.weft", "--input", "x=x.npy", "--output", ".", "--runs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.count(" ns\n") == 2, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "0.npy")[0], _expected(), rtol=1e-5, atol=1e-6)

    root = Path("/usr") / triple.replace("armv7", "arm")
    if root.is_dir():
        weft.export(mlp(), tmp_path / "libm.so", target=target)
        command = [include, str(tmp_path / "main.c"), str(tmp_path / "libm.so"), "-o", str(tmp_path / "shared")]
        build.compiler("-target", build.shared_target(arch), *command)
        _runs([qemu, "-L", str(root), "-E", f"LD_LIBRARY_PATH={tmp_path}", "./shared"], tmp_path)


@pytest.mark.full
@pytest.mark.needs("ziglang")
@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "arm", "riscv64"])
def test_libweft_and_weft_run_are_small(arch: str, tmp_path: Path) -> None:
    from libweft import build

    assert build.library(tmp_path, arch).stat().st_size <= 24 << 10
    assert build.program(tmp_path, arch).stat().st_size <= 64 << 10


@pytest.mark.full
@pytest.mark.needs("ziglang")
@pytest.mark.skipif(WINE is None, reason="wine is not installed: apt install wine64")
def test_programs_of_windows(tmp_path: Path) -> None:
    from libweft import build

    (tmp_path / "main.c").write_text(PROGRAM)
    target = "llvm -mtriple=x86_64-pc-windows-gnu -mcpu=x86-64-v3"
    weft.export(mlp(), tmp_path / "m.dll", target=target)
    (tmp_path / "m.def").write_text("LIBRARY m.dll\nEXPORTS\n" + "\n".join(sorted(FUNCTIONS)) + "\n")
    subprocess.run(
        [build.sys.executable, "-m", "ziglang", "dlltool", "-d", "m.def", "-l", "m.lib", "-m", "i386:x86-64"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    include = f"-I{build.INCLUDES[0]}"
    windows = ["-target", "x86_64-windows-gnu"]
    build.compiler(*windows, include, tmp_path / "main.c", tmp_path / "m.lib", "-o", tmp_path / "main.exe")
    _runs([str(WINE), "main.exe"], tmp_path, WINEDEBUG="-all")
    weft.export(mlp(), tmp_path / "m.o", "obj", target=target)
    build.compiler(*windows, include, tmp_path / "main.c", tmp_path / "m.o", "-o", tmp_path / "own.exe")
    (tmp_path / "m.dll").unlink()
    _runs([str(WINE), "own.exe"], tmp_path, WINEDEBUG="-all")
    # Several sections of code.
    of = inside(weft.compile(mlp(), target))
    more = replace(of, code={**of.code, "more": bytes(64), "last": bytes(64)})
    (tmp_path / "m.o").write_bytes(_object(more, "x86_64-pc-windows-gnu", {}))
    build.compiler(*windows, include, tmp_path / "main.c", tmp_path / "m.o", "-o", tmp_path / "more.exe")
    _runs([str(WINE), "more.exe"], tmp_path, WINEDEBUG="-all")


def test_features_that_compilers_list_are_known() -> None:
    """Or an archive would be refused on every processor."""
    tables = {name: set(table) for name, table in (("x86", _X86), ("arm64", _ARM64), ("arm", _ARM), ("riscv", _RISCV))}
    assert known_features("x86_64") - _X86_ALWAYS - _X86_UNUSED <= tables["x86"] | _X86_ALWAYS
    assert known_features("aarch64") - _ARM_UNUSED <= tables["arm64"] | {"neon", "fp-armv8"}
    assert known_features("arm") <= tables["arm"]
    assert known_features("riscv64") == known_features("riscv32") == tables["riscv"]
