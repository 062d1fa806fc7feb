"""What a native segment does, neutral of any chip: bind symbols, check, size the arena, call kernels, allocate outputs.

    SegmentSpec := name, inputs: Tensor*, outputs: Tensor*, constants: int, symbols: Symbol*, buffers: BufferRef*, arena_bytes, items: Item*
    Symbol      := name, InputDim(input, axis) | Data(buffer, dtype, index)
    BufferRef   := Input(i) | Output(i) | Constant(k) | Arena(offset, bytes)
    Item        := KernelCall(kernel, buffers, dims) | BindSymbol(name, value) | BindData(symbol) | Check(cond, code, args)
                 | AllocateOutput(index, shape) | ReserveArena(bytes) | Stamp(buffer, index)

Order of a run:
1. rank and dtype of every input are checked, InputDim symbols are bound, then Data symbols that read an Input or a Constant;
2. every input dimension whose formula is bound is compared (a repeated symbol or a constant is such a formula); the others as soon as they are bound;
3. the arena gets `arena_bytes` (a formula over the symbols bound so far);
4. the items, in order. A failing check, kernel or allocation ends the run with its code.

An arena that must grow for data symbols does so with `ReserveArena`; what it holds stays. Scratch of a kernel is an Arena buffer after its outputs.
An output is usable as a buffer after its AllocateOutput.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weft.dtypes import DType, int64
from weft.expr.nodes import Const, Expr

ZERO = Const(0, int64)


@dataclass(frozen=True)
class Tensor:
    """An input or output of the segment."""

    name: str
    dtype: DType
    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class InputDim:
    """A symbol's value is this dimension of this input."""

    input: int
    axis: int


@dataclass(frozen=True)
class Data:
    """A symbol's value is element `index` (flat) of buffer number `buffer` of the table."""

    buffer: int
    dtype: DType
    index: int


@dataclass(frozen=True)
class Symbol:
    name: str
    source: InputDim | Data


@dataclass(frozen=True)
class Input:
    index: int


@dataclass(frozen=True)
class Output:
    index: int


@dataclass(frozen=True)
class Constant:
    index: int


@dataclass(frozen=True)
class Arena:
    """`bytes` bytes at `offset` of this call's arena (64-byte aligned base)."""

    offset: Expr
    bytes: Expr


BufferRef: TypeAlias = Input | Output | Constant | Arena


@dataclass(frozen=True)
class KernelCall:
    """`kernel(ctx, buffers, dims)`: buffers by number in the table: inputs, outputs, scratch."""

    kernel: str
    buffers: tuple[int, ...]
    dims: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class BindSymbol:
    """A new symbol for a formula, evaluated once, here."""

    name: str
    value: Expr


@dataclass(frozen=True)
class BindData:
    """The Data symbol `symbol` of the table is loaded here, after the kernel that produced it."""

    symbol: str


@dataclass(frozen=True)
class Check:
    """Where `cond` is false the run ends with `code` (≥ abi.ErrorCode.FIRST_CHECK) and `args` (at most 8)."""

    cond: Expr
    code: int
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class AllocateOutput:
    """Output `index` has this shape: the caller's storage is checked against it, or storage is asked for."""

    index: int
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class ReserveArena:
    """The arena grows to at least `bytes`; its contents stay."""

    bytes: Expr


@dataclass(frozen=True)
class Stamp:
    """The processor's clock, in ticks of its own, goes to element `index` (flat) of the int64 buffer number `buffer`."""

    buffer: int
    index: int


Item: TypeAlias = KernelCall | BindSymbol | BindData | Check | AllocateOutput | ReserveArena | Stamp


@dataclass(frozen=True)
class SegmentSpec:
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: int
    symbols: tuple[Symbol, ...]
    buffers: tuple[BufferRef, ...]
    items: tuple[Item, ...]
    arena_bytes: Expr = ZERO

    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels called, each once, in order of first call."""
        return tuple(dict.fromkeys(i.kernel for i in self.items if isinstance(i, KernelCall)))
