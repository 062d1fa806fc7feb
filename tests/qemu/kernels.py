"""Single kernels of other machines under qemu-user: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tests.qemu import runner

from weft.expr.evaluate import evaluate
from weft.loop.nodes import Program
from weft.resolve import resolve_target
from weft_llvm import native
from weft_llvm.link import link
from weft_llvm.target import Isa
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime.abi import TENSOR

Array = np.ndarray[Any, Any]


def compiled(program: Program, target: str, cpu: str) -> Callable[..., dict[str, Array]]:
    """A lowered program as a function of inputs, dims and threads.

    Args:
        cpu: as qemu calls it.
    """
    resolved = resolve_target(target)
    kind: Any = resolved.kind
    isa: Isa = kind.isa(resolved.target)
    code = kind.codegen(resolved.target).compile(program)
    count = len(program.inputs), len(program.outputs) + len(code.scratch)

    def call(inputs: list[Array], dims: Mapping[str, int] | None = None, threads: int = 0) -> dict[str, Array]:
        assert threads == 0, "there is no pool"
        sizes = dims or {}
        outputs = [np.zeros([int(evaluate(n, sizes)) for n in b.shape], b.dtype.numpy) for b in program.outputs]
        scratch = [np.zeros(int(evaluate(s, {**sizes, "call.threads": 1})) + 64, np.uint8) for s in code.scratch]
        text = _segment(program.name, *count, [int(sizes[d.name]) for d in program.dims], isa)
        objects = {"run": compile_object(text, Cpu(isa.triple, isa.cpu, isa.features, 1)), "kernel": code.object}
        image = link({**objects, **native._helpers(objects, isa)})
        arrays = [np.asarray(a, b.dtype.numpy) for a, b in zip(inputs, program.inputs, strict=True)]
        entry = image.entries["run"]
        answer = runner.run(isa.machine, image.bytes, entry, [], arrays, [*outputs, *scratch], 64, cpu)
        assert (answer.code, answer.error) == (0, 0), answer
        return {b.name: a for b, a in zip(program.outputs, answer.outputs)}

    return call


def _segment(name: str, inputs: int, outputs: int, dims: list[int], isa: Isa) -> str:
    """A segment that hands the data of its tensors to a kernel, in order."""
    places = [("in", k) for k in range(inputs)] + [("out", k) for k in range(outputs)]
    lines = []
    for number, (table, k) in enumerate(places):
        lines += [
            f"%at{number} = getelementptr ptr, ptr %{table}, i32 {k}",
            f"%tensor{number} = load ptr, ptr %at{number}",
            f"%field{number} = getelementptr i8, ptr %tensor{number}, i32 {TENSOR.offsets(isa.pointer)['data']}",
            f"%data{number} = load ptr, ptr %field{number}",
            f"%slot{number} = getelementptr ptr, ptr %buffers, i32 {number}",
            f"store ptr %data{number}, ptr %slot{number}",
        ]
    for number, size in enumerate(dims):
        lines += [
            f"%dim{number} = getelementptr i64, ptr %dims, i32 {number}",
            f"store i64 {size}, ptr %dim{number}",
        ]
    body = "\n  ".join(lines)
    return f"""target datalayout = "{isa.data_layout}"
target triple = "{isa.triple}"
declare hidden i32 @"{name}"(ptr, ptr, ptr)
define i32 @run(ptr %ctx, ptr %in, ptr %out) nounwind {{
  %buffers = alloca [{max(1, len(places))} x ptr], align 16
  %dims = alloca [{max(1, len(dims))} x i64], align 16
  {body}
  %r = call i32 @"{name}"(ptr %ctx, ptr %buffers, ptr %dims)
  ret i32 %r
}}
"""
