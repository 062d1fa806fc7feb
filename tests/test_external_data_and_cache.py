"""A model in the cache is found again only while the files that it refers to are the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import pipeline
from weft.fingerprint import hash_file
from weft_runtime.cache import FOLDER


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
        again = weft.compile(path, "llvm", on_stage=lambda s: stages.append(s.stage))  # noqa: B023
        np.testing.assert_array_equal(again(x), expected)
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


def replaced_unseen(path: Path, data: bytes) -> None:
    """Other bytes of the same length, with the old times: what `cp -p`, archives and layers of images do."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("external", [True, False])
def test_the_content_of_weights_decides_not_their_size_and_time(
    external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    weights = np.arange(1200, dtype=np.float32).reshape(30, 40)
    path = save_with_external_data(tmp_path, weights)
    if not external:
        onnx.save(onnx.load(path), path, save_as_external_data=False)
    x = np.ones((2, 30), np.float32)
    np.testing.assert_allclose(weft.compile(path, "llvm")(x), x @ weights)
    file = tmp_path / "weights.bin" if external else path
    replaced_unseen(file, file.read_bytes().replace(weights.tobytes(), (weights * 2 + 1).tobytes()))
    np.testing.assert_allclose(weft.compile(path, "llvm")(x), x @ (weights * 2 + 1))


def test_weights_of_a_darknet_model_decide_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    cfg = tmp_path / "net.cfg"
    cfg.write_text(
        "[net]\nwidth=4\nheight=4\nchannels=1\n[convolutional]\nfilters=1\nsize=1\nstride=1\npad=1\nactivation=linear\n"
    )
    head = np.array([0, 2, 0], "<i4").tobytes() + np.array([0], "<i8").tobytes()
    weights = cfg.with_suffix(".weights")
    weights.write_bytes(head + np.array([0, 3], "<f4").tobytes())
    x = np.ones((1, 1, 4, 4), np.float32)

    def run(model: Path | bytes) -> float:
        return float(np.ravel(weft.compile(model, "llvm", frontend=f"darknet -weights={weights}")(x))[0])

    assert (run(cfg), run(cfg.read_bytes())) == (3, 3)
    replaced_unseen(weights, head + np.array([0, 5], "<f4").tobytes())
    assert (run(cfg), run(cfg.read_bytes())) == (5, 5)


def test_every_file_that_loading_reads_is_part_of_the_key(tmp_path: Path) -> None:
    """Wherever in a model a tensor is, and through a link to the model; what loading refuses is not read either."""
    folder = tmp_path / "real"
    folder.mkdir()

    def tensor(location: str) -> onnx.TensorProto:
        t = helper.make_tensor("t", TensorProto.FLOAT, [1], bytes(4), raw=True)
        onnx.external_data_helper.set_external_data(t, location)
        t.ClearField("raw_data")
        return t

    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor("branch.bin"))], "inner", [], [])
    node = helper.make_node("If", ["b"], ["y"], then_branch=inner)
    sparse = helper.make_sparse_tensor(tensor("sparse.bin"), helper.make_tensor("i", TensorProto.INT64, [1], [0]), [4])
    graph = helper.make_graph(
        [node], "g", [], [], [tensor("a.bin"), tensor("sub/b.bin"), tensor("../outside.bin"), tensor("/etc/passwd")]
    )
    graph.sparse_initializer.append(sparse)
    function = helper.make_function(
        "own", "F", [], ["y"], [helper.make_node("Constant", [], ["y"], value=tensor("function.bin"))], []
    )
    onnx.save(helper.make_model(graph, functions=[function]), folder / "m.onnx")
    (tmp_path / "m.onnx").symlink_to(folder / "m.onnx")
    expected = {folder / name for name in ("a.bin", "sub/b.bin", "branch.bin", "sparse.bin", "function.bin")}
    assert set(pipeline.model_files(folder / "m.onnx")) == {folder / "m.onnx"} | expected
    assert set(pipeline.model_files(tmp_path / "m.onnx")) == {tmp_path / "m.onnx"} | expected


def test_what_changes_while_it_is_compiled_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is of what was there before, the code of what came after."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    weights = np.arange(1200, dtype=np.float32).reshape(30, 40)
    path = save_with_external_data(tmp_path, weights)
    x = np.ones((2, 30), np.float32)
    load = pipeline.load

    def late(*args: object, **options: object) -> object:
        replaced_unseen(tmp_path / "weights.bin", (weights * 2).tobytes())
        return load(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "load", late)
        np.testing.assert_allclose(weft.compile(path, "llvm")(x), x @ weights * 2)
    replaced_unseen(tmp_path / "weights.bin", weights.tobytes())
    np.testing.assert_allclose(weft.compile(path, "llvm")(x), x @ weights)


def test_the_hash_of_a_file_sees_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = bytearray(np.random.default_rng(0).bytes((9 << 20) + 5))
    seen = set()
    for size in (0, 1, 4 << 20, (4 << 20) + 1, len(data)):
        path.write_bytes(data[:size])
        seen.add(hash_file(path))
    for at in (0, (4 << 20) - 1, 4 << 20, 8 << 20, len(data) - 1):
        data[at] ^= 1
        path.write_bytes(data)
        seen.add(hash_file(path))
    assert len(seen) == 10
    data[: 8 << 20] = data[4 << 20 : 8 << 20] + data[: 4 << 20]
    path.write_bytes(data)
    assert hash_file(path) not in seen


def test_what_is_strict_is_remembered_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path = save_with_external_data(tmp_path, np.ones((30, 40), np.float32))
    found: list[list[str]] = []
    for strict in (False, True, False, True):
        stages: list[str] = []
        weft.compile(path, "llvm -threads=1", strict=strict, on_stage=lambda s, into=stages: into.append(s.stage))  # type: ignore[misc]
        found.append(stages)
    assert [stages == ["cache"] for stages in found] == [False, False, True, True]
