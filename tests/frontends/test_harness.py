"""The harness for frontends: what it compares, and what it says of a frontend that is wrong."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from weft.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.hooks import Frontend, hookimpl
from weft.plugins import host
from weft_ops import Add
from weft_testing import changed
from weft_testing.changed import change, changed_model, check_changed_bytes, files_beside, main, read_changed
from weft_testing.frontend import FrontendCase, check_frontend, compare
from weft_testing.structures import (
    _parsed,
    _written,
    changed_flatbuffer,
    changed_json,
    changed_message,
    changed_text,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled() -> Graph:
    builder = GraphBuilder("doubled")
    x = builder.input("x", tensor_type("float32", (Var("n"), 3)))
    builder.output(builder.add(Add(), x, x), "y")
    return builder.build()


def answer(inputs: Mapping[str, Any]) -> list[Any]:
    return [inputs["x"] * 2]


@pytest.mark.needs("weft_llvm")
def test_a_frontend_that_is_right() -> None:
    case = FrontendCase(doubled(), {"x": X}, answer, others=[{"x": X[:1]}, {"x": np.tile(X, (5, 1))}])
    graph, executable = check_frontend(case)
    assert executable is not None and graph.output_names == ["y"]
    assert check_frontend(case, target=None)[1] is None


def test_what_differs_is_said() -> None:
    def wrong(inputs: Mapping[str, Any]) -> list[Any]:
        return [np.where(inputs["x"] == 4, 9, inputs["x"] * 2).astype(np.float32)]

    with pytest.raises(AssertionError) as caught:
        check_frontend(FrontendCase(doubled(), {"x": X}, wrong))
    assert str(caught.value) == (
        "interpreted, output 'y': 1 of 6 elements differ, first at (1, 1): np.float32(8.0), the framework has"
        " np.float32(9.0)"
    )
    with pytest.raises(AssertionError, match="the framework's answer lacks y; it has z"):
        check_frontend(FrontendCase(doubled(), {"x": X}, lambda inputs: {"z": X}), target=None)
    with pytest.raises(AssertionError, match=r"shape \(2, 3\), the framework has \(1, 3\)"):
        check_frontend(FrontendCase(doubled(), {"x": X}, lambda inputs: [X[:1]]), target=None)
    with pytest.raises(AssertionError, match="dtype float32, the framework has float64"):
        check_frontend(FrontendCase(doubled(), {"x": X}, lambda inputs: [X.astype(np.float64)]), target=None)


def test_tolerances() -> None:
    want = {"y": np.array([1.0, 100.0, np.nan, np.inf], np.float32)}
    near = {"y": np.array([1.0001, 100.001, np.nan, np.inf], np.float32)}
    compare(near, want, "s")
    with pytest.raises(AssertionError, match="2 of 4 elements differ"):
        compare(near, want, "s", 0, 0)
    compare(want, want, "s", 0, 0)
    with pytest.raises(AssertionError, match="1 of 2 elements differ"):
        compare({"y": np.array([1, 2])}, {"y": np.array([1, 3])}, "s", 1, 1)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(AssertionError, match="1 of 1"):
            compare({"y": np.array([bad])}, {"y": np.array([1.0])}, "s")
    with pytest.raises(AssertionError, match="1 of 1"):
        compare({"y": np.array([1.0])}, {"y": np.array([np.inf])}, "s")


def model(path: Path) -> Path:
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy"]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", tensors[:1], tensors[1:], [weights])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    return path


def test_changed_models_are_refused_or_read(tmp_path: Path) -> None:
    assert check_changed_bytes(model(tmp_path / "m.onnx"), count=60) == 60


def test_changes_are_the_same_for_the_same_number(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")
    folder = tmp_path / "changed"
    folder.mkdir()
    first = [changed_model(path, 1, k, folder).read_bytes() for k in range(30)]
    assert first == [changed_model(path, 1, k, folder).read_bytes() for k in range(30)]
    assert len(set(first)) > 25 and first != [changed_model(path, 2, k, folder).read_bytes() for k in range(30)]


def test_members_of_archives_are_changed_with_their_checksum() -> None:
    sink = BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("config.json", b'{"units": 3}')
        archive.writestr("weights", bytes(4096))
    whole = different = 0
    for seed in range(40):
        data = change(sink.getvalue(), random.Random(seed))
        try:
            with zipfile.ZipFile(BytesIO(data)) as archive:
                different += archive.read("config.json") != b'{"units": 3}'
                whole += archive.testzip() is None
        except (zipfile.BadZipFile, ValueError, OSError):
            continue
    assert whole >= 25 and different >= 15


def test_folders_have_one_file_changed(tmp_path: Path) -> None:
    source, folder = tmp_path / "m", tmp_path / "changed"
    for path in (source, folder):
        path.mkdir()
    for k in range(3):
        (source / f"{k}").write_bytes(bytes(range(200)))
    for index in range(10):
        copy = changed_model(source, 1, index, folder)
        assert sum(p.read_bytes() != bytes(range(200)) for p in copy.iterdir()) <= 1


def test_files_beside_a_model_are_copied_and_changed(tmp_path: Path) -> None:
    source, folder = tmp_path / "m", tmp_path / "changed"
    (source / "weights").mkdir(parents=True)
    folder.mkdir()
    path = model(source / "m.onnx")
    proto = onnx.load(path)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(X[0], "w"))
    onnx.save(proto, path, save_as_external_data=True, location="weights/w.bin", size_threshold=0)
    beside = files_beside(path)
    assert beside == [source / "weights/w.bin"]
    (source / "other").write_text("no part of it")
    seen = []
    for index in range(30):
        copy = changed_model(path, 1, index, folder, beside)
        assert not (folder / "other").exists()
        seen.append([(folder / f).read_bytes() != (source / f).read_bytes() for f in ("m.onnx", "weights/w.bin")])
        assert copy == folder / "m.onnx"
    assert [True, False] in seen and [False, True] in seen and [True, True] not in seen
    assert check_changed_bytes(path, count=20) == 20


def test_large_files_are_changed_at_their_ends_as_well() -> None:
    data = bytes(1 << 20)
    places = []
    for seed in range(60):
        changed = change(data, random.Random(seed))
        places += [k for k, (a, b) in enumerate(zip(data, changed)) if a != b][:1]
    assert sum(place < 4096 for place in places) >= 5 and max(places) > 1 << 19


def test_changes_keep_the_form_of_a_file(tmp_path: Path) -> None:
    """JSON, messages, texts and FlatBuffers stay what they are, and say something else; other bytes are left alone."""
    message = model(tmp_path / "m.onnx").read_bytes()
    assert _written(_parsed(message, [1000]) or []) == message
    document = json.dumps({"nodes": [{"op": "null", "attrs": {"shape": "(1, 3)"}}, 4], "heads": [[0, 0]]}).encode()
    text, buffer = b"[net]\nwidth=16\n\n[pool]\nsize=2\n", b"\x10\0\0\0TFL3" + bytes(range(64))
    parsed = broken = 0
    for seed in range(200):
        for form, data in (
            (changed_json, document),
            (changed_message, message),
            (changed_text, text),
            (changed_flatbuffer, buffer),
        ):
            changed = form(data, random.Random(seed))
            assert changed is not None and changed == form(data, random.Random(seed))
            if form is changed_json:
                json.loads(changed)
            elif form is changed_message:
                try:
                    onnx.load_model_from_string(changed)
                    parsed += changed != message
                except DecodeError:  # a field has another number, or its text is no text
                    broken += 1
            else:
                assert form is changed_text or len(changed) == len(buffer)
    assert parsed > 5 * broken
    for form in (changed_json, changed_message, changed_text, changed_flatbuffer):
        assert form(b"\0\xff" * 40, random.Random(1)) is None
    assert changed_json(b"[1", random.Random(1)) is None and changed_message(text, random.Random(1)) is None


def test_native_code_that_takes_long_is_ended() -> None:
    code = (
        "import itertools\nfrom weft_testing import changed\nchanged.SECONDS = 1\n"
        "with changed._limits():\n    sum(itertools.repeat(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (-signal.SIGXCPU, 1) and "line 5" in done.stderr


class Careless:
    """A frontend that lets an exception out, one that says nothing, and one that never ends."""

    @hookimpl
    def frontends(self) -> list[Frontend]:
        def load(source: Any, options: Any) -> Graph:
            data = source.read_bytes()
            if data == b"fails":
                raise KeyError("units")
            if data == b"silent":
                raise FrontendError(" ")
            return doubled()

        return [Frontend("careless", (".careless",), lambda head: True, lambda model: False, load)]


def test_exceptions_of_a_frontend_are_findings(tmp_path: Path) -> None:
    host().register(Careless(), "careless")
    try:
        path = tmp_path / "m.careless"
        path.write_bytes(b"fails")
        assert "KeyError: 'units'" in str(read_changed(path))
        path.write_bytes(b"silent")
        assert read_changed(path) == "FrontendError without a text"
        path.write_bytes(b"good")
        assert read_changed(path) is None
    finally:
        host().unregister("careless")


def test_a_process_that_ends_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = tmp_path / "ends"
    script = r"""#!/bin/sh
case "$*" in
*"--child 0"*) echo begin 0; echo end 0; echo begin 1; echo killed >&2; exit 9 ;;
*) echo begin 2; printf '%s\n' 'found 2 two\nlines'; exit 0 ;;
esac
"""
    ends.write_text(script)
    ends.chmod(0o755)
    monkeypatch.setattr(changed.sys, "executable", str(ends))
    with pytest.raises(AssertionError) as caught:
        check_changed_bytes(tmp_path / "m", count=3)
    assert str(caught.value).startswith("2 of 3 changed files were not refused properly\n--- number 1 of seed 1\nthe")
    assert "the process ended with 9: killed" in str(caught.value) and str(caught.value).endswith("\ntwo\nlines")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model(tmp_path / "m.onnx")
    assert main([str(path), "--count", "5"]) == 0
    assert capsys.readouterr().out == "5 changed models, 0 finding(s)\n"
    assert main([str(path), "--again", "3"]) == 0
    assert capsys.readouterr().out == "refused properly, or read\n"
    with pytest.raises(ValueError, match="neither a count nor seconds are given"):
        check_changed_bytes(path)
