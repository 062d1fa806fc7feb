"""What a native segment does, step by step, as a code generator prints it: `weft.codegen.build_segment` makes the steps
of a `SegmentSpec`.

Numbers are integers of 64 bits in two's complement, truth values, or pointers; every value is assigned once, before it
is used. A value that is made in a branch of an `If` is not used outside of it. The steps end with success; `Require`
and `CallKernel` may end the run before. An operand is a value or a constant: an integer, True or False, None for a null
pointer.

    Compute(result, op, operands)       op is one of OPERATIONS; nothing is undefined: sums wrap, divisors are never 0,
                                        nor -1 of the least number, and lengths of shifts are 0 … 63
    Checked(result, beyond, op, a, b)   add, sub or mul, and whether the exact result leaves 64 bits
    LoadField(result, base, structure, field)        of a structure of `weft_runtime.abi`
    TypeWord(result, tensor)            ndim | code << 32 | bits << 40 | lanes << 48 of a DLTensor
    LoadElement(result, base, kind, index)           element `index` of an array; small integers are widened
    StoreElement(base, kind, index, value)
    Advance(result, base, bytes)        a pointer so many bytes further
    If(cond, then, orelse)
    Require(cond, code, args)           where it does not hold, `code` and `args` go to the context and the run returns
                                        `code`
    AllocateArena(result, bytes)        ctx->allocate_arena: a pointer, null if there is no memory
    AllocateStorage(result, output, rank)            ctx->allocate_output, the sizes in DIMS: 0 is success
    CallKernel(kernel, item)            kernel(CTX, BUFFERS, DIMS): what is not 0 is the run's result; unless the
                                        context has an error code by then, it gets ErrorCode.KERNEL,
                                        `item` and what the kernel returned
    Ticks(result)                       the processor's clock
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft_runtime.abi import Structure

Kind: TypeAlias = Literal["int", "bool", "pointer"]
"""Kind of a value: int is an int64, bool a truth value, pointer an address."""


@dataclass(frozen=True)
class Value:
    """A value by its name, an identifier in any language; those of steps are v1, v2, …"""

    name: str
    kind: Kind


Operand: TypeAlias = Value | int | bool | None
"""A value, or a constant: an integer, True or False, None for the null pointer."""

CTX, IN, OUT = Value("ctx", "pointer"), Value("in", "pointer"), Value("out", "pointer")
"""The segment's parameters."""
BUFFERS, DIMS = Value("buffers", "pointer"), Value("dims", "pointer")
"""Arrays of pointers and of int64 that the segment has for the calls, see `Steps`."""

ARITHMETIC = ("add", "sub", "mul", "div", "rem", "udiv", "urem", "and", "or", "xor", "shl", "shr", "ushr")
"""Of integers: quotients are rounded towards zero, names with u take the bits for a number without a sign."""
COMPARISONS = ("lt", "le", "ult", "ule", "eq", "ne")
"""Of integers; eq and ne of truth values and pointers, too."""
OPERATIONS = (*ARITHMETIC, *COMPARISONS, "both", "either", "not", "int", "select")
"""both, either, not: of truth values. int: 1 for true, 0 for false. select(c, a, b): a where c is true, else b."""


@dataclass(frozen=True)
class Compute:
    """result = op(operands); `op` is one of `OPERATIONS`."""

    result: Value
    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Checked:
    """result = op(a, b) modulo 2**64, and `beyond`: whether the exact result is outside of int64. `op`: add, sub or
    mul."""

    result: Value
    beyond: Value
    op: str
    a: Operand
    b: Operand


@dataclass(frozen=True)
class LoadField:
    """result = the field of the structure at `base`."""

    result: Value
    base: Value
    structure: Structure
    field: str


@dataclass(frozen=True)
class TypeWord:
    """result = ndim | code << 32 | bits << 40 | lanes << 48 of the `weft_tensor` at `tensor`."""

    result: Value
    tensor: Value


@dataclass(frozen=True)
class LoadElement:
    """`kind`: pointer, or an integer type such as int64 or uint8."""

    result: Value
    base: Value
    kind: str
    index: int


@dataclass(frozen=True)
class StoreElement:
    """`kind`: pointer or int64."""

    base: Value
    kind: str
    index: int
    value: Operand


@dataclass(frozen=True)
class Advance:
    """result = the pointer `base` plus `bytes` bytes."""

    result: Value
    base: Value
    bytes: Operand


@dataclass(frozen=True)
class If:
    """Runs `then` if `cond` is true, else `orelse`."""

    cond: Operand
    then: tuple[Step, ...]
    orelse: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Require:
    """If `cond` is false, stores `code` and `args` (at most 8 integers) in the context and returns `code`."""

    cond: Operand
    code: int
    args: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class AllocateArena:
    """result = ctx->allocate_arena(bytes): a pointer, null if there is no memory."""

    result: Value
    bytes: Operand


@dataclass(frozen=True)
class AllocateStorage:
    """result = ctx->allocate_output(output, rank), with the sizes in `DIMS`: 0 is success."""

    result: Value
    output: int
    rank: int


@dataclass(frozen=True)
class CallKernel:
    """Calls the kernel with the context, `BUFFERS` and `DIMS`; `item` is the number of the item, for errors."""

    kernel: str
    item: int


@dataclass(frozen=True)
class Ticks:
    """result = the processor's clock, in ticks of its own."""

    result: Value


Step: TypeAlias = (
    Compute
    | Checked
    | LoadField
    | TypeWord
    | LoadElement
    | StoreElement
    | Advance
    | If
    | Require
    | AllocateArena
    | AllocateStorage
    | CallKernel
    | Ticks
)
"""One step; see the module for the meaning of each."""


@dataclass(frozen=True)
class Steps:
    """A segment as steps: the body of `int32 run(ctx*, const DLTensor* const* in, DLTensor* const* out)`.

    Args:
        kernels: that it calls, each once.
        buffers, dims: elements of BUFFERS and DIMS.
    """

    name: str
    kernels: tuple[str, ...]
    buffers: int
    dims: int
    body: tuple[Step, ...]

    def walk(self) -> Iterator[Step]:
        """Every step, those of branches behind their `If`."""
        todo = list(reversed(self.body))
        while todo:
            step = todo.pop()
            yield step
            if isinstance(step, If):
                todo += reversed((*step.then, *step.orelse))
