"""The board of tests/mixed with one defect each, by name: what the conformance kit must find."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tests.mixed.board import Anything, Board, Interpreter, Text

from weft import dtypes as dt
from weft.codegen.base import KernelCode
from weft.expr.nodes import const
from weft.graph.nodes import Graph
from weft.loop.nodes import Program, Stmt, int_const, seq
from weft.machine import Machine
from weft.passes.capabilities import Capabilities
from weft.passes.place import Refuse, Take
from weft.scheduling import Intrinsic, Operand, OperandView
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in
from weft.target import Target, TargetKind
from weft.tensor import language as tl
from weft_ops import Identity
from weft_runtime.arrays import Array
from weft_runtime.device import Memory, Slice

OPS = "MatMul,Add,Relu,Multiply,ReduceSum"

# -- devices ----------------------------------------------------------------------------------------------------------


class Altered(Interpreter):
    """Kernels whose result is changed before anybody sees it."""

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        program: Program = module[kernel]
        before = [self._bytes(b).copy() for b in buffers]
        super().launch(module, kernel, buffers, dims)
        for k, b in enumerate(program.params):
            if b in program.outputs:
                size = buffers[k].bytes
                view = self._bytes(buffers[k])[: size - size % b.dtype.numpy.itemsize].view(b.dtype.numpy)
                self.alter(program, buffers[k], view, before[k].view(b.dtype.numpy))

    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        raise NotImplementedError


class WrongResult(Altered):
    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        if "relu" in program.name:
            result[...] = result + np.ones(1, result.dtype)


class WrongTail(Altered):
    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        if result.size % 4:
            result[-1] = 0


class IgnoresReset(Altered):
    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        if "matmul" in program.name:
            result[...] = result + before


class WritesBeyond(Altered):
    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        end = place.offset + place.bytes
        place.memory.handle[end : end + 16] = 0


class Noisy(Altered):
    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        if result.dtype == np.float32:
            result[...] = result * (1 + np.float32(np.random.default_rng().integers(0, 3)) * np.finfo(np.float32).eps)


class Slow(Interpreter):
    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        time.sleep(0.3)
        super().launch(module, kernel, buffers, dims)


class IgnoresOffsets(Interpreter):
    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        super().launch(module, kernel, [dataclasses.replace(b, offset=0) for b in buffers], dims)


class FailsSilently(Interpreter):
    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        with contextlib.suppress(Exception):
            super().launch(module, kernel, buffers, dims)


class DiesOfErrors(Interpreter):
    dead = False

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        if self.dead or kernel not in module:
            self.dead = True
            raise RuntimeError("the board hangs")
        super().launch(module, kernel, buffers, dims)


class Leaks(Interpreter):
    def _give_back(self, size: int) -> None:
        pass


class NeverFull(Interpreter):
    @property
    def free(self) -> int:
        return self.capacity


class PromisesMemory(Interpreter):
    def reserve(self, size: int) -> Memory:
        return self.allocate(size) if size <= self.free else Memory(size, np.zeros(self.free, np.uint8))


class SmallerThanItSays(Interpreter):
    """Has a MiB and says 64: what lies beyond begins at the start again."""

    def allocate(self, size: int) -> Memory:
        memory = super().allocate(min(size, 1 << 20))
        self._used += max(0, size - (1 << 20))
        return Memory(size, memory)

    def _bytes(self, s: Slice) -> Array:
        held: Array = s.memory.handle.handle
        at = s.offset % held.size
        return held[at : at + s.bytes]


class BakesSizes(Interpreter):
    """Sizes of symbols are those of a kernel's first launch."""

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Program]:
        self.first: dict[str, Sequence[int]] = {}
        return super().load(image, entries)

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        super().launch(module, kernel, buffers, self.first.setdefault(kernel, list(dims)))


class StaleInputs(Interpreter):
    """A second write to the same place is taken for the first once more."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, set[tuple[int, int]]] = {}

    def allocate(self, size: int) -> Memory:
        memory = super().allocate(size)
        self.written[id(memory)] = set()
        weakref.finalize(memory, self.written.pop, id(memory))
        return memory

    def write(self, target: Slice, data: Array) -> None:
        known, place = self.written[id(target.memory)], (target.offset, target.bytes)
        if place not in known:
            super().write(target, data)
        known.add(place)


class DirtyPadding(Altered):
    """Channels that fill a block up are left as they are in memory, where zeros belong."""

    def alter(self, program: Program, place: Slice, result: Array, before: Array) -> None:
        if program.name.startswith("conv") and result.size % 4 == 0:
            last, old = result.reshape(-1, 4)[-16:], before.reshape(-1, 4)[-16:]  # pixels of the last block
            empty = (last == 0).all(0)
            last[:, empty] = old[:, empty]


class ShortQueue(Interpreter):
    """Launches wait in a queue that has four places, and nobody says when it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[tuple[Any, str, Sequence[Slice], Sequence[int]]] = []

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        module[kernel]
        if len(self.queue) < 4:
            self.queue.append((module, kernel, buffers, dims))

    def synchronize(self) -> None:
        waiting, self.queue = self.queue, []
        for arguments in waiting:
            super().launch(*arguments)


class FewKernels(Interpreter):
    """Has room for four kernels of a section: a further one does nothing."""

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Program]:
        programs = super().load(image, entries)
        return {
            name: p if k < 4 else dataclasses.replace(p, body=seq()) for k, (name, p) in enumerate(programs.items())
        }


# -- rules and code ---------------------------------------------------------------------------------------------------


class Crashes(Anything):
    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        if any(b.annotation("op") == "Multiply" for b in blocks_in(program.body)):
            raise KeyError("Multiply")
        return super().offer(program, machine)


class LacksHalf(Text):
    def check(self, program: Program) -> list[str]:
        return [f"buffer {b.name} is float16" for b in program.params if b.dtype.name == "float16"]


class HashOrder(Text):
    """Code with a comment in the order of a set."""

    def compile(self, program: Program) -> KernelCode:
        return KernelCode(
            program.name, f"{program}\n# {' '.join({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})}\n".encode()
        )


class Stamped(Text):
    """Code with the time in it."""

    def compile(self, program: Program) -> KernelCode:
        return KernelCode(program.name, f"{program}\n# {time.perf_counter_ns()}\n".encode())


@dataclass
class Unrolled(Text):
    unroll: int

    def compile(self, program: Program) -> KernelCode:
        return KernelCode(program.name, f"{program}\n# unrolled by {self.unroll}\n".encode())


def disagreeing() -> Intrinsic:
    """Adds one too much."""
    a = tl.placeholder((4,), name="A")
    c = tl.compute((4,), lambda i: a[i] * 2.0, name="C", axes=["i"])

    def code(x: OperandView, y: OperandView) -> Stmt:
        return seq(*(y.store(x[i] * 2.0 + 1.0, i) for i in range(4)))

    return Intrinsic("double4", meaning=c, operands=(Operand("A"), Operand("C")), compute=code)


TILE = 4


def product() -> Intrinsic:
    """A product of matrices of 4 × 4, in code that is plain stores."""
    k = tl.reduce_axis(TILE, "k")
    a, b = tl.placeholder((TILE, TILE), name="A"), tl.placeholder((TILE, TILE), name="B")
    c = tl.compute((TILE, TILE), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), name="C")

    def term(x: OperandView, y: OperandView, i: int, j: int) -> Any:
        return x[i, 0] * y[0, j] + x[i, 1] * y[1, j] + x[i, 2] * y[2, j] + x[i, 3] * y[3, j]

    def stores(value: Callable[[int, int], Any], z: OperandView) -> Stmt:
        return seq(*(z.store(value(i, j), i, j) for i in range(TILE) for j in range(TILE)))

    return Intrinsic(
        "product4",
        meaning=c,
        operands=tuple(Operand(name, strides=(None, 1)) for name in "ABC"),
        compute=lambda x, y, z: stores(lambda i, j: term(x, y, i, j), z),
        reset=lambda z: stores(lambda i, j: const(0.0, dt.float32), z),
        update=lambda x, y, z: stores(lambda i, j: z[i, j] + term(x, y, i, j), z),
    )


class Tiled(Rule):
    """Products whose sizes are multiples of four, by the instruction."""

    name = "tiled"
    priority = 10

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        blocks = blocks_in(program.body)
        sizes = (
            [int_const(i.extent) for i in blocks[0].iters] if [b.annotation("op") for b in blocks] == ["MatMul"] else []
        )
        if len(sizes) != 3 or any(b.dtype != dt.float32 for b in program.params):
            return Decline("no_product", "it is not one product of matrices of float32")
        return (
            Offer(1.0)
            if all(n and n % TILE == 0 for n in sizes)
            else Decline("size", "its sizes are not multiples of 4")
        )

    def apply(self, s: Schedule) -> None:
        (name,) = s.blocks()
        outer, inner = zip(*(s.split(loop, [None, TILE]) for loop in s.loops(name)), strict=True)
        s.reorder(*outer, *inner)
        s.tensorize(inner[0], "product4")


class Asleep(Rule):
    """Offers for nothing."""

    name = "asleep"
    priority = 20

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        return Decline("asleep", "it is night")

    def apply(self, s: Schedule) -> None:
        raise AssertionError


class CountsCycles(Anything):
    """Offers cycles, not seconds."""

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        answer = super().offer(program, machine)
        return Offer(4000.0) if isinstance(answer, Offer) else answer


# -- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnrollOptions:
    ops: tuple[str, ...] = ()
    latency: int = 0
    unroll: int = 1


class ForgetsOption(Board):
    options: ClassVar[type] = UnrollOptions

    def codegen(self, target: Target) -> Text:
        return Unrolled(target.options.unroll)

    def fingerprint(self, target: Target) -> str:
        return "board"


class Restless(Board):
    def fingerprint(self, target: Target) -> str:
        return str(uuid.uuid4())


class OddMachine(Board):
    def machine(self, target: Target) -> Machine:
        return Machine("board", vector_bits=100, vector_registers=0, caches=(1 << 20, 1 << 10, 1 << 10))


def _with(codegen: type[Text]) -> type[Board]:
    class Other(Board):
        def codegen(self, target: Target) -> Text:
            return codegen()

    return Other


TARGETS: Mapping[str, type[Board]] = {
    "forgets_option": ForgetsOption, "restless_fingerprint": Restless, "odd_machine": OddMachine,
    "lacks_half": _with(LacksHalf),
    "hash_order": _with(HashOrder), "stamped": _with(Stamped),
}  # fmt: skip
DEVICES: Mapping[str, type[Interpreter]] = {
    "wrong_result": WrongResult, "wrong_tail": WrongTail, "ignores_reset": IgnoresReset, "writes_beyond": WritesBeyond,
    "noisy": Noisy, "slow": Slow,
    "ignores_offsets": IgnoresOffsets, "fails_silently": FailsSilently, "dies_of_errors": DiesOfErrors, "leaks": Leaks,
    "never_full": NeverFull,
    "promises_memory": PromisesMemory, "smaller_than_it_says": SmallerThanItSays, "bakes_sizes": BakesSizes,
    "stale_inputs": StaleInputs,
    "dirty_padding": DirtyPadding, "short_queue": ShortQueue, "few_kernels": FewKernels,
}  # fmt: skip


def target(defect: str) -> TargetKind:
    return TARGETS.get(defect, Board)()


def device(defect: str) -> Interpreter:
    return DEVICES.get(defect, Interpreter)()


def rules(defect: str, given: Target) -> list[Rule]:
    more = {"tiled": [Tiled()], "idle_rule": [Asleep()]}.get(defect, [])
    last = {"crashes": Crashes, "counts_cycles": CountsCycles}.get(defect, Anything)
    return [*more, last(given.options.ops)]


def mute(graph: Any) -> list[Take | Refuse]:
    """Offers that decline and do not say why."""
    return [Take((n,)) if type(n.op).__name__ == "Relu" else Refuse(n, "no", "") for n in graph.nodes]


def forget_relu(graph: Graph) -> Graph:
    """A pass that takes a ReLU behind an addition out, for the addition to do both; which it does not."""
    for node in graph.nodes:
        (value,) = node.inputs if len(node.inputs) == 1 else (None,)
        if (
            type(node.op).__name__ == "Relu"
            and value is not None
            and value.producer is not None
            and type(value.producer.op).__name__ == "Add"
        ):
            node.op = Identity()
    return graph


def blocks_of_four() -> Capabilities:
    """Channels in blocks of four."""
    return Capabilities(channel_block=4)
