"""The table of schedule primitives. Each is a function `name(program, …) → (Program, result)` in a file of its own; a
new one is a file and an entry here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from weft.loop.nodes import Program
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.primitives.annotate import annotate
from weft.scheduling.primitives.bind import bind
from weft.scheduling.primitives.butterfly import butterfly
from weft.scheduling.primitives.cache_read import cache_read
from weft.scheduling.primitives.cache_write import cache_write
from weft.scheduling.primitives.compact_buffer import compact_buffer
from weft.scheduling.primitives.compute_at import compute_at
from weft.scheduling.primitives.compute_inline import compute_inline
from weft.scheduling.primitives.decompose_reduction import decompose_reduction
from weft.scheduling.primitives.double_buffer import double_buffer
from weft.scheduling.primitives.fuse import fuse
from weft.scheduling.primitives.lift import lift
from weft.scheduling.primitives.make_online import make_online
from weft.scheduling.primitives.pad_loop import pad_loop
from weft.scheduling.primitives.pad_tile import pad_tile
from weft.scheduling.primitives.parallel import parallel
from weft.scheduling.primitives.partition import partition
from weft.scheduling.primitives.prefetch import prefetch
from weft.scheduling.primitives.reorder import reorder
from weft.scheduling.primitives.reverse_compute_at import reverse_compute_at
from weft.scheduling.primitives.reverse_compute_inline import reverse_compute_inline
from weft.scheduling.primitives.rfactor import rfactor
from weft.scheduling.primitives.serial import serial
from weft.scheduling.primitives.serpentine import serpentine
from weft.scheduling.primitives.set_scope import set_scope
from weft.scheduling.primitives.specialize import specialize
from weft.scheduling.primitives.split import split
from weft.scheduling.primitives.stage import stage
from weft.scheduling.primitives.stage_result import stage_result
from weft.scheduling.primitives.tensorize import ANNOTATION, any_alignment, tensorize
from weft.scheduling.primitives.unroll import unroll
from weft.scheduling.primitives.vectorize import vectorize
from weft.scheduling.tree import Tree, blocks_in

_Layout: TypeAlias = tuple[Any, ...]  # shape, dtype, scope, alignment
Primitive: TypeAlias = Callable[..., tuple[Program, Any]]

PRIMITIVES: dict[str, Primitive] = {
    f.__name__: f
    for f in (
        split, partition, pad_loop, fuse, reorder, lift, unroll, vectorize, parallel, serial, bind, annotate,
        compute_at, reverse_compute_at, compute_inline, reverse_compute_inline,
        cache_read, cache_write, set_scope, compact_buffer, decompose_reduction, rfactor, butterfly, double_buffer,
        prefetch, serpentine,
        specialize, stage, stage_result, pad_tile, make_online, tensorize,
    )
}  # fmt: skip
RENAMED: Mapping[str, str] = MappingProxyType({"swing": "serpentine"})
"""Old name → new name. The old ones go with version 0.3."""


def current_name(name: str) -> str:
    """The name that a primitive has now, with a DeprecationWarning for an old one; any other name as it is."""
    if name not in RENAMED:
        return name
    text = f"the primitive '{name}' has another name now: '{RENAMED[name]}'. The old one goes with version 0.3"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return RENAMED[name]


def __getattr__(name: str) -> Any:
    if name in RENAMED:
        return PRIMITIVES[current_name(name)]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def apply_primitive(
    program: Program,
    step: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    intrinsics: Mapping[str, Intrinsic],
    alignment: Callable[[str], int] = any_alignment,
) -> tuple[Program, Any]:
    """A step of PRIMITIVES, which must be there. Traces hold names, so the table that `tensorize` and `double_buffer`
    look names up in is its own argument, and so is what buffers of a memory can be aligned to.

    Raises:
        ScheduleError: it may not act; or it would change a buffer whose shape or place is written into code that stands
            for a block.
    """
    primitive = PRIMITIVES[step]
    extra: dict[str, Any] = {"intrinsics": intrinsics} if primitive in (tensorize, double_buffer) else {}
    if primitive is tensorize:
        extra["alignment"] = alignment
    after, result = primitive(program, *args, **kwargs, **extra)
    before = _layouts(program)
    if before and primitive is not double_buffer:  # it writes addresses anew
        now = _layouts(after)
        changed = next(
            (name for name, layouts in before.items() if not all(map(_holds, layouts, now.get(name, layouts)))), None
        )
        if changed is not None:
            why = (
                f"it changes a buffer whose shape and place are written into the code of '{changed}', which is"
                " tensorized"
            )
            raise Tree(program).error(step, why, (changed,), f"{step} first, tensorize '{changed}' last")
    return after, result


def _holds(before: _Layout, after: _Layout) -> bool:
    """Whether what code took for granted of a buffer is still so: all but its alignment is as it was, and that may have
    grown."""
    return before[:-1] == after[:-1] and after[-1] % before[-1] == 0


def _layouts(program: Program) -> dict[str, tuple[_Layout, ...]]:
    """Per tensorized block, of each buffer that it uses, what its code took for granted."""
    found = {}
    for b in blocks_in(program.body):
        if b.annotation(ANNOTATION) is not None:
            found[b.name] = tuple(
                (r.buffer.shape, r.buffer.dtype, r.buffer.scope, r.buffer.align)
                for r in (*(b.reads or ()), *(b.writes or ()))
            )
    return found
