"""The instruction set: instructions, their binary form and their text.

A kernel is a list of instructions. `loop n` … `end` repeat what is between them; every other instruction names a shape
and its operands. An operand is a view of a memory, in elements of float32: the element at index x of the shape lies at

    base + Σ step·(counter of a loop [% modulo]) + Σ stride·x

A modulo makes a ring of buffers, one of which is filled while another is read. `vec.…` also take numbers as operands.

    instruction                         unit      means
    loop n … end                        issue     n times
    dma.load   a×b×…  chip, dram        load      copies into the chip
    dma.store  a×b×…  dram, chip        store     copies out of it
    fill_zero  m×n    C                 matrix    C = 0
    gemm8x8    m×k×n  C, A, B           matrix    C = A·B; m, k, n up to 8
    fuse_gemm8x8_add m×k×n C, A, B      matrix    C += A·B
    vec.NAME   a×b    D, S…             vector    element by element, rows up to ROWS, elements up to VECTOR; see
                                                  VECTOR_OPS

A is in the memory of activations, B in that of weights, C in the accumulators, all three with elements side by side in
a row.

Binary, little endian:

    kernel      := "WNPU", u16 version, u16 parameters, u32 bytes of each memory (4), u32 instructions, instruction*
    instruction := u8 opcode, u8 rank, u8 operands, u8 0, u32 shape (rank), operand*
    operand     := u8 0, u8 0, u16 0, f32 number
                 | u8 1, u8 terms, u16 memory, i64 base, i64 strides (as many as the operand has dimensions), term*
    term        := u8 loop, u8 0, u16 modulo, i64 step          loops count from the outermost, modulo 0 is none
    memory      := 0 … 3 as MEMORIES, 16 + n is parameter n of the kernel, in the device's DRAM
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.errors import ExecutionError

MAGIC, VERSION = b"WNPU", 1
MEMORIES = ("activations", "weights", "accumulators", "vectors")
DRAM = 16
"""Number of the memory that is the kernel's first parameter."""
TILE, VECTOR, ROWS = 8, 1024, 256
MAX_RANK, MAX_TERMS, MAX_LOOPS, MAX_PARAMETERS = 4, 16, 16, 4096

VECTOR_OPS = {
    "copy": 1, "neg": 1, "abs": 1, "exp": 1, "log": 1, "sqrt": 1, "tanh": 1, "erf": 1, "floor": 1, "ceil": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2, "lt": 2, "le": 2, "eq": 2, "and": 2, "or": 2, "not": 1,
    "fma": 3, "select": 3,
}  # fmt: skip
"""Name → sources. lt, le, eq give 1 or 0; and, or, not and the first of select take those; fma is a·b + c; max and min
hand on what is no number."""


@dataclass(frozen=True)
class Term:
    """step · (counter of loop number `loop` [% modulo])."""

    loop: int
    step: int
    modulo: int = 0


@dataclass(frozen=True)
class View:
    """Where an operand lies; `memory` as in the binary form."""

    memory: int
    base: int
    strides: tuple[int, ...]
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """`operands`: the result first."""

    op: str
    shape: tuple[int, ...] = ()
    operands: tuple[View | float, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """`memories`: bytes of each that the code was made for."""

    parameters: int
    memories: tuple[int, int, int, int]
    code: tuple[Instruction, ...]


@dataclass(frozen=True)
class Op:
    """What an opcode takes. `axes`: per operand the dimensions of the shape that it has; None: all. `where`: per
    operand its memories."""

    unit: str
    ranks: range
    limits: tuple[int, ...]
    where: tuple[frozenset[int], ...]
    axes: tuple[tuple[int, ...], ...] | None = None
    numbers: bool = False


_CHIP = frozenset(range(len(MEMORIES)))
_OUTSIDE = frozenset(range(DRAM, DRAM + MAX_PARAMETERS))
_A, _B, _C = (frozenset({k}) for k in range(3))
_GEMM = Op("matrix", range(3, 4), (TILE, TILE, TILE), (_C, _A, _B), ((0, 2), (0, 1), (1, 2)))

OPS: dict[str, Op] = {
    "loop": Op("issue", range(1, 2), (2**32 - 1,), ()),
    "end": Op("issue", range(1), (), ()),
    "dma.load": Op("load", range(1, MAX_RANK + 1), (2**32 - 1,) * MAX_RANK, (_CHIP, _OUTSIDE)),
    "dma.store": Op("store", range(1, MAX_RANK + 1), (2**32 - 1,) * MAX_RANK, (_OUTSIDE, _CHIP)),
    "fill_zero": Op("matrix", range(2, 3), (TILE, TILE), (_C,)),
    "gemm8x8": _GEMM,
    "fuse_gemm8x8_add": _GEMM,
    **{
        f"vec.{name}": Op("vector", range(2, 3), (ROWS, VECTOR), (_CHIP,) * (1 + n), numbers=True)
        for name, n in VECTOR_OPS.items()
    },
}
OPCODES = {name: number for number, name in enumerate(OPS)}
_NAMES = list(OPS)


def fault(why: str, where: str | None = None) -> ExecutionError:
    """An error of a kernel's code."""
    return ExecutionError("the npu's code is malformed", where=where, why=why)


def axes(op: Op, operand: int, rank: int) -> tuple[int, ...]:
    """The dimensions of the shape that an operand has."""
    return tuple(range(rank)) if op.axes is None else op.axes[operand]


# -- checking
# -----------------------------------------------------------------------------------------------------------


def verify(kernel: Kernel) -> None:
    """Raises ExecutionError at the first field of an instruction that is out of its range."""
    if len(kernel.memories) != len(MEMORIES) or not all(0 <= m < 2**32 and m % 4 == 0 for m in kernel.memories):
        raise fault(f"the memories have {kernel.memories} bytes: four sizes in whole elements are wanted")
    if not 0 <= kernel.parameters <= MAX_PARAMETERS:
        raise fault(f"it has {kernel.parameters} parameters, at most {MAX_PARAMETERS} can be")
    depth = 0
    for number, i in enumerate(kernel.code):
        where = f"instruction {number}: {i.op}"
        if i.op not in OPS:
            raise fault("there is no such instruction", where)
        op = OPS[i.op]
        if len(i.shape) not in op.ranks:
            raise fault(f"its shape has {len(i.shape)} dimension(s), {min(op.ranks)} to {max(op.ranks)} can be", where)
        for n, most in zip(i.shape, op.limits):
            if not 1 <= n <= most:
                raise fault(f"a dimension is {n}, 1 to {most} can be", where)
        if op.unit == "vector" and i.shape[0] * i.shape[1] > VECTOR:
            raise fault(f"a vector has {i.shape[0] * i.shape[1]} elements, at most {VECTOR} can be", where)
        if len(i.operands) != len(op.where):
            raise fault(f"it has {len(i.operands)} operand(s), {len(op.where)} are wanted", where)
        for k, x in enumerate(i.operands):
            if isinstance(x, View):
                _verify_view(x, op, k, len(i.shape), depth, kernel.parameters, where)
            elif not op.numbers or k == 0:
                raise fault(f"operand {k} is a number", where)
        depth += (i.op == "loop") - (i.op == "end")
        if not 0 <= depth <= MAX_LOOPS:
            raise fault("there is no loop to end" if depth < 0 else f"more than {MAX_LOOPS} loops are nested", where)
    if depth:
        raise fault(f"{depth} loop(s) have no end")


def _verify_view(x: View, op: Op, k: int, rank: int, depth: int, parameters: int, where: str) -> None:
    if x.memory not in op.where[k] or (x.memory >= DRAM and x.memory - DRAM >= parameters):
        raise fault(f"operand {k} cannot lie in memory {_memory(x.memory)}", where)
    dims = axes(op, k, rank)
    if len(x.strides) != len(dims):
        raise fault(f"operand {k} has {len(x.strides)} stride(s), {len(dims)} are wanted", where)
    if op.axes is not None and x.strides[-1] != 1:
        raise fault(f"operand {k} has no elements side by side in a row", where)
    if not all(-(2**62) < n < 2**62 for n in (x.base, *x.strides, *(t.step for t in x.terms))):
        raise fault(f"operand {k} has a number of more than 62 bits", where)
    if len(x.terms) > MAX_TERMS:
        raise fault(f"operand {k} has {len(x.terms)} terms, at most {MAX_TERMS} can be", where)
    for t in x.terms:
        if not 0 <= t.loop < depth:
            raise fault(f"operand {k} uses loop {t.loop}, there are {depth} around it", where)
        if not 0 <= t.modulo < 2**16:
            raise fault(f"operand {k} has the modulo {t.modulo}", where)


def _memory(number: int) -> str:
    return MEMORIES[number] if 0 <= number < len(MEMORIES) else f"p{number - DRAM}" if number >= DRAM else str(number)


# -- binary
# -------------------------------------------------------------------------------------------------------------


def encode(kernel: Kernel) -> bytes:
    """The binary form of a kernel. Raises ExecutionError as `verify`."""
    verify(kernel)
    parts = [struct.pack("<4sHH4II", MAGIC, VERSION, kernel.parameters, *kernel.memories, len(kernel.code))]
    for i in kernel.code:
        parts.append(struct.pack(f"<4B{len(i.shape)}I", OPCODES[i.op], len(i.shape), len(i.operands), 0, *i.shape))
        for x in i.operands:
            if isinstance(x, View):
                parts.append(struct.pack(f"<BBHq{len(x.strides)}q", 1, len(x.terms), x.memory, x.base, *x.strides))
                parts += [struct.pack("<BBHq", t.loop, 0, t.modulo, t.step) for t in x.terms]
            else:
                parts.append(struct.pack("<BBHf", 0, 0, 0, x))
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, format: str) -> tuple[int, ...]:
        size = struct.calcsize("<" + format)
        if self.at + size > len(self.data):
            raise fault(f"it ends after {len(self.data)} bytes, in the middle of an instruction")
        values = struct.unpack_from("<" + format, self.data, self.at)
        self.at += size
        return values


def decode(data: bytes) -> Kernel:
    """The kernel of a binary form. Raises ExecutionError for whatever is not as the module says."""
    r = _Reader(data)
    if data[:4] != MAGIC:
        raise fault(f"it begins with {data[:4]!r}, not with {MAGIC!r}")
    _, version, parameters, *numbers = r.take("4sHH4II")
    if version != VERSION:
        raise ExecutionError(
            f"the npu's code is of version {version}",
            why=f"this device runs version {VERSION}",
            hint="compile the model again",
        )
    code = []
    for number in range(numbers[4]):
        opcode, rank, count, zero = r.take("4B")
        if opcode >= len(_NAMES) or zero:
            raise fault(
                f"there is no opcode {opcode}" if not zero else "a reserved field is not 0", f"instruction {number}"
            )
        name = _NAMES[opcode]
        op = OPS[name]
        if rank not in op.ranks or count != len(op.where):
            raise fault(f"{name} with {rank} dimension(s) and {count} operand(s)", f"instruction {number}")
        shape = r.take(f"{rank}I")
        operands = tuple(_decode_operand(r, len(axes(op, k, rank)), number) for k in range(count))
        code.append(Instruction(name, shape, operands))
    if r.at != len(data):
        raise fault(f"{len(data) - r.at} bytes follow the last instruction")
    kernel = Kernel(parameters, (numbers[0], numbers[1], numbers[2], numbers[3]), tuple(code))
    verify(kernel)
    return kernel


def _decode_operand(r: _Reader, dims: int, number: int) -> View | float:
    kind, terms, memory = r.take("BBH")
    if kind == 0 and not terms and not memory:
        return float(r.take("f")[0])
    if kind != 1:
        raise fault(f"an operand is of kind {kind}", f"instruction {number}")
    base, *strides = r.take(f"q{dims}q")
    found = []
    for _ in range(terms):
        loop, zero, modulo, step = r.take("BBHq")
        if zero:
            raise fault("a reserved field is not 0", f"instruction {number}")
        found.append(Term(loop, step, modulo))
    return View(memory, base, tuple(strides), tuple(found))


# -- text
# ---------------------------------------------------------------------------------------------------------------


def disassemble(kernel: Kernel) -> str:
    """A kernel as text, an instruction a line."""
    lines = [
        f"kernel parameters={kernel.parameters} " + " ".join(f"{n}={b}" for n, b in zip(MEMORIES, kernel.memories))
    ]
    depth = 0
    for i in kernel.code:
        depth -= i.op == "end"
        words = [i.op] + (["x".join(map(str, i.shape))] if i.shape else [])
        lines.append(
            "  " * (depth + 1)
            + " ".join(words)
            + ("  " + ", ".join(map(_print_operand, i.operands)) if i.operands else "")
        )
        depth += i.op == "loop"
    return "\n".join(lines) + "\n"


def _print_operand(x: View | float) -> str:
    if not isinstance(x, View):
        return repr(x)
    terms = "".join(f" + {t.step}*i{t.loop}" + (f"%{t.modulo}" if t.modulo else "") for t in x.terms)
    return f"{_memory(x.memory)}[{x.base}{terms}; {' '.join(map(str, x.strides))}]"


_VIEW = re.compile(r"(\w+)\[(-?\d+)((?: \+ -?\d+\*i\d+(?:%\d+)?)*); ((?:-?\d+ ?)*)\]")
_TERM = re.compile(r" \+ (-?\d+)\*i(\d+)(?:%(\d+))?")


def assemble(text: str) -> Kernel:
    """The kernel of a text as `disassemble` writes it; `#` starts a comment. Raises ExecutionError that names the
    line."""
    lines = list(_lines(text))
    head = re.fullmatch(
        r"kernel parameters=(\d+) " + " ".join(rf"{n}=(\d+)" for n in MEMORIES), lines[0][1] if lines else ""
    )
    if head is None:
        raise fault(
            "the first line does not read 'kernel parameters=… activations=… weights=… accumulators=… vectors=…'"
        )
    parameters, *memories = map(int, head.groups())
    code = []
    for number, line in lines[1:]:
        words = line.split(None, 2)
        shape: tuple[int, ...] = ()
        if len(words) > 1:
            if not re.fullmatch(r"\d+(x\d+)*", words[1]):
                raise fault(f"'{words[1]}' is no shape", f"line {number}: {line}")
            shape = tuple(map(int, words[1].split("x")))
        operands = (
            tuple(_parse_operand(w.strip(), f"line {number}: {line}") for w in words[2].split(","))
            if len(words) > 2
            else ()
        )
        code.append(Instruction(words[0], shape, operands))
    kernel = Kernel(parameters, (memories[0], memories[1], memories[2], memories[3]), tuple(code))
    verify(kernel)
    return kernel


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.partition("#")[0].strip()
        if line:
            yield number, line


def _parse_operand(word: str, where: str) -> View | float:
    found = _VIEW.fullmatch(word)
    if found is None:
        try:
            return float(word)
        except ValueError:
            raise fault(f"'{word}' is no operand", where) from None
    name, base, terms, strides = found.groups()
    if name in MEMORIES:
        memory = MEMORIES.index(name)
    elif re.fullmatch(r"p\d+", name):
        memory = DRAM + int(name[1:])
    else:
        raise fault(f"there is no memory '{name}'", where)
    parsed = tuple(Term(int(loop), int(step), int(modulo or 0)) for step, loop, modulo in _TERM.findall(terms))
    return View(memory, int(base), tuple(map(int, strides.split())), parsed)


def listing(kernels: Sequence[tuple[str, Kernel]]) -> str:
    """Several kernels as text."""
    return "\n".join(f"# {name}\n{disassemble(kernel)}" for name, kernel in kernels)
