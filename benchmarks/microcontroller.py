"""Models in 8 bits as C on an emulated microcontroller: results, instructions, code and memory.

    python -m benchmarks.microcontroller FOLDER [--processor cortex_m4|cortex_m7] [--optimize=-O2] [--samples N]
        [--layers] [--json FILE]

Each `*.tflite` of the folder whose inputs have 8 bits is written by `weft export -f c --profile mcu`, with the kernels
of TensorFlow Lite Micro and a batch of 1, compiled by zig, and run by QEMU, which counts instructions. Beside it
TensorFlow Lite Micro's own results and arena, where the package tflite-micro is installed; its arena includes inputs
and outputs, which the C leaves to the caller: both numbers are given. `--layers` adds a line for each call of a kernel.

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
from dataclasses import asdict, dataclass
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
    for x in f.layers if layers else ():
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
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    lacks = board.missing()
    if lacks is not None:
        raise SystemExit(f"this needs QEMU's boards and zig: {lacks}")
    found: list[Figures] = []
    for path in sorted(arguments.folder.glob("*.tflite")):
        figures = measure(path, arguments.processor, arguments.optimize, arguments.samples)
        if figures is not None:
            show(figures, arguments.layers)
            found.append(figures)
    write_report(arguments, models=[asdict(f) for f in found])
    return int(any(f.wrong for f in found))


if __name__ == "__main__":
    sys.exit(main())
