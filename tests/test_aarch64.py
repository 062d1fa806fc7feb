"""Cross compilation for aarch64: it takes nothing of the host, and whole models give the right answers under qemu-user.
Operators' samples are in test_machines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.qemu.cross import TARGET, compile_cross, resolved

from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Program
from weft_ops.contraction import Conv, MatMul
from weft_runtime.executable import Executable
from weft_testing.models import picture, resnet18

# -- nothing of the host ----------------------------------------------------------------------------------------------


def test_target_takes_nothing_from_the_host() -> None:
    target = resolved()
    assert str(target.target) == "llvm -mcpu=cortex-a72 -mattr=+reserve-x18 -mtriple=aarch64-linux-gnu -threads=1"
    isa = target.kind.isa(target.target)  # type: ignore[attr-defined]
    assert (isa.triple, isa.cpu, isa.features) == ("aarch64-linux-gnu", "cortex-a72", "+reserve-x18")
    assert isa.has == {"fma", "f16c", "rounding", "neon"}
    machine = target.machine
    assert (machine.vector_bits, machine.vector_registers, machine.fma, machine.masked) == (128, 32, True, False)
    assert machine.caches == (32 << 10, 1 << 20, 1 << 20), "the caches of a cortex-a72, not those of this machine"


def matmul(m: int = 64, n: int = 96, k: int = 128) -> Graph:
    b = GraphBuilder("matmul")
    x = b.input("x", tensor_type("float32", (m, k)))
    weight = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    b.output(b.add(MatMul(), x, b.constant(weight, "w")))
    return b.build()


def convolution(channels: int = 32, size: int = 14) -> Graph:
    b = GraphBuilder("convolution")
    x = b.input("x", tensor_type("float32", (1, channels, size, size)))
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype(np.float32)
    b.output(b.add(Conv(pads=(1, 1, 1, 1)), x, b.constant(weight, "w")))
    return b.build()


def innermost_loops(assembly: str) -> Iterator[list[str]]:
    """The instructions from a label to a jump back to it, where no other loop lies between."""
    lines = [line.split("//")[0].strip() for line in assembly.splitlines()]
    labels: dict[str, int] = {}
    last = -1
    for at, line in enumerate(lines):
        if line.endswith(":"):
            labels[line[:-1]] = at
        jump = re.match(r"(?:b\.\w+|cbn?z|tbn?z|b)\b.*?(\.?L?[\w.$]+)$", line)
        if jump and jump[1] in labels and labels[jump[1]] > last:
            yield lines[labels[jump[1]] : at + 1]
            last = at


@pytest.mark.parametrize("graph", [matmul(), convolution()], ids=lambda g: g.name)
def test_inner_loops_are_vector_multiply_adds(graph: Graph) -> None:
    _, compilation = compile_cross(graph)
    codegen: Any = resolved().kind.codegen(resolved().target)
    found = []
    for kernel in compilation.kernels.values():
        assert isinstance(kernel.lowered, Program)
        text = codegen.assembly(kernel.lowered)
        assert not re.search(r"%[xyz]mm|\bvfmadd", text)
        for loop in innermost_loops(text):
            found.append(
                (
                    sum(bool(re.match(r"fmla\s+v\d+\.4s", i)) for i in loop),
                    sum(bool(re.match(r"(st[rp]|st1)\b.*\[sp", i)) for i in loop),
                )
            )
    count, spills = max(found, default=(0, 0))
    # 32 vector registers hold a tile of at least 16 accumulators.
    assert count >= 16, f"multiply-adds and spills by loop: {found}"
    assert spills == 0


@pytest.mark.needs("qemu")
@pytest.mark.parametrize("graph", [matmul(), convolution()], ids=lambda g: g.name)
def test_products(graph: Graph) -> None:
    (value,) = graph.inputs
    x = np.random.default_rng(1).standard_normal(value.shape).astype(np.float32)  # type: ignore[arg-type]
    (want,) = evaluate(graph, [x])
    linked, _ = compile_cross(graph)
    answer = linked.run([x], [want])
    assert answer.code == 0
    np.testing.assert_allclose(answer.outputs[0], want, rtol=0, atol=1e-5 * np.abs(want).max())


# -- a whole model ----------------------------------------------------------------------------------------------------


@pytest.mark.needs("qemu")
def test_resnet18(tmp_path: Path) -> None:
    """Real widths; smaller pictures, because the emulator is slow and the loops are the same."""
    graph = resnet18(size=64)
    x = picture(64)
    (want,) = evaluate(graph, [x])
    linked, _ = compile_cross(graph)
    answer = linked.run([x], [want])
    assert (answer.code, answer.error) == (0, 0), answer.error_args
    np.testing.assert_allclose(answer.outputs[0], want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_archive(tmp_path: Path) -> None:
    """A process of its own: that one has started no pool, so nothing but the foreign one could be called by mistake."""
    path = tmp_path / "model.weft"
    script = f"""
import weft
from weft_testing.models import resnet18
weft.compile(resnet18(size=64, width=16), {TARGET!r}, cache=False).save({str(path)!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    manifest = Executable.inspect(path)
    assert manifest.machine == "aarch64"
    assert manifest.features == ("fp-armv8", "neon")  # of the host's features, none
    assert manifest.target == "llvm -mcpu=cortex-a72 -mtriple=aarch64-linux-gnu -threads=1"
    if os.uname().machine != "aarch64":
        from weft.errors import ArchiveError

        with pytest.raises(ArchiveError, match=r"holds code for aarch64, this machine is"):
            Executable.load(path)
