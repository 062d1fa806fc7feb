"""A model as C text, for the profiles that need no compiler: kernels, and one function that calls them in order.

A section of the machine "c" is JSON: `functions`, the text of each function in the order in which they stand, without
what only the file knows: names that belong to the model begin with `PREFIX` in place of the model's name; constants are
`PREFIXconstantK`. `weft_c.export_c` makes files of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata, resources

from weft.codegen.base import KernelCode
from weft.codegen.segment import AllocateOutput, Arena, BufferRef, Check, Constant, Input, KernelCall, SegmentSpec
from weft.errors import CodegenError
from weft.expr.nodes import Const, Expr
from weft_c_family import Emitted, identifier
from weft_runtime.executable import NativeCode

MACHINE = "c"
TEXT_VERSION = 3
"""Goes into cache keys: raise it when other text comes out for the same kernels."""
SHIFT = "static inline int32_t weft_asr_i32(int32_t a, int32_t b) { return a >> b; }"
"""As the emitter has it: the functions of `mcu` call it, too."""
LIBRARY = (
    "rescaled", "byte", "clear", "widen", "window", "planes", "taps", "dot_row", "dot_rows", "dot_planes", "dot_bytes",
    "planes_bytes", "rescale_rows", "rescale_planes",
)  # fmt: skip
"""Files of `mcu` in the order in which they stand; those that kernels call have the names of functions."""
NEEDS = {
    "dot_bytes": ("byte",),
    "dot_planes": ("taps",),
    "planes_bytes": ("byte", "taps"),
    "rescale_planes": ("rescaled",),
    "rescale_rows": ("rescaled",),
    "planes": ("clear",),
    "window": ("widen",),
}
"""What they call."""
PREFIX = "@"
"""What stands for the model's name; no character of C."""


@dataclass(frozen=True)
class KernelText:
    """A kernel: the functions it calls, its parameters as it declares them, its own text."""

    symbol: str
    helpers: tuple[str, ...]
    parameters: tuple[str, ...]
    body: str

    @classmethod
    def of(cls, emitted: Emitted) -> KernelText:
        return cls(emitted.symbol, emitted.helpers, emitted.parameters, emitted.body)

    @classmethod
    def read(cls, data: bytes) -> KernelText:
        fields = json.loads(data)
        return cls(fields["symbol"], tuple(fields["helpers"]), tuple(fields["parameters"]), fields["body"])

    def bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class ModelText:
    """What a section holds.

    Args:
        head: what stands before constants.
        functions: kernels and what they call, in order.
        calls: statements of the function that runs the model.
        arena: bytes.
    """

    head: tuple[str, ...]
    functions: tuple[str, ...]
    calls: tuple[str, ...]
    arena: int

    @classmethod
    def read(cls, data: bytes) -> ModelText:
        fields = json.loads(data)
        return cls(tuple(fields["head"]), tuple(fields["functions"]), tuple(fields["calls"]), int(fields["arena"]))

    def bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def link_text(spec: SegmentSpec, kernels: Mapping[str, KernelCode]) -> NativeCode:
    """The section of a model.

    Raises:
        CodegenError: a size of it is open.
    """
    if spec.symbols:
        open_ = ", ".join(f"'{s.name}'" for s in spec.symbols)
        axes = [
            f"{t.name}={','.join(map(str, t.dims))}"
            for t in spec.inputs
            if any(not isinstance(d, Const) for d in t.dims)
        ]
        raise CodegenError(
            f"'{spec.name}' has open sizes: {open_}",
            where="\n".join(axes) or None,
            why="C of a profile has an arena of a size that is known when it is compiled",
            hint="give all sizes: input_shapes=, or --input-shape NAME=1,3,224,224",
        )
    texts = {name: KernelText.read(code.object) for name, code in kernels.items()}
    used = "\n".join(t.body for t in texts.values())
    called = {name for name in LIBRARY if f"weft_{name}(" in used}
    called |= {needed for name in called for needed in NEEDS.get(name, ())}
    library = [name for name in LIBRARY if name in called]
    head = [_library("head"), *([_library("words")] if library else [])]
    helpers = dict.fromkeys(h for t in texts.values() for h in t.helpers)
    if not called.isdisjoint(("rescaled", "byte")):
        helpers[SHIFT] = None
    calls = [line for item in spec.items for line in _statement(item, spec, texts)]
    model = ModelText(
        tuple(head),
        (*helpers, *map(_library, library), *(t.body for t in texts.values())),
        tuple(calls),
        _number(spec.arena_bytes),
    )
    return NativeCode(model.bytes(), {"run": 0}, "weft-c", _version(), (), MACHINE)


def _statement(item: object, spec: SegmentSpec, texts: Mapping[str, KernelText]) -> Sequence[str]:
    match item:
        case KernelCall(kernel, buffers, dims, Const(value=True)) if not dims:
            text = texts[kernel]
            given = [_argument(spec.buffers[b], p, spec) for b, p in zip(buffers, text.parameters, strict=True)]
            return [f"{text.symbol}({', '.join(given)});"]
        case AllocateOutput():
            return []
        case Check(cond=Const(value=True)):
            return []
    raise CodegenError(f"'{spec.name}' does at run time what the C of a profile does not", where=str(item))


def _argument(ref: BufferRef, parameter: str, spec: SegmentSpec) -> str:
    """A buffer as an argument for a parameter such as `const int8_t *x`."""
    if isinstance(ref, Input):
        return f"in->{field(spec.inputs[ref.index].name)}"
    if isinstance(ref, Constant):
        return f"{PREFIX}constant{ref.index}"
    if isinstance(ref, Arena):
        pointer = parameter.rpartition("*")[0].removeprefix("const ").strip()
        offset = _number(ref.offset)
        return f"&(({pointer} *)arena)[{offset // _SIZES[pointer]}]"
    return f"out->{field(spec.outputs[ref.index].name)}"


_SIZES = {
    **{f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}, "float": 4, "double": 8,
    "weft_c64": 8, "weft_c128": 16,
}  # fmt: skip


def field(name: str) -> str:
    """The name of an input or output, as C has it."""
    return identifier(name)


def _number(e: Expr) -> int:
    assert isinstance(e, Const), e
    return int(e.value)


@cache
def _library(name: str) -> str:
    return resources.files("weft_c").joinpath("mcu", f"{name}.c").read_text()


@cache
def _version() -> str:
    try:
        return metadata.version("weft-c")
    except metadata.PackageNotFoundError:
        return "?"


__all__ = ["MACHINE", "PREFIX", "KernelText", "ModelText", "field", "link_text"]
