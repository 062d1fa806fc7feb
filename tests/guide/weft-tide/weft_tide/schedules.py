"""Schedule rules: what tide takes, and how its loops are written."""

from __future__ import annotations

import math

from weft.errors import ScheduleError
from weft.expr.nodes import Add, Cast, Expr, Mul, free_vars
from weft.expr.printer import print_expr
from weft.loop.nodes import Allocate, Block, Load, Program, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling.access import block_work, is_contraction, target
from weft.scheduling.costs import in_registers, one_by_one, seconds, streamed
from weft.scheduling.patterns import inline_producers
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in

from weft_tide.instructions import ACCUMULATORS, ALIGN, COLUMNS, PAIRS, ROWS, STAGING, STEP

SLOW = 1 << 22
"""Multiply-adds that the scalar core leaves to the host."""


class Scalar(Rule):
    """Every loop stays as the operator's definition has it: the scalar core computes it, one element after another."""

    name = "scalar"

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if not blocks_in(program.body):
            return Decline("no_blocks", "its loops are not those of a formula")
        slow = [b for b in blocks_in(program.body) if is_contraction(b) and block_work(b) > SLOW]
        if slow:
            return Decline("slow", f"a sum of {block_work(slow[0])} products, one after another, is the host's")
        return Offer(seconds(program, machine, lambda b: one_by_one(b, machine)), "one element after another")

    def apply(self, schedule: Schedule) -> None:
        pass


class Products(Rule):
    """Sums of products of every kind: each tile of the factors is gathered into staging memory, with zeros beyond where
    they end."""

    name = "products"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        blocks = [b for b in blocks_in(program.body) if is_contraction(b)]
        if not blocks:
            return Decline("no_product", "nothing in it is a sum of products")
        reasons = [why for b in blocks if (why := unfit(b))]
        if len(reasons) == len(blocks):
            return Decline("product", "; ".join(dict.fromkeys(reasons)))
        return Offer(seconds(program, machine, lambda b: (streamed if is_contraction(b) else one_by_one)(b, machine)))

    def apply(self, schedule: Schedule) -> None:
        s = schedule
        reasons, done = [], 0
        with s.attempt():  # steps of a scan stay where they are
            inline_producers(s)
        for name in s.blocks():
            if not is_contraction(s.block(name)):
                continue
            with s.attempt() as tried:
                gathered(s, name)
            done += bool(tried)
            if not tried:
                reasons.append(tried.reason)
        if not done:
            raise ScheduleError("no product fits the arrays", where=s.program.name, why="; ".join(dict.fromkeys(reasons)))


class Matrices(Rule):
    """One product of two matrices as they lie in memory, or of many pairs: the engine brings the tiles, one step ahead
    of the arrays."""

    name = "matrices"
    priority = 20

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        products = [b for b in blocks_in(program.body) if is_contraction(b)]
        if len(products) != 1:
            return Decline("no_product", f"it has {len(products)} sums of products, not one")
        why = unfit(products[0])
        if why:
            return Decline("product", why)
        found = factors(products[0])
        if found is None or not all(isinstance(f, Load) for f in found):
            return Decline("gathered", "its factors are formulas, not matrices that lie in memory")
        if not all(f.buffer in program.inputs for f in found if isinstance(f, Load)):
            return Decline("gathered", "its factors are computed in the same kernel")
        if found[0] == found[1]:
            return Decline("gathered", "both factors are the same matrix")
        counts = [0, 0, 0]  # of iterators: rows, columns, terms
        for i in products[0].iters:
            reads = [i.var.name in free_vars(f) for f in found]
            if i.kind != "spatial" or reads[0] != reads[1]:
                counts[2 if i.kind != "spatial" else 0 if reads[0] else 1] += 1
        if counts[0] > 1 or counts[1] > 1 or counts[2] != (2 if in_panels(found[1]) else 1):
            return Decline("gathered", "its factors are no matrices: {} loops of rows, {} of columns, {} of terms".format(*counts))
        cost = seconds(program, machine, lambda b: (in_registers if is_contraction(b) else one_by_one)(b, machine))
        return Offer(cost, "tiles one step ahead")

    def apply(self, schedule: Schedule) -> None:
        (name,) = (n for n in schedule.blocks() if is_contraction(schedule.block(n)))
        tiled(schedule, name)


def in_panels(right: Expr) -> bool:
    """Whether constant weights lie as `layouts.PANELS` has them."""
    return (
        isinstance(right, Load)
        and len(right.indices) == 4
        and int_const(right.buffer.shape[-1]) == STEP
        and int_const(right.buffer.shape[-2]) == COLUMNS
    )


def tiled(s: Schedule, name: str) -> None:
    """The product `name` of two matrices in memory."""
    block = s.block(name)
    left, right = factors(block) or (None, None)
    if not isinstance(left, Load) or not isinstance(right, Load):
        raise ScheduleError("the factors are no matrices", where=name)
    short = short_of(left, right, block)
    assert short is not None
    outer, rows, columns, terms = roles(s, name, left, right)
    if not columns:
        raise ScheduleError("the product has no columns", where=name, why="one of its factors is a vector")
    panels = in_panels(right)
    if len(rows) > 1 or len(columns) > 1 or len(terms) != 1 + panels:
        found = f"{len(rows)} loops of rows, {len(columns)} of columns, {len(terms)} of terms"
        raise ScheduleError("the product is none of two matrices", where=name, why=found)
    line = ALIGN // PAIRS[short][0].bytes  # elements of a line of staging memory
    total = int_const(s.loop(terms[0]).extent)
    depth = STEP * whole_steps(s, total, 2 * line // STEP) if panels else depth_of(total, line)
    count = int_const(s.loop(columns[0]).extent)
    arrays = s.machine.levels["array"].units if count is None or count > COLUMNS else 1
    if panels and (count is None or -(-count // COLUMNS) % arrays):
        arrays = 1

    s.reorder(*outer, *rows, *columns, *terms)
    result = s.cache_write(name, ACCUMULATORS)
    lies = [row_major(s, left, rows, terms), None if panels else row_major(s, right, columns, terms)]
    copies = [s.cache_read(name, load.buffer.name, STAGING, order) for load, order in zip((left, right), lies, strict=True)]
    if not panels:  # those have whole tiles already
        for copy in copies:
            s.pad_loop(copy, s.loops(copy)[-1], depth)
        s.pad_loop(copies[1], s.loops(copies[1])[-2], COLUMNS * arrays)
        s.pad_loop(name, terms[0], depth)
    s.pad_loop(name, columns[0], COLUMNS * arrays)

    array, columns_of, column = s.split(columns[0], [arrays, None, COLUMNS])
    step, term = s.split(terms[0], [None, depth // STEP if panels else depth])
    tops, inner = [array, *outer], [column, term, *terms[1:]]
    if rows:
        height = int_const(s.loop(rows[0]).extent)
        rows_of, row = s.split(rows[0], [None, ROWS if height is None else min(ROWS, height)])
        tops, inner = [*tops, rows_of], [row, *inner]
    s.reorder(*tops, columns_of, step, *inner)
    for copy in copies:
        s.compute_at(copy, step)
    s.reverse_compute_at(result, columns_of)
    for copy in copies:
        for buffer in s.buffers(copy):
            if scopes(s).get(buffer) == STAGING:
                s.compact_buffer(buffer, align=1 if panels and copy == copies[1] else line)
    for buffer in s.buffers(name):
        s.compact_buffer(buffer)
    brought = []
    for copy, loader in zip(copies, ("load", "load_panel" if panels else "load"), strict=True):
        with s.attempt() as tried:
            s.tensorize(copy, f"tide_{loader}_{short}")
        brought.append(bool(tried))
    s.tensorize(inner[0], f"tide_{short}_panel" if panels else f"tide_{short}")
    for copy, by_engine in zip(copies, brought, strict=True):
        if by_engine and int_const(s.loop(step).extent) != 1:
            with s.attempt():
                s.double_buffer(copy, step)
    if arrays > 1:
        with s.attempt():
            s.bind(array, "unit.array")


def depth_of(total: int | None, line: int) -> int:
    """Terms of one step: a whole part of the sum where that is at least half a line of staging memory, else a line."""
    if total is None:
        return line
    steps = -(-total // STEP)
    most = line // STEP
    if steps <= most:
        return steps * STEP
    if total % STEP:
        return line
    return next((n for n in range(most, most // 2, -1) if steps % n == 0), most) * STEP


def whole_steps(s: Schedule, total: int | None, most: int) -> int:
    """Steps of eight terms that an instruction takes of a sum of `total` of them, without a rest."""
    found = next((n for n in range(min(most, total or 0), 0, -1) if (total or 1) % n == 0), 0)
    if found * 4 < min(most, total or 0):
        why = f"{total} steps are no multiple of {most // 4} to {most}"
        raise ScheduleError("the panels have no whole tiles", where=s.program.name, why=why)
    return found


def row_major(s: Schedule, load: Load, lines: list[str], terms: list[str]) -> list[int]:
    """The order of a factor's dimensions in staging memory: the terms last, the lines before."""
    return sorted(range(len(load.indices)), key=lambda d: rank_of(s, load, d, lines, terms))


def rank_of(s: Schedule, load: Load, dimension: int, lines: list[str], terms: list[str]) -> int:
    block = next(s.block(n) for n in s.blocks() if is_contraction(s.block(n)))
    names = free_vars(load.indices[dimension])
    drives = {i.var.name: free_vars(e) for i, e in zip(block.iters, block.bindings, strict=True)}
    loops = {loop for v in names if v in drives for loop in drives[v]}
    return 2 if loops & set(terms) else 1 if loops & set(lines) else 0


def unfit(block: Block) -> str | None:
    """Why no array computes the block, a sum of products; None: one may."""
    if any(int_const(i.extent) == 0 for i in block.iters):
        return "it is empty"
    found = factors(block)
    if found is None:
        return "it is no plain sum of products of two factors"
    if short_of(*found, block) is None:
        return f"no array multiplies {found[0].dtype} by {found[1].dtype} to {target(block).buffer.dtype}"
    spatial = [i for i in block.iters if i.kind == "spatial"]
    if not any((i.var.name in free_vars(found[0])) != (i.var.name in free_vars(found[1])) for i in spatial):
        return "its result has neither rows nor columns"
    return None


def factors(block: Block) -> tuple[Expr, Expr] | None:
    """What the block multiplies: as narrow as an instruction takes both, or as they are."""
    value = target(block).value
    if not isinstance(value, Add):
        return None
    products = [e for e in (value.a, value.b) if isinstance(e, Mul)]
    if len(products) != 1:
        return None
    wide = products[0].a, products[0].b
    narrow = _narrow(wide[0]), _narrow(wide[1])
    return narrow if short_of(*narrow, block) else wide


def _narrow(e: Expr) -> Expr:
    return e.value if isinstance(e, Cast) else e


def short_of(left: Expr, right: Expr, block: Block) -> str | None:
    """The instructions' word for the dtypes, or None."""
    wanted = (left.dtype, right.dtype, target(block).buffer.dtype)
    return next((short for short, dtypes in PAIRS.items() if dtypes == wanted), None)


def gathered(s: Schedule, name: str) -> None:
    """The product `name`, tile by tile: both factors are gathered by the scalar core."""
    block = s.block(name)
    why = unfit(block)
    if why:
        raise ScheduleError("the product does not fit the arrays", where=name, why=why)
    left, right = factors(block) or (None, None)
    assert left is not None and right is not None
    short = short_of(left, right, block)
    assert short is not None
    outer, rows, columns, terms = roles(s, name, left, right)
    if not columns or tiles(s, rows, columns) > tiles(s, columns, rows):
        rows, columns = columns, rows
    if not terms:
        raise ScheduleError("the product does not fit the arrays", where=name, why="its sum has one term")
    s.reorder(*after(s, name, outer), *rows, *columns, *terms)
    depth = s.fuse(*terms) if len(terms) > 1 else terms[0]
    column = s.fuse(*columns) if len(columns) > 1 else columns[0]
    line = ALIGN // PAIRS[short][0].bytes  # elements of a line of staging memory
    total = int_const(s.loop(depth).extent)
    step, term = s.split(depth, [None, line if total is None else min(line, -(-total // STEP) * STEP)])
    columns_of, column = s.split(column, [None, COLUMNS])
    inner = [column, term]
    order = [columns_of, step, column, term]
    if rows:
        row = s.fuse(*rows) if len(rows) > 1 else rows[0]
        count = int_const(s.loop(row).extent)
        rows_of, row = s.split(row, [None, ROWS if count is None else min(ROWS, count)])
        inner, order = [row, *inner], [rows_of, columns_of, step, row, column, term]
    s.reorder(*order)
    s.stage_result(name, step, ACCUMULATORS)
    start = s.decompose_reduction(name, step)
    for part in (name, start):
        s.specialize(part)
        s.pad_tile(part)
    top = inner[0]
    for factor in factors(s.block(name)) or ():
        copy = s.stage(name, top, print_expr(factor), STAGING)
        for buffer in s.buffers(copy):
            if scopes(s).get(buffer) == STAGING:
                s.compact_buffer(buffer, align=line)
    s.tensorize(top, f"tide_{short}")
    s.tensorize(start, f"tide_{short}")


def scopes(s: Schedule) -> dict[str, str]:
    """The memories of the buffers that the program allocates."""
    return {x.buffer.name: x.buffer.scope for x in walk_stmts(s.program.body) if isinstance(x, Allocate)}


def after(s: Schedule, name: str, outer: list[str]) -> list[str]:
    """Those of the outer loops that do not stand outermost already: a scan's holds other blocks as well."""
    loops = s.loops(name)
    first = next(i for i, loop in enumerate(loops) if loop not in outer)
    return [loop for loop in outer if loop not in loops[:first]]


def roles(s: Schedule, name: str, left: Expr, right: Expr) -> tuple[list[str], list[str], list[str], list[str]]:
    """The loops around a product: those of neither or both factors, those of the left and of the right one alone, and
    the sum's."""
    block = s.block(name)
    loops = s.loops(name)
    found: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])
    for loop in loops:
        drives = [i for i, e in zip(block.iters, block.bindings, strict=True) if loop in free_vars(e)]
        in_left = any(i.var.name in free_vars(left) for i in drives)
        in_right = any(i.var.name in free_vars(right) for i in drives)
        if any(i.kind == "reduce" for i in drives):
            found[3].append(loop)
        elif any(i.kind == "scan" for i in drives) or in_left == in_right:
            found[0].append(loop)
        else:
            found[1 if in_left else 2].append(loop)
    return found


def tiles(s: Schedule, rows: list[str], columns: list[str]) -> int:
    """How many tiles a product has; open sizes count as large ones."""
    sizes = [math.prod(int_const(s.loop(n).extent) or 4096 for n in loops) for loops in (rows, columns)]
    return -(-sizes[0] // ROWS) * -(-sizes[1] // COLUMNS)


RULES: tuple[Rule, ...] = (Matrices(), Products(), Scalar())
"""The cheapest offer wins; of those of the same cost that of the highest priority."""
