"""Programs → objects through LLVM: emission here, compilation in the worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from weft.codegen.base import KernelCode
from weft.expr.evaluate import evaluate
from weft.loop.math_tables import ROUNDED_TWICE
from weft_llvm.emitter import FUNCTIONS, Emitted, Emitter
from weft_llvm.target import Isa

if TYPE_CHECKING:
    from weft.expr.nodes import Expr
    from weft.loop.nodes import Program
    from weft_llvm.toolchain import Cpu, JitKernel
    from weft_llvm.workers import Workers


class LlvmCodegen:
    """A Codegen.

    Args:
        isa: what to compile for.
        workers: where `submit` compiles; by default the process-wide pool, which starts on first use.
        intrinsics: name → function that emits an IntrinsicCall, see Emitter.
    """

    def __init__(
        self, isa: Isa, workers: Workers | None = None, intrinsics: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.isa = isa
        self.functions = FUNCTIONS if "fma" in isa.has else FUNCTIONS | {ROUNDED_TWICE}
        self._workers = workers
        self._intrinsics = intrinsics

    @property
    def cpu(self) -> Cpu:
        from weft_llvm.toolchain import Cpu

        return Cpu(self.isa.triple, self.isa.cpu, self.isa.features, self.isa.opt)

    def check(self, program: Program) -> list[str]:
        return Emitter(self.isa, self._intrinsics).check(program)

    def emit(self, program: Program, checked: bool = False) -> Emitted:
        """The LLVM IR of `program`, before any optimisation. `checked`: `check` has found nothing wrong with it."""
        # An emitter holds the state of one emission; several threads may share this object.
        return Emitter(self.isa, self._intrinsics).emit(program, checked=checked)

    def source(self, program: Program) -> str:
        return self.emit(program).ir

    def assembly(self, program: Program) -> str:
        from weft_llvm.toolchain import compile_assembly

        return compile_assembly(self.emit(program).ir, self.cpu)

    def compile(self, program: Program) -> KernelCode:
        """In this process, one at a time: LLVM holds one lock."""
        from weft_llvm.toolchain import compile_object

        emitted = self.emit(program)
        return KernelCode(program.name, compile_object(emitted.ir, self.cpu), emitted.scratch, emitted.parallel)

    def submit(self, program: Program) -> Future[KernelCode]:
        """In a worker process."""
        from weft_llvm.workers import default_workers

        emitted = self.emit(program, checked=True)
        result: Future[KernelCode] = Future()

        def done(code: Future[bytes]) -> None:
            error = code.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(KernelCode(program.name, code.result(), emitted.scratch, emitted.parallel))

        (self._workers or default_workers()).submit(emitted.ir, self.cpu, program.name).add_done_callback(done)
        return result

    def jit(self, program: Program, code: KernelCode | None = None) -> JitKernel:
        """`program` compiled (unless `code` is given) and linked into this process, for tests and measurements."""
        from weft_llvm.toolchain import JitKernel

        code = code or self.compile(program)
        return JitKernel(code.name, code.object, [_sizer(s) for s in code.scratch], [d.name for d in program.dims])


def _sizer(size: Expr) -> Callable[[Mapping[str, int]], int]:
    return lambda env: int(evaluate(size, env))


def jit(program: Program, options: str = "") -> JitKernel:
    """`program` (lowered) compiled for this machine: kernel(arrays, dims, threads=0) → 0."""
    from weft.target import parse_target
    from weft_llvm.target import LlvmTarget

    kind = LlvmTarget()
    codegen = kind.codegen(parse_target(f"llvm {options}".strip(), [kind]))
    assert isinstance(codegen, LlvmCodegen)
    return codegen.jit(program)
