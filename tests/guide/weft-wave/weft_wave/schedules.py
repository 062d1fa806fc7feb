"""Schedule rules: what wave takes, and how its loops are written.

`Products` multiplies strips of up to 64 elements by scalars, with results in vector registers. `Strips` takes the rest
of what the chip can compute: one loop of each block becomes strips of 64. What comes before or after a product is
written in strips too.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import ScheduleError, WeftError
from weft.expr.nodes import Expr, free_vars
from weft.loop.nodes import For, If, Program, Store, int_const, walk_stmts
from weft.loop.pipeline import lower_program
from weft.machine import Machine
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in

from weft_wave.codegen import FUNCTIONS, WaveCodegen, lacks
from weft_wave.instructions import INTRINSICS, REGISTERS
from weft_wave.isa import LANES

REMEMBERED = 256
"""How many products' schedules are remembered between the offer and the work."""
TABLE = {i.name: i for i in INTRINSICS}
ROWS = (4, 3, 2)
"""Registers that a product may fill, most first."""


def unable(program: Program) -> Decline | None:
    """Why the chip cannot compute a program at all, or not well, if so."""
    if any(b.annotation("op") == "WinogradConv" for b in blocks_in(program.body)):
        return Decline(
            "short",
            "the transforms of WinogradConv are in tiles too short for strips; wave computes convolutions by their definition",
        )
    try:
        found = lacks(lower_program(program, FUNCTIONS))
    except WeftError as error:
        return Decline("form", f"its loops cannot be lowered: {_short(error)}")
    return Decline("lacks", "wave has no " + ", no ".join(found)) if found else None


def mean_length(extent: int | None) -> float:
    """How long strips of a loop are. Strides cost nothing, so the longest are best wherever the loop stands."""
    return LANES if extent is None else extent / max(-(-extent // LANES), 1)


def _short(error: WeftError) -> str:
    return str(error).splitlines()[0]


def strip_length(extent: int) -> int:
    """The greatest divisor that fits into a vector register."""
    return max(n for n in range(1, LANES + 1) if extent % n == 0)


class Products(Rule):
    """One product or convolution: rows of results in registers, to which strips are added."""

    name = "products"
    priority = 10

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int | None, bool] | None] = {}

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        products = [b for b in blocks_in(program.body) if b.annotation("op") in ("MatMul", "Conv")]
        if len(products) != 1:
            return Decline("no_product", "it is not one matrix product or convolution")
        reason = unable(program)
        if reason is not None:
            return reason
        if any(isinstance(x, If) for x in walk_stmts(products[0].body)):
            return Decline("border", "the product has conditions, such as those of a border")
        best = self.best(program, machine)
        if best is None:
            return Decline("no_strip", "no loop of the product can be cut into strips for the multiply-add")
        return Offer(1.0)

    def best(self, program: Program, machine: Machine) -> tuple[int, int | None, bool] | None:
        """The loops of the strip and of the rows, by their numbers, and whether what follows joins; found by trying."""
        text = str(program)
        if text not in self.found:
            if len(self.found) >= REMEMBERED:
                self.found.clear()
            self.found[text] = self.search(program, machine)
        return self.found[text]

    def search(self, program: Program, machine: Machine) -> tuple[int, int | None, bool] | None:
        s = Schedule(program, machine, intrinsics=TABLE)
        (name,) = [b for b in s.blocks() if s.block(b).annotation("op") in ("MatMul", "Conv")]
        block = s.block(name)
        loops = [s.loop(n) for n in s.loops(name)]
        reduce = {v for i, b in zip(block.iters, block.bindings, strict=True) if i.kind == "reduce" for v in _names(b)}
        spatial = [(k, int_const(x.extent)) for k, x in enumerate(loops) if x.var.name not in reduce]
        strips = sorted(((strip_length(n), k) for k, n in spatial if n is not None and n > 1), reverse=True)
        for length, strip in strips:
            if length < 2:
                continue
            rows = [k for k, n in spatial if k != strip and n is not None and any(n % r == 0 for r in ROWS)]
            for row in (*rows, None):
                for joined in (True, False):
                    trial = Schedule(program, machine, intrinsics=TABLE)
                    try:
                        self.product(trial, name, strip, row, joined)
                        self.others(trial)
                        if not WaveCodegen().check(lower_program(trial.program, FUNCTIONS)):
                            return strip, row, joined
                    except WeftError:
                        continue
        return None

    def product(self, s: Schedule, name: str, strip: int, row: int | None, joined: bool) -> None:
        """Schedules the product itself, and, if it is `joined`, what follows it on the registers."""
        loops = s.loops(name)
        block = s.block(name)
        reduce = {v for i, b in zip(block.iters, block.bindings, strict=True) if i.kind == "reduce" for v in _names(b)}
        terms = [x for x in loops if x in reduce]
        if not terms:
            raise ScheduleError("the product has no sum")
        if joined:
            copy = self.following(s, name)
            s.set_scope(name, REGISTERS)
        else:
            copy = s.cache_write(name, REGISTERS)
        length = strip_length(int_const(s.loop(loops[strip]).extent) or 0)
        outer = [x for x in loops if x not in reduce and x not in (loops[strip], loops[row] if row is not None else "")]
        pieces, lane = s.split(loops[strip], [None, length])
        if row is None:
            s.reorder(*outer, pieces, *terms, lane)
            tile = pieces
            inner = [lane]
        else:
            count = int_const(s.loop(loops[row]).extent) or 0
            rows, one = s.split(loops[row], [None, next(r for r in ROWS if count % r == 0)])
            s.reorder(*outer, rows, pieces, *terms, one, lane)
            tile = pieces
            inner = [one, lane]
        start = s.decompose_reduction(name, terms[0])
        s.reverse_compute_at(copy, tile)
        (held,) = s.buffers(name)
        s.compact_buffer(held)
        for b, last in ((start, s.loops(start)[-1]), (name, lane)):
            s.tensorize(last, f"axpy{length}")
            if row is not None:
                s.unroll(s.loops(b)[-1])
        moved = s.loops(copy)[-len(inner) :]
        by_extent = [x for x in moved if int_const(s.loop(x).extent) == length]
        if not by_extent:
            raise ScheduleError("no loop of what follows goes along the strip")
        last = by_extent[-1]
        s.reorder(*[x for x in moved if x != last], last)
        for x in moved:
            if x != last:
                s.unroll(x)
        s.vectorize(last)
        s.annotate(copy, "wave", "done")
        s.annotate(name, "wave", "done")
        s.annotate(start, "wave", "done")

    def following(self, s: Schedule, name: str) -> str:
        """The one block that takes the product's result, with everything between written into it."""
        while True:
            takers = s.consumers(name)
            if len(takers) != 1:
                raise ScheduleError(f"{len(takers)} blocks take the result")
            if not s.consumers(takers[0]):
                return takers[0]
            s.compute_inline(takers[0])

    def apply(self, schedule: Schedule) -> None:
        s = schedule
        (name,) = [b for b in s.blocks() if s.block(b).annotation("op") in ("MatMul", "Conv")]
        best = self.best(s.program, s.machine)
        assert best is not None
        self.product(s, name, *best)
        self.others(s)

    def others(self, s: Schedule) -> None:
        """What comes before and after the product."""
        for block in s.blocks():
            if s.block(block).annotation("wave") is None:
                strips(s, block)


def strips(s: Schedule, name: str) -> None:
    """One block in strips, along a loop whose steps are independent; where there is none, as it is."""
    block = s.block(name)
    loops = s.loops(name)
    bound = {i.var.name: (i.kind, _names(b)) for i, b in zip(block.iters, block.bindings, strict=True)}
    ordered = {v for kind, names in bound.values() if kind != "spatial" for v in names}
    if any(kind == "scan" for kind, _ in bound.values()) or any(isinstance(x, For) for x in walk_stmts(block.body)):
        return
    free = [x for x in loops if x not in ordered and int_const(s.loop(x).extent) != 1]
    stores = [x for x in walk_stmts(block.body) if isinstance(x, Store)]
    if not free or not stores:
        reduce(s, name, loops)
        return
    ordered_free = sorted(reversed(free), key=lambda x: -mean_length(int_const(s.loop(x).extent)))
    longest = int_const(s.loop(ordered_free[0]).extent)
    if (longest or LANES) < 8 and reduce(s, name, loops):
        return
    for chosen in ordered_free:
        inside = loops[loops.index(chosen) + 1 :]
        try:
            cut(Schedule(s.program, s.machine, intrinsics=TABLE), chosen, inside)
        except WeftError:
            continue
        cut(s, chosen, inside)
        return


def cut(s: Schedule, loop: str, inside: Sequence[str]) -> None:
    """A loop in strips, under those that are inside."""
    extent = int_const(s.loop(loop).extent)
    lane = loop
    if extent is None or extent > LANES:
        _, lane = s.split(loop, [None, LANES])
    if inside:
        s.reorder(*inside, lane)
    s.vectorize(lane)


def reduce(s: Schedule, name: str, loops: list[str]) -> bool:
    """A sum or maximum by the instructions that reduce a register."""
    if not loops:
        return False
    last = loops[-1]
    extent = int_const(s.loop(last).extent)
    lengths = [n for n in (LANES, 32, 16, 8) if extent is not None and extent % n == 0]
    if not lengths:
        return False
    for kind in ("sum", "max"):
        trial = Schedule(s.program, s.machine, intrinsics=TABLE)
        try:
            _reduce(trial, last, lengths[0], kind)
        except WeftError:
            continue
        _reduce(s, last, lengths[0], kind)
        return True
    return False


def _reduce(s: Schedule, loop: str, length: int, kind: str) -> None:
    _, lane = s.split(loop, [None, length])
    s.tensorize(lane, f"{kind}{length}")


def _names(binding: Expr) -> set[str]:
    return set(free_vars(binding))


class Strips(Rule):
    """What the chip can compute, block by block, in strips of 64."""

    name = "strips"

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        reason = unable(program)
        if reason is not None:
            return reason
        s = Schedule(program, machine, intrinsics=TABLE)
        try:
            self.apply(s)
            found = WaveCodegen().check(lower_program(s.program, FUNCTIONS))
        except WeftError as error:
            return Decline("form", f"its loops cannot be cut into strips: {_short(error)}")
        return Decline("lacks", "wave has no " + ", no ".join(found)) if found else Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        for name in schedule.blocks():
            strips(schedule, name)


def why_not(program: Program, machine: Machine) -> Decline | None:
    """Why no rule takes a program, if none does."""
    answer = Strips().offer(program, machine)
    return answer if isinstance(answer, Decline) else None


RULES: tuple[Rule, ...] = (Products(), Strips())
"""Both offer at the same cost; then that of the higher priority wins."""
