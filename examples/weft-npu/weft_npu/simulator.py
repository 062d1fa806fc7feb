"""The machine: runs kernels of the instruction set on memories, and counts cycles. It knows instructions and memories,
nothing else.

Meaning is that of one instruction after another. Time is another matter: instructions are issued in order, one a cycle,
each to the queue of its unit (load, store, matrix, vector), and a unit begins when it is free and what the instruction
reads and writes is settled: every LINE bytes of a memory on the chip have an interlock; in DRAM, a parameter as a whole
has one. So copies run beside computation wherever they touch other lines: two buffers in turn are filled and read at
once, and no instruction has to say so.

A loop that holds one instruction, or loops down to one, is done at once on numpy, where its iterations do not depend on
one another; where they do, the loops that make them depend run one by one. Loops of gemm8x8 become one product of large
matrices: sums are in another order than one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.errors import ExecutionError
from weft_npu.isa import DRAM, MEMORIES, OPS, TILE, Instruction, Kernel, View, axes, fault

Array: TypeAlias = np.ndarray[Any, Any]

LINE = 256
"""Bytes that share an interlock."""
DMA_BYTES, DMA_START = 16, 32
"""Of each of the two copy engines: bytes a cycle, and cycles before the first; elements that do not lie side by side
take a cycle each."""
LANES, VECTOR_START = 16, 4
MATRIX_START = 16
GEMM_CYCLES = TILE
"""Of gemm8x8, one after another: a row of the tile a cycle, TILE² multiply-adds each."""
PEAK = TILE * TILE * TILE // GEMM_CYCLES
"""Multiply-adds a cycle."""
SPECIAL = 4
"""How many times as long as an addition the vector unit takes for exp, div and similar operations."""
SLOW = frozenset({"vec.exp", "vec.log", "vec.sqrt", "vec.tanh", "vec.erf", "vec.div"})
LARGEST_MEMORY = 1 << 26


def _erf(x: Array) -> Array:
    """Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, in float64: within 2e-7."""
    a = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.3275911 * a)
    p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - p * np.exp(-a * a)), np.float32)


VECTOR: dict[str, Callable[..., Any]] = {
    "copy": lambda a: a,
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "and": lambda a, b: (a != 0) & (b != 0),
    "or": lambda a, b: (a != 0) | (b != 0),
    "not": lambda a: a == 0,
    "fma": lambda a, b, c: a * b + c,
    "select": lambda m, a, b: np.where(m != 0, a, b),
}


@dataclass
class Counts:
    """What runs took. `busy`: cycles per unit."""

    launches: int = 0
    cycles: int = 0
    busy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("load", "store", "matrix", "vector"), 0))
    multiply_adds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    instructions: int = 0

    @property
    def utilisation(self) -> float:
        """Share of the multiply-adds that the matrix unit could have done in the time."""
        return self.multiply_adds / (self.cycles * PEAK) if self.cycles else 0.0

    def add(self, other: Counts) -> None:
        self.launches += other.launches
        self.cycles += other.cycles
        self.multiply_adds += other.multiply_adds
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.instructions += other.instructions
        for unit, n in other.busy.items():
            self.busy[unit] = self.busy.get(unit, 0) + n


@dataclass(frozen=True)
class _Nest:
    """An instruction and the loops that hold it alone: trips, outermost first; `depth` loops are around them."""

    instruction: Instruction
    depth: int
    trips: tuple[int, ...]


@dataclass(frozen=True)
class _Loop:
    depth: int
    trip: int
    body: tuple[_Loop | _Nest, ...]


@dataclass
class _Place:
    """An operand in a nest: first element, step per loop, stride per dimension, and the ends of what all iterations
    touch."""

    memory: int
    base: int
    steps: list[int]
    strides: tuple[int, ...]
    low: int = 0
    high: int = 0

    @property
    def extent(self) -> tuple[int, int, int]:
        return self.memory, self.low, self.high


class Program:
    """A kernel made ready to run."""

    def __init__(self, kernel: Kernel) -> None:
        if any(m > LARGEST_MEMORY for m in kernel.memories):
            raise fault(f"it needs memories of {kernel.memories} bytes, this device has none above {LARGEST_MEMORY}")
        self.kernel = kernel
        position = 0

        def block(depth: int) -> tuple[_Loop | _Nest, ...]:
            nonlocal position
            found: list[_Loop | _Nest] = []
            while position < len(kernel.code):
                i = kernel.code[position]
                position += 1
                if i.op == "end":
                    break
                if i.op != "loop":
                    found.append(_Nest(i, depth, ()))
                    continue
                body = block(depth + 1)
                if len(body) == 1 and isinstance(body[0], _Nest):
                    found.append(_Nest(body[0].instruction, depth, (i.shape[0], *body[0].trips)))
                else:
                    found.append(_Loop(depth, i.shape[0], body))
            return tuple(found)

        self.body = block(0)


class Run:
    """One launch.

    Args:
        parameters: the kernel's buffers in DRAM, float32 each.
        name: of the kernel, for errors.
    """

    def __init__(self, program: Program, parameters: Sequence[Array], name: str = "kernel") -> None:
        if len(parameters) != program.kernel.parameters:
            raise fault(f"it has {program.kernel.parameters} parameters, {len(parameters)} are given", name)
        self.program, self.name = program, name
        # What was never written is no number, so that whoever reads it shows.
        self.memories: dict[int, Array] = {
            k: np.full(size // 4, np.nan, np.float32) for k, size in enumerate(program.kernel.memories)
        }
        self.memories.update({DRAM + k: p for k, p in enumerate(parameters)})
        self.counts = Counts(launches=1)
        self.issued = 0
        self.free = dict.fromkeys(self.counts.busy, 0)
        self.written = {
            k: np.zeros(-(-a.size * 4 // LINE) if k < DRAM else 1, np.int64) for k, a in self.memories.items()
        }
        self.used = {k: v.copy() for k, v in self.written.items()}
        self.counters: list[int] = []

    def run(self) -> Counts:
        for node in self.program.body:
            self._node(node)
        self.counts.cycles = max([self.issued, *self.free.values()])
        return self.counts

    def _node(self, node: _Loop | _Nest) -> None:
        if isinstance(node, _Nest):
            self._nest(node.instruction, node.trips)
            return
        self.counters.append(0)
        for k in range(node.trip):
            self.counters[-1] = k
            for child in node.body:
                self._node(child)
        self.counters.pop()

    # -- a nest
    def _nest(self, i: Instruction, trips: tuple[int, ...]) -> None:
        depth = len(self.counters)
        rings = {
            t.loop - depth for x in i.operands if isinstance(x, View) for t in x.terms if t.modulo and t.loop >= depth
        }
        if rings:  # loops that step in rings, and all around them, one by one
            self._outer(i, trips, max(rings) + 1)
            return
        places = [self._place(x, i, k, trips) if isinstance(x, View) else x for k, x in enumerate(i.operands)]
        self._time(i, places, trips)
        if i.op.startswith("gemm") or i.op.startswith("fuse"):
            self._gemm(i, places, trips)  # type: ignore[arg-type]
        else:
            self._elements(i, places, trips)

    def _outer(self, i: Instruction, trips: tuple[int, ...], count: int) -> None:
        if count == 0:
            self._nest(i, trips)
            return
        self.counters.append(0)
        for k in range(trips[0]):
            self.counters[-1] = k
            self._outer(i, trips[1:], count - 1)
        self.counters.pop()

    def _place(self, x: View, i: Instruction, k: int, trips: tuple[int, ...]) -> _Place:
        depth = len(self.counters)
        base, steps = x.base, [0] * len(trips)
        for t in x.terms:
            if t.loop < depth:
                count = self.counters[t.loop]
                base += t.step * (count % t.modulo if t.modulo else count)
            else:
                steps[t.loop - depth] += t.step
        place = _Place(x.memory, base, steps, x.strides)
        sizes = [i.shape[d] for d in axes(OPS[i.op], k, len(i.shape))]
        reach = [s * (n - 1) for s, n in zip((*steps, *x.strides), (*trips, *sizes))]
        place.low, place.high = base + sum(r for r in reach if r < 0), base + sum(r for r in reach if r > 0)
        size = self.memories[x.memory].size
        if place.low < 0 or place.high >= size:
            memory = MEMORIES[x.memory] if x.memory < DRAM else f"parameter {x.memory - DRAM}"
            raise ExecutionError(
                f"kernel '{self.name}' leaves the memory '{memory}' of the npu",
                where=f"{i.op} {'x'.join(map(str, i.shape))}, operand {k}"
                + (f", in loops {' '.join(map(str, trips))}" if trips else ""),
                why=f"it touches bytes {4 * place.low} … {4 * place.high + 3}, the memory has {4 * size}",
            )
        return place

    def _view(self, p: _Place, dims: Sequence[tuple[int, int]]) -> Array:
        """Elements by (size, step) per dimension."""
        memory = self.memories[p.memory]
        return np.lib.stride_tricks.as_strided(memory[p.base :], [n for n, _ in dims], [4 * s for _, s in dims])

    # -- time
    def _time(self, i: Instruction, places: Sequence[_Place | float], trips: tuple[int, ...]) -> None:
        unit, times = OPS[i.op].unit, math.prod(trips)
        elements = times * math.prod(i.shape)
        self.counts.instructions += times
        if unit in ("load", "store"):
            if unit == "load":
                self.counts.bytes_in += 4 * elements
            else:
                self.counts.bytes_out += 4 * elements
        elif unit == "matrix":
            if i.op != "fill_zero":
                self.counts.multiply_adds += elements
        cost = occupied(i, times)
        start = max(self.issued, self.free[unit])
        # Of a gather, only the lines that it can touch; a nest holds its operands from beginning to end.
        touched = []
        for k, p in enumerate(places):
            if isinstance(p, _Place):
                lines = slice(4 * p.low // LINE, 4 * p.high // LINE + 1) if p.memory < DRAM else slice(0, 1)
                touched.append((p.memory, lines, k == 0))
                start = max(start, int(self.written[p.memory][lines].max()))
                if k == 0:
                    start = max(start, int(self.used[p.memory][lines].max()))
        end = start + cost
        for memory, lines, write in touched:
            table = (self.written if write else self.used)[memory]
            np.maximum(table[lines], end, out=table[lines])
        self.free[unit] = end
        self.counts.busy[unit] += cost
        self.issued += 1

    # -- meaning
    def _elements(self, i: Instruction, places: Sequence[_Place | float], trips: tuple[int, ...]) -> None:
        target = places[0]
        assert isinstance(target, _Place)
        moving = [d for d, (n, s) in enumerate(zip(trips, target.steps)) if n == 1 or s]
        own = [(n, s) for n, s in zip(i.shape, target.strides)]
        if not _distinct([*((trips[d], target.steps[d]) for d in moving), *own]):
            moving = []
        for p in places[1:]:
            if isinstance(p, _Place) and p.memory == target.memory and p.low <= target.high and target.low <= p.high:
                if (p.base, p.strides) != (target.base, target.strides) or any(
                    p.steps[d] != target.steps[d] for d in range(len(trips))
                ):
                    moving = []
        still = [d for d in range(len(trips)) if d not in moving]
        function: Callable[..., Any] = (
            (lambda a: a) if i.op.startswith("dma") else (lambda: 0.0) if i.op == "fill_zero" else VECTOR[i.op[4:]]
        )
        views: list[Array | np.float32] = []
        for p in places:
            if isinstance(p, _Place):
                dims = [(trips[d], p.steps[d]) for d in (*still, *moving)]
                views.append(self._view(p, [*dims, *zip(i.shape, p.strides)]))
            else:
                views.append(np.float32(p))
        result, *sources = views
        assert isinstance(result, np.ndarray)
        with np.errstate(all="ignore"):
            for index in np.ndindex(*(trips[d] for d in still)):
                result[index] = function(*(s[index] if isinstance(s, np.ndarray) else s for s in sources))

    def _gemm(self, i: Instruction, places: Sequence[_Place], trips: tuple[int, ...]) -> None:
        c, a, b = places
        rows, depth, columns = i.shape
        kinds: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
        for d, n in enumerate(trips):
            moves = (bool(c.steps[d]), bool(a.steps[d]), bool(b.steps[d]))
            kinds["k" if not moves[0] and n > 1 else "m" if not moves[2] else "n" if not moves[1] else "batch"].append(
                d
            )
        batch, ms, ns, ks = (kinds[x] for x in ("batch", "m", "n", "k"))
        add = i.op.startswith("fuse")
        distinct = _distinct(
            [*((trips[d], c.steps[d]) for d in (*batch, *ms, *ns)), (rows, c.strides[0]), (columns, c.strides[1])]
        )
        if not distinct or (ks and not add):
            self._one_by_one(i, places, trips, add)
            return

        def dims(p: _Place, loops: Sequence[int]) -> list[tuple[int, int]]:
            return [(trips[d], p.steps[d]) for d in loops]

        sizes = [math.prod(trips[d] for d in loops) for loops in (batch, ms, ns, ks)]
        left = self._view(a, [*dims(a, batch), *dims(a, ms), (rows, a.strides[0]), *dims(a, ks), (depth, 1)])
        right = self._view(b, [*dims(b, batch), *dims(b, ks), (depth, b.strides[0]), *dims(b, ns), (columns, 1)])
        out = self._view(c, [*dims(c, batch), *dims(c, ms), (rows, c.strides[0]), *dims(c, ns), (columns, 1)])
        product = left.reshape(sizes[0], sizes[1] * rows, sizes[3] * depth) @ right.reshape(
            sizes[0], sizes[3] * depth, sizes[2] * columns
        )
        product = product.reshape(out.shape)
        if add:
            out += product
        else:
            out[...] = product

    def _one_by_one(self, i: Instruction, places: Sequence[_Place], trips: tuple[int, ...], add: bool) -> None:
        c, a, b = places
        rows, depth, columns = i.shape
        sizes = ((rows, columns), (rows, depth), (depth, columns))
        for index in np.ndindex(*trips):
            out, left, right = (
                self._view(
                    _Place(p.memory, p.base + sum(s * x for s, x in zip(p.steps, index)), [], p.strides),
                    list(zip(size, p.strides)),
                )
                for p, size in zip((c, a, b), sizes)
            )
            out[...] = out + left @ right if add else left @ right


def _distinct(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether Σ index · step is another number for every index; certain if True."""
    reach = 0
    for step, n in sorted((abs(s), n) for n, s in dims if n > 1):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True


def occupied(i: Instruction, times: int) -> int:
    """Cycles for which an instruction keeps its unit, so many times one after another."""
    unit = OPS[i.op].unit
    if unit == "matrix":
        return MATRIX_START + times * GEMM_CYCLES
    if unit == "vector":
        return VECTOR_START + times * -(-math.prod(i.shape) // LANES) * (SPECIAL if i.op in SLOW else 1)
    target, source = i.operands
    assert isinstance(target, View) and isinstance(source, View)
    # The longest run of elements side by side on both ends.
    run = 1
    for n, a, b in zip(i.shape[::-1], target.strides[::-1], source.strides[::-1]):
        if n > 1 and (a != run or b != run):
            break
        run *= n
    return times * (DMA_START + math.prod(i.shape) // run * -(-4 * run // DMA_BYTES))


def estimate(kernel: Kernel, beside: bool = True) -> int:
    """About how many cycles a kernel takes: of its busiest unit if the others work `beside` it, else of all
    together."""
    busy: dict[str, int] = {}

    def count(nodes: Sequence[_Loop | _Nest], times: int) -> None:
        for n in nodes:
            if isinstance(n, _Loop):
                count(n.body, times * n.trip)
            else:
                unit = OPS[n.instruction.op].unit
                busy[unit] = busy.get(unit, 0) + times * occupied(n.instruction, math.prod(n.trips))

    count(Program(kernel).body, 1)
    return max(busy.values(), default=0) if beside else sum(busy.values())


def table(counts: Mapping[str, Counts]) -> str:
    """Cycles and utilisation per kernel, and of all together."""
    total = Counts()
    for c in counts.values():
        total.add(c)
    width = max([len(n) for n in counts], default=5)
    lines = [
        f"{'kernel':{width}}  launches      cycles  gemm peak  load   store  matrix vector       bytes in     "
        " bytes out"
    ]
    for name, c in [*counts.items(), ("total", total)]:
        shares = "  ".join(f"{100 * c.busy[u] / max(1, c.cycles):4.0f}%" for u in ("load", "store", "matrix", "vector"))
        lines.append(
            f"{name:{width}}  {c.launches:8}  {c.cycles:10}  {100 * c.utilisation:8.1f}%  {shares}  {c.bytes_in:13} "
            f" {c.bytes_out:13}"
        )
    return "\n".join(lines)
