"""The frontend without JAX: it imports nothing to say no, and says what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import weft
from weft.errors import FrontendError
from weft_stablehlo.plugin import StableHLOOptions, accepts, frontends, sniff

TEXT = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"


def test_nothing_is_imported_to_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)
    assert not accepts(object()) and not sniff(b"GGUF") and not sniff(b"")
    assert "jaxlib" not in sys.modules
    assert [f.suffixes for f in frontends()] == [(".mlir", ".mlirbc")]


def test_objects_are_recognised_by_their_class() -> None:
    for module, name, taken in (
        ("jax._src.stages", "Lowered", True),
        ("jax._src.export._export", "Exported", True),
        ("jaxlib.mlir._mlir_libs._mlir.ir", "Module", True),
        ("jax._src.stages", "Compiled", False),
        ("torch", "Module", False),
    ):
        assert accepts(type(name, (), {"__module__": module})()) == taken, (module, name)


def test_files_are_recognised_by_their_content() -> None:
    assert sniff(b"ML\xefR\rStableHLO_v1.0.0") and sniff(TEXT.encode()) and sniff(b"// x\nmodule @m {")
    assert not sniff(b"graph { }")


def test_a_size_is_not_negative() -> None:
    with pytest.raises(ValueError, match="gives 'n' the size -1"):
        StableHLOOptions(dims={"n": -1})


def test_jaxlib_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    path = tmp_path / "m.mlir"
    path.write_text(TEXT)
    with pytest.raises(FrontendError, match="MLIR, which is not installed") as caught:
        weft.load(path)
    assert 'pip install "weft-stablehlo[jax]"' in str(caught.value)
