"""The device "metal", on a Metal that is played: whole models, memory, times, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.metal.fake import FakeMetal, Gpu

import weft
from weft.errors import ExecutionError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_gpu.image import Kernel, Launch, pack
from weft_metal import driver
from weft_metal.device import MetalDevice
from weft_ops.activation import Relu
from weft_ops.movement import Concat
from weft_runtime.device import Slice, open_device
from weft_testing.models import mlp

TEXT = """#include <metal_stdlib>
using namespace metal;
[[kernel, max_total_threads_per_threadgroup(4)]] void twice(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
    constant long *weft_dims [[buffer(30)]], uint3 weft_group [[threadgroup_position_in_grid]], uint3 weft_thread [[thread_position_in_threadgroup]]) {
  const long n = weft_dims[0];
  const long k = (long)weft_group.x * 4 + weft_thread.x;
  if (k < n) y[k] = x[k] * 2.0f;
}
"""  # noqa: E501
BOTH = pytest.mark.parametrize(
    "gpu", [{"unified": True}, {"unified": False}], indirect=True, ids=["unified", "discrete"]
)


def section(
    text: str = TEXT, symbol: str = "twice", buffers: tuple[int, ...] = (0, 1), group: tuple[int, int, int] = (4, 1, 1)
) -> Any:
    launch = Launch(symbol, text.encode(), ("(d0 + 3)//4", "1", "1"), group, buffers, (0,))
    return pack({"k": Kernel("k", (launch,)).to_bytes()})


def doubled(device: MetalDevice, module: Any, x: Any) -> Any:
    """Through memory of the device's own."""
    source, target = (Slice(device.reserve(x.nbytes), 0, x.nbytes) for _ in range(2))
    device.write(source, x)
    device.launch(module, "k", [source, target], [x.size])
    y = np.empty_like(x)
    device.synchronize()
    device.read(target, y)
    return y


def inputs(graph: Graph, size: int) -> dict[str, Any]:
    rng = np.random.default_rng(size)
    return {
        v.name: rng.standard_normal([d if isinstance(d, int) else size for d in v.shape]).astype(np.float32)
        for v in graph.inputs
    }


@BOTH
def test_a_model_of_any_batch_runs(gpu: Gpu, tmp_path: Path) -> None:
    """Sizes one after another, one executable and a saved copy of it; a call is one command buffer."""
    graph = mlp()
    exe = weft.compile(graph, target="metal", cache=False)
    exe.save(tmp_path / "m.weft")
    for runs in (exe, weft.Executable.load(tmp_path / "m.weft")):
        for size in (3, 1, 0, 8):
            fed = inputs(graph, size)
            (want,) = evaluate(graph, list(fed.values()))
            before = len(gpu.calls)
            np.testing.assert_allclose(runs.run(fed)["y"], want, rtol=1e-5, atol=1e-5)
            assert len([c for c in gpu.calls[before:] if c.startswith("commit")]) == 1


@pytest.mark.parametrize("gpu", [{"unified": True}], indirect=True)
def test_where_memory_is_one_nothing_is_copied(gpu: Gpu) -> None:
    """Inputs, constants and outputs are the host's arrays: what the GPU holds of its own is the arena."""
    graph = mlp()
    exe = weft.compile(graph, target="metal", cache=False)
    exe.run(inputs(graph, 2))
    held = [c for c in gpu.calls if c.startswith("buffer")]
    pages = len([c for c in gpu.calls if c.startswith("pages")])
    exe.run(inputs(graph, 2))
    assert [c for c in gpu.calls if c.startswith("buffer")] == held and len(held) == 1
    assert len([c for c in gpu.calls if c.startswith("pages")]) == pages + 2  # the input and the output; constants stay


@BOTH
def test_more_buffers_than_a_table_has(gpu: Gpu) -> None:
    """Their addresses come in a table of their own, and the buffers are made resident."""
    g = GraphBuilder("many")
    xs = [g.input(f"x{k}", tensor_type("float32", (2, 3))) for k in range(40)]
    g.output(g.add(Relu(), g.add(Concat(axis=0), *xs)), "y")
    graph = g.build()
    fed = inputs(graph, 1)
    (want,) = evaluate(graph, list(fed.values()))
    np.testing.assert_array_equal(weft.compile(graph, target="metal", cache=False).run(fed)["y"], want)


def test_arithmetic_is_asked_to_be_exact(gpu: Gpu) -> None:
    MetalDevice().load(*section())
    assert [o.math for o in gpu.options] == [0]


@BOTH
def test_memory_is_counted(gpu: Gpu) -> None:
    device = MetalDevice()
    free = device.free
    memory = device.reserve(1000)
    assert device.capacity == 1 << 30 and device.free == free - 1000
    del memory
    assert device.free == free
    with pytest.raises(ExecutionError) as error:
        device.reserve((1 << 30) + 1)
    assert str(error.value.why) == f"{(1 << 30) + 1} bytes are wanted, {1 << 30} of {1 << 30} are free"
    with pytest.raises(ExecutionError, match="no piece of memory so large") as error:
        device.reserve((1 << 29) + 1)
    assert f"{(1 << 29) + 1} bytes are wanted, a buffer of Apple M0 has at most {1 << 29}" in str(error.value)


def test_a_text_that_does_not_compile_is_shown(gpu: Gpu) -> None:
    device = MetalDevice()
    with pytest.raises(ExecutionError) as error:
        device.load(*section(TEXT.replace("x[k] * 2.0f", "x[k] * two")))
    assert str(error.value).startswith("Metal's compiler refuses kernel 'k'\n  line 7: if (k < n) y[k] = x[k] * two;\n")
    assert error.value.why == "use of undeclared identifier 'two'"
    with pytest.raises(ExecutionError, match="has no 'thrice'"):
        device.load(*section(symbol="thrice"))
    image, entries = section()
    with pytest.raises(ExecutionError, match="is no text"):
        device.load(image.replace(b"// y", b"// y").replace(b"2.0f", b"\xff\xff\xff\xff"), entries)
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(doubled(device, device.load(*section()), x), x * 2)


def test_a_kernel_that_the_gpu_cannot_run_is_refused(gpu: Gpu) -> None:
    device = MetalDevice()
    gpu.compilable = lambda text: False
    with pytest.raises(ExecutionError, match="cannot run on device 'metal'") as error:
        device.load(*section())
    assert (
        error.value.why
        == "Apple M0: Threadgroup memory size (65536) exceeds the maximum threadgroup memory allowed (32768)"
    )
    gpu.compilable, gpu.most = lambda text: True, 2
    with pytest.raises(ExecutionError, match="4 threads are wanted in a group, with as many registers 2 are allowed"):
        device.load(*section())


def test_what_fails_on_the_gpu_is_said_and_the_next_call_works(gpu: Gpu) -> None:
    device = MetalDevice()
    bad = device.load(*section(TEXT.replace("y[k] = x[k]", "y[k] = x[k + (1L << 40)]")))
    x = np.arange(6, dtype=np.float32)
    with pytest.raises(ExecutionError, match="kernel 'k' failed on device 'metal'"):
        doubled(device, bad, x)
    np.testing.assert_array_equal(doubled(device, device.load(*section()), x), x * 2)


def test_a_launch_that_wants_what_is_not_there(gpu: Gpu) -> None:
    device = MetalDevice()
    module = device.load(*section(buffers=(0, 7)))
    with pytest.raises(ExecutionError, match="a launch of kernel 'k' needs buffer 7 of 2"):
        doubled(device, module, np.zeros(4, np.float32))
    with pytest.raises(ExecutionError, match="needs dim 0 of 0"):
        device.launch(device.load(*section()), "k", [Slice(device.reserve(16), 0, 16)] * 2, [])


def test_times_are_those_of_command_buffers(gpu: Gpu) -> None:
    graph = mlp()
    exe = weft.compile(graph, target="metal", cache=False)
    device = open_device("metal")
    exe.run(inputs(graph, 2))
    device.record(True)
    exe.run(inputs(graph, 2))
    times = device.recorded()
    device.record(False)
    assert len(times) == 2 and len({name for name, _, _ in times}) == 2
    assert all(0 < end - start < 1 for _, start, end in times) and times[0][2] <= times[1][1]
    exe.run(inputs(graph, 2))
    assert device.recorded() == []


def test_many_calls_are_waited_for_in_time(gpu: Gpu) -> None:
    """A queue has room for so many command buffers; one that asks for more blocks."""
    device = MetalDevice()
    module = device.load(*section())
    x, y = (Slice(device.reserve(16), 0, 16) for _ in range(2))
    for _ in range(200):
        device.launch(module, "k", [x, y], [4])
        assert len(device.queue.committed) <= 64


# -- where it is not


def test_elsewhere_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver.sys, "platform", "linux")
    graph = mlp(batch=2)
    exe = weft.compile(graph, target="metal -family=apple8", cache=False)
    exe.save(tmp_path / "m.weft")
    with pytest.raises(ExecutionError) as error:
        exe.run(inputs(graph, 2))
    assert "the device 'metal' is not here" in str(error.value) and "it is a part of macOS, and this is linux" in str(
        error.value
    )


def test_a_mac_without_pyobjc(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(driver.sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "Metal", None)
    assert "pip install pyobjc-framework-Metal" in str(driver.missing())


@pytest.mark.parametrize(
    "found, says",
    [(None, "Metal finds no GPU"), (Gpu(families=(2002,)), "Apple M0 does not support Metal 3")],
)
def test_a_mac_without_a_gpu_of_today(monkeypatch: pytest.MonkeyPatch, found: Gpu | None, says: str) -> None:
    module = FakeMetal(found)
    monkeypatch.setattr(driver, "metal", lambda: module)
    assert says in str(driver.missing()) and driver.family_here() is None
