"""Lowered Programs → kernels of one or several launches: divided, emitted in a dialect, compiled if the target has a
compiler, packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from weft.codegen.base import KernelCode
from weft.errors import CodegenError, LoopError
from weft.expr.nodes import Expr, Var, substitute
from weft.forks import per_process
from weft.loop.nodes import Program
from weft.machine import Machine
from weft_c_family import Dialect, Emitted, Emitter
from weft_gpu.bulk_copies import TensorMap
from weft_gpu.image import Kernel, Launch, Tensor
from weft_gpu.launches import Launches, Part, cut


@per_process
def _threads() -> ThreadPoolExecutor:
    """They wait for compilers, which are processes or let go of Python's lock."""
    return ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1)), thread_name_prefix="weft-gpu")


class GpuCodegen:
    """A Codegen and SourceCodegen of a language of C's family for grids of groups of threads.

    Args:
        dialect: the language.
        build: text of a launch → binary, called on threads; None keeps the text, in UTF-8.
        machine: whose limits programs must keep; None for any.
    """

    def __init__(
        self, dialect: Dialect, build: Callable[[str], bytes] | None = None, machine: Machine | None = None
    ) -> None:
        self.dialect, self.build, self.machine = dialect, build, machine
        self.emitter = Emitter(dialect)
        self.functions = self.emitter.functions

    def check(self, program: Program) -> list[str]:
        try:
            parts = cut(program).parts
        except (CodegenError, LoopError) as error:
            return [error.what + (f": {error.why}" if error.why else "")]
        return list(dict.fromkeys(line for part in parts for line in self.emitter.check(part.program)))

    def source(self, program: Program) -> str:
        """The texts of the launches, one after another."""
        return "\n".join(self._emitted(part).source for part in cut(program).parts)

    def compile(self, program: Program) -> KernelCode:
        return self.submit(program).result()

    def submit(self, program: Program) -> Future[KernelCode]:
        launches = cut(program)
        texts = [self._emitted(part) for part in launches.parts]
        if self.build is None:
            done: Future[KernelCode] = Future()
            done.set_result(_kernel(program, launches, texts, [x.source.encode() for x in texts]))
            return done
        build = self.build
        return _threads().submit(lambda: _kernel(program, launches, texts, [build(x.source) for x in texts]))

    def emitter_of(self, part: Part) -> Emitter:
        """Who writes a launch, for a language that writes some of them in another way."""
        return self.emitter

    def _emitted(self, part: Part) -> Emitted:
        emitted = self.emitter_of(part).emit(part.program)
        assert not emitted.scratch  # buffers that launches hand each other are parameters of theirs
        return emitted


def _kernel(program: Program, launches: Launches, texts: list[Emitted], codes: list[bytes]) -> KernelCode:
    names: dict[str, Expr] = {d.name: Var(f"d{k}", d.dtype) for k, d in enumerate(program.dims)}
    found = []
    for part, text, code in zip(launches.parts, texts, codes, strict=True):
        x, y, z = (str(substitute(n, names)) for n in part.grid)
        tensors = tuple(
            _tensor(t, [b.name for b in part.program.params]) for t in text.arguments if isinstance(t, TensorMap)
        )
        found.append(Launch(text.symbol, code, (x, y, z), part.group, part.buffers, part.dims, tensors))
    return KernelCode(program.name, Kernel(program.name, tuple(found)).to_bytes(), launches.scratch)


def _tensor(t: TensorMap, buffers: list[str]) -> Tensor:
    each = t.buffer.dtype.bytes
    return Tensor(buffers.index(t.buffer.name), each, t.extents, tuple(n * each for n in t.strides[1:]), t.sizes)
