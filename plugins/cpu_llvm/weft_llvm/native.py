"""A native segment: its entry is compiled and linked with its kernels into one image; the image that runs loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from weft_llvm import library_calls, link_wasm, wide
from weft_llvm.link import Image, link, undefined
from weft_llvm.memory import RELEASE, RESERVE, emit_wasm_memory
from weft_llvm.segment import emit_segment
from weft_llvm.toolchain import Cpu
from weft_llvm.wasm_pool import PARALLEL_FOR, WORK, emit_wasm_pool
from weft_llvm.workers import default_workers
from weft_runtime.executable import NativeCode

if TYPE_CHECKING:
    from weft.codegen.base import KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft_llvm.target import Isa


WASM_IMPORTS = {RESERVE: b"\x60\x01\x7e\x01\x7f", RELEASE: b"\x60\x01\x7f\x00"}
"""What a module may take from its host, with types: (i64) -> i32 and (i32) -> ()."""
LARGE = 1 << 16
"""Characters of a segment's text beyond which its entry is compiled without optimisation: LLVM's passes take more than
linear time on one long function, whose every line is run once a call, beside kernels."""


def link_segment(spec: SegmentSpec, kernels: Mapping[str, KernelCode], isa: Isa) -> dict[str, NativeCode]:
    """The section "main", with the entry "run"."""
    text = emit_segment(spec, architecture=isa.arch, pointer=isa.pointer, order=isa.byte_order)
    cpu = _cpu(isa)
    objects = {"segment": _compiled(text, isa, replace(cpu, opt=0) if len(text) > LARGE else cpu, "segment")}
    objects.update({name: code.object for name, code in kernels.items()})
    image = _wasm_module(objects, isa) if isa.objects == "wasm" else link({**objects, **_helpers(objects, isa)})
    parallel = any(code.parallel for code in kernels.values())
    return {"main": _native(image, ("run",), isa, parallel)}


@cache
def loops_code(isa: Isa) -> NativeCode | None:
    """What runs the iterations of loops, for a CPU; None if the runtime starts each."""
    from weft_llvm.repeat import emit_repeat

    if isa.objects == "wasm":
        return None
    objects = {"loops": _compiled(emit_repeat(isa.pointer), isa, _cpu(isa), "loops")}
    image = link({**objects, **_helpers(objects, isa)})
    return _native(image, tuple(image.entries), replace(isa, needs=frozenset()))


def _helpers(objects: Mapping[str, bytes], isa: Isa) -> dict[str, bytes]:
    """What LLVM calls in `objects` and expects of a library."""
    return {name: _helper(name, isa) for name in sorted(undefined(objects)) if name in library_calls.SOURCES}


@cache
def _helper(name: str, isa: Isa) -> bytes:
    return _compiled(library_calls.SOURCES[name], isa, _cpu(isa), name)


def _cpu(isa: Isa) -> Cpu:
    return Cpu(isa.triple, isa.cpu, isa.features, isa.opt)


def _wasm_module(objects: dict[str, bytes], isa: Isa) -> Image:
    """A module with the segment, and what its host calls for memory (`weft_llvm.memory`) and, if it may have threads,
    for those (`weft_llvm.wasm_pool`)."""
    shared = "atomics" in isa.needs
    support = {**_wasm_support(), **({"pool": emit_wasm_pool()} if shared else {})}
    compiled = {name: _compiled(text, isa, _cpu(isa), name) for name, text in support.items()}
    exports = ("run", "allocate_arena", "allocate_output", "release_memory", *((PARALLEL_FOR, WORK) if shared else ()))
    return link_wasm.link({**objects, **compiled}, exports, WASM_IMPORTS, shared=shared)


@cache
def _wasm_support() -> dict[str, str]:
    return {"memory": emit_wasm_memory(), "wide": wide.SOURCE}


def _compiled(ir: str, isa: Isa, cpu: Cpu, name: str) -> bytes:
    """By a worker: LLVM may end the process that it compiles in."""
    head = f'target datalayout = "{isa.data_layout}"\ntarget triple = "{isa.triple}"\n'
    return default_workers().submit(head + ir, cpu, name).result()


def _native(image: Image, entries: tuple[str, ...], isa: Isa, parallel: bool = False) -> NativeCode:
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("weft-llvm")
    except PackageNotFoundError:
        number = "?"
    places = {name: image.entries[name] for name in entries}
    needs = tuple(sorted(isa.needs))
    return NativeCode(bytes(image.bytes), places, "weft-llvm", number, needs, isa.machine, parallel)
