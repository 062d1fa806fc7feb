"""Tests of weft_native, on the files that tests/bindings/materials.py writes, in the folder WEFT_TEST_FOLDER."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import weft_native
from weft_native import Code, Program, WeftError

FOLDER = Path(os.environ["WEFT_TEST_FOLDER"])
LIBWEFT = FOLDER / "libweft.so"
Array = np.ndarray[Any, Any]


def array(name: str, dtype: str, *shape: int) -> Array:
    return np.fromfile(FOLDER / f"{name}.bin", dtype).reshape(shape)


@pytest.fixture(params=["archive", "memory", "export"])
def mlp(request: pytest.FixtureRequest) -> Program:
    if request.param == "export":
        return weft_native.load(FOLDER / "mlp.so")
    path = FOLDER / "mlp.weft"
    return weft_native.load(LIBWEFT, path if request.param == "archive" else path.read_bytes())


@pytest.fixture
def x() -> Array:
    return array("mlp-x", "f4", 3, 64)


@pytest.fixture
def y() -> Array:
    return array("mlp-y", "f4", 3, 32)


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def fails(code: Code, part: str) -> Any:
    class Check:
        def __enter__(self) -> None: ...

        def __exit__(self, kind: object, error: object, trace: object) -> bool:
            assert isinstance(error, WeftError), "nothing was raised"
            assert error.code is code and part in str(error), error
            return True

    return Check()


def test_runs(mlp: Program, x: Array, y: Array) -> None:
    (given,) = mlp.inputs
    assert (mlp.name, given.name, given.dtype, given.shape) == ("mlp", "x", "float32", (None, 64))
    assert mlp.outputs[0].shape == (None, 32) and mlp.threads >= 1
    found = mlp.run({"x": x})
    assert list(found) == ["y"] and same(found["y"], y) and same(mlp(x), y)
    assert same(mlp(np.asfortranarray(x)), y) and same(mlp(x[::-1])[::-1], y), "what is not row-major is copied"
    assert mlp(np.zeros((0, 64), "f4")).shape == (0, 32)


def test_writes_to_arrays(mlp: Program, x: Array, y: Array) -> None:
    room = np.zeros((3, 32), "f4")
    assert mlp.run({"x": x}, out={"y": room})["y"] is room and same(room, y)
    with fails(Code.OUTPUT, "has size 2 on axis 0"):
        mlp.run({"x": x}, out={"y": room[:2]})
    with fails(Code.OUTPUT, "is float64, expected float32"):
        mlp.run({"x": x}, out={"y": room.astype("f8")})
    with fails(Code.OUTPUT, "not row-major"):
        mlp.run({"x": x}, out={"y": np.zeros((32, 3), "f4").T})
    with fails(Code.ARGUMENT, "with unknown z"):
        mlp.run({"x": x}, out={"z": room})


@pytest.mark.parametrize("export", [False, True])
def test_every_kind_of_value(export: bool) -> None:
    program = (
        weft_native.load(FOLDER / "mixed.so", prefix="mixed")
        if export
        else weft_native.load(LIBWEFT, FOLDER / "mixed.weft")
    )
    given = {"x": array("mixed-x", "f4", 4, 3), "k": array("mixed-k", "i8", 5), "s": array("mixed-s", "f2"),
             "m": array("mixed-m", "?", 2)}  # fmt: skip
    found = program.run(given)
    assert list(found) == ["y", "places", "t", "w", "l"]
    assert same(found["y"], array("mixed-y", "f4", 4, 3)) and same(found["places"], array("mixed-places", "i8", 2, 7))
    assert same(found["t"], array("mixed-t", "f2")) and same(found["w"], array("mixed-w", "?", 2))
    assert same(found["l"], array("mixed-l", "i8", 5))


class Foreign:
    """An array of another library."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries(mlp: Program, x: Array, y: Array) -> None:
    found = mlp(Foreign(x))
    assert same(found, y) and same(np.from_dlpack(Foreign(found)), y)


def test_results_outlive_the_program(mlp: Program, x: Array, y: Array) -> None:
    with mlp:
        found = mlp(x)
    mlp.close()
    assert same(found, y)
    with fails(Code.ARGUMENT, "the program 'mlp' is closed"):
        mlp(x)


def test_threads(mlp: Program, x: Array, y: Array) -> None:
    good: list[bool] = []
    threads = [threading.Thread(target=lambda: good.extend(same(mlp(x), y) for _ in range(50))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert good == [True] * 200


def test_wrong_inputs(mlp: Program, x: Array) -> None:
    with fails(Code.INPUT, "input 'x' of 'mlp' has size 63 on axis 1, expected 64"):
        mlp(x[:, :63])
    with fails(Code.INPUT, "input 'x' is float64, expected float32"):
        mlp(x.astype("f8"))
    with fails(Code.INPUT, "expected float32"):
        mlp(x.astype(">f4"))
    with fails(Code.INPUT, "rank"):
        mlp(x[0])
    with fails(Code.ARGUMENT, "inputs of 'mlp' are given without x and with unknown z"):
        mlp.run({"z": x})
    with fails(Code.ARGUMENT, "'mlp' takes 1 inputs, 2 are given"):
        mlp(x, x)


def test_what_cannot_be_loaded() -> None:
    with fails(Code.FILE, "cannot be loaded"):
        weft_native.load(FOLDER / "nothing.so")
    with fails(Code.FILE, "it has no function 'weft_api_version'"):
        weft_native.load(FOLDER / "mixed.so")
    with fails(Code.FILE, "nothing.weft"):
        weft_native.load(LIBWEFT, FOLDER / "nothing.weft")
    with fails(Code.ARCHIVE, "damaged"):
        weft_native.load(LIBWEFT, FOLDER / "damaged.weft")
    with fails(Code.MACHINE, "was compiled for"):
        weft_native.load(LIBWEFT, FOLDER / "foreign.weft")
    with fails(Code.ARGUMENT, "path is a null pointer"):
        weft_native.load(LIBWEFT)
    with fails(Code.ARGUMENT, "opens no file"):
        weft_native.load(FOLDER / "mlp.so", FOLDER / "mlp.weft")
    with fails(Code.ARCHIVE, ""):
        weft_native.load(LIBWEFT, (FOLDER / "mlp.weft").read_bytes()[:-500])


def test_options() -> None:
    digest = (FOLDER / "mlp.sha256").read_text()
    assert weft_native.load(LIBWEFT, FOLDER / "mlp.weft", threads=1, sha256=digest).threads == 1
    with fails(Code.ARCHIVE, "not the expected one"):
        weft_native.load(LIBWEFT, FOLDER / "mixed.weft", sha256=digest)
