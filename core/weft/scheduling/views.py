"""What an intrinsic's code gets: the requirements of its operands, their places in a program, and code that is one
instruction.

`weft.scheduling.intrinsic` declares intrinsics with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft import dtypes as dt
from weft.errors import ScheduleError
from weft.expr.nodes import Expr, ExprLike, Ramp, add, const, mul, wrap
from weft.loop.nodes import Buffer, Evaluate, IntrinsicCall, Load, Stmt, Store


@dataclass(frozen=True)
class Operand:
    """The requirements of an instruction for one operand.

    Args:
        name: a placeholder's of the meaning; of the last operand, the result, any.
        scope: the memory it lies in, or several of which it lies in one; None: any.
        align: bytes, a power of two, of which the address of its first element and open strides are multiples.
            `tensorize` sets the alignment of the buffer (`Buffer.align`), up to that of its memory
            (`Machine.alignment`).
        strides: elements from one index to the next, per dimension; None in a place: any, and the code gets it as a
            formula. By default row-major without gaps. Dimensions of extent 1 have no requirement.
        number: whether a constant of the formula may stand for all of its elements; the code gets that, a `Const`, in
            the place of a view.
        bits: significant bits that the instruction takes of floats, the leading one among them, where that is fewer
            than they have; None: all. It rounds others, which the meaning does not.
    """

    name: str
    scope: str | tuple[str, ...] | None = None
    align: int = 1
    strides: tuple[int | None, ...] | None = None
    number: bool = False
    bits: int | None = None

    @property
    def scopes(self) -> tuple[str, ...]:
        """The memories that it may lie in; none: any."""
        return (self.scope,) if isinstance(self.scope, str) else self.scope or ()


@dataclass(frozen=True)
class OperandView:
    """An operand in a program: the element [i, j, …] of the operand is `buffer[indices + i*steps[0] + j*steps[1] +
    …]`."""

    operand: Operand
    buffer: Buffer
    indices: tuple[Expr, ...]
    steps: tuple[tuple[Expr, ...], ...]

    @property
    def address(self) -> Load:
        """The first element: as an argument of an instruction it stands for its address."""
        return self[()]

    @property
    def strides(self) -> tuple[Expr, ...]:
        """Elements from one index to the next, per dimension of the operand."""
        row: Expr = const(1)
        rows: list[Expr] = []
        for d in reversed(self.buffer.shape):
            rows.insert(0, row)
            row = mul(row, d)
        result = []
        for step in self.steps:
            total: Expr = const(0)
            for s, r in zip(step, rows):
                total = add(total, mul(s, r))
            result.append(total)
        return tuple(result)

    @property
    def free_strides(self) -> tuple[Expr, ...]:
        """Those strides that the declaration leaves open."""
        asked = self.operand.strides
        return () if asked is None else tuple(s for s, a in zip(self.strides, asked) if a is None)

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Load:
        """One element; indices that are left out are 0."""
        return Load(self.buffer, self._at(index if isinstance(index, tuple) else (index,)))

    def load(self, lanes: int, *index: ExprLike) -> Load:
        """`lanes` elements along the last dimension, the first at `index`.

        Raises:
            ScheduleError: they do not lie side by side in the last dimension of the buffer.
        """
        return Load(self.buffer, self._vector(lanes, index))

    def store(self, value: Expr, *index: ExprLike) -> Store:
        """Stores a vector along the last dimension, or one element. Raises ScheduleError as `load`."""
        lanes = value.dtype.lanes
        return Store(self.buffer, self._vector(lanes, index) if lanes > 1 else self._at(index), value)

    def _at(self, index: Sequence[ExprLike]) -> tuple[Expr, ...]:
        place = list(self.indices)
        for i, step in zip(index, self.steps):
            for d, s in enumerate(step):
                place[d] = add(place[d], mul(wrap(i, dt.int64), s))
        return tuple(place)

    def _vector(self, lanes: int, index: Sequence[ExprLike]) -> tuple[Expr, ...]:
        *others, last = self.steps[-1] if self.steps and self.indices else (None,)
        if last != const(1) or any(s != const(0) for s in others):
            why = (
                f"a vector of operand '{self.operand.name}' does not lie in the last dimension of '{self.buffer.name}'"
            )
            raise ScheduleError(f"no vector of '{self.buffer.name}' can be moved at once", why=why)
        place = self._at(index)
        return (*place[:-1], Ramp(place[-1], const(1), lanes))


Code: TypeAlias = Callable[..., Stmt]
"""Views of the operands, in their order, then the lengths → what does the work. Lengths are constants; dynamic ones may
be any formula. A reset gets the result's view alone, and the lengths."""


@dataclass(frozen=True)
class Call:
    """Code that is one instruction: name(the address of each operand, each followed by its free strides; then the
    lengths).

    A scalar operand is passed itself, without strides. When interpreted, the name has the meaning of the intrinsic to
    which this code belongs."""

    name: str

    def __call__(self, *views: OperandView | Expr) -> Stmt:
        parts = [(v.address, *v.free_strides) if isinstance(v, OperandView) else (v,) for v in views]
        return Evaluate(IntrinsicCall(self.name, tuple(x for part in parts for x in part)))
