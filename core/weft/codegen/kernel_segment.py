"""A segment around one kernel: for kernels of users, and for kernels that are run alone to find what is wrong with
one."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.base import KernelCode
from weft.codegen.segment import (
    AllocateOutput,
    Arena,
    BufferRef,
    Input,
    InputDim,
    Item,
    KernelCall,
    Output,
    SegmentSpec,
    Symbol,
    Tensor,
)
from weft.dtypes import int64
from weft.expr.nodes import Expr, Var, add, const, substitute, wrap
from weft.loop.nodes import Buffer, Program


def kernel_segment(program: Program, code: KernelCode, dims: Mapping[str, int] | None = None) -> SegmentSpec:
    """The segment that takes the program's inputs, allocates its outputs and the kernel's scratch, and calls the
    kernel.

    Args:
        program: one that has the kernel's parameters, at any stage.
        dims: constants for the program's dims; without, each dim is bound by the input that has it for a dimension, if
            one has.
    """
    known = dict(dims or {})

    def tensor(b: Buffer) -> Tensor:
        return Tensor(b.name, b.dtype, tuple(wrap(substitute(wrap(d, int64), known), int64) for d in b.shape))

    inputs, outputs = tuple(map(tensor, program.inputs)), tuple(map(tensor, program.outputs))
    symbols: dict[str, Symbol] = {}
    for i, t in enumerate(inputs):
        for axis, d in enumerate(t.dims):
            if isinstance(d, Var):
                symbols.setdefault(d.name, Symbol(d.name, InputDim(i, axis)))
    buffers: list[BufferRef] = [*(Input(k) for k in range(len(inputs))), *(Output(k) for k in range(len(outputs)))]
    offset: Expr = const(0)
    for size in code.scratch:
        rounded = (substitute(size, known) + 63) // 64 * 64
        buffers.append(Arena(offset, rounded))
        offset = add(offset, rounded)
    items: list[Item] = [AllocateOutput(k, t.dims) for k, t in enumerate(outputs)]
    items.append(
        KernelCall(
            code.name, tuple(range(len(buffers))), tuple(wrap(substitute(d, known), int64) for d in program.dims)
        )
    )
    return SegmentSpec(program.name, inputs, outputs, 0, tuple(symbols.values()), tuple(buffers), tuple(items), offset)
