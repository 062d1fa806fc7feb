"""The device "cuda" against a driver that is played: memory, copies, launches, graphs, times, and what is said of
everything that can go wrong."""

from __future__ import annotations

import gc
import inspect
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real
from tests.cuda.fake import FakeApi

import weft
from weft.errors import ExecutionError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_cuda.device import STAGED, CudaDevice
from weft_cuda.driver import Driver, missing
from weft_ops import Add, Multiply, Relu, Transpose
from weft_runtime.device import Device, Slice, open_device

TARGET = "cuda -arch=sm_90"


def chain(columns: int = 8) -> Graph:
    """Two kernels, the first for what the second needs."""
    g = GraphBuilder("chain")
    x = g.input("x", tensor_type("float32", (Var("n"), columns)))
    first = g.add(Relu(), g.add(Add(), g.add(Multiply(), x, x), x))
    g.output(first, "first")
    g.output(g.add(Transpose(axes=(1, 0)), first), "y")
    return g.build()


def expected(x: Any) -> Any:
    return np.maximum(x * x + x, 0).T


def run(exe: weft.Executable, x: Any) -> Any:
    return exe.run({"x": x})["y"]


def random(rows: int, columns: int = 8) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def opened(api: FakeApi) -> CudaDevice:
    found = open_device("cuda")
    assert isinstance(found, CudaDevice)
    return found


def test_what_plays_the_driver_has_its_functions() -> None:
    """Names and numbers of arguments are those of NVIDIA's bindings."""
    for name, mine in vars(FakeApi).items():
        if name.startswith("cu"):
            theirs = inspect.signature(getattr(real, name)).parameters
            assert len(theirs) == len(inspect.signature(mine).parameters) - 1, name
    source = "".join(
        (Path(inspect.getfile(CudaDevice)).parent / f).read_text() for f in ("device.py", "driver.py", "target.py")
    )
    called = {
        word
        for word in source.replace('"', " ").replace(".", " ").replace("(", " ").split()
        if word.startswith("cu") and word[2:3].isupper()
    }
    assert called <= {n for n in vars(FakeApi) if n.startswith("cu")}


# -- memory


def test_memory_is_written_and_read(api: FakeApi) -> None:
    device = opened(api)
    for size in (1, 3, 100, STAGED, STAGED + 5):
        memory, data, back = (
            device.reserve(size + 7),
            np.random.default_rng(size).integers(0, 256, size, np.uint8),
            np.empty(size, np.uint8),
        )
        device.write(Slice(memory, 7, size), data)
        want = data.copy()
        data[...] = 0  # whoever called may change it now
        device.read(Slice(memory, 7, size), back)
        np.testing.assert_array_equal(back, want)


def test_small_copies_run_on(api: FakeApi) -> None:
    """Two that share the page-locked room: the second waits for the first, and neither waits at the end."""
    device = opened(api)
    pieces = [device.reserve(64) for _ in range(3)]
    for k, memory in enumerate(pieces):
        device.write(Slice(memory, 0, 64), np.full(64, k, np.uint8))
    assert api.streams[0].waiting
    assert "cuStreamSynchronize" not in api.log
    back = np.empty(64, np.uint8)
    for k, memory in enumerate(pieces):
        device.read(Slice(memory, 0, 64), back)
        assert (back == k).all()


def test_memory_is_counted_and_given_back(api: FakeApi) -> None:
    device = opened(api)
    before = device.free
    held = [device.reserve(1000) for _ in range(4)]
    assert device.free <= before - 4000
    held.clear()
    gc.collect()
    assert device.free == before
    assert not api.pieces
    empty = device.reserve(0)
    device.write(Slice(empty, 0, 0), np.empty(0, np.float32))
    device.read(Slice(empty, 0, 0), np.empty(0, np.float32))


def test_too_little_memory(api: FakeApi) -> None:
    device = opened(api)
    with pytest.raises(
        ExecutionError,
        match=rf"(?s)'cuda' has too little memory.*{1 << 30} bytes are wanted, {64 << 20} of {64 << 20} are free",
    ):
        device.reserve(1 << 30)
    with pytest.raises(
        ExecutionError,
        match=rf"(?s)'cuda' has no {48 << 20} bytes in one piece.*{64 << 20} of {64 << 20} are free, in pieces",
    ):
        device.reserve(48 << 20)
    api.fail["cuMemAlloc"] = real.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE
    with pytest.raises(ExecutionError, match=r"(?s)cuMemAlloc.*ecc uncorrectable.*start it again"):
        device.reserve(100)
    assert device.reserve(100).size == 100


def test_a_model_that_does_not_fit_and_one_that_does(api: FakeApi) -> None:
    exe = weft.compile(chain(1 << 12), target=TARGET, cache=False)
    with pytest.raises(ExecutionError, match="has too little memory"):
        run(exe, random(5000, 1 << 12))
    x = random(3, 1 << 12)
    np.testing.assert_allclose(run(exe, x), expected(x), rtol=1e-5, atol=1e-5)


def test_callers_keep_their_context(api: FakeApi) -> None:
    api.contexts.stack = ["another's"]
    x = random(4)
    exe = weft.compile(chain(), target=TARGET, cache=False)
    np.testing.assert_allclose(run(exe, x), expected(x), rtol=1e-5)
    assert api.contexts.stack == ["another's"]
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run(exe, x)))  # a thread that never saw the GPU
    thread.start()
    thread.join()
    np.testing.assert_allclose(results[0], expected(x), rtol=1e-5)


# -- kernels and graphs


def test_a_model_runs(api: FakeApi, tmp_path: Path) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    exe.save(tmp_path / "chain.weft")
    for copy in (exe, weft.Executable.load(tmp_path / "chain.weft")):
        for rows in (3, 1, 40):
            x = random(rows)
            np.testing.assert_allclose(run(copy, x), expected(x), rtol=1e-5, atol=1e-5)
        assert run(copy, np.empty((0, 8), np.float32)).shape == (8, 0)


def test_the_second_call_of_the_same_sizes_is_one_graph(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    counts = []
    for k, rows in enumerate((5, 5, 5, 7, 5)):
        api.log.clear()
        x = random(rows) + k
        np.testing.assert_allclose(run(exe, x), expected(x), rtol=1e-4, atol=1e-5)
        counts.append(
            (api.log.count("cuLaunchKernel"), api.log.count("cuGraphLaunch"), api.log.count("cuGraphInstantiate"))
        )
    launches = counts[0][0]
    assert launches >= 2
    assert counts[:3] == [
        (launches, 0, 0),
        (launches, 1, 1),
        (0, 1, 0),
    ]  # one by one, captured, and from then on one call
    assert counts[3][1:] == (0, 0)


def test_a_graph_is_given_back(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    for _ in range(3):
        run(exe, random(5))
    assert api.graphs == 1
    loaded = len(api.modules)
    assert loaded
    del exe
    gc.collect()
    assert api.graphs == 0
    assert not api.modules


def test_without_graphs(api: FakeApi) -> None:
    device = CudaDevice(graphs=False)
    from weft_runtime import device as devices

    devices._open["cuda"] = device
    exe = weft.compile(chain(), target=TARGET, cache=False)
    for _ in range(3):
        np.testing.assert_allclose(run(exe, random(5)), expected(random(5)), rtol=1e-5, atol=1e-5)
    assert "cuGraphLaunch" not in api.log


def test_a_failed_capture_is_an_error_and_the_next_call_works(api: FakeApi) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    x = random(5)
    run(exe, x)
    for function, code in (("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), ("cuStreamEndCapture",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
                           ("cuGraphInstantiate", "CUDA_ERROR_OUT_OF_MEMORY"), ("cuGraphLaunch",
                               "CUDA_ERROR_UNKNOWN")):  # fmt: skip
        api.fail[function] = getattr(real.CUresult, code)
        with pytest.raises(ExecutionError, match=rf"(?s){function}.*{code}"):
            run(exe, x)
        np.testing.assert_allclose(run(exe, x), expected(x), rtol=1e-5, atol=1e-5)
        assert api.streams[0].captured is None
        assert not api.contexts.stack


def test_times_of_launches(api: FakeApi) -> None:
    device = opened(api)
    exe = weft.compile(chain(), target=TARGET, cache=False)
    for _ in range(2):
        run(exe, random(5))
    assert device.recorded() == []
    device.record(True)
    for _ in range(2):  # a graph would hide the kernels
        run(exe, random(5))
        times = device.recorded()
        kernels = [launch.kernel for launch in exe.manifest.steps[1].launches]  # type: ignore[union-attr]
        assert list(dict.fromkeys(kernel for kernel, _, _ in times)) == kernels
        assert all(begin < end for _, begin, end in times)
        assert [t[1] for t in times] == sorted(t[1] for t in times)
    assert device.recorded() == []
    device.record(False)
    run(exe, random(5))
    assert device.recorded() == []


# -- what goes wrong


@pytest.mark.parametrize(
    "function, code, said",
    [
        ("cuMemcpyHtoDAsync", "CUDA_ERROR_ILLEGAL_ADDRESS", r"cuMemcpyHtoDAsync.*illegal address.*start it again"),
        ("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", r"cuLaunchKernel.*-maxrregcount"),
        ("cuStreamSynchronize", "CUDA_ERROR_LAUNCH_FAILED", r"cuStreamSynchronize.*start it again"),
        ("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND", r"cuModuleGetFunction.*not found"),
    ],
)
def test_errors_of_the_driver(api: FakeApi, function: str, code: str, said: str) -> None:
    exe = weft.compile(chain(), target=TARGET, cache=False)
    api.fail[function] = getattr(real.CUresult, code)
    with pytest.raises(ExecutionError, match=f"(?s){said}"):
        run(exe, random(5))
    np.testing.assert_allclose(run(exe, random(5)), expected(random(5)), rtol=1e-5, atol=1e-5)
    assert not api.contexts.stack


def test_code_of_another_architecture(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    real_code = weft.compile(chain(), target="cuda -arch=sm_80", cache=False)
    device = CudaDevice(0, Driver(api))
    name = next(iter(real_code.manifest.sections))
    with pytest.raises(ExecutionError, match=r"(?s)does not run on Fake GPU.*the GPU is sm_90.*cuda -arch=sm_90"):
        device.load(real_code._code[name], real_code.manifest.sections[name].entries)


def test_grids_beyond_the_limits_are_an_error_before_the_launch(api: FakeApi) -> None:
    from weft_gpu.image import Kernel, Launch, pack

    text = b'// k\nextern "C" __global__ void k(float *x) {\n}\n'
    device = opened(api)
    section, entries = pack({"k": Kernel("k", (Launch("k", text, ("1", "d0", "1"), (32, 1, 1), (0,), ()),)).to_bytes()})
    module, room = device.load(section, entries), device.reserve(4)
    api.log.clear()
    with pytest.raises(
        ExecutionError, match=r"(?s)kernel 'k' cannot be launched.*70000 groups are wanted along y, 65535 are allowed"
    ):
        device.launch(module, "k", [Slice(room, 0, 4)], [70000])
    device.launch(module, "k", [Slice(room, 0, 4)], [0])
    assert "cuLaunchKernel" not in api.log


def test_shared_memory_beyond_what_a_kernel_has_by_itself(api: FakeApi) -> None:
    from tests.cuda.test_target import LARGE

    from weft_cuda.nvrtc import build
    from weft_gpu.image import Kernel, Launch, pack

    def section(code: bytes) -> tuple[bytes, dict[str, int]]:
        return pack({"k": Kernel("k", (Launch("k", code, ("1", "1", "1"), (64, 1, 1), (0, 1), ()),)).to_bytes()})

    device = opened(api)
    module = device.load(*section(build(LARGE, "sm_90", "k")))
    x = np.arange(64, dtype=np.float32)
    pieces = [Slice(device.reserve(256), 0, 256) for _ in range(2)]
    device.write(pieces[0], x)
    device.launch(module, "k", pieces, [])
    y = np.empty_like(x)
    device.read(pieces[1], y)
    np.testing.assert_array_equal(y, x[::-1] + 3)
    with pytest.raises(
        ExecutionError,
        match=r"(?s)kernel 'k' does not fit Fake GPU.*400128 bytes of shared memory, 232448 are allowed.*-arch=sm_90",
    ):
        device.load(*section(build(LARGE.replace("20000", "100000"), "sm_90", "k")))


# -- boxes of tensors


def boxes() -> tuple[bytes, dict[str, int]]:
    """The section of a kernel that copies boxes, twice in a row for a graph, as text."""
    from tests.gpu.test_boxes import BOXES
    from tests.gpu.test_copies import lowered

    from weft_cuda.dialect import CUDA
    from weft_gpu.codegen import GpuCodegen
    from weft_gpu.image import Kernel, pack

    code = GpuCodegen(CUDA).compile(lowered(BOXES))
    (launch,) = Kernel.from_bytes(code.object, "boxes").launches
    return pack({"boxes": Kernel("boxes", (launch, launch)).to_bytes()})


def test_tensors_are_arguments(api: FakeApi) -> None:
    """Of single launches, of prepared ones, and in a graph, wherever the buffer lies."""
    from tests.gpu.test_boxes import BOXES
    from tests.gpu.test_grids import inputs_of

    from weft.loop.parser import parse_program
    from weft_interpreter.interpret import interpret
    from weft_runtime.device import Started

    program, device = parse_program(BOXES), opened(api)
    x, w = inputs_of(program, 3)
    (want,) = interpret(program, [x, w]).values()
    module = device.load(*boxes())
    for turn in range(3):
        pieces = tuple(Slice(device.reserve(n + 1024), 256 * turn, n) for n in (x.nbytes, w.nbytes, want.nbytes))
        device.write(pieces[0], x)
        device.write(pieces[1], w)
        prepared = device.prepare(module, [Started("boxes", pieces, ())])
        y = np.empty_like(want)
        for start in (partial(device.launch, module, "boxes", pieces, ()), prepared, prepared, prepared):
            device.write(pieces[2], np.zeros_like(want))
            start()
            device.read(pieces[2], y)
            np.testing.assert_array_equal(y, want)
    assert set(api.encoded) == {(4, (16, 50, 10), (640, 64), (16, 16, 2))}
    assert len(api.encoded) == 3  # once for each place
    assert api.graphs > 0


def test_tensors_that_the_driver_does_not_take(api: FakeApi) -> None:
    device = opened(api)
    module = device.load(*boxes())
    pieces = [Slice(device.reserve(n), 0, n) for n in (32000, 640, 40960)]
    api.fail["cuTensorMapEncodeTiled"] = real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(
        ExecutionError,
        match=(
            r"(?s)cuTensorMapEncodeTiled of \(16, 50, 10\) elements of 4 bytes at 0x.*boxes of \(16, 16, 2\).*invalid"
            r" value"
        ),
    ):
        device.launch(module, "boxes", pieces, [])
    device.launch(module, "boxes", pieces, [])
    with pytest.raises(ExecutionError, match=r"(?s)is damaged.*reaches over 32000 bytes, its buffer has 31996"):
        device.launch(module, "boxes", [Slice(pieces[0].memory, 0, 31996), *pieces[1:]], [])
    api.fail["cuGetProcAddress"] = real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(
        ExecutionError, match=r"(?s)the driver copies no boxes.*cuTensorMapEncodeTiled: .*invalid value.*CUDA 12"
    ):
        device.launch(module, "boxes", [Slice(device.reserve(n), 0, n) for n in (32000, 640, 40960)], [])
    api.capability = 80
    with pytest.raises(ExecutionError, match=r"(?s)the driver copies no boxes.*cuTensorMapEncodeTiled.*CUDA 12"):
        device.launch(module, "boxes", [Slice(device.reserve(n), 0, n) for n in (32000, 640, 40960)], [])


def test_devices_without_tensors_say_so() -> None:
    from weft_gpu.image import unpack

    with pytest.raises(
        ExecutionError, match=r"(?s)'boxes' is damaged.*copies boxes of tensors, which this device does not"
    ):
        unpack(*boxes())


def test_why_there_is_no_gpu(api: FakeApi) -> None:
    assert missing(0) is None
    assert "there are 1 GPUs, and the one of -device=3 is wanted" in (missing(3) or "")
    api.gpus = 0
    assert "CUDA_ERROR_NO_DEVICE" in (missing(0) or "") and "CUDA_VISIBLE_DEVICES" in (missing(0) or "")
    with pytest.raises(ExecutionError, match=r"(?s)the device 'cuda' is not here.*nvidia-smi"):
        open_device("cuda")
    with pytest.raises(
        weft.WeftError,
        match=r"(?s)there is no GPU to compile for.*nvidia-smi.*name an architecture: cuda -arch=sm_90.*sm_80",
    ):
        weft.compile(chain(), target="cuda", cache=False)


def test_several_gpus(api: FakeApi) -> None:
    api.gpus = 2
    first, second = open_device("cuda"), open_device("cuda:1")
    assert (first.name, second.name) == ("cuda", "cuda:1")
    exe = weft.compile(chain(), target=f"{TARGET} -device=1", cache=False)
    assert exe.manifest.devices == ("cuda:1",)
    np.testing.assert_allclose(run(exe, random(5)), expected(random(5)), rtol=1e-5, atol=1e-5)
    with pytest.raises(ExecutionError, match="the one of -device=2 is wanted"):
        open_device("cuda:2")
    with pytest.raises(ExecutionError, match="'x' is no number of a GPU"):
        open_device("cuda:x")


def test_the_gpu_that_is_here_is_compiled_for(api: FakeApi) -> None:
    from weft_testing.plugin import resolve_target

    api.capability = 86
    found = resolve_target("cuda")
    assert found.target.options.arch == "sm_86"
    assert found.machine.cores == 4
    assert resolve_target("cuda -arch=sm_80").machine.cores == 108  # another than the one that is here


def test_nothing_of_nvidia_is_imported_before_it_is_needed() -> None:
    import subprocess
    import sys

    code = (
        "import sys, weft_cuda.plugin as p; p.targets(); p.devices(); print([m for m in sys.modules if m.split('.')[0]"
        " == 'cuda'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_driver_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, if it has none."""
    from weft_cuda import driver as drivers

    drivers.driver.cache_clear()
    monkeypatch.setattr(real, "cuDriverGetVersion", _absent)
    try:
        why = missing(0)
    finally:
        drivers.driver.cache_clear()
    assert why is not None and "libcuda is not found" in why and "compiles without one" in why


def _absent() -> Any:
    raise RuntimeError("libcuda.so")


def test_a_device_is_a_device(api: FakeApi) -> None:
    device = opened(api)
    assert isinstance(device, Device) and not device.shares_memory
    assert device.capacity == 64 << 20
    assert device.capability == 90 and device.title == "Fake GPU"
    assert device.limits.threads == 1024
