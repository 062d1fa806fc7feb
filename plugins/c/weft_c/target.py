"""The target kind "c": options, and the C compiler that they name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from weft.target import CPU, Target, TargetKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.codegen.base import KernelCode
    from weft.codegen.segment import SegmentSpec
    from weft.machine import Machine
    from weft_c.codegen import CCodegen, TextCodegen
    from weft_c.toolchain import Compiler
    from weft_runtime.executable import NativeCode


@dataclass(frozen=True)
class COptions:
    """-cc: the command of a C compiler that knows GCC's options, or zig for the one in PyPI's ziglang; what is absent
    means the system's.

    -std: the standard that it is asked for. -opt: its -O. -march: its -march, by default the architecture's least.

    -profile: "host" makes code for this machine with the compiler; the others make the C text of a model, which `weft
    export -f c` writes: "portable", or "mcu" for microcontrollers, with 8-bit products in the form of Arm's DSP
    extension.
    """

    cc: str | None = None
    std: Literal["c99", "c11", "c17"] = "c99"
    opt: Literal["0", "1", "2", "3", "s"] = "2"
    march: str | None = None
    profile: Literal["host", "portable", "mcu"] = "host"


class CTarget(TargetKind):
    """The host's CPU, through its C compiler."""

    name: ClassVar[str] = "c"
    options: ClassVar[type] = COptions
    keywords: ClassVar[tuple[str, ...]] = ("c99", "cc", "gcc", "clang", "zig")

    def resolve(self, target: Target) -> Target:
        from weft_c.toolchain import default_command

        o: COptions = target.options
        return (
            target
            if o.cc is not None or o.profile != "host"
            else replace(target, options=replace(o, cc=default_command()))
        )

    def machine(self, target: Target) -> Machine:
        from weft.machine import Machine, Scope

        align = 64 if target.options.profile == "host" else 8
        scopes = {
            "global": Scope("global", align=align, shared_by="all"),
            "local": Scope("local", align=align),
            "register": Scope("register", align=align),
        }
        if target.options.profile == "mcu":
            from weft_c.cortex_m import RATES

            return Machine("cpu", vector_bits=32, vector_registers=13, scopes=scopes, rates=RATES)
        return Machine("cpu", vector_bits=128, vector_registers=16, scopes=scopes)

    def codegen(self, target: Target) -> CCodegen | TextCodegen:
        from weft_c.codegen import CCodegen, TextCodegen

        if target.options.profile != "host":
            return TextCodegen()
        return CCodegen(self.compiler(target))

    def compiler(self, target: Target) -> Compiler:
        """Raises TargetError if it is not there."""
        from weft_c.toolchain import compiler

        o: COptions = self.resolve(target).options
        assert o.cc is not None
        return compiler(o.cc, o.std, o.opt, o.march)

    def device(self, target: Target) -> str:
        return CPU

    def link(self, target: Target, segment: SegmentSpec, kernels: Mapping[str, KernelCode]) -> Mapping[str, NativeCode]:
        from weft_c.image import link_segment
        from weft_c.model_text import link_text

        if target.options.profile != "host":
            return {"main": link_text(segment, kernels)}
        return {"main": link_segment(segment, kernels, self.compiler(target))}

    def loops(self, target: Target) -> NativeCode | None:
        from weft_c.image import loops_code

        return None if target.options.profile != "host" else loops_code(self.compiler(target))

    def fingerprint(self, target: Target) -> str:
        from weft_c.model_text import TEXT_VERSION
        from weft_c_family import VERSION

        if target.options.profile != "host":
            return f"c/{target.options.profile}/emitter{VERSION}/text{TEXT_VERSION}"
        return f"c/emitter{VERSION}/{self.compiler(target).fingerprint}"
