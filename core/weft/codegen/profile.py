"""A segment that tells when each of its kernels began and ended.

The times are one more output of the segment, so nothing of the binary interface knows of it and a segment without it is
byte for byte what it was.
"""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.segment import AllocateOutput, Item, KernelCall, Output, SegmentSpec, Stamp, Tensor
from weft.dtypes import int64
from weft.expr.nodes import const

PROFILE = "weft.profile"
"""The output's name: int64[kernel calls, 2], ticks of the processor's clock at the beginning and the end of each call,
in their order."""


def profiled(spec: SegmentSpec) -> SegmentSpec:
    """The segment with the output PROFILE, its last, and a stamp before and after every kernel call."""
    calls = sum(isinstance(item, KernelCall) for item in spec.items)
    shape = (const(calls), const(2))
    buffer, output = len(spec.buffers), len(spec.outputs)
    items: list[Item] = [AllocateOutput(output, shape)]
    stamps = 0
    for item in spec.items:
        if isinstance(item, KernelCall):
            items += [Stamp(buffer, stamps), item, Stamp(buffer, stamps + 1)]
            stamps += 2
        else:
            items.append(item)
    outputs = (*spec.outputs, Tensor(PROFILE, int64, shape))
    return replace(spec, outputs=outputs, buffers=(*spec.buffers, Output(output)), items=tuple(items))
