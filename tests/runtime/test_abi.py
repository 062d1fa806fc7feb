"""The binary interface: one description, from which ctypes, offsets and the C header are made."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft_runtime import abi, header
from weft_runtime.abi import (
    CONTEXT,
    HOST,
    MOVE,
    ROOM,
    STRUCTURES,
    SWAP,
    TENSOR,
    TRIPS,
    Context,
    DLTensor,
    Field,
    Host,
    Move,
    Room,
    Structure,
    Swap,
    Trips,
)

CLASSES = {CONTEXT: Context, TENSOR: DLTensor, ROOM: Room, HOST: Host, MOVE: Move, SWAP: Swap, TRIPS: Trips}


def test_ctypes_lays_out_as_the_description_says() -> None:
    assert set(CLASSES) == set(STRUCTURES)
    pointer = ctypes.sizeof(ctypes.c_void_p)
    for structure, made in CLASSES.items():
        assert ctypes.sizeof(made) == structure.size(pointer)
        assert {f.name: getattr(made, f.name).offset for f in structure.fields} == structure.offsets(pointer)


def test_the_layout_of_pointers_of_8_bytes_does_not_change() -> None:
    """Archives of this ABI version hold code with these numbers in it."""
    assert abi.ABI_VERSION == 2
    assert CONTEXT.offsets() == {
        "version": 0, "arena": 8, "arena_bytes": 16, "constants": 24, "parallel_for": 32, "allocate_arena": 40,
        "allocate_output": 48, "imports": 56,
        "pool": 64, "threads": 72, "error_code": 80, "error_args": 88, "host": 152,
    }  # fmt: skip
    assert list(TENSOR.offsets().values()) == [0, 8, 12, 16, 20, 21, 22, 24, 32, 40]
    assert [s.size() for s in STRUCTURES] == [48, 160, 16, 24, 16, 16, 72]


def test_pointers_of_4_bytes_are_as_c_has_them() -> None:
    assert list(TENSOR.offsets(4).values()) == [0, 4, 8, 12, 16, 17, 18, 20, 24, 32]
    assert (CONTEXT.offsets(4)["arena_bytes"], CONTEXT.offsets(4)["threads"], CONTEXT.size(4)) == (16, 48, 136)
    with pytest.raises(ValueError, match="pointers have 4 or 8 bytes, not 2"):
        TENSOR.offsets(2)


def test_padding_at_the_end_counts() -> None:
    made = Structure("s", "", (Field("a", "int64", ""), Field("b", "uint8", "", count=3)))
    assert made.size() == 16 and made.offsets() == {"a": 0, "b": 8}


def test_the_header_of_the_package_is_what_is_made() -> None:
    assert header.FILE.read_text(encoding="utf-8") == header.abi_header(), (
        f"run python -m {header.__name__} {header.FILE}"
    )


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header.main([str(tmp_path / "weft_abi.h")])
    header.main([])
    assert (tmp_path / "weft_abi.h").read_text(encoding="utf-8") == capsys.readouterr().out == header.abi_header()
    with pytest.raises(SystemExit, match="usage: python -m"):
        header.main(["a", "b"])


ZIG = (sys.executable, "-m", "ziglang")


def compiled(folder: Path, command: tuple[str, ...], text: str) -> subprocess.CompletedProcess[str]:
    from weft_c.toolchain import zig_environment

    (folder / "weft_abi.h").write_text(header.abi_header())
    (folder / "user.c").write_text(text)
    full = [*command, "-Wall", "-Wextra", "-pedantic", "-Werror", "-c", "user.c", "-o", "user.o"]
    return subprocess.run(
        full, cwd=folder, env={**os.environ, **zig_environment()}, capture_output=True, text=True, check=False
    )


TRIPLES = (
    "x86_64-linux-gnu",
    "aarch64-linux-gnu",
    "riscv64-linux-gnu",
    "arm-linux-gnueabihf",
    "wasm32-wasi",
    "x86-linux-gnu",
)


@pytest.mark.needs("ziglang")
@pytest.mark.parametrize("triple", TRIPLES)
def test_compilers_lay_out_as_the_header_asserts(triple: str, tmp_path: Path) -> None:
    done = compiled(tmp_path, (*ZIG, "cc", "-std=c11", "-target", triple), '#include "weft_abi.h"\n')
    if triple.startswith("x86-"):  # its 64-bit integers are aligned to 4 bytes
        assert done.returncode and "static assertion failed" in done.stderr
    else:
        assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.needs("ziglang")
@pytest.mark.parametrize("options", [("cc", "-std=c99"), ("cc", "-std=c17"), ("c++", "-std=c++11", "-x", "c++")])
def test_the_header_suits_every_standard(options: tuple[str, ...], tmp_path: Path) -> None:
    """A segment written by hand, as a user of the header would."""
    text = """#include "weft_abi.h"
int32_t scale(weft_context *ctx, void *const *buffers, const int64_t *dims);
int32_t run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out);
int32_t run(weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out) {
  void *buffers[2];
  buffers[0] = in[0]->data;
  buffers[1] = out[0]->data;
  if (in[0]->ndim != 1) {
    ctx->error_code = WEFT_INPUT_TYPE;
    return WEFT_INPUT_TYPE;
  }
  weft_kernel *kernel = scale;
  return kernel(ctx, buffers, in[0]->shape);
}
"""
    done = compiled(tmp_path, (*ZIG, *options), text)
    assert done.returncode == 0, done.stderr[:2000]
