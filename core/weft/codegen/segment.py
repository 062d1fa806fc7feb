"""What a native segment does, neutral of any chip: bind symbols, check, size the arena, call kernels, allocate outputs.

    SegmentSpec := name, inputs: Tensor*, outputs: Tensor*, constants: int, symbols: Symbol*, buffers: BufferRef*,
        arena_bytes, items: Item*
    Symbol      := name, InputDim(input, axis) | Data(buffer, dtype, index)
    BufferRef   := Input(i) | Output(i) | Constant(k) | Arena(offset, bytes)
    Item        := KernelCall(kernel, buffers, dims, when) | BindSymbol(name, value) | BindData(symbol) | Check(cond,
                code, args)
                 | AllocateOutput(index, shape) | ReserveArena(bytes) | Stamp(buffer, index)

Order of a run:
1. rank and dtype of every input are checked, InputDim symbols are bound, then Data symbols that read an Input or a
  Constant;
2. every input dimension whose formula is bound is compared (a repeated symbol or a constant is such a formula); the
  others as soon as they are bound;
3. the checks that stand first among the items;
4. the arena gets `arena_bytes` (a formula over the symbols bound so far);
5. the other items, in order. A failing check, kernel or allocation ends the run with its code.

Formulas of int64 are exact: where a sum, difference, product or quotient leaves int64, the run ends with
ErrorCode.OVERFLOW; a check fails as if its condition did not hold. Of a Select only the side that is chosen counts.
What a check says about a symbol holds from there on (`narrowed`), so that emitters leave out what it makes certain.

`weft.codegen.build_segment` makes steps of a spec, which code generators print; `weft.codegen.kernel_segment` makes the
spec of a kernel alone.

An arena that must grow for data symbols does so with `ReserveArena`; what it holds stays. Scratch of a kernel is an
Arena buffer after its outputs. An output is usable as a buffer after its AllocateOutput.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.dtypes import DType, int64
from weft.expr.nodes import And, Const, Expr, Le, Lt, Var
from weft.expr.ranges import ANY, Range, range_of_dtype
from weft.loop.nodes import TRUE

ZERO = Const(0, int64)
"""The int64 constant 0."""
INT64 = Range(-(1 << 63), (1 << 63) - 1)
"""The range of int64."""


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
    """A symbol of the graph and where its value, an int64, comes from."""

    name: str
    source: InputDim | Data


@dataclass(frozen=True)
class Input:
    """Input number `index` of the segment."""

    index: int


@dataclass(frozen=True)
class Output:
    """Output number `index` of the segment."""

    index: int


@dataclass(frozen=True)
class Constant:
    """Constant number `index` of the model."""

    index: int


@dataclass(frozen=True)
class Arena:
    """`bytes` bytes at `offset` of this call's arena (64-byte aligned base)."""

    offset: Expr
    bytes: Expr


BufferRef: TypeAlias = Input | Output | Constant | Arena
"""A buffer of the table: an input, output or constant by its number, or a part of the arena."""


@dataclass(frozen=True)
class KernelCall:
    """`kernel(ctx, buffers, dims)`: buffers by number in the table: inputs, outputs, scratch. It is called where `when`
    holds."""

    kernel: str
    buffers: tuple[int, ...]
    dims: tuple[Expr, ...] = ()
    when: Expr = TRUE


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
    """The processor's clock, in ticks of its own, goes to element `index` (flat) of the int64 buffer number
    `buffer`."""

    buffer: int
    index: int


Item: TypeAlias = KernelCall | BindSymbol | BindData | Check | AllocateOutput | ReserveArena | Stamp
"""One item of a segment; items run in order."""


@dataclass(frozen=True)
class SegmentSpec:
    """The description of a segment, from which `build_segment` makes steps; see the module for the order of a run.

    Attributes:
        name: of the entry in the image.
        inputs, outputs: with dtype and dimensions, which are ints or formulas over symbols.
        constants: their number.
        symbols: with the source of each.
        buffers: the table that `KernelCall.buffers`, `Data.buffer` and `Stamp.buffer` index.
        items: what the run does after the inputs are checked.
        arena_bytes: a formula over the symbols that are bound before the first item that is not a check.
    """

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


def range_of_data(dtype: DType) -> Range:
    """What a Data symbol of this dtype may be."""
    return INT64 if dtype == int64 else range_of_dtype(dtype)


def leading_checks(items: tuple[Item, ...]) -> int:
    """How many of the items are checks before the first that is none."""
    return next((k for k, item in enumerate(items) if not isinstance(item, Check)), len(items))


def narrowed(ranges: Mapping[str, Range], cond: Expr) -> dict[str, Range]:
    """What symbols may be where `cond` holds, as far as it compares them with numbers."""
    result = dict(ranges)
    parts = [cond]
    while parts:
        part = parts.pop()
        if isinstance(part, And):
            parts += [part.a, part.b]
        elif isinstance(part, (Lt, Le)):
            slack = int(isinstance(part, Lt))
            if isinstance(part.a, Var) and isinstance(part.b, Const):
                lo, hi = result.get(part.a.name, ANY)
                most = int(part.b.value) - slack
                result[part.a.name] = Range(lo, most if hi is None else min(hi, most))
            elif isinstance(part.a, Const) and isinstance(part.b, Var):
                lo, hi = result.get(part.b.name, ANY)
                least = int(part.a.value) + slack
                result[part.b.name] = Range(least if lo is None else max(lo, least), hi)
    return result
