"""Files, bytes and objects; weights in place; external data; what is no model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx.models import constant, info, model, run

import weft
from weft.errors import FrontendError, UnsupportedError
from weft_onnx import plugin
from weft_onnx.model_file import read_model
from weft_onnx.tensors import to_array
from weft_onnx.wire import mentions


def add_weights(rows: int = 64) -> onnx.ModelProto:
    weights = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [rows, 32])], ["y"], [constant("w", weights)])


def test_path_bytes_and_object_are_one_model(tmp_path: Path) -> None:
    proto = add_weights()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.ones((64, 32), np.float32)
    for source in (path, str(path), proto.SerializeToString(), bytearray(proto.SerializeToString()), proto):
        graph = weft.load(source)
        np.testing.assert_array_equal(run(graph, x), x + np.arange(64 * 32, dtype=np.float32).reshape(64, 32))


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_weights().SerializeToString())
    read = read_model(path)
    assert read.mapped["w"].nbytes == 64 * 32 * 4
    assert not read.proto.graph.initializer[0].HasField("raw_data")
    array = to_array(read.proto.graph.initializer[0], read.mapped["w"])
    assert not array.flags.writeable or array.flags.owndata


def test_weights_are_not_read_to_find_the_files_of_a_model(tmp_path: Path) -> None:
    """What names other files stands beside the weights."""
    proto, path = add_weights(), tmp_path / "m.onnx"
    weights = proto.graph.initializer[0]
    weights.raw_data = b"location" * (len(weights.raw_data) // 8)
    path.write_bytes(proto.SerializeToString())
    assert not mentions(path, b"location") and plugin.files(path, plugin.OnnxOptions()) == []
    for place in (proto.graph.node[0], weights):
        place.doc_string = "its location"
        path.write_bytes(proto.SerializeToString())
        assert mentions(path, b"location")
        place.ClearField("doc_string")
    other = proto.graph.initializer.add(
        name="v", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL
    )
    other.external_data.add(key="location", value="v.bin")
    path.write_bytes(proto.SerializeToString())
    assert plugin.files(path, plugin.OnnxOptions()) == [tmp_path / "v.bin"]


def test_importing_the_plugin_imports_no_framework() -> None:
    code = "import sys, weft_onnx.plugin as p; p.frontends(); p.accepts(object()); assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sniff_and_accepts() -> None:
    assert plugin.sniff(add_weights().SerializeToString()[:4096])
    assert not plugin.sniff(b"PK\x03\x04 a zip") and not plugin.sniff(b"") and not plugin.sniff(b"[net]\nbatch=1")
    assert plugin.accepts(add_weights())
    assert not plugin.accepts(add_weights().graph) and not plugin.accepts(np.zeros(3))


def test_truncated_file() -> None:
    data = add_weights().SerializeToString()
    with pytest.raises(
        FrontendError,
        match=r"these bytes is not an ONNX model(.|\n)*does not parse as a ModelProto(.|\n)*is the file complete\?",
    ):
        weft.load(data[:-100], frontend="onnx")


def test_other_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("This is no model, but it is long enough to be taken for one by somebody in a hurry.")
    with pytest.raises(FrontendError, match="is not an ONNX model"):
        weft.load(path)
    path.write_bytes(b"")
    with pytest.raises(FrontendError, match="is not an ONNX model\n  why: it is empty"):
        weft.load(path)


def test_names_that_are_no_text() -> None:
    data = model([helper.make_node("Relu", ["x"], ["name_of_y"])], [info("x", [2])], ["name_of_y"]).SerializeToString()
    with pytest.raises(
        FrontendError,
        match=(
            r"these bytes is not an ONNX model\n  why: the text b'\\xffame_of_y' in NodeProto.output is not UTF-8\n "
            r" hint: "
        ),
    ):
        weft.load(data.replace(b"name_of_y", b"\xffame_of_y"))


def test_a_model_without_operator_sets() -> None:
    proto = add_weights()
    del proto.opset_import[:]
    with pytest.raises(FrontendError, match=r"this ModelProto is not an ONNX model\n  why: it has no opset_import"):
        weft.load(proto)


def test_missing_file() -> None:
    with pytest.raises(FrontendError, match="cannot read"):
        read_model("no-such-model.onnx")
    with pytest.raises(FrontendError, match="cannot read a model from a float"):
        read_model(1.5)


def test_another_option_is_refused() -> None:
    with pytest.raises(FrontendError, match=r"frontend 'onnx' has no option 'dim'\n  hint: did you mean 'dims'\?"):
        weft.load(add_weights(), dim=1)


def test_a_newer_operator_set() -> None:
    proto = add_weights()
    proto.opset_import[0].version = 999
    with pytest.raises(
        UnsupportedError,
        match=r"the model uses operator set 999, the newest known is \d+\n  hint: a newer `onnx` package",
    ):
        weft.load(proto)


# -- dtypes -----------------------------------------------------------------------------------------------------------

DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4",
    "uint4", "complex64", "complex128",
]  # fmt: skip


def numpy_dtype(name: str) -> np.dtype:  # type: ignore[type-arg]
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("raw", [True, False])
def test_initialisers(name: str, raw: bool) -> None:
    dtype = numpy_dtype(name)
    # Odd in number: packed types end in half a byte.
    array = np.array([0, 1, 2, 1, 0, 2, 1], np.float32).astype(dtype).reshape(7, 1)
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    values = array.reshape(-1)
    if raw:
        tensor = onnx.numpy_helper.from_array(array, "t")
    else:
        tensor = helper.make_tensor(
            "t",
            kind,
            array.shape,
            values.tolist() if name.startswith("complex") else values.astype(np.float64).tolist(),
        )
    got = to_array(tensor)
    assert got.dtype == dtype and got.shape == (7, 1)
    np.testing.assert_array_equal(got.astype(np.complex128), array.astype(np.complex128))


def test_negative_int4() -> None:
    array = np.array([-8, 7, -1], ml_dtypes.int4)
    np.testing.assert_array_equal(to_array(onnx.numpy_helper.from_array(array, "t")).astype(np.int32), [-8, 7, -1])


def test_tensors_that_do_not_fit_their_shape() -> None:
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"12345678")
    with pytest.raises(FrontendError, match=r"tensor 'w' has 8 byte\(s\) of data, float32\[3\] takes 12"):
        to_array(t)
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], float_data=[1.0])
    with pytest.raises(FrontendError, match=r"tensor 'w' has 1 element\(s\) of data, float32\[3\] takes 3"):
        to_array(t)
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-3])
    with pytest.raises(FrontendError, match=r"tensor 'w' has shape \[-3\]"):
        to_array(t)
    with pytest.raises(FrontendError, match="tensor 'w' has element type 99, which is unknown"):
        to_array(TensorProto(name="w", data_type=99))
    with pytest.raises(FrontendError, match=r"tensor 'w' has 0 element\(s\) of data, string\[2\] takes 2"):
        to_array(TensorProto(name="w", data_type=TensorProto.STRING, dims=[2]))
    for dtype in (TensorProto.INT64, TensorProto.STRING):  # of no elements, by sizes that numpy cannot multiply
        with pytest.raises(
            FrontendError,
            match=(
                r"tensor 'w' has shape \[0, 4611686018427387904\]\n  why: its sizes multiply to more than any memory"
                r" holds"
            ),
        ):
            to_array(TensorProto(name="w", data_type=dtype, dims=[0, 1 << 62], raw_data=b""))
    with pytest.raises(FrontendError, match="tensor 'w' has a string that is no UTF-8"):
        to_array(TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"]))
    assert to_array(
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=["µ".encode()])
    ).tolist() == ["µ"]


def test_sparse_initialisers() -> None:
    proto = add_weights()
    sparse = helper.make_sparse_tensor(constant("s", np.ones(1, np.float32)), constant("i", np.zeros(1, np.int64)), [4])
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(UnsupportedError, match="sparse initialisers are not supported: 's'"):
        weft.load(proto)


def test_two_initialisers_of_one_name() -> None:
    proto = add_weights()
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(FrontendError, match="two initialisers are named 'w'"):
        weft.load(proto)


# -- external data ----------------------------------------------------------------------------------------------------


def external(tmp_path: Path, **entries: str) -> Path:
    proto = add_weights()
    tensor = proto.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(b"\0" * 16 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "16", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_mapped(tmp_path: Path) -> None:
    graph = weft.load(external(tmp_path))
    (w,) = graph.constants()
    assert w.constant is not None and isinstance(w.constant.base, np.memmap | memoryview | np.ndarray)
    np.testing.assert_array_equal(run(graph, np.zeros((64, 32), np.float32)), np.arange(64 * 32).reshape(64, 32))


@pytest.mark.parametrize(
    "location", ["../w.bin", "w\0.bin", "/etc/passwd", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", ""]
)
def test_external_data_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    with pytest.raises(FrontendError, match="outside of the model's folder"):
        weft.load(external(tmp_path, location=location))


def test_external_data_through_a_link(tmp_path: Path) -> None:
    path = external(tmp_path, location="link.bin")
    (tmp_path / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(FrontendError, match=r"through the link 'link\.bin'"):
        weft.load(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "32"}, "is at bytes 32 … 8224 of 'w.bin', which has 8208\n  hint: is that file complete?"),
        ({"offset": "-1"}, "is at bytes -1 …"),
        ({"length": "4"}, r"takes 8192 byte\(s\), 4 are given in 'w.bin'"),
        ({"offset": "x"}, "has an offset or length in 'w.bin' that is no number"),
        ({"location": "none.bin"}, "is in 'none.bin', which cannot be read"),
    ],
)
def test_external_data_that_does_not_fit(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        weft.load(external(tmp_path, **entries))


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(
        FrontendError, match=r"tensor 'w' is in a file of its own, 'w.bin'\n  hint: load the model from its path"
    ):
        weft.load(external(tmp_path).read_bytes())


# -- options ----------------------------------------------------------------------------------------------------------


def sized(*shapes: Sequence[int | str | None]) -> onnx.ModelProto:
    names = [f"x{k}" for k in range(len(shapes))]
    return model([helper.make_node("Sum", names, ["y"])], [info(n, s) for n, s in zip(names, shapes)], ["y"])


def test_dimensions_that_the_model_leaves_open_are_given_by_name() -> None:
    proto = sized(["batch size", 4, None], ["batch size", 4, "n + 1"], ["batch size", 4, 1])
    assert [str(v.type) for v in weft.load(proto).inputs] == [
        "float32[batch_size, 4, x0_2]",
        "float32[batch_size, 4, n_1]",
        "float32[batch_size, 4, 1]",
    ]
    graph = weft.load(proto, dims={"batch size": 2, "x0_2": 3, "n + 1": 3})
    assert [str(v.type) for v in graph.inputs] == ["float32[2, 4, 3]", "float32[2, 4, 3]", "float32[2, 4, 1]"]
    assert [str(v.type) for v in weft.load(proto, frontend="onnx '-dims=batch size=2,n + 1=1'").inputs] == [
        "float32[2, 4, x0_2]", "float32[2, 4, 1]", "float32[2, 4, 1]",
    ]  # fmt: skip
    assert str(weft.load(proto, dims={"batch_size": 2}).inputs[0].type) == "float32[2, 4, x0_2]", "as Weft shows it"


def test_a_dimension_that_is_not_open_is_refused() -> None:
    with pytest.raises(
        FrontendError,
        match=r"dims gives 'bach', which is no open dimension of the model's inputs\n  hint: did you mean 'batch'\?",
    ):
        weft.load(sized(["batch", 4]), dims={"bach": 2})
    with pytest.raises(
        FrontendError,
        match=(
            r"dims gives 'width', which is no open dimension of the model's inputs\n  hint: its open dimensions: none"
        ),
    ):
        weft.load(sized([3, 4]), dims={"width": 2})
    with pytest.raises(
        FrontendError, match=r"frontend 'onnx' has no such options\n  why: dims gives 'batch' the size -1"
    ):
        weft.load(sized(["batch", 4]), dims={"batch": -1})
    with pytest.raises(
        FrontendError, match="option 'dims' of frontend 'onnx' takes a mapping from names, each value an integer, got 4"
    ):
        weft.load(sized(["batch", 4]), dims=4)


@pytest.mark.needs("weft_llvm")
def test_options_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(sized(["batch", 4]), path)
    for source in (path, path.read_bytes()):
        shapes = [
            weft.compile(source, "llvm -threads=1", frontend=f).inputs[0].shape
            for f in (None, "onnx -dims=batch=2", "-dims=batch=3", "onnx") * 2
        ]
        assert shapes == [("batch", 4), (2, 4), (3, 4), ("batch", 4)] * 2
    with pytest.raises(
        FrontendError, match=r"frontend 'onnx' has no option '-dim'\n  onnx -dim=2\n  hint: did you mean '-dims'\?"
    ):
        weft.compile(path, "llvm", frontend="onnx -dim=2")
    with pytest.raises(FrontendError, match=r"no frontend 'onx'\n  hint: did you mean 'onnx'\?"):
        weft.compile(path, "llvm", frontend="onx -dims=n=2")
    with pytest.raises(
        FrontendError, match="the frontend and its options do not parse\n  onnx '-dims\n  why: No closing quotation"
    ):
        weft.compile(path, "llvm", frontend="onnx '-dims")


def test_options_are_given_once_and_for_what_is_read() -> None:
    with pytest.raises(
        FrontendError,
        match=(
            "options are given by name and with the frontend's\n  onnx -dims=batch=2\n  hint: give all of them by name"
        ),
    ):
        weft.load(sized(["batch", 4]), frontend="onnx -dims=batch=2", dims={"batch": 2})
    with pytest.raises(FrontendError, match="a graph has been read already: neither frontend nor options apply"):
        weft.load(weft.load(sized(["batch", 4])), dims={"batch": 2})
