"""A native segment: its entry compiled, its kernels linked with it into one image; the image of what runs loops."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from weft.runtime.executable import NativeCode
from weft_llvm.link import link
from weft_llvm.segment import emit_segment
from weft_llvm.target import architecture
from weft_llvm.toolchain import Cpu, compile_object

if TYPE_CHECKING:
    from weft.codegen.base import KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft_llvm.target import Isa


def link_segment(spec: SegmentSpec, kernels: Mapping[str, KernelCode], cpu: Cpu, features: tuple[str, ...]) -> dict[str, NativeCode]:
    """The section "main", with the entry "run"."""
    objects = {"segment": compile_object(emit_segment(spec, architecture=architecture(cpu.triple)), cpu)}
    objects.update({name: code.object for name, code in kernels.items()})
    image = link(objects)
    return {"main": _native(image.bytes, {"run": image.entries["run"]}, features, architecture(cpu.triple), parallel=True)}


@cache
def loops_code(cpu: Cpu) -> NativeCode:
    """What runs the trips of loops, for a CPU."""
    from weft_llvm.repeat import emit_repeat

    image = link({"loops": compile_object(emit_repeat(), cpu)})
    return _native(image.bytes, image.entries, (), architecture(cpu.triple))


def _native(image: bytes, entries: Mapping[str, int], features: tuple[str, ...], arch: str, parallel: bool = False) -> NativeCode:
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("weft-llvm")
    except PackageNotFoundError:
        number = "?"
    return NativeCode(bytes(image), dict(entries), "weft-llvm", number, features, arch, parallel)


def required_features(isa: Isa) -> tuple[str, ...]:
    """Features that code for `isa` may contain and a machine can be asked for, by LLVM's names."""
    from weft.runtime.cpu_features import known_features
    from weft_llvm.features import used_features

    used = used_features(Cpu(isa.triple, isa.cpu, isa.features, isa.opt), isa.arch)
    return tuple(sorted(used & known_features(isa.arch)))
