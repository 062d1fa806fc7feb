"""A model in the cache is found again only while the files that it refers to are the same."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import pipeline
from weft.runtime.cache import FOLDER


def save_with_external_data(folder: Path, weights: np.ndarray) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 30])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 40])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = folder / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_changed_external_data_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    weights = np.arange(1200, dtype=np.float32).reshape(30, 40)
    path = save_with_external_data(tmp_path, weights)
    x = np.ones((2, 30), np.float32)

    def run() -> tuple[np.ndarray, bool]:
        stages: list[str] = []
        executable = weft.compile(path, "llvm", on_stage=lambda s: stages.append(s.stage))
        return executable(x), "cache" in stages

    first, hit = run()
    np.testing.assert_allclose(first, x @ weights)
    assert not hit
    assert run()[1]
    (weights * 2 + 1).tofile(tmp_path / "weights.bin")
    second, hit = run()
    np.testing.assert_allclose(second, x @ (weights * 2 + 1))
    assert not hit


def test_an_entry_with_damaged_weights_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    weights = np.arange(1200, dtype=np.float32).reshape(30, 40)
    path = save_with_external_data(tmp_path, weights)
    x = np.ones((2, 30), np.float32)
    expected = weft.compile(path, "llvm")(x)
    (entry,) = (tmp_path / "cache" / FOLDER / "models").rglob("*.file")
    whole = entry.read_bytes()
    entry.unlink()  # not written over in place: an executable may have it mapped
    entry.write_bytes(whole.replace(weights[29, 39:].tobytes(), np.float32(7).tobytes()))
    assert entry.read_bytes() != whole
    for expected_stages in ({"load", "save"}, {"cache"}):
        stages: list[str] = []
        np.testing.assert_array_equal(weft.compile(path, "llvm", on_stage=lambda s: stages.append(s.stage))(x), expected)  # noqa: B023
        assert expected_stages <= set(stages)
    assert entry.read_bytes() == whole


def test_files_beside_a_model_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path = save_with_external_data(tmp_path, np.ones((30, 40), np.float32))
    weft.compile(path, "llvm")
    (tmp_path / "notes.txt").write_text("y")
    stages: list[str] = []
    weft.compile(path, "llvm", on_stage=lambda s: stages.append(s.stage))
    assert stages == ["cache"]


def test_what_a_large_model_refers_to_is_remembered_with_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(pipeline, "LARGE", 1)
    monkeypatch.setattr(pipeline, "SETTLED", -1.0)
    weights = np.ones((30, 40), np.float32)
    path = save_with_external_data(tmp_path, weights)
    target = pipeline.resolve_targets("llvm")
    first = pipeline.model_key(path, target, None, None)
    reader = pipeline.find_frontend(path)
    digest, files = pipeline._identify(path, reader, reader.options())
    assert files == [tmp_path / "weights.bin"]

    def unread(path: Path, options: object) -> list[Path]:
        raise AssertionError("read again")

    assert pipeline._identify(path, dataclasses.replace(reader, files=unread), reader.options()) == (digest, files)
    assert pipeline.model_key(path, target, None, None) == first
    (weights * 2).tofile(tmp_path / "weights.bin")
    os.utime(tmp_path / "weights.bin", ns=(1, 1))
    assert pipeline.model_key(path, target, None, None) != first


def test_what_is_strict_is_remembered_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path = save_with_external_data(tmp_path, np.ones((30, 40), np.float32))
    found: list[list[str]] = []
    for strict in (False, True, False, True):
        stages: list[str] = []
        weft.compile(path, "llvm -threads=1", strict=strict, on_stage=lambda s, into=stages: into.append(s.stage))  # type: ignore[misc]
        found.append(stages)
    assert [stages == ["cache"] for stages in found] == [False, False, True, True]
