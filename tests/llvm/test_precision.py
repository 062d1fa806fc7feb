"""-precision=fp16|bf16 on CPUs: results are those of the model with rounded weights (and activations, where bf16 is
multiplied in pairs), code widens whole vectors or has the instruction, and nothing about it is silent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.qemu.cross import compile_cross, resolved

import weft
from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import TargetError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.pipeline import model_key
from weft.resolve import resolve_target
from weft_llvm.target import CONVERSIONS, LlvmOptions
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, MatMul
from weft_ops.recurrent import LSTM
from weft_runtime.cpu_features import host_features
from weft_runtime.executable import Executable

Array = np.ndarray[Any, Any]
X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu="
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu="
has_fp16 = pytest.mark.skipif(
    not host_features() & {"f16c", "neon"}, reason="this machine has no fp16 conversions, so the option is refused"
)


class Weights:
    """Random weights, each array another one, perhaps rounded."""

    def __init__(self, narrow: DType | None = None) -> None:
        self.random, self.narrow = np.random.default_rng(0), narrow

    def __call__(self, *shape: int) -> Array:
        data = (self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return data if self.narrow is None else np.asarray(data.astype(self.narrow.numpy), np.float32)


Make = Callable[[GraphBuilder, Weights], Value]


def build(make: Make, narrow: DType | None = None) -> Graph:
    b = GraphBuilder("model")
    b.output(make(b, Weights(narrow)), "y")
    return b.build()


def product(m: int, k: int, n: int, batch: tuple[int, ...] = ()) -> Make:
    def make(b: GraphBuilder, w: Weights) -> Value:
        x = b.input("x", tensor_type("float32", (*batch, m, k)))
        bias = b.constant(np.linspace(-1, 1, n, dtype=np.float32), "bias")
        return b.add(Relu(), b.add(Add(), b.add(MatMul(), x, b.constant(w(k, n), "w")), bias))  # type: ignore[no-any-return]

    return make


def convolution(channels: int, out: int, size: int, kernel: int, stride: int = 1) -> Make:
    def make(b: GraphBuilder, w: Weights) -> Value:
        x = b.input("x", tensor_type("float32", (1, channels, size, size)))
        pads = (kernel // 2,) * 4
        return b.add(Conv((stride, stride), pads), x, b.constant(w(out, channels, kernel, kernel), "w"))  # type: ignore[no-any-return]

    return make


def recurrent(b: GraphBuilder, w: Weights) -> Value:
    x = b.input("x", tensor_type("float32", (3, 2, 8)))
    return b.add_all(
        LSTM(16), x, b.constant(w(1, 64, 8), "W"), b.constant(w(1, 64, 16), "R"), None, None, None, None, None
    )[0]  # type: ignore[no-any-return]


def sample(graph: Graph) -> Array:
    return np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)  # type: ignore[arg-type]


def means_rounded_weights(got: Array, make: Make, narrow: DType, x: Array, activations: bool = False) -> None:
    """As close to the reference with rounded weights (and the model's input, which nothing but a product reads) as
    float32 sums are; rounding itself is far more than that."""
    x = np.asarray(x.astype(narrow.numpy), np.float32) if activations else x
    (want,), (exact,) = evaluate(build(make, narrow), [x]), evaluate(build(make), [x])
    bound = 2e-6 * np.abs(want).max()
    assert np.abs(exact - want).max() > 10 * bound
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


# -- meaning ----------------------------------------------------------------------------------------------------------


@has_fp16
@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 9), st.integers(40, 130), st.integers(16, 70), st.sampled_from([(), (2,), (2, 1)])
)  # of few columns all may be rounded luckily
def test_products(m: int, k: int, n: int, batch: tuple[int, ...]) -> None:
    make = product(m, k, n, batch)
    graph = build(make)
    x = sample(graph)
    means_rounded_weights(weft.compile(graph, "llvm -precision=fp16")(x), make, dt.float16, x)


@has_fp16
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([3, 8, 16, 19]),
    st.sampled_from([8, 13, 32]),
    st.integers(5, 20),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 2),
)
def test_convolutions(channels: int, out: int, size: int, kernel: int, stride: int) -> None:
    make = convolution(channels, out, size, kernel, stride)
    graph = build(make)
    x = sample(graph)
    # Winograd's transforms lose more than sums do.
    means_rounded_weights(weft.compile(graph, "llvm -precision=fp16 -winograd=off")(x), make, dt.float16, x)


@has_fp16
def test_recurrence() -> None:
    graph = build(recurrent)
    x = sample(graph)
    executable = weft.compile(graph, "llvm -precision=fp16")
    assert sum(c.dtype == "float16" for c in executable.manifest.constants) == 2, "input and recurrent weights"
    means_rounded_weights(executable(x), recurrent, dt.float16, x)


@pytest.mark.parametrize(
    ("options", "narrow", "cpu"),
    [
        ("cortex-a72 -precision=fp16", dt.float16, "cortex-a72"),
        ("cortex-a72 -mattr=+bf16 -precision=bf16", dt.bfloat16, "max"),
    ],
)
@pytest.mark.parametrize(
    "make", [product(3, 64, 40), convolution(16, 16, 7, 1), recurrent], ids=["product", "convolution", "recurrence"]
)
@pytest.mark.needs("qemu")
def test_under_emulation(make: Make, options: str, narrow: DType, cpu: str) -> None:
    graph = build(make)
    x = sample(graph)
    want = evaluate(graph, [x])
    linked, _ = compile_cross(graph, ARM + options)
    answer = linked.run([x], want, cpu)
    assert (answer.code, answer.error) == (0, 0), answer.error_args
    means_rounded_weights(answer.outputs[0], make, narrow, x, activations=narrow == dt.bfloat16)


# -- code -------------------------------------------------------------------------------------------------------------

SELECTED = [
    (X86 + "x86-64-v3 -precision=fp16", r"vcvtph2ps\s+[-\w]*\(%.*%ymm"),
    (X86 + "x86-64-v4 -precision=fp16", r"vcvtph2ps\s+[-\w]*\(%.*%zmm"),
    (X86 + "sapphirerapids -precision=fp16", r"vcvtph2psx?\s+[-\w]*\(%.*%zmm"),
    # Where AMX is, vdpbf16ps is slower than float32's multiply-adds: weights are widened. The features decide, whatever
    # LLVM calls the processor.
    (X86 + "sapphirerapids -precision=bf16", r"vpmovzxwd\s+[-\w]*\(%.*%zmm"),
    (X86 + "rocketlake -mattr=+avx512bf16,+amx-tile,+amx-bf16 -precision=bf16", r"vpmovzxwd\s+[-\w]*\(%.*%zmm"),
    (X86 + "rocketlake -mattr=+avx512bf16 -precision=bf16", r"\bvdpbf16ps\s.*%zmm"),
    (X86 + "cooperlake -precision=bf16", r"\bvdpbf16ps\s.*%zmm"),
    (X86 + "znver4 -precision=bf16", r"\bvdpbf16ps\s.*%zmm"),
    (X86 + "sierraforest -precision=bf16", r"vpmovzxwd\s+[-\w]*\(%.*%ymm"),
    (ARM + "cortex-a72 -precision=fp16", r"fcvtl2?\s+v\d+\.4s"),
    (ARM + "neoverse-v1 -precision=bf16", r"\bbfdot\s+v\d+\.4s, v\d+\.8h"),
    (ARM + "cortex-a510 -precision=bf16", r"\bbfdot\s+v\d+\.4s, v\d+\.8h"),
]
ONE_BY_ONE = r"\bvpinsrw|\bvmovd\b|\bfcvt\s+s\d+|\bvcvtph2ps\s+%xmm\d+, %xmm|\bvcvtsh2ss"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("target", "pattern"), SELECTED, ids=[t.split("-mcpu=")[1] for t, _ in SELECTED])
@pytest.mark.parametrize(
    "make",
    [product(1, 128, 256), product(24, 128, 256), product(5, 33, 37), convolution(64, 64, 14, 1)],
    ids=["row", "rows", "odd", "1x1"],
)
def test_weights_are_widened_in_vectors(target: str, pattern: str, make: Make) -> None:
    _, compilation = compile_cross(build(make), target)
    codegen: Any = resolved(target).kind.codegen(resolved(target).target)
    texts = [codegen.assembly(k.lowered) for k in compilation.kernels.values() if re.match("matmul|conv", k.name)]
    assert texts and all(re.search(pattern, text) for text in texts)
    assert not any(re.search(ONE_BY_ONE, text) for text in texts)
    if "dp" in pattern or "dot" in pattern:
        assert {k.rule for k in compilation.kernels.values() if re.match("matmul|conv", k.name)} == {"dots"}


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "what", "hint"),
    [
        (
            X86 + "znver3 -precision=bf16",
            "option '-precision=bf16' needs AVX512_BF16 or AVX-NE-CONVERT, which 'znver3' on x86_64 lacks",
            "take -precision=fp16",
        ),
        (
            X86 + "icelake-server -precision=bf16",
            "needs AVX512_BF16 or AVX-NE-CONVERT, which 'icelake-server' on x86_64 lacks",
            "name another processor",
        ),
        (
            X86 + "x86-64-v2 -precision=fp16",
            "option '-precision=fp16' needs F16C, which 'x86-64-v2' on x86_64 lacks",
            "leave the option out",
        ),
        (
            X86 + "x86-64-v3 -mattr=-f16c -precision=fp16",
            "needs F16C, which 'x86-64-v3' on x86_64 lacks",
            "leave the option out",
        ),
        (
            ARM + "cortex-a72 -precision=bf16",
            "option '-precision=bf16' needs BF16, which 'cortex-a72' on aarch64 lacks",
            "take -precision=fp16",
        ),
    ],
)
def test_refused_without_the_instructions(target: str, what: str, hint: str) -> None:
    with pytest.raises(TargetError) as error:
        resolve_target(target)
    text = str(error.value)
    assert what in text and hint in text and target.split("-precision")[1] in text.split("\n")[1]
    assert "why: LLVM compiles a conversion between" in text


def test_an_unknown_precision_names_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"option '-precision' is one of fp32, fp16, bf16, got 'half'"):
        resolve_target("llvm -precision=half")


def test_the_page_lists_every_option_and_what_precisions_need() -> None:
    page = (Path(__file__).parents[2] / "docs/performance.md").read_text(encoding="utf-8")
    assert [f.name for f in fields(LlvmOptions) if f"`-{f.name}`" not in page] == []
    for precision, (_, names) in CONVERSIONS.items():
        assert f"| `-precision={precision}` | {names['x86_64']} | {names['aarch64']} |" in page


# -- nothing silent ---------------------------------------------------------------------------------------------------


@has_fp16
def test_the_plan_says_so(tmp_path: Path) -> None:
    executable = weft.compile(build(product(1, 16, 32)), "llvm -precision=fp16")
    executable.save(tmp_path / "model.weft")
    for exe in (executable, Executable.load(tmp_path / "model.weft")):
        assert (
            "-precision=fp16" in exe.plan
            and "-precision=fp16" in repr(exe)
            and "-precision=fp16" in exe.manifest.target
        )
        assert "2 constants (1 of float16)" in exe.plan
        assert {(c.name, c.dtype) for c in exe.manifest.constants} >= {("bias", "float32")}
    plain = weft.compile(build(product(1, 16, 32)), "llvm")
    assert "precision" not in plain.plan + repr(plain) and "2 constants, " in plain.plan


@pytest.mark.parametrize(
    ("target", "features"),
    [
        (X86 + "x86-64-v3 -precision=fp16", {"f16c"}),
        (X86 + "znver4 -precision=bf16", {"avx512bf16"}),
        (X86 + "sierraforest -precision=bf16", {"avxneconvert"}),
        (ARM + "cortex-a510 -precision=bf16", {"bf16"}),
        (ARM + "cortex-a72 -precision=fp16", {"neon"}),
    ],
)
def test_archives_ask_for_the_features(target: str, features: set[str]) -> None:
    linked, _ = compile_cross(build(product(1, 16, 32)), target)
    assert features <= set(linked.sections["main"].features)


def test_keys_of_caches_tell_precisions_apart(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    targets = [X86 + "znver4" + p for p in ("", " -precision=fp32", " -precision=fp16", " -precision=bf16")]
    keys = [model_key(model, [resolve_target(t)], None, "onnx") for t in targets]
    assert keys[0] == keys[1] and len(set(keys)) == 3
    # A kernel is known by its program, which has the weights' type; what reads no weights is shared.
    graph = build(convolution(64, 64, 28, 5))
    kernels = [{name.split("_")[0]: name for name in compile_cross(graph, target)[1].kernels} for target in targets[1:]]
    assert len({k["conv"] for k in kernels}) == 3 and len({k["relayout"] for k in kernels}) == 1
