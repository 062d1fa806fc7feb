"""One convolution from ONNX node to machine code, as architecture.md shows it.

    python docs/walk.py             prints every piece
    python docs/walk.py --update    rewrites the blocks in architecture.md that stand behind `<!-- walk: name -->`

The target is written out, so the pieces do not depend on this machine. What LLVM makes (`assembly`) depends on its
version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

PAGE = Path(__file__).with_name("architecture.md")
TARGET = "llvm -mcpu=x86-64-v3 -mtriple=x86_64-linux-gnu -threads=4 -winograd=off"
WIDTH = 150
BLOCK = re.compile(r"(<!-- walk: (\w+) -->\n```\w*\n)(.*?)(^```$)", re.M | re.S)


def model() -> bytes:
    """Convolution, batch normalisation, ReLU; the batch is symbolic."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    tensors = {
        "w": random.normal(0, 0.1, (32, 16, 3, 3)),
        **{n: random.uniform(0.5, 1.5, 32) for n in ("scale", "shift", "mean", "var")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv1", kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], "bn1"),
        helper.make_node("Relu", ["n"], ["y"], "relu1"),
    ]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32, 14, 14])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in tensors.items()],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    return data


def pieces() -> dict[str, str]:
    """The text of every stage, by name."""
    from weft.compilation import Compilation
    from weft.loading import load
    from weft.loop.pipeline import lower_program
    from weft.resolve import resolve_target

    target = resolve_target(TARGET)
    graph = load(model())
    found = {"imported": str(graph)}
    compilation = Compilation(target, cache=False, keep_graphs=True, check=True)
    executable = compilation.run(graph)
    found["folded"] = str(compilation.graphs["eliminate_dead_code"])
    found["laid_out"] = str(compilation.graphs["choose_layouts"])
    found["fused"] = str(compilation.graphs["fuse"])
    (kernel,) = (k for k in compilation.kernels.values() if k.name.startswith("conv"))
    codegen = target.kind.codegen(target.target)
    assert kernel.scheduled is not None
    stages: dict[str, str] = {}
    lowered = lower_program(
        kernel.scheduled, codegen.functions, lambda name, program: stages.__setitem__(name, str(program))
    )
    found["naive"] = part(str(kernel.naive), (0, 17), ("block add(", 3), ("block relu(", 3))
    found["trace"] = str(kernel.trace)
    found["scheduled"] = part(str(kernel.scheduled), ("for conv_i0 in", 10), ("for conv_r0 in", 10), ("block relu(", 3))
    found["lower_blocks"] = part(stages["lower_blocks"], ("for conv_i3_0 in", 1), ("for conv_r0i in", 6))
    found["partition_loops"] = part(
        stages["partition_loops"],
        ("for conv_i3_0 in", 1),
        ("for conv_r0i in", 5),
        ("allocate conv_1", 1),
        ("for conv_r0i_1 in", 6),
    )
    found["flatten_buffers"] = part(stages["flatten_buffers"], ("for conv_r0i in", 5))
    found["vectorize_loops"] = part(stages["vectorize_loops"], ("for conv_r0i in", 4))
    hoisted = stages["hoist_invariants"].splitlines()
    first = next(k for k, line in enumerate(hoisted) if line.lstrip().startswith("let hoisted: "))
    loop = next(k for k, line in enumerate(hoisted) if line.lstrip().startswith("for conv_r0i in"))
    found["hoist_invariants"] = part(stages["hoist_invariants"], (first, loop + 11 - first))
    ir: str = codegen.emit(lowered).ir  # type: ignore[attr-defined]
    found["llvm"] = part(renumbered(loop_with_most(ir, "fmul", r"^loop\d+:$", r"^done\d+:$")), (0, 22))
    assembly: str = codegen.assembly(lowered)  # type: ignore[attr-defined]
    found["assembly"] = loop_with_most(assembly, "vfmadd", r"^\.LBB\w+:", r"^\s+j\w+\s")
    found["plan"] = str(executable.plan)
    return {name: tidy(text) for name, text in found.items()}


def part(text: str, *places: tuple[int | str, int]) -> str:
    """Some lines of a text: `n` from each place, a line number or what the line starts with; `…` for what is left
    out."""
    lines = text.splitlines()
    result: list[str] = []
    last = 0
    for place, n in places:
        start = (
            place if isinstance(place, int) else next(k for k, x in enumerate(lines) if x.lstrip().startswith(place))
        )
        if start > last:
            result.append("…")
        result += lines[start : start + n]
        last = start + n
    if last < len(lines):
        result.append("…")
    return "\n".join(result)


def loop_with_most(text: str, word: str, starts: str, ends: str) -> str:
    """The innermost piece from a line that `starts` matches to the next that `ends` matches that has `word` most
    often."""
    best, current = "", ""
    for line in text.splitlines():
        if re.match(starts, line):
            current = ""
        current += line + "\n"
        if re.match(ends, line):
            best = max(best, current, key=lambda t: t.count(word))
            current = ""
    return best


def renumbered(text: str) -> str:
    """Numbers of values, labels and metadata from 0 in order of appearance: what stands before this piece does not show
    in it."""
    numbers: dict[str, int] = {}
    return re.sub(
        r"(?<=%v|%i)\d+|(?<=loop|done|slot|next)\d+|(?<=!)\d+",
        lambda m: str(numbers.setdefault(m[0], len(numbers))),
        text,
    )


def tidy(text: str) -> str:
    """Without what differs from build to build (the keys in kernels' names), and no wider than the page."""
    text = re.sub(r"(?<=[a-z])_[0-9a-f]{10}\b", "", text.expandtabs(8))
    lines = [line if len(line) <= WIDTH else line[: WIDTH - 1].rstrip() + "…" for line in text.rstrip().splitlines()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def shown(page: str) -> dict[str, str]:
    """The blocks of the page, by name."""
    return {m[2]: m[3] for m in BLOCK.finditer(page)}


def update(page: str, texts: Mapping[str, str]) -> str:
    return BLOCK.sub(lambda m: m[1] + texts[m[2]] + m[4], page)


if __name__ == "__main__":
    texts = pieces()
    if "--update" in sys.argv[1:]:
        PAGE.write_text(update(PAGE.read_text(), texts))
    else:
        for name, text in texts.items():
            print(f"== {name}\n{text}")
