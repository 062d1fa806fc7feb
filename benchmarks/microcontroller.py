"""Models in 8 bits as C on an emulated microcontroller: results, instructions, code and memory.

    python -m benchmarks.microcontroller FOLDER [--processor cortex_m4|cortex_m7] [--optimize=-O2] [--samples N]
        [--layers] [--json FILE]

Each `*.tflite` of the folder whose inputs have 8 bits is written by `weft export -f c --profile mcu`, with the kernels
of TensorFlow Lite Micro and a batch of 1, compiled by zig, and run by QEMU, which counts instructions. Beside it
TensorFlow Lite Micro's own results and arena, where the package tflite-micro is installed; its arena includes inputs
and outputs, which the C leaves to the caller: both numbers are given. `--layers` adds a line for each call of a kernel,
and convolutions of other shapes, each a model of one layer with random weights, so that no change is made for the
layers of the models alone; `--only WORD` takes models and layers whose names contain the word.

A multiply-add counts once, as the definition has it: those of rows filled up with zeros are not counted. Exit status 1:
a result differs from TensorFlow Lite Micro's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks import board
from benchmarks.arguments import write_report
from weft.hooks import StageReport
from weft_c.byte_sums import ChannelSum, WindowSum
from weft_c.model_text import field

FRONTEND = "tflite -kernels=micro"
SINGLE: tuple[tuple[tuple[int, int, int], int, tuple[int, int], int], ...] = (
    ((28, 28, 1), 8, (3, 3), 1),
    ((20, 22, 2), 8, (3, 3), 1),
    ((31, 33, 3), 12, (3, 3), 1),
    ((31, 33, 3), 12, (3, 3), 2),
    ((20, 21, 3), 7, (3, 3), 1),
    ((32, 32, 3), 8, (5, 5), 1),
    ((33, 31, 3), 8, (7, 7), 2),
    ((24, 23, 3), 8, (2, 2), 1),
    ((24, 24, 4), 8, (3, 3), 1),
    ((17, 19, 5), 6, (3, 3), 1),
    ((16, 16, 8), 8, (3, 3), 1),
    ((40, 13, 1), 8, (8, 4), 2),
    ((24, 24, 8), 0, (3, 3), 1),
    ((25, 23, 8), 0, (3, 3), 2),
    ((13, 11, 6), 0, (3, 3), 1),
    ((7, 7, 32), 0, (3, 3), 1),
    ((3, 3, 64), 0, (3, 3), 1),
    ((3, 2, 64), 0, (3, 3), 2),
    ((14, 15, 16), 0, (5, 5), 1),
    ((14, 15, 16), 0, (5, 5), 2),
    ((16, 14, 5), 0, (7, 7), 1),
    ((20, 20, 8), 0, (3, 1), 1),
    ((20, 20, 8), 0, (1, 3), 1),
    ((21, 20, 8), 0, (4, 2), 1),
)
"""Layers of other shapes: the input, outputs (0: by channel), kernel, stride; padding is TensorFlow's SAME."""
_ARENA = re.compile(rb"Arena allocation total (\d+) bytes")


@dataclass(frozen=True)
class Layer:
    """One call of a kernel: the operators that are sums, multiply-adds, instructions of the first sample."""

    name: str
    multiply_adds: int
    instructions: int


@dataclass(frozen=True)
class Figures:
    """What was measured of a model; `wrong` samples of `samples` differ, None: there is nothing to compare with."""

    model: str
    samples: int
    wrong: int | None
    multiply_adds: int
    instructions: int
    code: int
    constants: int
    arena: int
    inputs_and_outputs: int
    micro_arena: int | None
    layers: list[Layer]

    def first(self) -> Figures:
        """The same of the first layer alone, where that is what a model is for."""
        layer = self.layers[0]
        return replace(self, multiply_adds=layer.multiply_adds, instructions=layer.instructions, layers=[layer])


def sums_of(graph: Any) -> list[tuple[str, int]]:
    """What each kernel of a fused graph sums, and its multiply-adds."""
    found = []
    for node in graph.nodes:
        if node.op.view:
            continue
        total, names = 0, []
        for inner in node.op.body.nodes:
            if isinstance(inner.op, (WindowSum, ChannelSum)):
                channels = inner.inputs[0].shape[-1] if isinstance(inner.op, WindowSum) else 1
                total += math.prod(inner.output.shape) * math.prod(inner.op.kernel) * channels
                kind = "x".join(map(str, inner.op.kernel)) or "product"
                shapes = " to ".join("x".join(map(str, v.shape[1:])) for v in (inner.inputs[0], inner.output))
                names.append(f"{kind}{' by channel' if isinstance(inner.op, ChannelSum) else ''} {shapes}")
        found.append((", ".join(names) or node.op.body.name, total))
    return found


def samples_of(info: Mapping[str, Any], count: int) -> list[np.ndarray[Any, Any]]:
    """Random bytes, and bytes near the zero point, in turns."""
    rng = np.random.default_rng(0)
    zero = int(info["zero"])
    found = []
    for k in range(count):
        data = rng.integers(-128, 128, info["shape"]) if k % 2 == 0 else rng.normal(zero, 20, info["shape"])
        found.append(np.clip(data, -128, 127).astype(np.int8))
    return found


@contextlib.contextmanager
def captured(into: io.BytesIO) -> Iterator[None]:
    """What native code writes to the standard error."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            into.write(file.read())


def micro(path: Path, samples: Sequence[np.ndarray[Any, Any]]) -> tuple[list[np.ndarray[Any, Any]], int] | None:
    """TensorFlow Lite Micro's results and the bytes of its arena."""
    if importlib.util.find_spec("tflite_micro") is None:
        return None
    runtime = importlib.import_module("tflite_micro.python.tflite_micro.runtime")

    interpreter = runtime.Interpreter.from_file(str(path))
    results = []
    for x in samples:
        interpreter.set_input(x, 0)
        interpreter.invoke()
        results.append(interpreter.get_output(0).copy())
    said = io.BytesIO()
    with captured(said):
        interpreter.print_allocations()
    found = _ARENA.search(said.getvalue())
    return results, int(found[1]) if found else 0


def single_layers() -> Iterator[tuple[str, bytes]]:
    """Models of one convolution each, with names that say what it is.

    Small layers behind it call the same functions, so that no compiler makes copies of these for the one call."""
    from tests.c.quantized_models import Network

    for number, (shape, outputs, kernel, stride) in enumerate(SINGLE):
        network = Network((1, *shape), -128, number)
        if outputs:
            network.conv(outputs, kernel, stride)
        else:
            network.depthwise(kernel, stride)
        network.conv(4, 2, -(-network.shape[1] // 5))
        network.conv(3, 1)
        network.depthwise(2)
        network.depthwise(3, 2)
        name = f"{'x'.join(map(str, shape))} by {'x'.join(map(str, kernel))} stride {stride} to {outputs or 'the same'}"
        yield name, network.bytes()


def measure(path: Path, processor: str, optimize: str, count: int) -> Figures | None:
    """Figures of one model; None: its input has not 8 bits."""
    from weft_tflite.model_file import read_model

    graph = read_model(path).graphs[0]
    info = graph.tensors[graph.inputs[0]]
    if info.shape is None:
        return None
    shape = tuple(max(1, d) for d in info.shape)
    quantization = info.quantization
    if info.type != "INT8" or quantization is None:
        return None
    samples = samples_of({"shape": shape, "zero": quantization.zero[0]}, count)
    graphs: list[Any] = []

    def on_stage(stage: StageReport) -> None:
        if stage.stage == "fuse":
            graphs.append(stage.result)

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.c"
        executable = weft.export(
            str(path), target, "c", options={"profile": "mcu"}, frontend=FRONTEND, input_shapes={info.name: shape},
            on_stage=on_stage,
        )  # fmt: skip
        (output,) = executable.outputs
        like = np.zeros([int(str(d)) for d in output.shape], str(output.dtype))
        given = field(executable.inputs[0].name)
        run = board.run(target, [{given: x} for x in samples], {field(output.name): like}, processor, optimize)
        arena = re.search(r"_ARENA_BYTES (\d+)", target.with_suffix(".h").read_text())
    assert arena is not None
    expected = micro(path, samples)
    wrong = None
    if expected is not None:
        wrong = sum(not np.array_equal(a, b[field(output.name)]) for a, b in zip(expected[0], run.outputs))
    layers = [Layer(name, adds, n) for (name, adds), n in zip(sums_of(graphs[0]), run.instructions[0], strict=True)]
    return Figures(
        model=path.stem,
        samples=count,
        wrong=wrong,
        multiply_adds=sum(x.multiply_adds for x in layers),
        instructions=sum(run.instructions[0]),
        code=run.code,
        constants=run.constants,
        arena=int(arena[1]),
        inputs_and_outputs=samples[0].nbytes + like.nbytes,
        micro_arena=None if expected is None else expected[1],
        layers=layers,
    )


def show(f: Figures, layers: bool) -> None:
    same = "not compared" if f.wrong is None else f"{f.samples - f.wrong} of {f.samples} equal to TFLM"
    beside = "" if f.micro_arena is None else f", TFLM {f.micro_arena}"
    print(
        f"{f.model:20} {same}; {f.instructions / max(1, f.multiply_adds):.2f} instructions per multiply-add of"
        f" {f.multiply_adds}; arena {f.arena} bytes, with inputs and outputs {f.arena + f.inputs_and_outputs}{beside};"
        f" code {f.code}, constants {f.constants} bytes"
    )
    for x in f.layers if layers and len(f.layers) > 1 else ():
        each = f"{x.instructions / x.multiply_adds:6.2f}" if x.multiply_adds else "      "
        print(f"    {x.instructions:10} {each}  {x.name}")


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processor", choices=sorted(board.BOARDS), default="cortex_m4")
    parser.add_argument("--optimize", default="-O2", help="zig's level: -Os, -O2 [%(default)s]")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    lacks = board.missing()
    if lacks is not None:
        raise SystemExit(f"this needs QEMU's boards and zig: {lacks}")
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted(arguments.folder.glob("*.tflite"))
        single = []
        for name, data in single_layers() if arguments.layers else ():
            single.append(Path(folder) / f"{name}.tflite")
            single[-1].write_bytes(data)
        for path in (*paths, *single):
            if arguments.only not in path.stem:
                continue
            figures = measure(path, arguments.processor, arguments.optimize, arguments.samples)
            if figures is not None:
                found.append(figures.first() if path in single else figures)
                show(found[-1], arguments.layers)
    write_report(arguments, models=[asdict(f) for f in found])
    return int(any(f.wrong for f in found))


if __name__ == "__main__":
    sys.exit(main())
