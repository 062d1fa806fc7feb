"""Bulk tensor copies: boxes of tensors, which machines copy from global to shared memory by themselves.

    copy_box(to[index], from[0, …], start…, extents…, strides…, sizes…)      a call of the loop IR: `weft.loop.grids`

A tensor is `from` seen with up to five dims, the nearest first: elements `strides` apart, `extents` of them. The thread
begins to copy a box of `sizes` elements that starts at `start`, and does not wait (`await_copies` does); at `to` it
lies without gaps, the first dim fastest. What lies outside of the tensor is zero. The dims need not be those that the
buffer has: a row of 64 elements may be 8 pieces of 8, which lie elsewhere in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import prod

from weft import dtypes as dt
from weft.expr.nodes import Const, Expr, cast_to
from weft.loop.grids import AWAIT_COPIES, BOX, COPY_BOX
from weft.loop.nodes import Buffer, Evaluate, IntrinsicCall, Load, int_const
from weft_c_family import Extension
from weft_gpu.image import MOST_DIMS, MOST_SIZE, PIECE

__all__ = ["ALIGNED", "BOX", "MOST_DIMS", "MOST_EXTENT", "MOST_SIZE", "PIECE", "BulkCopies", "BulkCopy", "TensorMap"]

MOST_EXTENT = (1 << 31) - 1 - MOST_SIZE
"""Elements of a tensor along a dim: where a box starts, and where it ends, is told in 32 bits."""
ALIGNED = 128
"""Bytes: in shared memory a box begins at a multiple of it."""


@dataclass(frozen=True)
class TensorMap:
    """A buffer as a tensor, and boxes of it: all that is known before a kernel starts.

    Args:
        buffer: which.
        extents: of the tensor, the dim whose elements are neighbours first.
        strides: elements between neighbours along each dim; the first is 1.
        sizes: of a box, along each dim.
    """

    buffer: Buffer
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of a box."""
        return prod(self.sizes) * self.buffer.dtype.bytes

    def refused(self) -> str | None:
        """Why no machine that copies boxes takes it; None if one does.

        Source: CUDA Driver API, cuTensorMapEncodeTiled.
        """
        each = self.buffer.dtype.bytes
        if self.buffer.dtype.lanes > 1 or (
            self.buffer.dtype.bits not in (8, 16, 32, 64) and not self.buffer.dtype.is_bool
        ):
            return f"elements of {self.buffer.dtype}"
        if not 1 <= len(self.sizes) <= MOST_DIMS:
            return f"it has {len(self.sizes)} dims, {MOST_DIMS} are allowed"
        if self.strides[0] != 1:
            return f"what lies side by side in the box lies {self.strides[0]} apart in '{self.buffer.name}'"
        for n, most, what in (
            *((n, MOST_SIZE, "it") for n in self.sizes),
            *((n, MOST_EXTENT, f"'{self.buffer.name}'") for n in self.extents),
        ):
            if not 1 <= n <= most:
                return f"{what} has {n} elements along a dim, {most} are allowed"
        if self.sizes[0] * each % PIECE:
            return f"{self.sizes[0]} elements side by side are no multiple of {PIECE} bytes"
        for n in self.strides[1:]:
            if n * each % PIECE:
                return f"{n} elements of '{self.buffer.name}' are no multiple of {PIECE} bytes"
            if not 0 < n * each < 1 << 40:
                return f"neighbours along a dim of '{self.buffer.name}' lie {n * each} bytes apart"
        return None


@dataclass(frozen=True)
class BulkCopy:
    """A copy of a box: of a tensor, from `start` on, to where `to` is."""

    to: Load
    tensor: TensorMap
    start: tuple[Expr, ...]

    def call(self) -> Evaluate:
        """What begins it."""
        t = self.tensor
        source = Load(t.buffer, tuple(Const(0, dt.int64) for _ in t.buffer.shape))
        numbers = [Const(n, dt.int64) for n in (*t.extents, *t.strides, *t.sizes)]
        return Evaluate(
            IntrinsicCall(COPY_BOX, (self.to, source, *(cast_to(e, dt.int32) for e in self.start), *numbers))
        )

    @staticmethod
    def of(call: IntrinsicCall) -> BulkCopy:
        """Of the call that begins it."""
        to, source, *rest = call.args
        assert isinstance(to, Load) and isinstance(source, Load) and len(rest) % 4 == 0
        n = len(rest) // 4
        numbers = [int_const(e) for e in rest[n:]]
        known = [k for k in numbers if k is not None]
        assert len(known) == 3 * n
        return BulkCopy(
            to,
            TensorMap(source.buffer, tuple(known[:n]), tuple(known[n : 2 * n]), tuple(known[2 * n :])),
            tuple(rest[:n]),
        )


@dataclass(frozen=True)
class BulkCopies(Extension):
    """How a language begins bulk tensor copies, in kernels that do.

    Args:
        tensor: the declaration of a parameter for a tensor: `{name}`.
        top: declarations at the top of such a kernel, and what all its threads do there.
        copy: the statement that begins a copy: `{to}` (an address), `{tensor}`, `{bytes}`, and `{start}`, in as many
            formulas as the tensor has dims.
        wait: the statement of all threads behind which everything is there that was begun, in place of the intrinsic
            await_copies.
    """

    tensor: str
    top: tuple[str, ...]
    copy: str
    wait: str

    @property
    def intrinsics(self) -> frozenset[str]:
        return frozenset({COPY_BOX})

    @property
    def instead(self) -> Mapping[str, str]:
        return {AWAIT_COPIES: self.wait}

    @property
    def entries(self) -> tuple[str, ...]:
        return (self.tensor, *self.top, self.copy, self.wait)

    def argument(self, call: IntrinsicCall) -> tuple[Hashable, str]:
        tensor = BulkCopy.of(call).tensor
        return tensor, f"{tensor.buffer.name}_boxes"

    def parameter(self, name: str) -> str:
        return self.tensor.format(name=name)

    def operands(self, call: IntrinsicCall) -> tuple[Expr, ...]:
        found = BulkCopy.of(call)
        return found.to, *found.start

    def statement(
        self, call: IntrinsicCall, name: str, address: Callable[[Load], str], value: Callable[[Expr], str]
    ) -> str:
        found = BulkCopy.of(call)
        to, start = address(found.to), ", ".join([value(e) for e in found.start])
        return self.copy.format(to=to, tensor=name, bytes=found.tensor.bytes, start=start)
