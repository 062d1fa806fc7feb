"""A target for tests, "board": a device with memory of its own that interprets loop programs. It takes the operators
that its option names."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.codegen.base import KernelCode
from weft.expr.functions import FUNCTIONS
from weft.hooks import hookimpl
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.machine import Machine, Transfer
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in
from weft.target import Target, TargetKind
from weft_interpreter.interpret import interpret
from weft_runtime.arrays import Array
from weft_runtime.device import Device, DeviceKind, Memory, Slice
from weft_runtime.executable import NativeCode

launched: list[str] = []
"""Kernels that ran, by name."""


@dataclass(frozen=True)
class Options:
    ops: tuple[str, ...] = ()
    latency: int = 0  # microseconds


class Board(TargetKind):
    name: ClassVar[str] = "board"
    options: ClassVar[type] = Options

    def machine(self, target: Target) -> Machine:
        return Machine("board", vector_bits=128, vector_registers=16)

    def codegen(self, target: Target) -> Text:
        return Text()

    def device(self, target: Target) -> str:
        return "board"

    def transfer(self, target: Target) -> Transfer:
        return Transfer(target.options.latency * 1e-6)

    def image(self, target: Target, kernels: Mapping[str, KernelCode]) -> NativeCode:
        image, entries = b"", {}
        for name, code in kernels.items():
            entries[name] = len(image)
            image += code.object + b"\0"
        return NativeCode(image, entries, "board", "0")

    def fingerprint(self, target: Target) -> str:
        return str(target)


class Text:
    functions = frozenset(FUNCTIONS)

    def check(self, program: Program) -> list[str]:
        return []

    def compile(self, program: Program) -> KernelCode:
        return KernelCode(program.name, str(program).encode())

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done


class Anything(Rule):
    name = "anything"

    def __init__(self, ops: Sequence[str]) -> None:
        self.ops = ops

    def offer(self, program: Program, machine: Any) -> Offer | Decline:
        names = [b.annotation("composite") or b.annotation("op") for b in blocks_in(program.body)]
        foreign = [n for n in names if n not in self.ops]
        return Decline("operator", f"the board has no {foreign[0]}") if foreign else Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        pass


class Interpreter(Device):
    def __init__(self, capacity: int = 1 << 26) -> None:
        super().__init__("board")
        self._capacity, self._used = capacity, 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return self._capacity - self._used

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, np.full(size, 0xCD, np.uint8))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def _bytes(self, s: Slice) -> Array:
        return s.memory.handle[s.offset : s.offset + s.bytes]

    def write(self, target: Slice, data: Array) -> None:
        self._bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        data.reshape(-1).view(np.uint8)[...] = self._bytes(source)[: data.nbytes]

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Program]:
        return {name: parse_program(image[at : image.index(b"\0", at)].decode()) for name, at in entries.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        program: Program = module[kernel]
        env = {d.name: n for d, n in zip(program.dims, dims)}
        views = []
        for b, s in zip(program.params, buffers):
            shape = [int(d.value) if hasattr(d, "value") else int(_value(d, env)) for d in b.shape]
            count = int(np.prod(shape))
            views.append(self._bytes(s).view(b.dtype.numpy)[:count].reshape(shape))
        results = interpret(program, views[: len(program.inputs)], env)
        for view, result in zip(views[len(program.inputs) :], results.values()):
            view[...] = result
        launched.append(kernel)

    def synchronize(self) -> None:
        pass


def _value(e: Any, env: Mapping[str, int]) -> int:
    from weft.expr.evaluate import evaluate

    return int(evaluate(e, env))


@hookimpl
def targets() -> Sequence[TargetKind]:
    return [Board()]


@hookimpl
def schedules(target: Target) -> Sequence[Rule]:
    return [Anything(target.options.ops)] if target.kind == "board" else []


@hookimpl
def devices() -> Sequence[DeviceKind]:
    return [DeviceKind("board", lambda: None, Interpreter)]
