"""THE table of schedule primitives. One function `name(program, …) → (Program, result)` per file; adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from weft.loop.nodes import Program
from weft.scheduling.primitives.annotate import annotate
from weft.scheduling.primitives.bind import bind
from weft.scheduling.primitives.cache_read import cache_read
from weft.scheduling.primitives.cache_write import cache_write
from weft.scheduling.primitives.compact_buffer import compact_buffer
from weft.scheduling.primitives.compute_at import compute_at
from weft.scheduling.primitives.compute_inline import compute_inline
from weft.scheduling.primitives.decompose_reduction import decompose_reduction
from weft.scheduling.primitives.fuse import fuse
from weft.scheduling.primitives.pad_loop import pad_loop
from weft.scheduling.primitives.parallel import parallel
from weft.scheduling.primitives.prefetch import prefetch
from weft.scheduling.primitives.reorder import reorder
from weft.scheduling.primitives.reverse_compute_at import reverse_compute_at
from weft.scheduling.primitives.reverse_compute_inline import reverse_compute_inline
from weft.scheduling.primitives.rfactor import rfactor
from weft.scheduling.primitives.set_scope import set_scope
from weft.scheduling.primitives.split import split
from weft.scheduling.primitives.unroll import unroll
from weft.scheduling.primitives.vectorize import vectorize

Primitive: TypeAlias = Callable[..., tuple[Program, Any]]

PRIMITIVES: dict[str, Primitive] = {
    f.__name__: f
    for f in (
        split, pad_loop, fuse, reorder, unroll, vectorize, parallel, bind, annotate,
        compute_at, reverse_compute_at, compute_inline, reverse_compute_inline,
        cache_read, cache_write, set_scope, compact_buffer, decompose_reduction, rfactor, prefetch,
    )
}  # fmt: skip
