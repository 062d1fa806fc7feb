"""Tensors of other libraries in the GPU's memory: taken where they lie, and written where they lie."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.cuda.fake import FakeApi
from tests.cuda.test_device import TARGET, chain, expected, random

import weft
from weft.dtypes import dtype
from weft.errors import InputError
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft_ops import Add, Relu, Reshape
from weft_runtime.abi import DLTensor, dlpack_type
from weft_runtime.device import Slice, open_device

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """What torch and cupy give: an array in the memory of a GPU, lent through DLPack. `streams`: for whom it was made
    ready."""

    def __init__(
        self, array: Any, device: int = 0, kind: int = 2, offset: int = 0, strides: tuple[int, ...] | None = None
    ) -> None:
        self.device, self.kind, self.streams = device, kind, []
        self.gpu: Any = open_device("cuda")
        self.shape, self.dtype = array.shape, array.dtype
        self.memory = self.gpu.reserve(array.nbytes + offset)
        self.place = Slice(self.memory, offset, array.nbytes)
        self.gpu.write(self.place, np.ascontiguousarray(array))
        code, bits = dlpack_type(dtype(array.dtype))
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*strides) if strides else None
        self._tensor = (ctypes.c_uint8 * 256)()
        t = DLTensor.from_buffer(self._tensor)
        t.data, t.byte_offset, t.ndim, t.code, t.bits, t.lanes = self.memory.handle, offset, array.ndim, code, bits, 1
        t.shape = ctypes.addressof(self._shape)
        t.strides = None if self._strides is None else ctypes.addressof(self._strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device

    def __dlpack__(self, stream: int | None = None) -> object:
        self.streams.append(stream)
        return _new(ctypes.addressof(self._tensor), b"dltensor", None)

    def value(self) -> Any:
        """What it holds now, as far as its library may know: nothing is waited for."""
        found = np.empty(self.shape, self.dtype)
        ctypes.memmove(found.ctypes.data, self.memory.handle + self.place.offset, found.nbytes)
        return found


def test_inputs_and_outputs_stay_on_the_gpu(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    x = random(5)
    given, first, y = Tensor(x), Tensor(np.zeros((5, 8), np.float32)), Tensor(np.zeros((8, 5), np.float32))
    for k in range(4):
        api.log.clear()
        results = exe.run({"x": given}, out={"y": y, "first": first})
        assert results["y"] is y and results["first"] is first
        np.testing.assert_allclose(y.value(), expected(x), rtol=1e-5)
        np.testing.assert_allclose(first.value(), expected(x).T, rtol=1e-5)
        assert not {c for c in api.log if c.startswith("cuMemcpy")}
        assert ("cuGraphLaunch" in api.log) == (k > 0)  # the same tensors: the same graph
    assert given.streams and all(s == id(api.streams[0]) for s in given.streams)


def test_some_on_the_gpu_and_some_not(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    x = random(5)
    np.testing.assert_allclose(exe.run({"x": Tensor(x)})["y"], expected(x), rtol=1e-5)
    y = Tensor(np.zeros((8, 5), np.float32))
    results = exe.run({"x": x}, out={"y": y})
    np.testing.assert_allclose(y.value(), expected(x), rtol=1e-5)
    np.testing.assert_allclose(results["first"], expected(x).T, rtol=1e-5)
    host = np.zeros((8, 5), np.float32)
    exe.run({"x": Tensor(x)}, out={"y": host})
    np.testing.assert_allclose(host, expected(x), rtol=1e-5)


def test_what_the_host_computes_comes_and_goes(api: FakeApi) -> None:
    """A value on the GPU that the host's part of a plan needs, and a result of the host's that is wanted there; sizes
    that are in data."""
    g = GraphBuilder("both")
    data, sizes = g.input("data", tensor_type("float32", (24,))), g.input("sizes", tensor_type("int64", (2,)))
    doubled = g.add(Add(), sizes, sizes)
    rows, columns = g.symbol(doubled, 0), g.symbol(doubled, 1)
    g.output(g.add(Relu(), g.add(Reshape((rows, columns)), data)), "y")
    g.output(doubled, "doubled")
    exe = MixedCompilation(resolve_targets(f"{TARGET}, llvm"), cache=False, by_cost=False).run(g.build())
    assert {"native", "device"} <= {s.kind for s in exe.manifest.steps}
    values = np.linspace(-1, 1, 24, dtype=np.float32)
    for given in (Tensor(np.array([2, 3], np.int64)), np.array([2, 3], np.int64)):
        back, y = Tensor(np.zeros(2, np.int64)), Tensor(np.zeros((4, 6), np.float32))
        exe.run({"data": Tensor(values), "sizes": given}, out={"doubled": back, "y": y})
        np.testing.assert_array_equal(back.value(), [4, 6])
        np.testing.assert_array_equal(y.value(), np.maximum(values, 0).reshape(4, 6))
    with pytest.raises(InputError, match=r"storage for output 'y' has shape \[4, 6\], the result has \[6, 4\]"):
        exe.run({"data": values, "sizes": Tensor(np.array([3, 2], np.int64))}, out={"y": y})


@pytest.mark.parametrize(
    "made, said",
    [
        (lambda: Tensor(random(5).astype(np.float64)), r"input 'x' has dtype float64, expected float32"),
        (lambda: Tensor(random(5)[0]), r"input 'x' has 1 dimensions, expected 2"),
        (lambda: Tensor(random(5), device=1), r"input 'x' lies on a CUDA device"),
        (lambda: Tensor(random(5), kind=10), r"input 'x' lies on a ROCm device"),
        (lambda: Tensor(random(5), strides=(1, 5)), r"'x' does not lie row by row.*make it contiguous"),
        (lambda: Tensor(random(5), offset=4), r"'x' does not begin at a multiple of 16 bytes.*copy it"),
        (lambda: Tensor(random(5)[:, :7]), r"input 'x' has size 7 on axis 1, expected 8"),
    ],
)
def test_tensors_that_cannot_be_taken(api: FakeApi, made: Any, said: str) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    with pytest.raises(InputError, match=f"(?s){said}"):
        exe.run({"x": made()})
    np.testing.assert_allclose(exe.run({"x": Tensor(random(5))})["y"], expected(random(5)), rtol=1e-5)


def test_storage_that_does_not_fit(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    with pytest.raises(InputError, match=r"storage for output 'y' has shape \[8, 4\], the result has \[8, 5\]"):
        exe.run({"x": random(5)}, out={"y": Tensor(np.zeros((8, 4), np.float32))})
    with pytest.raises(InputError, match=r"(?s)storage for output 'y' does not fit.*float64\[8, 5\]"):
        exe.run({"x": random(5)}, out={"y": Tensor(np.zeros((8, 5)))})
