"""The operands of an instruction in a program: where each begins and how it is walked, by an assignment of the tile's
loops to axes and the pairs of a matched formula; and the checks that the instruction takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.expr.linear import ZERO, Polynomial, number
from weft.expr.nodes import Const, Expr, Var, const, substitute
from weft.loop.nodes import Buffer, Load, Region
from weft.scheduling.assignment import Fitted, Mismatch, Tile
from weft.scheduling.intrinsic import Intrinsic, Operand, OperandView
from weft.scheduling.region import Access, at_least_zero, interval, poly
from weft.scheduling.rewrite import clean
from weft.scheduling.unify import Pair
from weft.tensor.language import Read


@dataclass(frozen=True)
class Match:
    """An intrinsic, and what its code is called with."""

    intrinsic: Intrinsic
    views: tuple[OperandView | Const, ...]
    regions: tuple[Region, ...]  # of what the placeholders read
    written: Region
    lengths: tuple[Expr, ...]
    aligned: Mapping[str, int]  # buffers that are to be aligned to more than they are, in bytes


class Place:
    """An assignment of the tile's variables to axes, followed through the operands."""

    def __init__(
        self,
        fitted: Fitted,
        tile: Tile,
        known: Mapping[str, Expr],
        ones: Mapping[str, Expr],
        alignment: Callable[[str], int],
    ) -> None:
        self.alignment = alignment
        self.aligned: dict[str, int] = {}
        self.fitted, self.intrinsic, self.tile, self.known, self.ones = fitted, fitted.intrinsic, tile, known, ones
        self.names = {axis: chain[-1] for axis, chain in fitted.chains.items() if chain}
        """Of each axis of several steps the loop that counts them by one."""
        self.values = {axis: tile.value(chain) for axis, chain in fitted.chains.items()}

    def operands(self, pairs: Sequence[Pair], result: Buffer, place: tuple[Expr, ...], start: bool) -> Match:
        x = self.intrinsic
        for p, e in pairs:
            if isinstance(p, Var) and poly(e) != self.values.get(p.name, poly(p)):
                raise Mismatch(2, f"the value uses {e} where the meaning has '{p.name}'")
        for p, e in pairs:
            if (
                isinstance(p, Read)
                and p.tensor is x.held
                and not (isinstance(e, Load) and (e.buffer, e.indices) == (result, place))
            ):
                raise Mismatch(2, f"the sum does not go on from what it stores to: it reads {e}")
        own = Read(x.meaning, x.source.axes)
        accesses: list[list[tuple[Read, Load | Const]]] = [
            [(p, e) for p, e in pairs if isinstance(p, Read) and p.tensor is t and isinstance(e, (Load, Const))]
            for t in x.tensors[:-1]
        ]
        accesses.append([(own, Load(result, place))])
        views: list[OperandView | Const] = []
        regions: list[list[Region]] = []
        for k, found in enumerate(accesses):
            if start and k < len(accesses) - 1:
                continue
            views.append(self.view(k, found))
            regions.append([self.region(e, self.fitted.moving) for _, e in found if isinstance(e, Load)])
        if any(isinstance(v, OperandView) and v.buffer.name == result.name for v in views[:-1]):
            raise Mismatch(
                3,
                f"it reads and writes '{result.name}', which the code would overwrite while it reads",
                "cache_read or cache_write first",
            )
        moving: dict[str, Expr] = {v: const(n) for v, (n, _) in self.tile.variables.items()}
        if not Access(result, place, True, None).fills(moving):
            raise Mismatch(3, f"the tile of '{result.name}' has gaps: what is written could not be said")
        box, steps = number(1), 1
        for _, extent in self.region(Load(result, place), moving).ranges:
            box = box * poly(extent)
        for size, kind in self.tile.variables.values():
            steps *= size if kind == "spatial" else 1
        if box != number(steps):
            raise Mismatch(3, f"steps of the tile store to the same element of '{result.name}'")
        for k, view in zip(range(len(accesses) - len(views), len(accesses)), views):
            if isinstance(view, OperandView):
                self.check(k, view)
        lengths = tuple(self.fitted.lengths[v] for v in self.fitted.declared.lengths)
        return Match(
            x, tuple(views), tuple(r for rs in regions[:-1] for r in rs), regions[-1][0], lengths, self.aligned
        )

    def view(self, k: int, found: Sequence[tuple[Read, Load | Const]]) -> OperandView | Const:
        operand, tensor = self.intrinsic.operands[k], self.intrinsic.tensors[k]
        numbers = [e for _, e in found if isinstance(e, Const)]
        if numbers:
            if any(e != numbers[0] for _, e in found):
                raise Mismatch(2, f"what stands for operand '{operand.name}' is not one number")
            return numbers[0]
        places = [self.place(operand, tensor.rank, read, load) for read, load in found if isinstance(load, Load)]
        buffer, indices, steps = places[0]
        if any(p != places[0] for p in places):
            raise Mismatch(2, f"what stands for operand '{operand.name}' is not one tile of one buffer")
        return OperandView(operand, buffer, indices, steps)

    def place(
        self, operand: Operand, rank: int, read: Read, load: Load
    ) -> tuple[Buffer, tuple[Expr, ...], tuple[tuple[Expr, ...], ...]]:
        """Where the operand begins and what a step along each of its dimensions moves, by one access."""
        meant = [poly(substitute(i, self.ones)) for i in read.indices]
        parts: list[tuple[Polynomial, dict[str, int]]] = []
        for p in meant:
            split = p.split_variables(self.names)
            if split is None or split[0].value is None or any(c.value is None for c in split[1].values()):
                raise Mismatch(
                    2, f"the meaning reads '{operand.name}' at {p.expr()}, which is no sum of axes times constants"
                )
            parts.append((split[0], {v: int(c.value or 0) for v, c in split[1].items()}))
        factors = [f for _, f in parts]
        actual: list[tuple[Polynomial, dict[str, Polynomial]]] = []
        for i in load.indices:
            split = poly(i).split_variables(self.tile.variables)
            if split is None:
                why = f"the index {i} of '{load.buffer.name}' is not linear in the loops of the tile"
                raise Mismatch(2, why, "split so that the tile lies in one block of it")
            actual.append(split)
        steps: list[list[Polynomial]] = []
        for d in range(rank):
            # An axis that only this dimension has tells what a step along it is.
            own = [v for v, c in factors[d].items() if c and not any(v in f for k, f in enumerate(factors) if k != d)]
            step = []
            for _, linear in actual:
                moved = linear.get(self.names[own[0]], ZERO) if own else ZERO
                c = factors[d][own[0]] if own else 1
                found = moved.divided(c)
                if found is None:
                    raise Mismatch(
                        2,
                        f"'{operand.name}' moves by {moved.expr()} in '{load.buffer.name}', which is no multiple"
                        f" of {c}",
                    )
                step.append(found)
            steps.append(step)
        base = []
        for b, (rest, linear) in enumerate(actual):
            for axis, v in self.names.items():  # the other digits of an axis move as many steps of it as they stand for
                wanted = ZERO
                for d in range(rank):
                    wanted = wanted + steps[d][b].scale(factors[d].get(axis, 0))
                if linear.get(v, ZERO) != wanted:
                    raise Mismatch(
                        2,
                        f"operand '{operand.name}' does not lie in '{load.buffer.name}' as the meaning reads it: {load}"
                        f" is not {read}",
                    )
            first = rest
            for d, (constant, _) in enumerate(parts):
                first = first - steps[d][b].scale(constant.constant)
            base.append(first.expr())
        if not all(at_least_zero(s) for step in steps for s in step):
            raise Mismatch(2, f"'{load.buffer.name}' is walked backwards")
        return load.buffer, tuple(base), tuple(tuple(s.expr() for s in step) for step in steps)

    def region(self, load: Load, moving: Mapping[str, Expr]) -> Region:
        box = []
        for i in load.indices:
            ends = interval(i, moving)
            if ends is None:
                raise Mismatch(2, f"the index {i} of '{load.buffer.name}' has no bounds in the tile")
            box.append((ends[0].expr(), (ends[1] - ends[0]).plus(1).expr()))
        return Region(load.buffer, tuple(box))

    def check(self, k: int, view: OperandView) -> None:
        """The preconditions of operand number `k`."""
        operand, tensor, b = view.operand, self.intrinsic.tensors[k], view.buffer
        if operand.scopes and b.scope not in operand.scopes:
            wanted = " or ".join(f"'{s}'" for s in operand.scopes)
            hint = (
                f"cache_read it into {wanted}"
                if k < len(self.intrinsic.operands) - 1
                else f"cache_write or set_scope to {wanted}"
            )
            raise Mismatch(
                5, f"operand '{operand.name}' must lie in scope {wanted}, '{b.name}' lies in '{b.scope}'", hint
            )
        asked = operand.strides or self.intrinsic.dense(k)
        open_ends = {v for v, n in self.fitted.lengths.items() if not isinstance(n, Const)}
        for d, n in enumerate(tensor.shape):
            later = [str(x) for x in self.fitted.declared.tensors[k].shape[d + 1 :] if str(x) in open_ends]
            if operand.strides is None and later and n != 1:
                why = (
                    f"operand '{operand.name}' has no gaps, so its rows are as far apart as '{later[0]}' is long, which"
                    " is known only at run time"
                )
                raise Mismatch(
                    4,
                    why,
                    f"an instruction that takes the distance of rows says so: Operand('{operand.name}',"
                    " strides=(None, 1))",
                )
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            stride = poly(clean(have, self.known))
            if want is not None and tensor.shape[d] != 1 and stride.value != want:
                why = (
                    f"dimension {d} of operand '{operand.name}' has stride {want}, in '{b.name}' it is {stride.expr()}"
                )
                raise Mismatch(4, why, "copy the tile: cache_read (or cache_write), then compact_buffer")
        self._check_alignment(view, tensor.shape, asked)

    def _check_alignment(self, view: OperandView, shape: Sequence[int | Expr], asked: Sequence[int | None]) -> None:
        """Checks where the operand and its rows begin, and notes what its buffer is to be aligned to. `asked`: the
        stride of each dimension that the intrinsic requires, None for any."""
        operand, b = view.operand, view.buffer
        first: Expr = const(0)
        for i, n in zip(view.indices, b.shape):
            first = first * n + i
        size = b.dtype.scalar.bytes
        can = b.align % operand.align == 0 or self.alignment(b.scope) % operand.align == 0
        sure = can and all(c * size % operand.align == 0 for c in poly(clean(first, self.known)).terms.values())
        if sure and b.align % operand.align:
            self.aligned[b.name] = math.lcm(self.aligned.get(b.name, b.align), operand.align)
        if operand.align > 1 and not sure:
            why = (
                f"operand '{operand.name}' must be aligned to {operand.align} bytes; '{b.name}' is aligned to"
                f" {b.align}, its first element is {first}"
            )
            hint = "copy the tile, or pad the rows of the buffer: compact_buffer(…, align=…)"
            declare = (
                f"a machine whose memory '{b.scope}' can be aligned so declares Scope('{b.scope}',"
                f" align={operand.align})"
            )
            raise Mismatch(5, why, hint if can else f"{hint}; {declare}")
        for d, (want, have) in enumerate(zip(asked, view.strides)):
            step = poly(clean(have, self.known))
            if want is None and shape[d] != 1 and any(c * size % operand.align for c in step.terms.values()):
                why = (
                    f"rows of operand '{operand.name}' must be aligned to {operand.align} bytes; in '{b.name}' they are"
                    f" {step.expr()} elements apart"
                )
                raise Mismatch(5, why, "pad the rows of the buffer: compact_buffer(…, align=…)")
