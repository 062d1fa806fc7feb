"""Single operators at the sizes that models have them: Weft beside the better peer, one by one.

    python -m benchmarks.operators [--threads 1,2] [--only TEXT] [--engines onnxruntime,…] [--json FILE]

Whole models hide an operator that is slow until a model comes whose time it is. Prints every operator, the
worst first. An operator that a peer lacks is left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.arguments import write_report
from benchmarks.engine_process import WEFT, peers
from benchmarks.sweep import Array, Timed, opened, percentile, time_model

if TYPE_CHECKING:
    import onnx

IR_VERSION = 10
LIMIT = 1.3


@dataclass(frozen=True)
class Case:
    """One node. `weights`: numbers of the inputs that are constants of the model."""

    name: str
    op: str
    inputs: tuple[Array, ...]
    weights: tuple[int, ...] = ()
    outputs: int = 1
    opset: int = 20
    attributes: Mapping[str, Any] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    r = np.random.default_rng(0)

    def f(*shape: int) -> Array:
        return r.standard_normal(shape, np.float32)

    def small(*shape: int) -> Array:
        return f(*shape) / 8

    def positive(*shape: int) -> Array:
        return r.uniform(0.1, 1, shape).astype(np.float32)

    def index(below: int, *shape: int) -> Array:
        return r.integers(0, below, shape)

    def case(
        op: str,
        *inputs: Any,
        name: str = "",
        weights: tuple[int, ...] = (),
        outputs: int = 1,
        opset: int = 20,
        **attributes: Any,
    ) -> Case:
        return Case(f"{op} {name}".strip(), op, tuple(map(np.asarray, inputs)), weights, outputs, opset, attributes)

    picture, tokens = f(1, 64, 56, 56), f(1, 128, 768)
    for op in (
        "Relu",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Exp",
        "Softplus",
        "HardSwish",
        "Elu",
        "Sin",
        "Floor",
        "Round",
        "Neg",
        "Sign",
        "Gelu",
        "IsNaN",
        "Shrink",
    ):
        yield case(op, picture)
    yield case("Sqrt", positive(1, 64, 56, 56))
    yield case("Add", tokens, f(768), name="bias")
    yield case("Add", picture, f(64, 1, 1), name="channels")
    yield case("Mul", f(1, 64, 56, 1), f(1, 64, 1, 56), name="outer")
    yield case("Div", picture, positive(1, 64, 56, 56))
    yield case("Pow", positive(1, 64, 56, 56), np.float32(0.7), weights=(1,))
    yield case("Where", picture > 0, picture, f(1, 64, 56, 56))
    yield case("Clip", picture, np.float32(-1), np.float32(1), weights=(1, 2))
    yield case("Max", picture, picture + 1, picture - 1)
    yield case("Mod", index(1000, 10000), index(9, 10000) + 1)
    yield case("PRelu", picture, f(64, 1, 1), weights=(1,))
    for name, number in (("int32", 6), ("float16", 10), ("int8", 3)):
        yield case("Cast", picture, name=name, to=number)

    yield case("Softmax", f(1, 12, 128, 128), axis=-1)
    yield case("Softmax", f(1, 21, 64, 64), name="channels", axis=1)
    yield case("LogSoftmax", f(128, 5000), axis=-1)
    yield case("LayerNormalization", tokens, f(768), f(768), weights=(1, 2), axis=-1)
    yield case("RMSNormalization", tokens, f(768), weights=(1,), opset=23)
    yield case("InstanceNormalization", picture, f(64), f(64), weights=(1, 2))
    yield case("GroupNormalization", picture, f(64), f(64), weights=(1, 2), opset=21, num_groups=8)
    yield case("BatchNormalization", picture, f(64), f(64), f(64), positive(64), weights=(1, 2, 3, 4))
    yield case("LpNormalization", f(128, 512), axis=1)
    yield case("LRN", picture, size=5)
    yield case("MeanVarianceNormalization", picture)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
        yield case(op, tokens, [-1], name="rows", weights=(1,))
        yield case(op, picture, [2, 3], name="planes", weights=(1,))
        yield case(op, f(512, 1000), [0], name="columns", weights=(1,))
    yield case("ReduceSum", picture, name="all")
    yield case("ArgMax", f(128, 1000), name="rows", axis=-1)
    yield case("ArgMax", f(1, 21, 128, 128), name="channels", axis=1)
    yield case("Hardmax", f(128, 1000))
    yield case("TopK", f(16, 1000), [5], name="k=5", weights=(1,), outputs=2)
    yield case("TopK", f(1, 50257), [50], name="k=50", weights=(1,), outputs=2)
    yield case("CumSum", f(64, 1024), 1, name="rows", weights=(1,))
    yield case("CumSum", f(1024, 64), 0, name="columns", weights=(1,))

    yield case("Transpose", f(1, 128, 12, 64), name="heads", perm=[0, 2, 1, 3])
    yield case("Transpose", picture, name="channels last", perm=[0, 2, 3, 1])
    yield case("Transpose", f(1, 56, 56, 64), name="channels first", perm=[0, 3, 1, 2])
    yield case("Transpose", f(1024, 1024), name="matrix", perm=[1, 0])
    yield case("Concat", picture, f(1, 32, 56, 56), name="channels", axis=1)
    yield case("Concat", f(1, 12, 127, 64), f(1, 12, 1, 64), name="cache", axis=2)
    yield case("Split", f(1, 128, 2304), outputs=3, axis=-1, opset=18, num_outputs=3)
    yield case("Slice", picture, [0, 0], [28, 28], [2, 3], name="corner", weights=(1, 2, 3))
    yield case("Slice", picture, [0, 0], [56, 56], [2, 3], [2, 2], name="every second", weights=(1, 2, 3, 4))
    yield case("Pad", picture, [0, 0, 1, 1, 0, 0, 1, 1], name="zeros", weights=(1,))
    yield case("Pad", picture, [0, 0, 3, 3, 0, 0, 3, 3], name="reflect", weights=(1,), mode="reflect")
    yield case("Tile", f(1, 64, 28, 28), [1, 1, 2, 2], weights=(1,))
    yield case("Expand", f(1, 12, 1, 64), [1, 12, 128, 64], weights=(1,))
    yield case("DepthToSpace", picture, blocksize=2)
    yield case("SpaceToDepth", f(1, 16, 112, 112), blocksize=2)
    yield case("Gather", f(30522, 768), index(30522, 1, 128), name="embedding", weights=(0,))
    yield case("Gather", f(64, 512, 16), index(512, 100), name="axis 1", axis=1)
    yield case("GatherElements", f(512, 512), index(512, 512, 512), axis=1)
    yield case("GatherND", f(64, 64, 32), index(64, 1000, 2))
    yield case("ScatterND", f(512, 64), np.arange(100)[:, None] * 5, f(100, 64))
    yield case("OneHot", index(1000, 128), 1000, np.array([0, 1], np.float32), weights=(1, 2))
    yield case("Trilu", f(512, 512), upper=0)
    yield case("NonZero", f(100, 100) > 0.5)
    yield case("Compress", f(1000, 64), r.random(1000) > 0.5, axis=0)
    corners = positive(1, 1000, 2)
    boxes = np.concatenate([corners, corners + positive(1, 1000, 2) / 5], -1)
    limits = np.array([50]), np.array([0.5], np.float32), np.array([0.3], np.float32)
    yield case("NonMaxSuppression", boxes, positive(1, 10, 1000), *limits, weights=(2, 3, 4))

    scale = np.array([1, 1, 2, 2], np.float32)
    nearest: dict[str, Any] = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    yield case("Resize", f(1, 64, 28, 28), np.zeros(0, np.float32), scale, name="nearest", weights=(1, 2), **nearest)
    yield case("Resize", f(1, 64, 28, 28), np.zeros(0, np.float32), scale, name="linear", weights=(1, 2), mode="linear")
    yield case(
        "Resize",
        f(1, 3, 224, 224),
        np.zeros(0, np.float32),
        np.array([1, 1, 0.5, 0.5], np.float32),
        name="cubic",
        weights=(1, 2),
        mode="cubic",
    )
    yield case("GridSample", f(1, 32, 64, 64), r.uniform(-1, 1, (1, 64, 64, 2)).astype(np.float32))
    yield case(
        "RoiAlign",
        f(1, 64, 50, 50),
        positive(50, 4) * 40,
        np.zeros(50, np.int64),
        output_height=7,
        output_width=7,
        sampling_ratio=2,
    )
    for kernel, stride, pad, size in ((3, 2, 1, 112), (2, 2, 0, 112), (5, 1, 2, 20)):
        yield case(
            "MaxPool",
            f(1, 64, size, size),
            name=f"{kernel}/{stride}",
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )
    yield case("AveragePool", picture, kernel_shape=[3, 3], pads=[1] * 4)
    yield case("GlobalAveragePool", f(1, 1280, 7, 7))

    def conv(name: str, x: tuple[int, ...], w: tuple[int, ...], op: str = "Conv", **attributes: Any) -> Case:
        bias = w[0] if op == "Conv" else w[1]
        return case(op, f(*x), small(*w), f(bias), name=name, weights=(1, 2), **attributes)

    yield conv("3x3", (1, 64, 56, 56), (64, 64, 3, 3), pads=[1] * 4)
    yield conv("3x3 batch 8", (8, 64, 28, 28), (64, 64, 3, 3), pads=[1] * 4)
    yield conv("7x7/2", (1, 3, 224, 224), (64, 3, 7, 7), pads=[3] * 4, strides=[2, 2])
    yield conv("patches", (1, 3, 224, 224), (192, 3, 16, 16), strides=[16, 16])
    yield conv("depthwise 5x5/2", (1, 144, 56, 56), (144, 1, 5, 5), group=144, pads=[2] * 4, strides=[2, 2])
    yield conv("groups of 4", (1, 128, 56, 56), (128, 4, 3, 3), group=32, pads=[1] * 4)
    yield conv("one output", (1, 64, 128, 128), (1, 64, 3, 3), pads=[1] * 4)
    yield conv("1-d", (1, 80, 1000), (256, 80, 3), pads=[1, 1])
    yield conv("1-d depthwise", (1, 256, 1000), (256, 1, 31), group=256, pads=[15, 15])
    yield conv("3-d", (1, 16, 16, 28, 28), (32, 16, 3, 3, 3), pads=[1] * 6)
    yield conv("2x2/2", (1, 64, 28, 28), (64, 32, 2, 2), op="ConvTranspose", strides=[2, 2])
    yield conv("4x4/2", (1, 64, 28, 28), (64, 32, 4, 4), op="ConvTranspose", strides=[2, 2], pads=[1] * 4)
    yield conv("3x3", (1, 64, 28, 28), (64, 32, 3, 3), op="ConvTranspose", pads=[1] * 4)
    yield conv("1-d 16/8", (1, 128, 200), (128, 64, 16), op="ConvTranspose", strides=[8], pads=[4, 4])
    yield case("MatMul", tokens, f(768, 768), name="weights", weights=(1,))
    yield case("MatMul", f(12, 128, 64), f(12, 64, 128), name="batch")
    yield case("MatMul", f(1, 768), f(768, 3072), name="one row", weights=(1,))
    yield case("MatMul", f(12, 1, 64), f(12, 64, 512), name="one row, batch")
    yield case("MatMul", f(512, 512), f(512), name="vector")
    yield case("Gemm", f(32, 2048), f(1000, 2048), f(1000), name="transposed", weights=(1, 2), transB=1)
    for equation, x, y in (
        ("bthd,bshd->bhts", (2, 64, 4, 32), (2, 64, 4, 32)),
        ("bnd,dhk->bnhk", (2, 64, 128), (128, 4, 32)),
        ("bchw,cd->bdhw", (2, 32, 14, 14), (32, 64)),
        ("bhwc,hkc->bhwk", (2, 8, 8, 16), (8, 8, 16)),
    ):
        yield case("Einsum", f(*x), f(*y), name=equation, equation=equation)
    yield case("Attention", f(1, 8, 128, 64), f(1, 8, 128, 64), f(1, 8, 128, 64), name="128", opset=23)
    yield case("Attention", f(1, 8, 1, 64), f(1, 8, 512, 64), f(1, 8, 512, 64), name="one query", opset=23)
    more: Any
    for op, gates, more in (("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {})):
        states: int = 3 if op == "LSTM" else 2
        weights = small(1, gates * 128, 128), small(1, gates * 128, 128), f(1, 2 * gates * 128)
        yield case(op, f(32, 1, 128), *weights, weights=(1, 2, 3), outputs=states, hidden_size=128, **more)
    yield case("DFT", f(1, 512, 1), axis=1, opset=17)
    yield case("DynamicQuantizeLinear", tokens, outputs=3)
    yield case("QuantizeLinear", picture, np.float32(0.02), np.uint8(128), weights=(1, 2))
    yield case(
        "DequantizeLinear", index(255, 1, 64, 56, 56).astype(np.uint8), np.float32(0.02), np.uint8(128), weights=(1, 2)
    )


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    from onnx import ValueInfoProto, helper, numpy_helper

    names = [f"x{k}" for k in range(len(case.inputs))]
    given = {n: x for k, (n, x) in enumerate(zip(names, case.inputs)) if k not in case.weights}
    wanted = ["" if case.op == "Resize" and not x.size else n for n, x in zip(names, case.inputs)]
    node = helper.make_node(case.op, wanted, [f"y{k}" for k in range(case.outputs)], **case.attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [ValueInfoProto(name=n) for n in node.output],
        [numpy_helper.from_array(case.inputs[k], names[k]) for k in case.weights if names[k] in wanted],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=IR_VERSION), given


@dataclass
class Measured(Timed):
    name: str = field(kw_only=True)


def show(results: Sequence[Measured], by: str) -> None:
    good = sorted((r for r in results if r.compared), key=lambda r: -r.ratio(by))
    names = list(dict.fromkeys(n for r in good for n in r.times))
    print(f"{'ratio':>6} thr " + " ".join(f"{n[:11] + ' us':>14}" for n in names) + "  operator")
    for r in good:
        print(
            f"{r.ratio(by):6.2f} {r.threads:3d} "
            + " ".join(f"{r.seconds(n, by) * 1e6:14.1f}" if n in r.times else f"{'—':>14}" for n in names)
            + f"  {r.name}"
        )
    for r in results:
        if not r.compared:
            reason = r.error or "; ".join(r.lacking.values())
            print(f"left out: {r.name}: {reason[:160]}")
    for threads in sorted({r.threads for r in good}):
        ratios = [r.ratio(by) for r in good if r.threads == threads]
        mean = float(np.exp(np.mean(np.log(ratios))))
        over = sum(x > LIMIT for x in ratios)
        print(
            f"{threads} thread(s), {len(ratios)} operators: geometric mean {mean:.2f}, p95"
            f" {percentile(ratios, 0.95):.2f}, {over} above {LIMIT}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", default="1", help="numbers of threads separated by commas [%(default)s]")
    parser.add_argument("--engines", help="peers separated by commas [every one that is installed]")
    parser.add_argument("--only", default="", help="operators whose line holds this text")
    parser.add_argument(
        "--by",
        choices=("median", "min"),
        default="median",
        help="which of the times counts; min on a machine with other work [%(default)s]",
    )
    parser.add_argument("--repeat", type=int, default=6, help="turns of every engine on an operator [%(default)s]")
    parser.add_argument("--calls", type=int, default=30, help="calls in a turn at most [%(default)s]")
    parser.add_argument(
        "--seconds", type=float, default=0.01, help="length of a turn, after at least one call [%(default)s]"
    )
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    names = options.engines.split(",") if options.engines else list(peers())
    for unknown in [n for n in names if n not in peers()]:
        raise SystemExit(f"no '{unknown}': there are {', '.join(peers())}")
    results: list[Measured] = []
    chosen = [c for c in cases() if options.only in c.name]
    with tempfile.TemporaryDirectory() as folder:
        for threads in (int(t) for t in options.threads.split(",")):
            with opened((WEFT, *names), threads) as engines:
                for k, case in enumerate(chosen):
                    if sys.stderr.isatty():
                        print(f"\r{threads} threads, {k + 1}/{len(chosen)}", end="", file=sys.stderr, flush=True)
                    results.append(Measured(threads, name=case.name))
                    time_model(
                        results[-1],
                        *model_of(case),
                        engines(),
                        Path(folder),
                        options.repeat,
                        options.calls,
                        options.seconds,
                    )
    show(results, options.by)
    write_report(
        options, results=[{**asdict(r), "ratio": r.ratio(options.by) if r.compared else None} for r in results]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
