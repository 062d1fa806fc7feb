"""A model as an export has it: what is refused, the runtime's image, and the parts of the model behind it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import InputError, TargetError, UnsupportedError
from weft_llvm import library_calls
from weft_llvm.exports.runtime import compiler_for, pointer, runtime_ir, surroundings
from weft_llvm.link import Image, link, undefined
from weft_llvm.target import architecture, elf_triple
from weft_llvm.toolchain import compile_object
from weft_runtime.cpu_features import byte_order

if TYPE_CHECKING:
    from weft_runtime import Executable

PLAIN = frozenset({"Sizes", "WithSizes"})
"""Functions of the host that the C runtime has."""
MOST_SECTIONS = 32


@dataclass(frozen=True)
class Inside:
    """The parts of a model.

    Attributes:
        arch: LLVM's name of the architecture.
        machine: what manifests call it.
        plan: as the C runtime reads it.
        code: the images of its sections, by name, in the order of the plan.
        weights: in the format safetensors, whose data begin at a multiple of 64 bytes.
    """

    name: str
    triple: str
    arch: str
    machine: str
    plan: bytes
    code: Mapping[str, bytes]
    weights: bytes


def triple_of(target: str) -> str:
    """The triple of a resolved target string of `llvm`; "" for another target."""
    words = target.split()
    return next((w.partition("=")[2] for w in words if w.startswith("-mtriple=")), "") if words[:1] == ["llvm"] else ""


def inside(executable: Executable) -> Inside:
    """What an export holds of an executable.

    Raises:
        TargetError: it was not compiled by the target `llvm` alone, or for WebAssembly.
        UnsupportedError: a step of its plan runs where Python is, or on another device.
    """
    manifest = executable.manifest
    triple = triple_of(manifest.target)
    if not triple or architecture(triple).startswith("wasm"):
        raise TargetError(
            f"'{manifest.name}' was compiled for another target than the machine code that this format holds",
            where=manifest.target,
            hint='compile it with -t llvm, or "llvm -mtriple=…"',
        )
    arch = architecture(triple)
    if byte_order(arch) == "big" or arch == "i386":
        raise TargetError(
            f"'{manifest.name}' was compiled for {triple}, exports are of little-endian machines that align 64-bit"
            " integers to 8 bytes",
            where=manifest.target,
            why="the C runtime of exports is compiled for these" if arch == "i386" else "weights are little-endian",
        )
    steps = [*manifest.steps, *(s for plan in manifest.plans for s in plan.steps)]
    lost = [s for s in steps if s.kind not in ("native", "if", "loop") and getattr(s, "function", "") not in PLAIN]
    if lost:
        raise UnsupportedError(
            f"'{manifest.name}' cannot be exported: {len(lost)} of its steps run where Python is",
            where="\n".join(map(str, lost[:20])),
            why="they handle strings, pictures, sequences or other devices",
            hint="cut the model before and behind them, or run it with weft_runtime",
        )
    stored = executable.stored()
    if len(stored.code) > MOST_SECTIONS:
        raise UnsupportedError(
            f"'{manifest.name}' has {len(stored.code)} sections of code, an export has {MOST_SECTIONS}"
        )
    weights = b"".join(bytes(part) for part in stored.weights)
    code = {name: stored.code[name] for name in manifest.sections}
    return Inside(manifest.name, triple, arch, manifest.machine, stored.plan, code, weights)


def check_prefix(prefix: str) -> str:
    """What the functions' names begin with: "" or "PREFIX_".

    Raises:
        InputError: it is no identifier of C.
    """
    if prefix and not (prefix.isascii() and prefix.isidentifier()):
        raise InputError(f"'{prefix}' is no prefix of names in C", hint="it has letters, digits and _ only")
    return f"{prefix}_" if prefix else ""


def runtime_image(of: Inside, places: Mapping[str, int], *, pool: bool) -> Image:
    """The runtime for a model's machine.

    Args:
        places: where `weft_sys`, `weft_own` and `weft_model` lie, from the beginning of the image.
    """
    cpu = compiler_for(elf_triple(of.triple))
    ir = {"runtime": runtime_ir(pointer(of.arch)), **surroundings(of.triple, of.machine, pool=pool)}
    objects = {name: compile_object(text, cpu) for name, text in ir.items()}
    called = undefined(objects) & library_calls.SOURCES.keys()
    return link({**objects, **{n: compile_object(library_calls.SOURCES[n], cpu) for n in sorted(called)}}, places)


def table(of: Inside, here: int, places: Mapping[str, int]) -> bytes:
    """The structure `weft_inside` (export.c).

    Args:
        here: where it lies.
        places: where the parts lie: "plan", "weights", and sections by "code/" and their names.
    """
    words = [places["plan"] - here, places["weights"] - here, len(of.weights), len(of.code)]
    for name, image in of.code.items():
        words += [places["code/" + name] - here, len(image)]
    return struct.pack(f"<{len(words)}q", *words)
