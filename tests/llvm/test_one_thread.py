"""With -threads=1 no kernel forks: the segment needs no worker pool, and the manifest says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.codegen.base import in_one_thread
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import For, walk_stmts
from weft.resolve import resolve_target
from weft_llvm.emitter import Emitter
from weft_ops.activation import Relu
from weft_ops.contraction import MatMul
from weft_runtime.abi import OFFSETS
from weft_runtime.executable import Executable


def model(rows: object = 256) -> Graph:
    g = GraphBuilder("dense")
    x, w = g.input("x", tensor_type("float32", (rows, 64))), g.input("w", tensor_type("float32", (64, 128)))  # type: ignore[arg-type]
    g.output(g.add(Relu(), g.add(MatMul(), x, w)), "y")
    return g.build()


def run(executable: Executable, rows: int = 256) -> np.ndarray:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((rows, 64)).astype(np.float32), rng.standard_normal((64, 128)).astype(np.float32)
    result = executable.run({"x": x, "w": w})["y"]
    np.testing.assert_allclose(result, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)
    return result


def test_the_manifest_says_whether_there_is_a_pool() -> None:
    several, one = (weft.compile(model(), f"llvm -threads={n}", cache=False) for n in (2, 1))
    assert several.manifest.parallel and several.threads == 2
    assert not one.manifest.parallel and one.threads == 0 and one.manifest.threads == 1
    assert run(one).shape == run(several).shape


def test_kernels_of_one_thread_do_not_mention_parallel_for(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    emit = Emitter.emit

    def noted(self: Emitter, *arguments: object, **options: object) -> object:
        emitted = emit(self, *arguments, **options)  # type: ignore[arg-type]
        texts.append(emitted.ir)
        return emitted

    monkeypatch.setattr(Emitter, "emit", noted)
    asked = f"i8, ptr %ctx, i64 {OFFSETS['parallel_for']}\n"
    for threads, there in ((2, True), (1, False)):
        texts.clear()
        weft.compile(model(Var("n")), f"llvm -threads={threads}", cache=False)
        assert texts and any(asked in t for t in texts) == there


def test_no_pool_is_made(tmp_path: Path) -> None:
    weft.compile(model(), "llvm -threads=1", cache=False).save(tmp_path / "one.weft")
    code = (
        "import numpy as np\nfrom weft_runtime import Executable, threads\n"
        f"e = Executable.load({str(tmp_path / 'one.weft')!r}, threads=4)\n"
        "e.run({i.name: np.ones(i.shape, i.dtype) for i in e.inputs})\n"
        "assert e.threads == 0 and threads._pool is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_without_parallel_loops_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its kernel comes from the cache."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for name in ("first", "second"):
        g = GraphBuilder(name)
        g.output(g.add(Relu(), g.input("x", tensor_type("float32", (4,)))), "y")
        assert not weft.compile(g.build(), "llvm -threads=2").manifest.parallel
        assert weft.compile(model(), "llvm -threads=2").manifest.parallel


def test_code_for_one_thread_is_kept_apart() -> None:
    one, several = resolve_target("llvm -threads=1"), resolve_target("llvm -mtriple=aarch64-linux-gnu")
    assert one.fingerprint.endswith("/one thread") and not several.fingerprint.endswith("/one thread")


def test_loops_become_serial() -> None:
    from weft.compilation import Compilation

    target = resolve_target("llvm -threads=2")
    compilation = Compilation(target, cache=False)
    compilation.compile_kernels(compilation.optimize(model()))
    for kernel in compilation.kernels.values():
        assert kernel.lowered is not None
        kinds = {s.kind for s in walk_stmts(kernel.lowered.body) if isinstance(s, For)}
        assert "parallel" in kinds and target.taken(kernel.lowered) is kernel.lowered
        assert {s.kind for s in walk_stmts(in_one_thread(kernel.lowered).body) if isinstance(s, For)} == kinds - {
            "parallel"
        } | {"serial"}
