"""`weft export -f c`: models as C text for processors without an operating system."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.c.quantized_models import MODELS, Network
from tests.needs import require
from typer.testing import CliRunner

import weft
from weft.cli.main import build_app
from weft.errors import CodegenError, TargetError, UnsupportedError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, TensorType
from weft.lower.lower import lower_group
from weft_c import toolchain
from weft_c.byte_sums import ChannelSum, Rescale, WindowSum
from weft_c.measure import stack_bytes
from weft_c.model_text import field
from weft_interpreter.interpret import interpret
from weft_ops.fixed_point import FixedPointScale

pytestmark = pytest.mark.needs("c", "weft_tflite")
MICRO = "tflite -kernels=micro"
OPERATORS = [(op, s) for op in (WindowSum, ChannelSum, Rescale) for s in op.samples()]


def exported(data: bytes, folder: Path, profile: str = "mcu", frontend: str = MICRO) -> weft.Executable:
    return weft.export(data, folder / "model.c", "c", options={"profile": profile}, frontend=frontend)


def run_here(executable: weft.Executable, folder: Path, inputs: dict[str, Any], *flags: str) -> dict[str, Any]:
    """The exported C by this machine's compiler, in memory that is full of other things."""
    command = toolchain.compiler(toolchain.default_command(), "c99", "2", None).command
    warnings = ("-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
    arguments = [
        "-std=c99",
        "-O2",
        "-ffp-contract=off",
        *warnings,
        *flags,
        "-shared",
        "-fPIC",
        "model.c",
        "-o",
        "m.so",
        "-lm",
    ]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header = (folder / "model.h").read_text()
    arena = re.search(r"MODEL_ARENA_BYTES (\d+)", header)
    assert arena is not None
    size, guard = int(arena[1]), 64
    memory = np.full(size + 3 * guard, 0xA5, np.uint8)
    start = guard + -(memory.ctypes.data + guard) % 8
    outputs = {o.name: np.empty([int(str(d)) for d in o.shape], str(o.dtype)) for o in executable.outputs}
    pointers = [
        (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        for arrays in ([inputs[i.name] for i in executable.inputs], list(outputs.values()))
    ]
    library = ctypes.CDLL(str(folder / "m.so"))
    assert library.model_run(*pointers, ctypes.c_void_p(memory.ctypes.data + start)) == 0
    assert (memory[:start] == 0xA5).all() and (memory[start + size :] == 0xA5).all(), "it stays within the arena"
    return outputs


def samples(executable: weft.Executable, count: int = 3) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    shape = {i.name: [int(str(d)) for d in i.shape] for i in executable.inputs}
    return [{n: random.integers(-128, 128, s).astype(np.int8) for n, s in shape.items()} for _ in range(count)]


def imported(data: bytes, frontend: str = MICRO) -> Any:
    from weft.loading import load

    return load(data, frontend=frontend)


@pytest.mark.parametrize(("op", "sample"), OPERATORS, ids=lambda x: getattr(x, "name", None) or x.__name__)
def test_the_formulas_of_operators_are_their_references(op: type, sample: Any) -> None:
    builder = GraphBuilder("one")
    types = [TensorType(weft.dtypes.dtype(x.dtype), x.shape) for x in sample.inputs]
    values = [builder.input(f"x{k}", t) for k, t in enumerate(types)]
    builder.output(builder.add(sample.op, *values), "y")
    graph = builder.build()
    (expected,) = evaluate(graph, list(sample.inputs))
    program = lower_group(graph)
    arrays = {b.name: x.reshape([int(str(d)) for d in b.shape]) for b, x in zip(program.inputs, sample.inputs)}
    results = interpret(program, arrays, {})
    np.testing.assert_array_equal(next(iter(results.values())).reshape(expected.shape), expected)


def test_scaling_is_that_of_fixed_point_numbers() -> None:
    random = np.random.default_rng(1)
    x = random.integers(-(1 << 30) + 1, 1 << 30, 4000).astype(np.int32)
    multiplier = random.integers(1 << 30, (1 << 31) - 1, 4000).astype(np.int32)
    for right in range(32):
        places = np.int32(right)
        expected = FixedPointScale().reference(x, multiplier, -places)
        np.testing.assert_array_equal(Rescale(right > 0).reference(x, multiplier, places), expected, f"by 2^{right}")


@pytest.mark.parametrize("profile", ["mcu", "portable"])
@pytest.mark.parametrize("name", MODELS)
def test_quantised_models_equal_the_interpreter_to_the_bit(name: str, profile: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    executable = exported(data, tmp_path, profile)
    graph = imported(data)
    for sample in samples(executable):
        (expected,) = evaluate(graph, sample)
        (got,) = run_here(executable, tmp_path, sample).values()
        np.testing.assert_array_equal(got, expected)
        assert len(np.unique(expected)) > 1, "a result that says something"


@pytest.mark.parametrize("name", MODELS)
def test_the_same_without_undefined_behaviour(name: str, tmp_path: Path) -> None:
    executable = exported(MODELS[name](), tmp_path)
    (sample,) = samples(executable, 1)
    plain, trapped = tmp_path / "plain", tmp_path / "trapped"
    for folder in (plain, trapped):
        folder.mkdir()
        for file in ("model.c", "model.h"):
            (folder / file).write_bytes((tmp_path / file).read_bytes())
    expected = run_here(executable, plain, sample)
    got = run_here(executable, trapped, sample, *TRAPS)
    for k, v in expected.items():
        np.testing.assert_array_equal(got[k], v)


WORDS = ("-D__ARM_FEATURE_DSP=1", f"-I{Path(__file__).parent}")
"""The functions with instructions of the DSP extension, which `arm_acle.h` beside this file has in plain C."""
TRAPS = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


@st.composite
def layers(draw: st.DrawFn) -> Network:
    """One or two convolutions, of all channels or by channel, of few channels and odd sizes."""
    height, width, channels = draw(st.integers(1, 9)), draw(st.integers(1, 11)), draw(st.integers(1, 9))
    network = Network((draw(st.integers(1, 2)), height, width, channels), draw(st.integers(-128, 127)), 0)
    for _ in range(draw(st.integers(1, 2))):
        _, height, width, _ = network.shape
        padding = draw(st.integers(0, 1))
        kernel, dilation = [], []
        for size in (height, width):
            apart = draw(st.sampled_from((1, 1, 1, 2)))
            most = 5 if padding == 0 else (size - 1) // apart + 1
            kernel.append(draw(st.integers(1, min(5, most))))
            dilation.append(apart)
        stride = (1, 1) if max(dilation) > 1 else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        options = {"dilation": (dilation[0], dilation[1]), "activation": draw(st.sampled_from((0, 1, 3)))}
        zero = draw(st.sampled_from((-128, 3)))
        taps = (kernel[0], kernel[1])
        if draw(st.booleans()):
            network.depthwise(taps, stride, zero, padding, **options)
        else:
            network.conv(draw(st.integers(1, 9)), taps, stride, zero, padding, **options)
    return network


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(network=layers())
def test_random_convolutions_equal_the_interpreter_with_and_without_instructions_for_words(
    network: Network, tmp_path: Path
) -> None:
    data = network.bytes()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        executable = exported(data, Path(folder))
        (sample,) = samples(executable, 1)
        (expected,) = evaluate(imported(data), sample)
        for k, flags in enumerate(((), WORDS)):
            inside = Path(folder) / str(k)
            inside.mkdir()
            for file in ("model.c", "model.h"):
                (inside / file).write_bytes((Path(folder) / file).read_bytes())
            (got,) = run_here(executable, inside, sample, *TRAPS, "-Wno-unused-parameter", *flags).values()
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", MODELS)
def test_instructions_for_words_give_the_same(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    executable = exported(data, tmp_path)
    (sample,) = samples(executable, 1)
    (expected,) = evaluate(imported(data), sample)
    (got,) = run_here(executable, tmp_path, sample, *TRAPS, *WORDS).values()
    np.testing.assert_array_equal(got, expected)


def test_sums_are_calls_and_values_between_kernels_are_bytes(tmp_path: Path) -> None:
    executable = exported(MODELS["residual"](), tmp_path)
    text = (tmp_path / "model.c").read_text()
    for name in ("weft_dot_bytes", "weft_window", "weft_widen"):
        assert f" {name}(" in text
    body = text.rpartition("model_run(")[2]
    assert not re.search(r"int32_t \*\)arena\)\[\d+\], &\(\(int8_t", body) or "sums" in text
    arena = int(re.search(r"ARENA_BYTES (\d+)", (tmp_path / "model.h").read_text())[1])  # type: ignore[index]
    assert arena <= 3 * 8 * 8 * 8 + 2 * 72 * 2 + 2 * 12 * 4 + 64, "three pictures of bytes and a kernel's scratch"
    assert not re.search(r"\b(malloc|calloc|free|printf)\b", text)
    assert not re.search(r"^static (?!const|inline|void|int)", text, re.MULTILINE), "no variable of its own"
    assert "int64_t columns" not in text and executable.manifest.machine == "c"


FLOATS = """
<ir_version: 8, opset_import: ["": 17]>
net (float[1, 2, 6, 5] x) => (float[1, 4] y)
<float[3, 2, 3, 3] w = {%s}, float[3] b = {0.5, -0.25, 0.125}, float[27, 4] d = {%s}>
{
  c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, b)
  r = Relu(c)
  f = Flatten(r)
  m = MatMul(f, d)
  y = Softmax(m)
}
"""


def floats() -> onnx.ModelProto:
    random = np.random.default_rng(3)
    numbers = [", ".join(f"{v:.4f}" for v in random.normal(0, 0.3, n)) for n in (54, 108)]
    return onnx.parser.parse_model(FLOATS % tuple(numbers))


@pytest.mark.parametrize("profile", ["portable", "mcu"])
def test_models_of_floats(profile: str, tmp_path: Path) -> None:
    executable = weft.export(floats(), tmp_path / "model.c", "c", options={"profile": profile})
    x = np.random.default_rng(5).normal(size=(1, 2, 6, 5)).astype(np.float32)
    (expected,) = evaluate(imported_onnx(), [x])
    got = run_here(executable, tmp_path, {"x": x})["y"]
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)


def imported_onnx() -> Any:
    from weft.loading import load

    return load(floats())


def test_a_microcontroller_is_not_needed_to_report(tmp_path: Path) -> None:
    require("ziglang")
    (tmp_path / "model.tflite").write_bytes(MODELS["dense"]())
    arguments = [
        "export",
        str(tmp_path / "model.tflite"),
        "-o",
        str(tmp_path / "net.c"),
        "--profile",
        "mcu",
        "--report",
    ]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.output
    figures = dict(re.findall(r"(constants|code|stack|arena):? +(\d+) bytes", done.output))
    assert set(figures) == {"constants", "code", "stack", "arena"}, done.output
    assert 500 < int(figures["code"]) < 6000 and 0 < int(figures["stack"]) < 1000
    assert "int32_t net_run(const net_in *in, const net_out *out, void *arena);" in (tmp_path / "net.h").read_text()


def test_stacks_add_up() -> None:
    sizes = {"a_run": 40, "conv": 120, "pool": 8, "weft_dot_rows": 56, "weft_clear": 4}
    warnings = "\n".join(
        f"a.c:1:1: warning: stack frame size ({n}) exceeds limit (0) in '{name}'" for name, n in sizes.items()
    )
    assert stack_bytes(warnings) == 40 + 120 + 56


def test_what_c_cannot_hold_is_refused(tmp_path: Path) -> None:
    open_model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }'
    )
    with pytest.raises(CodegenError) as sizes:
        weft.export(open_model, tmp_path / "a.c")
    assert "open sizes: 'n'" in str(sizes.value) and "--input-shape" in str(sizes.value)
    with pytest.raises(UnsupportedError, match="names of C cannot begin with '1st'"):
        weft.export(floats(), tmp_path / "1st.c")
    executable = weft.compile(floats(), target="c -profile=portable")
    with pytest.raises(weft.WeftError, match="was compiled for c, this machine is"):
        executable.run({"x": np.zeros((1, 2, 6, 5), np.float32)})
    with pytest.raises(TargetError, match="was compiled for"):
        weft.export(weft.compile(floats(), target="llvm"), tmp_path / "a.c")
    assert not list(tmp_path.iterdir())


def test_names_of_models_are_names_of_c() -> None:
    assert [field(n) for n in ("x", "in:0", "int", "0")] == ["x", "in_0", "int_", "x0"]


@pytest.mark.full
@pytest.mark.needs("ziglang", "qemu_system")
@pytest.mark.parametrize("processor", ["cortex_m4", "cortex_m7"])
@pytest.mark.parametrize("name", MODELS)
def test_emulated_microcontrollers_give_the_same(name: str, processor: str, tmp_path: Path) -> None:
    from benchmarks import board

    data = MODELS[name]()
    executable = exported(data, tmp_path)
    given = samples(executable)
    expected = [evaluate(imported(data), s)[0] for s in given]
    renamed = [{field(k): v for k, v in s.items()} for s in given]
    (output,) = executable.outputs
    run = board.run(tmp_path / "model.c", renamed, {field(output.name): expected[0]}, processor)
    for got, want in zip(run.outputs, expected, strict=True):
        np.testing.assert_array_equal(got[field(output.name)], want)
    assert run.code < 20 << 10 and all(run.instructions)


@pytest.mark.full
@pytest.mark.needs("ziglang", "qemu_system")
@pytest.mark.parametrize(
    ("shape", "outputs", "stride", "most"),
    [((32, 32, 16), 16, 1, 2.35), ((32, 32, 3), 16, 1, 2.35), ((96, 96, 3), 8, 2, 2.35), ((24, 24, 8), 0, 1, 4.5)],
)
def test_a_convolution_takes_few_instructions(
    shape: tuple[int, int, int], outputs: int, stride: int, most: float, tmp_path: Path
) -> None:
    """3 x 3, 0 outputs: by channel. CMSIS-NN takes 2.35 instructions for a multiply-add of 32 x 32 x 16 to 16."""
    from benchmarks import board

    network = Network((1, *shape), -128, 9)
    if outputs:
        network.conv(outputs, 3, stride)
    else:
        network.depthwise(3, stride)
    executable = exported(network.bytes(), tmp_path)
    (sample,) = samples(executable, 1)
    (output,) = executable.outputs
    run = board.run(tmp_path / "model.c", [{"x": sample["x"]}], {field(output.name): np.zeros(network.shape, np.int8)})
    adds = int(np.prod(network.shape)) * 9 * (shape[2] if outputs else 1)
    assert sum(run.instructions[0]) <= most * adds


@pytest.mark.full
@pytest.mark.needs("tflite_micro")
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_tensorflow_lite_micro(name: str) -> None:
    from tflite_micro.python.tflite_micro import runtime

    data = MODELS[name]()
    interpreter = runtime.Interpreter.from_bytes(data)
    executable = weft.compile(data, target="llvm", frontend=MICRO)
    for sample in samples(executable, 20):
        interpreter.set_input(sample["x"], 0)
        interpreter.invoke()
        (got,) = executable.run(sample).values()
        np.testing.assert_array_equal(got, interpreter.get_output(0))


REQUIRED = {"10.1"}
"""Rules of MISRA C:2012 that are required, of which there are findings: `weft_asr_…` shifts signed numbers."""
ADVISORY = {"2.5", "8.9", "10.5", "11.5", "12.1", "15.5"}


@pytest.mark.full
@pytest.mark.needs("cppcheck")
@pytest.mark.parametrize("words", ["dsp", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_rules_that_cppcheck_knows(name: str, words: str, tmp_path: Path) -> None:
    exported(MODELS[name](), tmp_path)
    defined = ["-D__ARM_FEATURE_DSP=1", "-D__GNUC__=12"] if words == "dsp" else ["-D__STDC__=1"]
    command = [
        "cppcheck",
        "--addon=misra",
        "--std=c99",
        "--platform=unix32",
        "-q",
        "--suppress=missingInclude",
        *defined,
    ]
    done = subprocess.run([*command, "model.c"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    lines = (tmp_path / "model.c").read_text().splitlines()
    found = re.findall(r"^model\.[ch]:(\d+):.*\[misra-c2012-([\d.]+)\]", done.stderr, re.MULTILINE)
    assert found, "the addon ran"
    assert {rule for _, rule in found} <= REQUIRED | ADVISORY, done.stderr
    for number, rule in found:
        assert rule not in REQUIRED or " weft_asr_" in lines[int(number) - 1], lines[int(number) - 1]
