"""Kernels as C text, compiled as strictly as compilers can be asked to and called in this process."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.expr.evaluate import evaluate
from weft.loop.nodes import Program
from weft_c.dialect import C
from weft_c.toolchain import compiler, default_command
from weft_c_family import Emitted, Emitter
from weft_interpreter.calls import sentinel

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-ffp-contract=off", "-O1")
UNDEFINED = ("-fsanitize=undefined", "-fsanitize=float-cast-overflow")
"""What is undefined is said on stderr, where the sanitizer's library is."""


def command() -> tuple[str, ...]:
    return compiler(default_command(), "c99", "1", None).command


def sanitizes() -> bool:
    """Whether the compiler comes with the sanitizer's library."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.c").write_text("int f(int x) { return x + 1; }\n")
        done = subprocess.run(
            [*command(), *UNDEFINED, "-shared", "-fPIC", "k.c", "-o", "k.so"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            return False
        try:
            ctypes.CDLL(str(Path(folder) / "k.so"))
        except OSError:
            return False
        return True


def build(emitted: Sequence[Emitted], *options: str) -> ctypes.CDLL:
    """The texts in one library. Fails with what the compiler says."""
    folder = tempfile.mkdtemp(prefix="weft-c-test-")
    try:
        files = []
        for k, e in enumerate(emitted):
            files.append(f"k{k}.c")
            (Path(folder) / files[-1]).write_text(e.source)
        done = subprocess.run(
            [*command(), *STRICT, *options, "-shared", "-fPIC", *files, "-lm", "-o", "k.so"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(Path(folder) / "k.so"))
    finally:
        shutil.rmtree(folder)


def kernel(program: Program, *options: str) -> Callable[..., dict[str, Any]]:
    """The program as a function of inputs and dims; what is never stored holds the interpreter's sentinel."""
    emitted = Emitter(C).emit(program)
    function = getattr(build([emitted], *options), emitted.symbol)

    def call(inputs: Sequence[Any], dims: dict[str, int] | None = None, threads: int = 0) -> dict[str, Any]:
        dims = dims or {}
        outputs = {
            b.name: np.full([int(evaluate(n, dims)) for n in b.shape], sentinel(b.dtype), b.dtype.numpy)
            for b in program.outputs
        }
        scratch = [np.empty(max(64, int(evaluate(n, dims))), np.uint8) for n in emitted.scratch]
        arrays = [np.ascontiguousarray(a) for a in (*inputs, *outputs.values(), *scratch)]
        buffers = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
        sizes = (ctypes.c_int64 * max(1, len(program.dims)))(*(dims[d.name] for d in program.dims))
        assert function(None, buffers, sizes) == 0
        return outputs

    return call
