"""Whatever a public function is given: a result, or an error of Weft's that says what was wrong. Never an error of
Python's own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import ExecutionError, FrontendError, InputError, TensorError, WeftError
from weft.graph.nodes import GraphBuilder, tensor_type
from weft_ops import Relu
from weft_runtime.executable import Executable
from weft_testing.models import mlp


class Odd:
    """Nothing that Weft knows."""


VALUES: tuple[Any, ...] = (
    None, 3, -1, 2.5, "", "no", b"x", [], {}, (), object(), Odd, io.BytesIO(), io.StringIO(), float("nan"), "a\0b",
    "x" * 5000, {"x": 1}, [1, 2],
    np.zeros(3), True,
)  # fmt: skip


def some(builder: GraphBuilder) -> Any:
    x = builder.input("x", tensor_type("float32", (2, 4)))
    builder.output(builder.add(Relu(), x), "y")
    return builder.build()


@pytest.fixture(scope="module")
def executable() -> Executable:
    return weft.compile(some(GraphBuilder("g")), cache=False)


X = np.ones((2, 4), np.float32)
CALLS: dict[str, Callable[[Executable, Any], object]] = {
    "compile": lambda exe, v: weft.compile(v),
    "compile target": lambda exe, v: weft.compile(some(GraphBuilder("g")), v),
    **{
        f"compile {name}": lambda exe, v, name=name: weft.compile(some(GraphBuilder("g")), cache=False, **{name: v})  # type: ignore[misc]
        for name in ("input_shapes", "passes", "frontend", "strict")
    },
    "compile on_stage": lambda exe, v: weft.compile(
        some(GraphBuilder("g")), cache=False, on_stage=None if v is Odd else v
    ),
    "load": lambda exe, v: weft.load(v),
    "load frontend": lambda exe, v: weft.load(b"", frontend=v),
    "export": lambda exe, v: weft.export(exe, v),
    "export format": lambda exe, v: weft.export(exe, "m.wasm", v),
    "compile_adaptive": lambda exe, v: weft.compile_adaptive(v),
    "Executable.load": lambda exe, v: Executable.load(v),
    "Executable.inspect": lambda exe, v: Executable.inspect(v),
    "save": lambda exe, v: exe.save(v),
    "run": lambda exe, v: exe.run(v),
    "run input": lambda exe, v: exe.run({"x": v}),
    "run out": lambda exe, v: exe.run({"x": X}, out=v),
    "run one out": lambda exe, v: exe.run({"x": X}, out={"y": v}),
    "placeholder": lambda exe, v: weft.placeholder(v),
    "placeholder dtype": lambda exe, v: weft.placeholder((4,), v),
    "placeholder name": lambda exe, v: weft.placeholder((4,), name=v),
    "var": lambda exe, v: weft.var(v),
    "compute": lambda exe, v: weft.compute(v, lambda i: i),
    "compute formula": lambda exe, v: weft.compute((4,), None if v is Odd else v),
    "compute result": lambda exe, v: weft.compute((4,), lambda i: v),
    "reduce_axis": lambda exe, v: weft.reduce_axis(v),
    "reduce": lambda exe, v: weft.reduce(v, 1.0, weft.reduce_axis(4)),
    "sum": lambda exe, v: weft.sum(v, v),
    "scan": lambda exe, v: weft.scan(v, v, v),
    "call": lambda exe, v: weft.call(v, v),
    "select": lambda exe, v: weft.select(v, v, v),
    "maximum": lambda exe, v: weft.maximum(v, v),
    "schedule": lambda exe, v: weft.schedule(v),
    "build": lambda exe, v: weft.build(v),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_errors_of_weft(
    name: str, executable: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        try:
            CALLS[name](executable, value)
        except WeftError as error:
            assert "defect" not in str(error), f"{value!r}: {error}"


def test_every_public_function_is_tried() -> None:
    tried = {part for name in CALLS for part in name.split()} | {"Executable", "WeftError", "minimum"}
    assert set(weft.__all__) <= tried


def test_a_buffer_is_no_place_for_an_archive(executable: Executable) -> None:
    with pytest.raises(InputError) as caught:
        executable.save(io.BytesIO())  # type: ignore[arg-type]
    assert (
        str(caught.value)
        == 'the file of an archive is a path, got BytesIO\n  hint: a str or pathlib.Path, for example "model.weft"'
    )


def test_tensors_without_data(executable: Executable) -> None:
    """As PyTorch's on the device "meta"."""

    def fails(*_: object, **__: object) -> Any:
        raise ValueError("Unknown device type meta for Dlpack")

    meta = SimpleNamespace(__dlpack__=fails, __dlpack_device__=fails, device="meta")
    with pytest.raises(InputError) as caught:
        executable.run({"x": meta})
    message = (
        "input 'x' has no data that can be read (device 'meta')\n  why: Unknown device type meta for Dlpack\n  hint:"
        " give a tensor on the CPU"
    )
    assert str(caught.value) == message
    with pytest.raises(InputError, match=r"input 'x' has no data that can be read\n  why: Unknown device type"):
        executable.run({"x": SimpleNamespace(__array__=fails)})


def test_no_memory_is_an_error_of_weft() -> None:
    def greedy(graph: Any) -> Any:
        raise MemoryError("cannot allocate 1 TiB")

    with pytest.raises(ExecutionError) as caught:
        weft.compile(mlp(), passes=[greedy], cache=False)
    assert str(caught.value).startswith(
        "there is not enough memory to compile the model\n  why: cannot allocate 1 TiB\n  hint: "
    )


def test_functions_of_other_arguments() -> None:
    with pytest.raises(
        TensorError,
        match=r"the function of compute '\w+' is called with 2 argument\(s\), one for each dimension\n  why: ",
    ):
        weft.compute((2, 3), lambda i: i)


def test_the_system_refuses_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever it is that may not read it: no plugin is blamed."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a")

    def refuse(self: Path, *_: object, **__: object) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    for method in ("open", "read_bytes"):
        monkeypatch.setattr(Path, method, refuse)
    for function in (weft.load, weft.compile):
        with pytest.raises(FrontendError) as caught:
            function(path)
        message = f"cannot read '{path}'\n  why: Permission denied\n  hint: is it all there, and may this user read it?"
        assert str(caught.value) == message
