"""Programs of phases as CUDA's and Metal's text, run by threads that wait for each other: as interpreted, and not
without any of their barriers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.c.dialects import CUDA as PLAIN_CUDA
from tests.c.dialects import METAL as PLAIN_METAL
from tests.c.dialects import OPENCL as PLAIN_OPENCL
from tests.gpu.shim import shims
from tests.gpu.test_grids import EXAMPLES, inputs_of, run

from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_c_family import Dialect
from weft_cuda.dialect import CUDA
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.passes import grid_passes
from weft_testing.plugin import resolve_target

SIZE = 3
"""The value of `n`."""
BARRIERS = {
    "cuda": "__syncthreads();",
    "metal": "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
}


def codegen_of(language: str) -> Any:
    return GpuCodegen(CUDA) if language == "cuda" else resolve_target("metal -family=apple7").codegen()


def without(kernel: Kernel, line: str, k: int) -> Kernel:
    """The kernel, of one launch, without its k-th barrier."""
    (launch,) = kernel.launches
    pieces = launch.code.decode().split(line)
    text = ";".join([line.join(pieces[: k + 1]), line.join(pieces[k + 1 :])])
    return Kernel(kernel.name, (replace(launch, code=text.encode()),))


def arrays_of(program: Program) -> list[Any]:
    outputs = [np.zeros([getattr(d, "value", SIZE) for d in b.shape], b.dtype.numpy) for b in program.outputs]
    return [shims.guarded(a) for a in (*inputs_of(program, SIZE), *outputs)]


@pytest.fixture(scope="module", params=sorted(BARRIERS))
def texts(request: Any) -> Iterator[tuple[str, dict[tuple[str, int], Kernel], Any]]:
    """The language, its kernels (example, barrier that is gone, −1: none), and their library."""
    language = request.param
    codegen, line = codegen_of(language), BARRIERS[request.param]
    kernels: dict[tuple[str, int], Kernel] = {}
    for name, (text, count) in EXAMPLES.items():
        code = codegen.compile(lower_program(parse_program(text), codegen.functions, extra=grid_passes()))
        whole = kernels[name, -1] = Kernel.from_bytes(code.object, code.name)
        assert whole.launches[0].code.decode().count(line) == count
        kernels |= {(name, k): without(whole, line, k) for k in range(count)}
    yield language, kernels, shims.library(language, kernels.values())


def computed(texts: Any, key: tuple[str, int], seed: int) -> bool:
    """Whether the text gives what the program means, by threads in this order."""
    language, kernels, library = texts
    program = parse_program(EXAMPLES[key[0]][0])
    arrays = arrays_of(program)
    shims.run(kernels[key], language, arrays, [SIZE] if program.dims else [], libraries=library, seed=seed)
    want = run(program, inputs_of(program, SIZE), SIZE)
    return all(
        np.array_equal(got.reshape(-1), want[b.name]) for b, got in zip(program.outputs, arrays[len(program.inputs) :])
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_compute_what_programs_mean(texts: Any, name: str) -> None:
    assert all(computed(texts, (name, -1), seed) for seed in range(4))


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, (_, count) in EXAMPLES.items() for k in range(count)])
def test_a_barrier_that_is_gone_is_missed(texts: Any, name: str, k: int) -> None:
    assert not all(computed(texts, (name, k), seed) for seed in range(6))


@pytest.mark.parametrize("dialect", [PLAIN_CUDA, PLAIN_OPENCL, PLAIN_METAL], ids=lambda d: d.name)
@pytest.mark.parametrize("name", EXAMPLES)
def test_plain_tables_say_it_too(dialect: Dialect, name: str) -> None:
    """A table without a plugin: one launch, its barriers, and each shared buffer declared once, at the top."""
    codegen = GpuCodegen(dialect)
    program = lower_program(parse_program(EXAMPLES[name][0]), codegen.functions, extra=grid_passes())
    if name == "shuffled" and "shuffle_xor" not in dialect.intrinsics:
        assert codegen.check(program) == ["intrinsic shuffle_xor"]
        return
    assert codegen.check(program) == []
    text = codegen.source(program)
    assert text.count(dialect.barrier) == EXAMPLES[name][1]
    assert text.count("float sa[128]") == (name == "product")
