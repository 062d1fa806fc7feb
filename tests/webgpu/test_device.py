"""The device: memory in words, texts with joined bindings, launches beyond limits, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft import dtypes as dt
from weft.errors import ExecutionError, TargetError, WeftError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.parser import parse_program
from weft.target import Target
from weft_gpu.image import Kernel, Launch, pack
from weft_ops import Add, Cast, Concat, Divide, Gather, Less, MatMul, Minimum, Multiply, ReduceSum, Relu, Where
from weft_runtime.device import Memory, Slice
from weft_webgpu.device import WebgpuDevice
from weft_webgpu.target import WebgpuOptions, WebgpuTarget
from weft_webgpu.text import Text

Array = np.ndarray[Any, Any]
HEAD = "@compute @workgroup_size(1)\nfn main(@builtin(workgroup_id) g: vec3<u32>) {\n"


def held(device: WebgpuDevice, data: Array) -> Memory:
    memory = device.reserve(max(256, data.nbytes))
    device.write(Slice(memory, 0, data.nbytes), data)
    return memory


def back(device: WebgpuDevice, place: Slice, dtype: str = "float32") -> Array:
    device.synchronize()
    found = np.empty(place.bytes // np.dtype(dtype).itemsize, dtype)
    device.read(place, found)
    return found


def started(
    device: WebgpuDevice,
    text: str,
    buffers: Sequence[Slice],
    dims: Sequence[int] = (),
    grid: str = "1",
    repeat: int = 1,
) -> None:
    launch = Launch(
        "main", text.encode(), (grid, "1", "1"), (1, 1, 1), tuple(range(len(buffers))), tuple(range(len(dims)))
    )
    image, entries = pack({"k": Kernel("k", (launch,)).to_bytes()})
    module = device.load(image, entries)
    for _ in range(repeat):
        device.launch(module, "k", buffers, dims)


def text(types: Sequence[str], body: str, dims: int = 0) -> str:
    lines = [f"@group(0) @binding({k}) var<storage, read_write> weft_b{k}: array<{t}>;" for k, t in enumerate(types)]
    if dims:
        lines.append(f"@group(0) @binding({len(types)}) var<uniform> weft_sizes: array<vec4<i32>, {-(-dims // 4)}>;")
    return "\n".join(lines) + f"\n\n{HEAD}{body}\n}}\n"


# -- memory


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 1), (3, 2), (2, 6), (5, 7), (4, 4), (0, 9)])
def test_bytes_beside_what_is_written_stay(device: WebgpuDevice, offset: int, size: int) -> None:
    before = np.arange(64, dtype=np.uint8)
    memory = held(device, before)
    new = np.full(size, 200, np.uint8)
    device.write(Slice(memory, offset, size), new)
    want = before.copy()
    want[offset : offset + size] = new
    np.testing.assert_array_equal(back(device, Slice(memory, 0, 64), "uint8"), want)
    np.testing.assert_array_equal(back(device, Slice(memory, offset, size), "uint8"), new)


def test_a_piece_beyond_the_largest_is_refused(device: WebgpuDevice) -> None:
    with pytest.raises(ExecutionError) as caught:
        device.reserve(device.largest + 1)
    message = f"{device.largest + 1} bytes are wanted, it gives at most {device.largest} in one piece"
    assert message in str(caught.value) and "run smaller inputs" in str(caught.value)


# -- bindings


def test_one_place_is_bound_once(device: WebgpuDevice) -> None:
    """The same buffer as both factors, and as the result of a sum in place."""
    memory = held(device, np.float32([3]))
    place = Slice(memory, 0, 4)
    started(device, text(["f32"] * 3, "weft_b2[0] = weft_b0[0] * weft_b1[0];"), [place, place, place])
    assert back(device, place) == [9]


def test_a_place_of_two_types_is_copied(device: WebgpuDevice) -> None:
    memory = held(device, np.uint32([7]))
    place = Slice(memory, 0, 4)
    started(device, text(["u32", "f32"], "weft_b1[0] = f32(weft_b0[0]) + 0.5;"), [place, place])
    assert back(device, place) == [7.5]


def test_parts_that_overlap_are_copied(device: WebgpuDevice) -> None:
    memory = held(device, np.arange(256, dtype=np.float32))
    whole, part = Slice(memory, 0, 1024), Slice(memory, 512, 512)
    body = "for (var i = 0; i < 128; i++) { weft_b1[i] = weft_b0[i] + weft_b0[i + 128]; }"
    started(device, text(["f32", "f32"], body), [whole, part])
    want = np.arange(256, dtype=np.float32)
    want[128:] = want[:128] + want[128:]
    np.testing.assert_array_equal(back(device, whole), want)


def test_a_text_says_what_it_binds() -> None:
    source = text(["f32", "vec2<u32>"], "weft_b1[0].x = u32(weft_b0[0]);", dims=2)
    found = Text(source)
    assert found.types == ("f32", "vec2<u32>") and found.sized and not found.joined
    joined = Text(text(["f32", "f32", "f32"], "weft_b2[0] = weft_b0[0] + weft_b1[0];")).with_aliases((0, 0, 2))
    assert "weft_b1" not in joined and "weft_b0[0] + weft_b0[0]" in joined and "@binding(2)" in joined


def sum_of(count: int, dtype: str = "float32") -> Graph:
    g = GraphBuilder("sum")
    xs = [g.input(f"x{k}", tensor_type(dtype, (5, 3))) for k in range(count)]
    total = xs[0]
    for x in xs[1:]:
        total = g.add(Add(), total, x)
    g.output(total, "y")
    g.output(g.add(Relu(), total), "z")
    return g.build()


@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "float16"])
def test_more_buffers_than_bindings(dtype: str) -> None:
    """They lie in one array: copies of what is used of each memory."""
    inputs = {f"x{k}": np.random.default_rng(k).integers(-9, 9, (5, 3)).astype(dtype) for k in range(12)}
    exe = weft.compile(sum_of(12, dtype), target="webgpu -buffers=4", cache=False)
    got = exe.run(inputs)
    want = np.sum(list(inputs.values()), axis=0, dtype=dtype)
    np.testing.assert_array_equal(got["y"], want)
    np.testing.assert_array_equal(got["z"], np.maximum(want, 0))


def test_one_executable_serves_any_size() -> None:
    g = GraphBuilder("dense")
    x = g.input("x", tensor_type("float32", (Var("n"), 24)))
    w = np.random.default_rng(0).standard_normal((24, 10)).astype(np.float32)
    g.output(g.add(Relu(), g.add(MatMul(), x, g.constant(w, "w"))), "y")
    exe = weft.compile(g.build(), target="webgpu", cache=False)
    for n in (5, 70, 1, 0, 70):
        given = np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)
        np.testing.assert_allclose(exe.run({"x": given})["y"], np.maximum(given @ w, 0), rtol=1e-5, atol=1e-5)


def test_rows_by_numbers_of_64_bits() -> None:
    """Numbers from the end too: their upper words matter."""
    g = GraphBuilder("rows")
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    i = g.input("i", tensor_type("int64", (Var("n"),)))
    g.output(g.add(Gather(0), g.constant(table, "table"), i), "y")
    numbers = np.array([0, 9, -1, -10, 3], np.int64)
    got = weft.compile(g.build(), target="webgpu", cache=False).run({"i": numbers})["y"]
    np.testing.assert_array_equal(got, table[numbers])


def test_integers_of_64_bits_keep_their_upper_words() -> None:
    g = GraphBuilder("wide")
    x, y = (g.input(n, tensor_type("int64", (6,))) for n in "xy")
    g.output(g.add(Multiply(), g.add(Add(), x, y), y), "z")
    g.output(g.add(Cast(dt.float32), x), "f")
    a = np.array([1 << 40, -(1 << 40), (1 << 62) + 1, -1, 5, -(1 << 63)], np.int64)
    b = np.array([3, -7, 1 << 33, -1, 1 << 31, 1], np.int64)
    got = weft.compile(g.build(), target="webgpu", cache=False).run({"x": a, "y": b})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got["z"], (a + b) * b)
    np.testing.assert_array_equal(got["f"], a.astype(np.float32))


def test_bytes_are_written_by_many_threads() -> None:
    g = GraphBuilder("bytes")
    x, y = (g.input(n, tensor_type("int8", (1001,))) for n in "xy")
    g.output(g.add(Concat(0), g.add(Add(), x, y), x), "z")
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, 1001).astype(np.int8) for _ in range(2))
    got = weft.compile(g.build(), target="webgpu", cache=False).run({"x": a, "y": b})["z"]
    np.testing.assert_array_equal(got, np.concatenate([a + b, a]))


# -- grids


def test_a_grid_of_more_groups_than_a_dispatch_has(device: WebgpuDevice) -> None:
    body = "let i = g.x + 65535u * g.z;\nif (i < u32(weft_sizes[0].x)) { weft_b0[i] = i; }"
    n = 200_001
    memory = device.reserve(4 * n)
    started(device, text(["u32"], body, dims=1), [Slice(memory, 0, 4 * n)], (n,), grid="d0")
    np.testing.assert_array_equal(back(device, Slice(memory, 0, 4 * n), "uint32"), np.arange(n))


@pytest.mark.parametrize("n", [65535 * 256 + 7, "n"])
def test_an_operator_over_so_many_groups(n: int | str) -> None:
    """Of a size that is known, and of one that may be so large."""
    size = 65535 * 256 + 7
    g = GraphBuilder("long")
    x = g.input("x", tensor_type("float32", (Var(n) if isinstance(n, str) else n,)))
    g.output(g.add(Relu(), x), "y")
    exe = weft.compile(g.build(), target="webgpu -threads=32", cache=False)
    given = np.arange(size, dtype=np.float32) - 1000
    np.testing.assert_array_equal(exe.run({"x": given})["y"], np.maximum(given, 0))


# -- what is refused


def failed(
    device: WebgpuDevice, source: str, buffers: Sequence[Slice], dims: Sequence[int] = (), grid: str = "1"
) -> str:
    with pytest.raises(ExecutionError) as caught:
        started(device, source, buffers, dims, grid)
    return str(caught.value)


def test_a_text_that_does_not_compile_names_kernel_and_line(device: WebgpuDevice) -> None:
    place = Slice(held(device, np.float32([1])), 0, 4)
    message = failed(device, text(["f32"], "weft_b0[0] = nothing;"), [place])
    assert message.startswith("the compiler refuses kernel 'k' for device 'webgpu'")
    assert "nothing" in message and "--stage source" in message


def test_a_text_of_other_bindings_is_damaged(device: WebgpuDevice) -> None:
    place = Slice(held(device, np.float32([1])), 0, 4)
    message = failed(device, text(["f32"], "weft_b0[0] = 1;"), [place, place])
    assert "'main' binds 1 buffers, its launch has 2" in message and "compile the model again" in message


def test_more_bindings_than_the_device_has(device: WebgpuDevice) -> None:
    count = device.bindings + 1
    place = Slice(held(device, np.float32([1])), 0, 4)
    message = failed(device, text(["f32"] * count, "weft_b0[0] = 1;"), [place] * count)
    assert f"binds {count} buffers, device 'webgpu' allows {device.bindings}" in message
    assert f"compile with -buffers={device.bindings}" in message


def test_sizes_beyond_32_bits(device: WebgpuDevice) -> None:
    place = Slice(held(device, np.float32([1])), 0, 4)
    message = failed(device, text(["f32"], "weft_b0[0] = f32(weft_sizes[0].x);", dims=1), [place], (1 << 31,))
    assert f"a size is {1 << 31}, there it is at most {1 << 30}" in message


def test_grids_beyond_the_limit(device: WebgpuDevice) -> None:
    place = Slice(held(device, np.float32([1])), 0, 4)
    launch = Launch("main", text(["f32"], "weft_b0[0] = 1;").encode(), ("131070", "1", "40000"), (1, 1, 1), (0,), ())
    image, entries = pack({"k": Kernel("k", (launch,)).to_bytes()})
    with pytest.raises(ExecutionError, match="65535 groups along an axis"):
        device.launch(device.load(image, entries), "k", [place], ())


@pytest.mark.parametrize(
    ("option", "message"),
    [("-buffers=1", "'-buffers' is 2 to 64, got 1"), ("-threads=2048", "'-threads' is 32 to 1024, got 2048")],
)
def test_limits_that_no_device_has(option: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        weft.compile(sum_of(2), target=f"webgpu {option}")


def test_numbers_of_64_bits_in_floating_point_are_refused() -> None:
    g = GraphBuilder("wide")
    g.output(g.add(Relu(), g.input("x", tensor_type("float64", (3,)))), "y")
    with pytest.raises(WeftError, match="float64"):
        weft.compile(g.build(), target="webgpu", strict=True)


def test_shared_memory_counts_words_for_bytes() -> None:
    """An element of one byte takes a word of a group's memory."""
    program = parse_program(
        """
program k(x: int8[8192]) -> (y: int8[8192]) dims() {
  for b in 1 blockIdx.x {
    allocate s: int8[8192] in shared
    for t in 64 threadIdx.x { for i in 128 { s[i*64 + t] = x[i*64 + t] } }
    for u in 64 threadIdx.x { for j in 128 { y[j*64 + u] = s[8191 - (j*64 + u)] } }
  }
}
"""
    )
    target = WebgpuTarget()
    machine = target.machine(Target("webgpu", WebgpuOptions()))
    assert "32768 bytes of scope 'shared'" in str(target.exceeds(program, machine))


# -- meaning, where words do not suffice


def onnx_like(build: Any, **inputs: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    """What a graph gives here and by the CPU target."""
    here, there = (weft.compile(build(), target=t, cache=False) for t in ("webgpu, llvm", "llvm -threads=1"))
    return here.run(inputs), there.run(inputs)


def test_sizes_are_compared_with_numbers_of_64_bits() -> None:
    def build() -> Graph:
        g = GraphBuilder("sizes")
        x = g.input("x", tensor_type("int64", (Var("n"),)))
        shift = g.constant(np.array([1 << 32], np.int64), "c")
        wide = g.add(Multiply(), x, x)
        g.output(g.add(Less(), x, shift), "below")
        g.output(g.add(Less(), g.add(Multiply(), wide, wide), shift), "powers")
        g.output(g.add(Minimum(), wide, shift), "least")
        return g.build()

    x = np.array([3, 1 << 20, 1 << 33, -5, (1 << 32) + 3], np.int64)
    got, want = onnx_like(build, x=x)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


def test_an_index_is_computed_from_wide_numbers() -> None:
    """Products beyond 32 bits before a division, and a conversion of the model's own that cuts."""

    def build() -> Graph:
        g = GraphBuilder("index")
        i = g.input("i", tensor_type("int32", (Var("k"),)))
        wide = g.input("wide", tensor_type("int64", (Var("k"),)))
        table = g.constant(np.arange(300_000, dtype=np.float32), "table")
        scaled = g.add(Multiply(), g.add(Cast(dt.int64), i), g.constant(np.int64(40_000), "a"))
        g.output(g.add(Gather(0), table, g.add(Divide(), scaled, g.constant(np.int64(70_000), "b"))), "y")
        g.output(g.add(Gather(0), table, g.add(Cast(dt.int32), wide)), "z")
        return g.build()

    i = np.array([0, 100_000, 200_000, 300_000], np.int32)
    got, want = onnx_like(build, i=i, wide=np.array([0, (1 << 32) + 3, -1, 7], np.int64))
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


def test_a_loop_over_a_number_in_memory() -> None:
    """A number below 0 whose lower word is 7: no turns; a let of a product of two words that is wider."""
    program = parse_program(
        """
program k(x: int64[4], w: int32[4]) -> (y: int32[4], z: int32[4]) dims() {
  for i in 4 {
    y[i] = 0i32
    for j in x[i] { y[i] = y[i] + 1i32 }
    let k: int32 = w[i] {
      let p: int64 = int64(k)*int64(k) {
        if p < 1000000 { z[i] = 7i32 } else { z[i] = 9i32 }
      }
    }
  }
}
"""
    )
    source = WebgpuTarget().codegen(Target("webgpu", WebgpuOptions())).source(program)
    assert "weft_extent(weft_b0[" in source and "weft_mul_64" in source


def test_empty_tensors_beside_others() -> None:
    def build() -> Graph:
        g = GraphBuilder("parts")
        w = g.constant(np.eye(4, dtype=np.float32), "w")
        xs = [g.input(n, tensor_type("float32", (Var(n), 4))) for n in "abc"]
        parts = [g.add(MatMul(), x, w) for x in xs]
        g.output(g.add(MatMul(), g.add(Concat(0), *parts), w), "y")
        return g.build()

    for sizes in ((5, 3, 0), (0, 100, 0), (7, 0, 0), (0, 0, 3), (2, 0, 5)):
        given = {n: np.arange(4.0 * k, dtype=np.float32).reshape(k, 4) for n, k in zip("abc", sizes)}
        got, want = onnx_like(build, **given)
        np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_constant_below_0_of_few_bits(dtype: str) -> None:
    def build() -> Graph:
        g = GraphBuilder("constant")
        x = g.input("x", tensor_type(dtype, (Var("n"),)))
        g.output(g.add(Where(), g.add(Less(), x, x), x, g.constant(np.array(-7, dtype), "c")), "y")
        return g.build()

    got, want = onnx_like(build, x=np.arange(5).astype(dtype))
    np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize(("shape", "axis"), [((3, 0), 0), ((0, 0), 1)])
def test_sums_of_nothing(shape: tuple[int, int], axis: int) -> None:
    g = GraphBuilder("nothing")
    g.output(g.add(Relu(), g.add(ReduceSum(axes=(axis,)), g.input("x", tensor_type("float32", shape)))), "y")
    assert (
        weft.compile(g.build(), target="webgpu, llvm", cache=False).run({"x": np.empty(shape, np.float32)})["y"].size
        == 0
    )
