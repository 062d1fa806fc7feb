"""The nets of keras.applications: `python -m tests.frontends.keras.applications [NAME…] [--compile [TARGET]]`.

Each is made with random weights at a small size, read, interpreted or compiled, and compared with Keras on its torch
backend. Prints a line for each: the largest difference, relative to the largest output; of compiled ones also how many
kernels they call, how many of these transpose and contract nothing, and the seconds of the compilation, without caches.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.frontends.keras.nets import answer, the_keras
from tests.frontends.kernels import kernel_list, transposes

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.pipeline import StageReport

SIZES = {
    "MobileNet": 64, "MobileNetV2": 64, "MobileNetV3Small": 64, "VGG16": 32, "ResNet50": 64, "ResNet50V2": 64,
    "DenseNet121": 64, "EfficientNetB0": 64, "EfficientNetV2B0": 64, "InceptionV3": 96, "InceptionResNetV2": 96,
    "Xception": 96, "ConvNeXtTiny": 64,
}  # fmt: skip
"""One of each family that Keras has on its torch backend, and the size of its images."""
MOST = 1e-4
"""What a result may differ, relative to the largest."""


def net(name: str, **options: Any) -> Any:
    """A net with weights under which signals keep their size."""
    keras = the_keras()
    size = options.pop("size", SIZES[name])
    options = {"weights": None, "classes": 10, "classifier_activation": None, "input_shape": (size, size, 3)} | options
    model = getattr(keras.applications, name)(**options)
    rng = np.random.default_rng(5)
    for variable in model.variables:
        array = np.asarray(keras.ops.convert_to_numpy(variable))
        kind = variable.path.rsplit("/", 1)[-1]
        if array.dtype.kind != "f" or (kind in ("mean", "variance") and "/normalization" in f"/{variable.path}"):
            continue
        if "kernel" in kind and array.ndim > 1:
            depthwise = "depthwise" in variable.path and array.ndim == 4
            fan = array.shape[:2] if depthwise else array.shape[:-1]
            values = rng.standard_normal(array.shape) * np.sqrt(2 / np.prod(fan))
        elif "variance" in kind or "gamma" in kind:
            values = 1 + 0.2 * rng.random(array.shape)
        else:
            values = 0.1 * rng.standard_normal(array.shape)
        variable.assign(values.astype(array.dtype))
    return model


def transpositions(model: Any) -> tuple[int, int]:
    """How many convolutions and transpositions there are, once those are cancelled that cancel."""
    found: list[str] = []

    def look(report: StageReport) -> None:
        if report.stage == "cancel_transposes":
            found[:] = [n.op.operator_name for n in report.result.nodes]

    weft.compile(model, target="llvm", frontend="keras -batch=1", cache=False, on_stage=look)
    return found.count("Conv"), found.count("Transpose")


def difference(model: Any, target: str | None) -> float:
    """The largest difference of a result to Keras', relative to the largest result."""
    return compared(model, weft.load(model), target)[0]


def compared(model: Any, graph: Graph, target: str | None) -> tuple[float, float]:
    """The `difference` of a model's graph, and the seconds of its compilation."""
    rng = np.random.default_rng(7)
    inputs = {v.name: rng.random((2, *v.shape[1:]), dtype=np.float32) for v in graph.inputs}
    (want,) = answer(model)(inputs)
    begin, seconds = time.monotonic(), 0.0
    if target is None:
        found = evaluate(graph, inputs)[0]
    else:
        executable = weft.compile(graph, target=target, cache=False)
        seconds = time.monotonic() - begin
        found = next(iter(executable.run(inputs).values()))
    assert found.dtype == want.dtype and found.shape == want.shape
    return float(np.abs(found - want).max() / np.abs(want).max()), seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frontends.keras.applications", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(SIZES))
    parser.add_argument("--compile", nargs="?", const="llvm", metavar="TARGET", help="else the models are interpreted")
    options = parser.parse_args(arguments)
    wrong = 0
    for name in options.names or SIZES:
        model = net(name)
        graph = weft.load(model)
        found, seconds = compared(model, graph, options.compile)
        line = f"{name:18} {found:.1e} {'agrees' if found < MOST else 'DIFFERS'}"
        if options.compile:
            left = transposes(graph, options.compile)
            calls = kernel_list(graph, options.compile).total()
            line += f", {calls} calls, {len(left)} transpose, compiled in {seconds:.1f} s"
            line += "".join(f"\n    {kernel}" for kernel in left)
        wrong += not found < MOST
        print(line, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
