"""Programs → C → object files."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

from weft.codegen.base import KernelCode
from weft.forks import per_process
from weft.loop.nodes import Program
from weft_c.dialect import MODEL, C
from weft_c.model_text import KernelText
from weft_c.toolchain import Compiler
from weft_c_family import Emitter


@per_process
def _threads() -> ThreadPoolExecutor:
    """They wait for compilers, which are processes."""
    return ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1)), thread_name_prefix="weft-c")


class CCodegen:
    """A Codegen."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.emitter = Emitter(C)
        self.functions = self.emitter.functions

    def check(self, program: Program) -> list[str]:
        return self.emitter.check(program)

    def source(self, program: Program) -> str:
        """The C text of a lowered Program."""
        return self.emitter.emit(program).source

    def compile(self, program: Program) -> KernelCode:
        return self.submit(program).result()

    def submit(self, program: Program) -> Future[KernelCode]:
        emitted = self.emitter.emit(program)
        return _threads().submit(
            lambda: KernelCode(program.name, self.compiler.object(emitted.source, emitted.name), emitted.scratch)
        )


class TextCodegen:
    """A Codegen of the profiles whose code is C text."""

    def __init__(self) -> None:
        self.emitter = Emitter(MODEL)
        self.functions = self.emitter.functions

    def check(self, program: Program) -> list[str]:
        return self.emitter.check(program)

    def source(self, program: Program) -> str:
        """The C text of a lowered Program."""
        return self.emitter.emit(program).source

    def compile(self, program: Program) -> KernelCode:
        emitted = self.emitter.emit(program)
        return KernelCode(program.name, KernelText.of(emitted).bytes(), emitted.scratch)

    def submit(self, program: Program) -> Future[KernelCode]:
        done: Future[KernelCode] = Future()
        done.set_result(self.compile(program))
        return done
