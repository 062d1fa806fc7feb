"""NVRTC, NVIDIA's compiler as a library, through NVIDIA's own bindings: it needs neither a GPU nor a driver nor a
toolkit.

The bindings release the interpreter's lock while NVRTC compiles, so threads compile side by side.
"""

from __future__ import annotations

import importlib.resources
import re
from functools import cache
from typing import Any

from weft import dtypes as dt
from weft.errors import CodegenError, TargetError
from weft_cuda.architectures import STATIC_SHARED
from weft_cuda.code import pack_code
from weft_cuda.dialect import CUDA

HEADER = "weft_cuda.h"
MEANING = (
    "--std=c++17",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--fmad=true",
    "--device-as-default-execution-space",
)
"""Denormals stay, divisions and roots round once; a multiplication and an addition may be one instruction, as on every
target."""
_FILE = "kernel.cu"
_SHARED = re.compile(r"\s*__shared__ __align__\((\d+)\) (.+) (\w+)\[(\d+)\];")  # as the dialect declares it
_BYTES = {**{name: dt.dtype(d).bytes for d, name in CUDA.types.items()}, "weft_c64": 8, "weft_c128": 16}
_SHOWN = 12


@cache
def _nvrtc() -> Any:
    """The bindings. Raises TargetError if they, or NVRTC, are not installed."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise TargetError(
            "the target 'cuda' needs NVIDIA's bindings",
            why=str(error),
            hint="pip install cuda-bindings nvidia-cuda-nvrtc",
        ) from None
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings find the library at the first call
        raise TargetError(
            "NVRTC, which compiles CUDA C++, is not here",
            why=str(error).splitlines()[0],
            hint="pip install nvidia-cuda-nvrtc",
        ) from None
    return nvrtc


@cache
def header() -> str:
    """What a kernel's text gets for `weft_cuda.h`: the instructions, and what is written with them."""
    return "".join(
        importlib.resources.files("weft_cuda").joinpath(name).read_text(encoding="utf-8")
        for name in (HEADER, "weft_boxes.h", "weft_tiles.h")
    )


@cache
def version() -> str:
    """NVRTC's."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


@cache
def supported() -> tuple[int, ...]:
    """The compute capabilities that it makes code for, as 10·major + minor."""
    _, found = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(int(a) for a in found)


def build(source: str, arch: str, name: str, options: tuple[str, ...] = ()) -> bytes:
    """A launch's text as the device loads it. Raises CodegenError as `cubin`."""
    text, shared = with_dynamic_memory(source)
    return pack_code(cubin(text, arch, name, options), shared)


def with_dynamic_memory(source: str) -> tuple[str, int]:
    """The text with its shared memory in one piece that is asked for at the launch, and how many bytes; as it is, and
    0, if it may stand in the code."""
    at, lines = 0, []
    for line in source.splitlines():
        found = _SHARED.fullmatch(line)
        if found is not None:
            align, of, array, size = int(found[1]), found[2], found[3], int(found[4])
            at = -(-at // align) * align
            lines.append(f"  {of} *const {array} = reinterpret_cast<{of} *>(weft_shared + {at});")
            at += size * _BYTES[of]
        else:
            lines.append(line)
    if at <= STATIC_SHARED:
        return source, 0
    first = next(k for k, line in enumerate(lines) if "weft_shared" in line)
    lines.insert(first, "  extern __shared__ __align__(128) unsigned char weft_shared[];")
    return "\n".join([*lines, ""]), at


def cubin(source: str, arch: str, name: str, options: tuple[str, ...] = ()) -> bytes:
    """The binary of a text for an architecture ("sm_90", "sm_90a").

    Raises:
        CodegenError: with what NVRTC says, and the lines of the text that it says it of.
    """
    nvrtc = _nvrtc()
    given = [o.encode() for o in (f"-arch={arch}", *MEANING, *options)]
    program = _done(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), _FILE.encode(), 1, [header().encode()], [HEADER.encode()])
    )
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CodegenError(
                f"NVRTC does not take '{name}'",
                where="\n".join(
                    [
                        f"nvrtc {version()} {' '.join(o.decode() for o in given)}",
                        *(_log(nvrtc, program) or result.name).splitlines()[:_SHOWN],
                    ]
                ),
                hint="weft inspect --stage source shows the text",
            )
        code = bytes(_done(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _done(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    text = bytes(_done(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _done(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _done(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CodegenError("NVRTC failed", why=nvrtc.nvrtcGetErrorString(result)[1].decode())
    return values[0] if values else None
