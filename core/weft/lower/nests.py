"""The nest of a Compute while it is made: iterators, loops, and what indices are known to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.expr.nodes import Const, Expr, Var, const
from weft.expr.ranges import Range
from weft.loop.nodes import Block, BlockIter, For, IterKind, Stmt
from weft.tensor.language import Dim


class Names:
    """Names of a program that are taken."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def fresh(self, base: str) -> str:
        base = "".join(c if c.isalnum() else "_" for c in base)
        base = base if base[:1].isalpha() else "v" + base
        name, k = base, 0
        while name in self.taken:
            k += 1
            name = f"{base}_{k}"
        self.taken.add(name)
        return name


@dataclass
class Nest:
    """A block and the loops around it.

    Args:
        block: its name.
        names: of the program.
        iters: of the block, each with a loop of its own.
        loops: their variables and extents.
        steps: iterators of scans around, with what they are bound to.
        ranges: of indices by name, for `simplify`.
        values: by name of a variable of the tensor language, the index that it stands for.
        held: indices that have a name while formulas are simplified.
    """

    block: str
    names: Names
    iters: list[BlockIter] = field(default_factory=list)
    loops: list[tuple[Var, Expr]] = field(default_factory=list)
    steps: list[tuple[BlockIter, Expr]] = field(default_factory=list)
    ranges: dict[str, Range] = field(default_factory=dict)
    values: dict[str, Expr] = field(default_factory=dict)
    held: dict[str, Expr] = field(default_factory=dict)

    def iterate(self, base: str, extent: Expr, kind: IterKind) -> Var:
        """A new iterator over an extent, and its loop."""
        v = Var(self.names.fresh(f"{self.block}_v{base}"), dt.int64)
        self.iters.append(BlockIter(v, extent, kind))
        self.loops.append((Var(self.names.fresh(f"{self.block}_{base}"), dt.int64), extent))
        self.ranges[v.name] = Range(0, extent.value - 1 if isinstance(extent, Const) else None)
        return v

    def step(self, variable: Var, length: Expr, binding: Expr) -> None:
        """The step of a scan around: `variable` of the tensor language, bound to a formula of the scan's loop."""
        v = Var(self.names.fresh(f"{self.block}_vt"), dt.int64)
        self.steps.append((BlockIter(v, length, "scan"), binding))
        self.ranges[v.name] = Range(0, length.value - 1 if isinstance(length, Const) else None)
        self.values[variable.name] = v

    def within(self, index: Expr, extent: Dim) -> Expr:
        """A name for the index within a group that is padded, while formulas are simplified: what they say of the
        padding is nothing to go by."""
        v = Var(self.names.fresh(f"{self.block}_within"), dt.int64)
        self.held[v.name] = index
        self.ranges[v.name] = Range(0, extent - 1 if isinstance(extent, int) else None)
        return v

    def reduce_once(self) -> None:
        """An iterator of one step where every axis of a reduction has one: a plain assignment."""
        if not any(i.kind == "reduce" for i in self.iters):
            v = Var(self.names.fresh(f"{self.block}_r"), dt.int64)
            self.iters.append(BlockIter(v, const(1), "reduce"))
            self.loops.append((Var(self.names.fresh(f"{self.block}_one"), dt.int64), const(1)))

    def of(self, body: Stmt, init: Stmt | None, annotations: tuple[tuple[str, int | str], ...]) -> Stmt:
        """The block with this body, under its loops."""
        nest: Stmt = Block(
            self.block,
            (*(i for i, _ in self.steps), *self.iters),
            (*(b for _, b in self.steps), *(v for v, _ in self.loops)),
            body,
            init,
            annotations=annotations,
        )
        for v, extent in reversed(self.loops):
            nest = For(v, extent, nest)
        return nest
