"""What 8-bit products and convolutions gain over float32 in the same run, by the dot-product instructions that this
processor has.

    python -m benchmarks.int8 [--products 128x768x3072,…] [--convolutions 64x56x56x64x3,…] [--models resnet18,…]
        [--threads N] [--seconds S] [--json FILE]

A product is uint8 x [M, K] · int8 w [K, N] with a zero point of 128, in int32; a convolution is channels x height x
width x outputs x taps, uint8 to uint8 with a scale per output channel, beside float32 with a bias and a ReLU by
definition and as it is compiled by default, perhaps by Winograd's algorithm. All are compiled from graphs with one
operator and run whole, conversions of layout and zero points included, in turns; rates come from the fastest run and
count the multiply-adds of the definition. Beside them ONNX Runtime's MatMulInteger and QLinearConv, where it is
installed. Products are compared with the exact result; a star marks ONNX Runtime's where they are not (saturated sums
of two products, which it has on processors without VNNI).

`--models` quantises whole models (of `benchmarks.models`, as twins; QDQ, per channel, by onnxruntime.quantization) and
runs them beside ONNX Runtime and their floats. `apart` is the largest difference from ONNX Runtime without its
optimisations, which computes what the graph spells out, over the largest output.

Limit: the geometric mean of the products is 2.5 times float32's where the processor multiplies four pairs of bytes in a
lane (VNNI, Arm's dot products). Elsewhere, pairs of 16 bits: no limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import machine, write_report

PRODUCTS = "128x768x768,128x768x3072,32x1024x1024,512x512x512,1x1024x1024"
CONVOLUTIONS = "64x56x56x64x3,128x28x28x128x3,256x14x14x256x3,256x14x14x1024x1,512x7x7x512x3"
LIMIT = 2.5
ZERO = 128


def fastest(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Least seconds of each call, all in turns."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or math.inf in best.values():
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def session(
    operator: str, threads: int, inputs: Mapping[str, Any], constants: Sequence[Any], attributes: Mapping[str, Any]
) -> Callable[[], Any] | None:
    """A call of one operator by ONNX Runtime, None where it is not installed."""
    if not importlib.util.find_spec("onnxruntime") or not importlib.util.find_spec("onnx"):
        return None
    import onnxruntime as ort
    from onnx import helper, numpy_helper

    named = [numpy_helper.from_array(np.asarray(c), f"c{k}") for k, c in enumerate(constants)]
    (x,) = inputs
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    # QLinear operators have x's scale and zero point before w, MatMulInteger w before the zero point.
    node = helper.make_node(operator, [x, *(c.name for c in named)], ["y"], **attributes)
    graph = helper.make_graph([node], "one", types, [helper.make_empty_tensor_value_info("y")], named)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    run = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: run.run(None, dict(inputs))


def product(words: str, target: str, threads: int) -> tuple[float, dict[str, Callable[[], Any]]]:
    """Operations and calls of a product."""
    import weft
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops import MatMul, MatMulInteger

    m, k, n = map(int, words.split("x"))
    random = np.random.default_rng(0)
    x, w = random.integers(0, 256, (m, k)).astype(np.uint8), random.integers(-128, 128, (k, n)).astype(np.int8)
    zero = np.asarray(ZERO, np.uint8)
    b = GraphBuilder("int8")
    b.output(
        b.add(
            MatMulInteger(), b.input("x", tensor_type("uint8", x.shape)), b.constant(w, "w"), b.constant(zero, "zero")
        )
    )
    narrow = weft.compile(b.build(), target)
    exact = (x.astype(np.float64) - ZERO) @ w.astype(np.float64)
    if not np.array_equal(narrow(x), exact.astype(np.int32)):
        raise SystemExit(f"{words}: the result is not exact")
    b = GraphBuilder("fp32")
    b.output(b.add(MatMul(), b.input("x", tensor_type("float32", x.shape)), b.constant(w.astype(np.float32), "w")))
    plain, real = weft.compile(b.build(), target), x.astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {"fp32": lambda: plain(real), "int8": lambda: narrow(x)}
    beside = session("MatMulInteger", threads, {"x": x}, [w, zero], {})
    if beside is not None:
        calls["onnxruntime" if np.array_equal(beside()[0], exact) else "onnxruntime*"] = beside
    return 2.0 * m * k * n, calls


def convolution(words: str, target: str, threads: int) -> tuple[float, dict[str, Callable[[], Any]]]:
    """Operations and calls of a convolution of stride 1 that keeps the picture's size."""
    import weft
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops import Add, Conv, QLinearConv, Relu

    channels, height, width, outputs, taps = map(int, words.split("x"))
    random, pads = np.random.default_rng(0), (taps // 2,) * 4
    x, w = (
        random.integers(0, 256, (1, channels, height, width)).astype(np.uint8),
        random.integers(-128, 128, (outputs, channels, taps, taps)).astype(np.int8),
    )
    scales = (np.float32(0.01) + np.float32(0.01) * random.random(outputs, np.float32)).astype(np.float32)
    y_scale = np.float32(0.02 * 0.015 * 40 * np.sqrt(w[0].size))
    constants = [np.float32(0.02), np.uint8(ZERO), w, scales, np.zeros(outputs, np.int8), y_scale, np.uint8(ZERO)]
    b = GraphBuilder("int8")
    parts = [b.constant(np.asarray(c), f"c{k}") for k, c in enumerate(constants)]
    b.output(b.add(QLinearConv((1, 1), pads), b.input("x", tensor_type("uint8", x.shape)), *parts))
    narrow = weft.compile(b.build(), target)
    b = GraphBuilder("fp32")
    total = b.add(
        Conv((1, 1), pads), b.input("x", tensor_type("float32", x.shape)), b.constant(w.astype(np.float32), "w")
    )
    b.output(b.add(Relu(), b.add(Add(), total, b.constant(scales.reshape(-1, 1, 1), "bias"))))
    graph, real = b.build(), x.astype(np.float32)
    plain, default = weft.compile(graph, target + " -winograd=off"), weft.compile(graph, target)
    calls: dict[str, Callable[[], Any]] = {
        "fp32": lambda: plain(real),
        "default": lambda: default(real),
        "int8": lambda: narrow(x),
    }
    beside = session("QLinearConv", threads, {"x": x}, constants, {"pads": pads})
    return 2.0 * height * width * outputs * w[0].size, calls if beside is None else {**calls, "onnxruntime": beside}


def quantised(name: str, folder: Path) -> tuple[Path, Path, dict[str, Any]]:
    """The twin of a model in floats and in 8 bits, and inputs."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from benchmarks.models import save_twin

    plain, inputs = save_twin(name, folder)
    ready, small = folder / f"{name}.ready.onnx", folder / f"{name}.int8.onnx"
    quant_pre_process(plain, ready, skip_symbolic_shape=True)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        left = [inputs]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantization.quantize_static(
        ready,
        small,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
    )
    return plain, small, inputs


def whole(name: str, target: str, threads: int, folder: Path) -> tuple[float, dict[str, Callable[[], Any]]]:
    """How far Weft's result is from the graph as it is spelled out, over the largest output, and calls of a model."""
    import onnxruntime as ort

    import weft

    plain, small, inputs = quantised(name, folder)

    def of(path: Path, plainly: bool = False) -> Callable[[], Any]:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        if plainly:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        run = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda: run.run(None, inputs)

    exe, floats = weft.compile(small, target), weft.compile(plain, target)
    (want, *_), (got, *_) = of(small, True)(), exe.run(inputs).values()
    calls = {
        "fp32": lambda: floats.run(inputs),
        "int8": lambda: exe.run(inputs),
        "onnxruntime": of(small),
        "onnxruntime fp32": of(plain),
    }
    return float(np.abs(want - got).max() / np.abs(want).max()), calls


def models(names: Sequence[str], target: str, threads: int, seconds: float) -> list[dict[str, Any]]:
    """Rows for whole models, printed as a table."""
    import tempfile

    from weft.cli.terminal import print_table

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"model {name} …", file=sys.stderr, flush=True)
            apart, calls = whole(name, target, threads, Path(folder))
            results.append({"kind": "model", "name": name, "apart": apart, "seconds": fastest(calls, seconds)})
    heads = ["", "int8 ms", "fp32", "ONNX Runtime's int8", "its fp32", "apart"]
    columns = ("int8", "fp32", "onnxruntime", "onnxruntime fp32")
    rows = [[r["name"], *(f"{r['seconds'][k] * 1e3:.2f}" for k in columns), f"{r['apart']:.1e}"] for r in results]
    print_table(f"quantised models, {threads} thread(s)", heads, rows, right=(1, 2, 3, 4, 5))
    return results


def instructions(target: str) -> tuple[list[str], bool]:
    """The integer dot products that kernels of the target use, best first, and whether the limit holds for them."""
    from weft.resolve import resolve_target
    from weft_llvm.intrinsics import dots_of

    found = [d for d in dots_of(resolve_target(target).machine) if d.result.is_integer]
    return [d.name for d in found], any(d.left.bits == 8 for d in found)


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.int8", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--products", default=PRODUCTS, help="MxKxN, by commas; empty for none [%(default)s]")
    parser.add_argument(
        "--convolutions",
        default=CONVOLUTIONS,
        help="channels x height x width x outputs x taps, by commas [%(default)s]",
    )
    parser.add_argument(
        "--models", default="", help="whole models to quantise, by commas: resnet18,mobilenet_v2 [none]"
    )
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    target = f"llvm -threads={options.threads}"
    names, limited = instructions(target)
    results: list[dict[str, Any]] = []
    for kind, make, words in (
        ("product", product, options.products),
        ("convolution", convolution, options.convolutions),
    ):
        for name in (w for w in words.split(",") if w):
            print(f"{kind} {name} …", file=sys.stderr, flush=True)
            operations, calls = make(name, target, options.threads)
            results.append(
                {"kind": kind, "name": name, "operations": operations, "seconds": fastest(calls, options.seconds)}
            )
    rows, gains = [], []
    for r in results:
        seconds = r["seconds"]
        rates = {n: r["operations"] / s / 1e9 for n, s in seconds.items()}
        r["times"] = seconds["fp32"] / seconds["int8"]
        if r["kind"] == "product":
            gains.append(r["times"])
        peer = next(
            (f"{rate:.1f}{n[len('onnxruntime') :]}" for n, rate in rates.items() if n.startswith("onnxruntime")), ""
        )
        default = f"{rates['default']:.1f}" if "default" in rates else ""
        rows.append(
            [r["kind"], r["name"], f"{rates['fp32']:.1f}", default, f"{rates['int8']:.1f}", f"{r['times']:.2f}", peer]
        )
    heads = ["", "", "fp32 GFLOP/s", "fp32 by default", "int8 GOP/s", "times as fast", "ONNX Runtime's int8"]
    has = ", ".join(names) or "none, int8 is computed in int32"
    if rows:
        print_table(
            f"8 bits, {machine()['cpu']}, {options.threads} thread(s); dot products: {has}",
            heads,
            rows,
            right=tuple(range(2, len(heads))),
        )
    mean = math.prod(gains) ** (1 / len(gains)) if gains else math.nan
    short = limited and bool(gains) and mean < LIMIT
    if gains:
        verdict = (
            ("under" if short else "within")
            if limited
            else "for processors that multiply four pairs of bytes in a lane, which this one does not"
        )
        print(f"products, geometric mean: {mean:.2f} times float32; limit {LIMIT}: {verdict}")
    if options.models:
        results += models(options.models.split(","), target, options.threads, options.seconds)
    write_report(options, instructions=names, limit=LIMIT if limited else None, mean=mean, results=results)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
