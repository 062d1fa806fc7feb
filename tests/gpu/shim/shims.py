"""Texts of GPU kernels, run on this machine: a header of C++ per language (`cuda.hpp`, `metal.hpp`) over fibers that
wait for each other (`grid.hpp`), compiled by ziglang's clang.

    library = Library("cuda", [text, …])                      many texts make one library, which costs less than one
                                                              each
    library.launch(0, buffers, dims, grid=(2, 1, 1), group=(64, 1, 1))
    run(kernel, "metal", arrays, dims)                        all launches of a `weft_gpu.image.Kernel`

What a GPU would not say is an error here, with the line of the text: a barrier that not all threads reach, an index
beyond an array, an address that a vector may not have, memory that is nobody's. Shared memory and variables begin as
NaN; arrays made by `guarded` end at a page that may not be touched.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import mmap
import os
import re
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.machine import Grid
from weft_gpu.image import Kernel, Launch
from weft_gpu.launch import grid_of

HERE = Path(__file__).parent
WARP = 32
OPTIONS = (
    "-x", "c++", "-std=c++20", "-nostdinc++", "-O1", "-g0", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti",
    "-fno-strict-aliasing", "-ffp-contract=off",
    "-fno-math-errno", "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
    "-ftrivial-auto-var-init=pattern",
    "-fno-sanitize=all",
    "-fsanitize=array-bounds,alignment,null,bool,shift,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow",
    "-fno-sanitize-recover=all", "-Wall", "-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-Wno-unused",
    "-Wno-pass-failed",
    "-Wno-user-defined-literals", "-lm",
)  # fmt: skip
LANGUAGES = {"cuda": "cuda.hpp", "metal": "metal.hpp"}
WORDS: dict[str, str] = {}
"""More lines behind a language's header."""
DIMS = 30
"""The entry of Metal's buffer table that holds the dims."""


class ShimError(Exception):
    """A text that does not compile, or that does what a kernel may not do."""


@cache
def zig() -> str:
    """The compiler of PyPI's ziglang."""
    import ziglang

    return str(Path(ziglang.__file__).parent / "zig")


@cache
def _folder() -> Path:
    folder = Path(os.environ.get("WEFT_CACHE_DIR") or tempfile.gettempdir()) / "shims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _cuda() -> list[Path]:
    """The folder of the headers of weft-cuda, where it is installed."""
    spec = importlib.util.find_spec("weft_cuda")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []


@cache
def _headers() -> str:
    files = [HERE / name for name in ("grid.hpp", "boxes.hpp", "ptx.hpp", *LANGUAGES.values())]
    ours = [folder / name for folder in _cuda() for name in ("weft_boxes.h", "weft_tiles.h")]
    return "".join(f.read_text() for f in (*files, *ours))


def _compiled(text: str) -> Path:
    """The library of a text, made once. Raises ShimError with what the compiler says."""
    name = hashlib.sha256("\0".join([text, _headers(), *OPTIONS]).encode()).hexdigest()[:32]
    made = _folder() / f"{name}.so"
    if not made.exists():
        source, result = made.with_suffix(f".{os.getpid()}.cpp"), made.with_suffix(f".{os.getpid()}.so")
        source.write_text(text)
        try:
            done = subprocess.run(
                [zig(), "cc", *OPTIONS, f"-I{HERE}", *(f"-I{f}" for f in _cuda()), str(source), "-o", str(result)],
                capture_output=True,
                text=True,
                check=False,
            )
            errors = [line for line in done.stderr.splitlines() if "error" in line or "warning" in line]
            if done.returncode or errors:
                raise ShimError("\n".join([*errors[:12], "", *done.stderr.splitlines()[:60]]))
            result.rename(made)
        finally:
            source.unlink()
    return made


def _metal_call(symbol: str, text: str) -> str:
    """The call of a Metal kernel: each parameter by its attribute, as Metal binds it."""
    head = re.search(rf"void {re.escape(symbol)}\((.*?)\) \{{", text, re.S)
    if head is None:
        raise ShimError(f"there is no kernel '{symbol}'")
    values = {
        "threadgroup_position_in_grid": "shim::group", "thread_position_in_threadgroup": "shim::current->index",
        "threads_per_threadgroup": "shim::extent",
        "threadgroups_per_grid": "shim::groups", "thread_index_in_threadgroup": "shim::current->number",
        "thread_index_in_simdgroup": "shim::lane()",
        "simdgroup_index_in_threadgroup": "shim::current->number / shim::warp",
    }  # fmt: skip
    found = []
    for parameter in re.split(r",\s*(?![^\[(]*[\])])", head[1]):
        match = re.fullmatch(r"(.*?)(\w+)\s*\[\[(\w+)(?:\((\d+)\))?\]\]", parameter.strip(), re.S)
        if match is None or (match[4] is None if match[3] == "buffer" else match[3] not in values):
            raise ShimError(f"a parameter of '{symbol}' that Metal does not know: {parameter}")
        of, attribute = match[1].strip(), match[3]
        if attribute != "buffer":
            found.append(values[attribute])
        elif of.endswith("*"):
            found.append(f"({of})buffers[{match[4]}]")
        elif of.endswith("&"):
            found.append(f"*({of[:-1]}*)buffers[{match[4]}]")
        else:
            raise ShimError(f"a buffer of '{symbol}' that is neither a pointer nor a reference: {parameter}")
    return f"{symbol}({', '.join(found)})"


def _unit(language: str, texts: Sequence[tuple[str, str]]) -> str:
    """All texts, each in a namespace of its own, whose shared memory is a section of its own."""
    parts = [f'#include "{LANGUAGES[language]}"', WORDS.get(language, "")]
    for k, (symbol, text) in enumerate(texts):
        body = re.sub(r"^#include .*$", "", text, flags=re.M).replace('extern "C" ', "")
        if language == "metal":  # where memory is declared, not where it is pointed to
            body = re.sub(r"^(\s*(?:alignas\(\w+\) )?)threadgroup(?= \w+ \w+\[)", r"\1SHIM_DECLARED", body, flags=re.M)
        call = _metal_call(symbol, text) if language == "metal" else f"shim_call({symbol}, buffers, dims)"
        parts += [
            "#undef SHIM_SHARED", f'#define SHIM_SHARED "shared_{k}"', f"namespace k{k} {{", f'#line 1 "{symbol}"',
                body, '#line 1 "call"',
            f"static void call(void *const *buffers, const int64_t *dims) {{ {call}; }}", "}",
            f'extern "C" __attribute__((weak, visibility("hidden"))) char __start_shared_{k}[], __stop_shared_{k}[];',
            f'extern "C" const char *launch_{k}(void *const *b, const int64_t *d, const unsigned *grid, const unsigned *group, unsigned seed) {{',  # noqa: E501
            f"  return shim::launch(k{k}::call, b, d, grid, group, {WARP}, seed, __start_shared_{k}, __stop_shared_{k});", "}",  # noqa: E501
        ]  # fmt: skip
    return "\n".join(parts) + "\n"


class Library:
    """Kernels' texts in one library.

    Args:
        language: "cuda" or "metal".
        texts: (symbol, text) of each launch.

    Raises:
        ShimError: a text that the compiler does not take; says where.
    """

    def __init__(self, language: str, texts: Iterable[tuple[str, str]]) -> None:
        self.language, self.texts = language, list(texts)
        self._library = ctypes.CDLL(str(_compiled(_unit(language, self.texts))))
        self._functions = [getattr(self._library, f"launch_{k}") for k in range(len(self.texts))]
        for f in self._functions:
            f.restype = ctypes.c_char_p

    def launch(
        self,
        number: int,
        buffers: Sequence[int] | Mapping[int, int],
        dims: Sequence[int],
        grid: tuple[int, int, int],
        group: tuple[int, int, int],
        seed: int = 0,
    ) -> None:
        """Runs one kernel, of the number that its text has.

        Args:
            buffers: addresses, in the order of the kernel's parameters, those of `tensors` behind them, or by their
                places in Metal's table.
            dims: of the kernel.
            seed: the order of threads: 0 forwards, 1 backwards, else by chance.

        Raises:
            ShimError: the kernel did what it may not do.
        """
        sizes = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        places = dict(buffers) if isinstance(buffers, Mapping) else dict(enumerate(buffers))
        if self.language == "metal":
            places.setdefault(DIMS, ctypes.addressof(sizes))
        table = (ctypes.c_void_p * (max(places, default=0) + 1))()
        for k, address in places.items():
            table[k] = address
        said = self._functions[number](
            table, sizes, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*group), ctypes.c_uint(seed)
        )
        if said:
            symbol, text = self.texts[number]
            line = re.match(rb"line (\d+)", said)
            shown = (
                text.splitlines()[int(line[1]) - 1].strip()
                if line and 0 < int(line[1]) <= len(text.splitlines())
                else ""
            )
            raise ShimError(f"{symbol}: {said.decode()}" + (f"\n  {shown}" if shown else ""))


def library(language: str, kernels: Iterable[Kernel]) -> dict[tuple[str, bytes], tuple[Library, int]]:
    """All launches of kernels in one library: (symbol, code) → where it is."""
    launches = list(dict.fromkeys((x.symbol, x.code) for k in kernels for x in k.launches))
    made = Library(language, [(symbol, code.decode()) for symbol, code in launches])
    return {key: (made, n) for n, key in enumerate(launches)}


class PlayedTensor(ctypes.Structure):
    """What a kernel gets of a tensor of which it copies boxes: `boxes.hpp` says what."""

    _fields_ = (
        ("base", ctypes.c_void_p), ("dims", ctypes.c_uint32), ("bytes", ctypes.c_uint32), ("extents",
            ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5),
        ("sizes", ctypes.c_uint32 * 5), ("_", ctypes.c_uint32 * 3),
    )  # fmt: skip

    @staticmethod
    def make(
        base: int, each: int, extents: Sequence[int], strides: Sequence[int], sizes: Sequence[int]
    ) -> PlayedTensor:
        """`strides`: bytes along all dims but the first, as everywhere."""
        n = len(sizes)
        return PlayedTensor(
            base, n, each, (ctypes.c_int64 * 5)(*extents), (ctypes.c_int64 * 5)(*(each, *strides)[:n]),
            (ctypes.c_uint32 * 5)(*sizes)
        )  # fmt: skip


def tensors(launch: Launch, places: Sequence[int]) -> list[PlayedTensor]:
    """Those of a launch whose buffers are at these addresses."""
    return [PlayedTensor.make(places[t.buffer], t.bytes, t.extents, t.strides, t.sizes) for t in launch.tensors]


_PAGE = mmap.PAGESIZE


def guarded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy whose memory ends, rounded up to 16 bytes, where a page begins that may not be touched."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = -(-max(1, array.nbytes) // 16) * 16
    pages = -(-size // _PAGE) * _PAGE
    at = libc.mmap(
        None,
        ctypes.c_size_t(pages + _PAGE),
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        -1,
        ctypes.c_long(0),
    )
    assert at not in (None, ctypes.c_void_p(-1).value)
    assert libc.mprotect(ctypes.c_void_p(at + pages), ctypes.c_size_t(_PAGE), 0) == 0
    memory = (ctypes.c_uint8 * array.nbytes).from_address(at + pages - size)
    weakref.finalize(memory, libc.munmap, ctypes.c_void_p(at), ctypes.c_size_t(pages + _PAGE))
    copy = (
        np.frombuffer(memory, np.uint8).view(array.dtype).reshape(array.shape) if array.nbytes else np.empty_like(array)
    )
    copy[...] = array
    return copy


LIMITS = Grid()


def run(
    kernel: Kernel,
    language: str,
    arrays: Sequence[npt.NDArray[Any]],
    dims: Sequence[int] = (),
    scratch: Sequence[int] = (),
    libraries: dict[tuple[str, bytes], tuple[Library, int]] | None = None,
    seed: int = 0,
    limits: Grid = LIMITS,
) -> None:
    """Runs all launches of a kernel on arrays: inputs and outputs, then as many bytes of scratch.

    Raises:
        ShimError: it did what it may not do.
    """
    where = libraries if libraries is not None else library(language, [kernel])
    rooms = [np.full(max(1, size), 0xFF, np.uint8) for size in scratch]
    every = [*arrays, *(guarded(r) for r in rooms)]
    for launch in kernel.launches:
        grid = grid_of(launch, dims, limits, kernel.name)
        if grid is None:
            continue
        made, number = where[launch.symbol, launch.code]
        places = [every[b].ctypes.data for b in launch.buffers]
        played = tensors(launch, places)
        made.launch(
            number, [*places, *map(ctypes.addressof, played)], [dims[d] for d in launch.dims], grid, launch.group, seed
        )
