"""Runs one Program on a target, without a graph around it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.codegen.base import require
from weft.compilation import Compilation, Kernel
from weft.expr.nodes import Var
from weft.kernel import KernelSchedule, build
from weft.loop.nodes import Program
from weft.loop.pipeline import lower_program
from weft_runtime.device import open_device
from weft_testing.alone import launch
from weft_testing.conform.kit import Kit
from weft_testing.conform.usage import Counted

Array: TypeAlias = np.ndarray[Any, Any]


def run_kernel(kit: Kit, program: Program, inputs: Sequence[Array]) -> tuple[list[Array], Counted]:
    """A naive Program of constant sizes scheduled by the best rule of the target, compiled and run once: its results,
    and what did the work.

    Raises:
        ScheduleError: no rule takes it.
        CodegenError: the code generator lacks something that it uses.
    """
    one = Compilation(kit.target, cache=False)
    kernel = Kernel(f"{program.name}_{hashlib.sha256(str(program).encode()).hexdigest()[:10]}", program)
    one.schedule(kernel)
    assert kernel.scheduled is not None
    kernel.lowered = lower_program(kernel.scheduled, one.target.codegen().functions, extra=one.target.loop_passes())
    if kit.native:
        result = build(KernelSchedule(kernel.scheduled, kit.target))(*inputs)
        results = list(result) if isinstance(result, tuple) else [result]
    else:
        results = run_on_device(kit, kernel.scheduled, inputs)
    return results, kit.ledger.add(kernel, 1, {})


def runner(kit: Kit) -> Callable[[Program], Callable[[Mapping[str, Array]], Array]]:
    """What `check_intrinsic` runs programs with, on a device."""

    def make(program: Program) -> Callable[[Mapping[str, Array]], Array]:
        execute = compile_for_device(kit, program)
        return lambda arrays: execute([arrays[b.name] for b in program.inputs])[0]

    return make


def run_on_device(kit: Kit, program: Program, inputs: Sequence[Array]) -> list[Array]:
    """A scheduled Program compiled and launched once. Raises as `compile_for_device`."""
    return compile_for_device(kit, program)(inputs)


def compile_for_device(kit: Kit, program: Program) -> Callable[[Sequence[Array]], list[Array]]:
    """A scheduled Program compiled as a section of its own; what launches it once, its buffers between guards.

    Raises:
        CodegenError: it uses what the target lacks.
    """
    target = kit.target
    codegen = target.kind.codegen(target.target)
    lowered = lower_program(program, codegen.functions, extra=target.loop_passes())
    require(codegen, lowered, str(target.target))
    code = codegen.compile(lowered)
    section = target.kind.image(target.target, {code.name: code})

    def execute(inputs: Sequence[Array]) -> list[Array]:
        dims = {
            d.name: n for b, a in zip(program.inputs, inputs) for d, n in zip(b.shape, a.shape) if isinstance(d, Var)
        }
        with kit.watched() as watched:
            assert watched is not None
            device = open_device(watched.name)
            with device.lock:
                return launch(device, device.load(section.image, section.entries), code, program, inputs, dims)

    return execute
