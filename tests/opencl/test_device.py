"""The device: memory, programs kept on disk, launches and their limits, times, and what goes wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import ExecutionError
from weft.loop.parser import parse_program
from weft_c_family import Emitter
from weft_gpu.image import Kernel, Launch, pack
from weft_opencl.codegen import OpenclCodegen
from weft_opencl.device import OpenclDevice
from weft_opencl.devices import Found, has_float64, has_int64_atomics
from weft_opencl.dialect import dialect
from weft_runtime.cache import Cache
from weft_runtime.device import Slice, Started

TWICE = """program twice(x: float32[n]) -> (y: float32[n]) dims(n) {
  for b in (n + 63)//64 blockIdx.x {
    for t in 64 threadIdx.x {
      if b*64 + t < n { y[b*64 + t] = x[b*64 + t]*2.0f32 }
    }
  }
}"""


def emitted(text: str, device: OpenclDevice) -> tuple[str, str]:
    found = Emitter(dialect(has_float64(device.found.device), False, has_int64_atomics(device.found.device))).emit(
        parse_program(text)
    )
    return found.symbol, found.source


def section(launch: Launch, name: str = "twice") -> Any:
    return pack({name: Kernel(name, (launch,)).to_bytes()})


def twice(device: OpenclDevice, **changes: Any) -> Any:
    symbol, source = emitted(TWICE, device)
    fields = {
        "symbol": symbol,
        "code": source.encode(),
        "grid": ("(d0 + 63)//64", "1", "1"),
        "group": (64, 1, 1),
        "buffers": (0, 1),
        "dims": (0,),
    }
    return section(Launch(**{**fields, **changes}))


def run(device: OpenclDevice, module: Any, x: Any, kernel: str = "twice") -> Any:
    """x → y, both parts of one piece of memory."""
    memory = device.reserve(2 * x.nbytes + 256)
    source, target = Slice(memory, 64, x.nbytes), Slice(memory, 128 + (x.nbytes + 63) // 64 * 64, x.nbytes)
    device.write(source, x)
    device.launch(module, kernel, [source, target], [x.size])
    y = np.empty_like(x)
    device.synchronize()
    device.read(target, y)
    return y


def test_buffers_are_parts_of_memory(device: OpenclDevice) -> None:
    module = device.load(*twice(device))
    for n in (1000, 64, 1):
        x = np.random.default_rng(n).random(n, np.float32)
        np.testing.assert_array_equal(run(device, module, x), x * 2)
    device.launch(module, "twice", [Slice(device.reserve(0), 0, 0)] * 2, [0])  # no group: nothing is launched
    device.synchronize()


def test_programs_are_kept_on_disk_and_a_damaged_one_is_made_again(here: Found, tmp_path: Path) -> None:
    image, entries = twice(OpenclDevice("opencl", here, Cache("opencl", tmp_path)))
    for expected in (1, 0):
        device = OpenclDevice("opencl", here, Cache("opencl", tmp_path))
        module = device.load(image, entries)
        assert device.compiled == expected
        np.testing.assert_array_equal(run(device, module, np.ones(3, np.float32)), [2, 2, 2])
    key = f"{device._compiler} {hashlib.sha256(next(iter(module.values()))[0].launch.code).hexdigest()}"
    assert device.cache.get(key) is not None
    device.cache.put(key, b"what an older driver has left")
    device.load(image, entries)
    assert device.compiled == 1


def test_what_the_compiler_refuses_is_shown_with_its_line(device: OpenclDevice) -> None:
    _, source = emitted(TWICE, device)
    image, entries = twice(device, code=source.replace("* 2.0f", "* tow").encode())
    with pytest.raises(
        ExecutionError, match="the driver's compiler refuses kernel 'twice' for device 'opencl'"
    ) as caught:
        device.load(image, entries)
    assert "y[b * 64 + t] = x[b * 64 + t] * tow;" in str(caught.value) and "'tow'" in str(caught.value)
    assert device.found.version in str(caught.value)
    module = device.load(*twice(device))
    np.testing.assert_array_equal(run(device, module, np.ones(3, np.float32)), [2, 2, 2])


def tripled(device: OpenclDevice, **changes: str) -> Launch:
    """A kernel that shares a helper function with `halved`."""
    text = TWICE.replace("x[b*64 + t]*2.0f32", "min(x[b*64 + t], 7.0f32)*3.0f32").replace("twice", "tripled")
    symbol, source = emitted(text, device)
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    return Launch(symbol, source.encode(), ("(d0 + 63)//64", "1", "1"), (64, 1, 1), (0, 1), (0,))


def halved(device: OpenclDevice, name: str = "halved") -> Launch:
    symbol, source = emitted(
        TWICE.replace("x[b*64 + t]*2.0f32", "min(x[b*64 + t], 7.0f32)*0.5f32").replace("twice", name), device
    )
    return Launch(symbol, source.encode(), ("(d0 + 63)//64", "1", "1"), (64, 1, 1), (0, 1), (0,))


def sections(**kernels: Launch) -> Any:
    return pack({name: Kernel(name, (launch,)).to_bytes() for name, launch in kernels.items()})


def test_kernels_of_a_section_are_one_program(here: Found, tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32)
    for compiled in (1, 0):
        device = OpenclDevice("opencl", here, Cache("opencl", tmp_path))
        a, b = tripled(device), halved(device)
        assert b"weft_min_f32(float a, float b)" in a.code and b"weft_min_f32(float a, float b)" in b.code
        module = device.load(*sections(a=a, b=b))
        assert device.compiled == compiled
        np.testing.assert_array_equal(run(device, module, x, "a"), np.minimum(x, 7) * 3)
        np.testing.assert_array_equal(run(device, module, x, "b"), np.minimum(x, 7) / 2)


def test_functions_of_one_name_are_in_programs_of_their_own(device: OpenclDevice) -> None:
    module = device.load(*sections(a=tripled(device), b=halved(device, "tripled"), c=halved(device)))
    assert device.compiled == 2
    x = np.arange(12, dtype=np.float32)
    for name, factor in (("a", 3), ("b", 0.5), ("c", 0.5)):
        np.testing.assert_array_equal(run(device, module, x, name), np.minimum(x, 7) * np.float32(factor))


def test_of_many_kernels_those_that_the_compiler_refuses_are_named(device: OpenclDevice) -> None:
    wrong = tripled(device, **{"* 3.0f": "* tow"})
    with pytest.raises(ExecutionError, match="the driver's compiler refuses kernel 'b' for device 'opencl'") as caught:
        device.load(*sections(a=halved(device), b=wrong, c=halved(device, "third")))
    assert "* tow;" in str(caught.value) and "'tow'" in str(caught.value)


def test_a_driver_that_keeps_programs_is_not_asked_for_them(
    here: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for keeps in (True, False):
        monkeypatch.setattr("weft_opencl.device.keeps_programs", lambda device, keeps=keeps: keeps)
        device = OpenclDevice("opencl", here)
        np.testing.assert_array_equal(run(device, device.load(*twice(device)), np.ones(3, np.float32)), [2, 2, 2])
        assert any(tmp_path.rglob("*.bin")) is not keeps


def test_code_that_is_no_text_or_has_no_such_kernel(device: OpenclDevice) -> None:
    with pytest.raises(ExecutionError, match="kernel 'twice' for device 'opencl' is no text"):
        device.load(*twice(device, code=b"\xff\xfe"))
    with pytest.raises(ExecutionError, match="the program of kernel 'twice' has no 'thrice'"):
        device.load(*twice(device, symbol="thrice"))
    with pytest.raises(ExecutionError, match="the code of kernel 'twice' is damaged"):
        device.load(b"\x10", {"twice": 0})


def test_limits_are_checked_before_a_launch(device: OpenclDevice) -> None:
    most = device.limits.threads
    module = device.load(*twice(device, group=(most + 1, 1, 1)))
    with pytest.raises(ExecutionError, match="kernel 'twice' cannot be launched on this device") as caught:
        run(device, module, np.ones(3, np.float32))
    assert f"{most + 1} threads are wanted in a group, {most} are allowed" in str(caught.value)
    np.testing.assert_array_equal(run(device, device.load(*twice(device)), np.ones(3, np.float32)), [2, 2, 2])


def test_a_launch_that_lacks_a_buffer_or_a_dim_is_damaged(device: OpenclDevice) -> None:
    for fields, wanted in (({"buffers": (0, 7)}, "buffer 7 of 2"), ({"dims": (3,)}, "dim 3 of 1")):
        module = device.load(*twice(device, **fields))
        with pytest.raises(ExecutionError, match=f"a launch of kernel 'twice' needs {wanted}"):
            run(device, module, np.ones(3, np.float32))
    with pytest.raises(ExecutionError, match="'twice' of kernel 'twice' takes 5 arguments, its launch has 3"):
        device.load(*twice(device, buffers=(0,)))
    np.testing.assert_array_equal(run(device, device.load(*twice(device)), np.ones(3, np.float32)), [2, 2, 2])


def test_too_much_memory_is_refused_with_both_numbers(device: OpenclDevice) -> None:
    free = device.free
    with pytest.raises(ExecutionError, match="device 'opencl' has too little memory") as caught:
        device.reserve(free + 1)
    assert f"{free + 1} bytes are wanted, {free} of {device.capacity} are free" in str(caught.value)


def test_a_piece_larger_than_the_driver_gives_is_refused(device: OpenclDevice) -> None:
    device._largest = 1 << 20
    with pytest.raises(ExecutionError, match="device 'opencl' has no piece of memory so large") as caught:
        device.reserve((1 << 20) + 1)
    assert "1048577 bytes are wanted, its driver gives at most 1048576 in one piece" in str(caught.value)
    assert device.reserve(1 << 20).size == 1 << 20


def test_launches_are_prepared_once_and_started_often(device: OpenclDevice) -> None:
    module = device.load(*twice(device))
    memory = device.reserve(1024)
    slices = [Slice(memory, at, 16) for at in (0, 128, 256)]
    start = device.prepare(
        module, [Started("twice", (slices[0], slices[1]), (4,)), Started("twice", (slices[1], slices[2]), (4,))]
    )
    for x in (np.arange(4, dtype=np.float32), np.full(4, 7, np.float32)):
        device.write(slices[0], x)
        start()
        device.synchronize()
        y = np.empty(4, np.float32)
        device.read(slices[2], y)
        np.testing.assert_array_equal(y, x * 4)


def test_times_are_recorded_when_asked_for(device: OpenclDevice) -> None:
    module = device.load(*twice(device))
    x = np.ones(100, np.float32)
    run(device, module, x)
    assert device.recorded() == []
    device.record(True)
    run(device, module, x)
    run(device, module, x[:0].copy())
    run(device, module, x)
    times = device.recorded()
    assert [t[0] for t in times] == ["twice"] * 3
    assert all(start <= end for _, start, end in times) and times[0][1] < times[0][2] <= times[2][1]
    assert times[1][1] == times[1][2]
    assert device.recorded() == []
    device.record(False)
    run(device, module, x)
    assert device.recorded() == []


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32", "int64", "uint64", "float64"])
def test_atomic_updates_lose_nothing(device: OpenclDevice, dtype: str) -> None:
    """Of global memory by four groups, of shared memory by the threads of each."""
    if dtype in ("int64", "uint64", "float64") and not has_int64_atomics(device.found.device):
        pytest.skip("the device has no atomic updates of 64 bits")
    operations = {"sum": "+=", "least": "min=", "most": "max="}
    updates = "\n".join(
        f"atomic {name}[t % 3] {symbol} x[b*64 + t]\natomic own_{name}[t % 3] {symbol} x[b*64 + t]"
        for name, symbol in operations.items()
    )
    text = f"""program p(x: {dtype}[256]) -> ({", ".join(f"{n}: {dtype}[3], all_{n}: {dtype}[4, 3]" for n in operations)}) {{
      for b in 4 blockIdx.x {{
        {" ".join(f"allocate own_{n}: {dtype}[3] in shared" for n in operations)}
        for t0 in 64 threadIdx.x {{ if t0 < 3 {{ {" ".join(f"own_{n}[t0] = x[b*64 + t0]" for n in operations)} }} }}
        @barrier()
        for t in 64 threadIdx.x {{ {updates} }}
        @barrier()
        for t1 in 64 threadIdx.x {{ if t1 < 3 {{ {" ".join(f"all_{n}[b, t1] = own_{n}[t1]" for n in operations)} }} }}
      }}
    }}"""  # noqa: E501
    symbol, source = emitted(text, device)
    module = device.load(
        *section(Launch(symbol, source.encode(), ("4", "1", "1"), (64, 1, 1), tuple(range(7)), ()), "p")
    )
    x = np.random.default_rng(0).integers(1, 90, 256).astype(dtype)
    results = [np.full(3, 40, dtype), np.zeros((4, 3), dtype)] * 3
    slices = []
    for array in (x, *results):
        slices.append(Slice(device.reserve(array.nbytes), 0, array.nbytes))
        device.write(slices[-1], array)
    device.launch(module, "p", slices, [])
    device.synchronize()
    for k, name in enumerate(operations):
        function = {"sum": np.sum, "least": np.min, "most": np.max}[name]
        of_all, of_groups = np.empty(3, dtype), np.empty((4, 3), dtype)
        device.read(slices[1 + 2 * k], of_all)
        device.read(slices[2 + 2 * k], of_groups)
        groups = x.reshape(4, 64)
        np.testing.assert_array_equal(of_all, [function([*groups[:, r::3].ravel(), 40]) for r in range(3)])
        np.testing.assert_array_equal(
            of_groups, [[function([*g[r::3], *([g[r]] if name == "sum" else [])]) for r in range(3)] for g in groups]
        )


def test_launches_of_many_buffers_get_a_table(device: OpenclDevice) -> None:
    """Of twenty memories, results among those that are copied and among those that are not; a buffer that others
    overlap."""
    count = 40
    inputs = ", ".join(f"x{k}: float32[n]" for k in range(count))
    total = " + ".join(f"x{k}[b*64 + t]" for k in range(count))
    text = TWICE.replace("x: float32[n]", inputs).replace("(y: float32[n])", "(y: float32[n], z: float32[n])")
    program = parse_program(text.replace("x[b*64 + t]*2.0f32", f"{total} z[b*64 + t] = x{count - 1}[b*64 + t]"))
    found = {}
    for most in (2048, 512):
        code = OpenclCodegen(dialect(False), most).compile(program)
        found[most] = Kernel.from_bytes(code.object, "twice")
    assert b"weft_at" in found[512].launches[0].code and b"weft_at" not in found[2048].launches[0].code
    n = 100
    x = np.random.default_rng(0).integers(0, 9, (count, n)).astype(np.float32)
    memories = [device.reserve(2048) for _ in range(20)]
    pieces = [Slice(memories[k // 2], 512 * (k % 2), n * 4) for k in range(count)]
    for piece, row in zip(pieces, x):
        device.write(piece, row)
    for results in ((Slice(memories[0], 1024, n * 4), Slice(memories[-1], 1024, n * 4)), (pieces[3], pieces[-2])):
        for most in found:
            for piece, row in zip(pieces, x):
                device.write(piece, row)
            module = device.load(*pack({"twice": found[most].to_bytes()}))
            device.launch(module, "twice", [*pieces, *results], [n])
            for piece, expected in zip(results, (x.sum(0), x[-1])):
                got = np.empty(n, np.float32)
                device.read(piece, got)
                np.testing.assert_array_equal(got, expected)
            device.launch(module, "twice", [*pieces, *results], [0])
