"""`weft demo`: compiles a ResNet-18, runs it, checks it. Needs nothing but Weft and a target."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.arguments import TargetOption
from weft.cli.terminal import say

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

# Rounding of 20 layers in float32 stays under 1e-5 of the largest score whatever the order of summation; a wrong tap or
# weight changes it by far more.
LARGEST_ERROR = 1e-4
LEAST_RUNS, SECONDS = 5, 2.0


def demo(
    target: TargetOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the weights and the picture.")] = 0,
    size: Annotated[int, typer.Option("--size", min=32, help="Height and width of the picture in pixels.")] = 224,
    width: Annotated[int, typer.Option("--width", min=1, help="Channels of the first stage; 64 is ResNet-18.")] = 64,
) -> None:
    """Compiles, runs and checks a ResNet-18.

    The weights are random and the picture is generated. The result is compared with numpy.
    """
    import numpy as np

    from weft.cli.terminal import Progress, brief, print_table
    from weft.cli.terminal import seconds as shown
    from weft.cli.terminal import size as bytes_shown
    from weft.compilation import Compilation
    from weft.graph.evaluate import evaluate
    from weft.graph.group import Group
    from weft.passes.pipeline import pass_names
    from weft.resolve import resolve_target
    from weft_testing.models import picture, resnet18

    with Progress("demo") as progress:
        progress.show("making weights")
        graph, image = resnet18(seed, size=size, width=width), picture(size, seed)
        # The caches stay out of it: the times shown are those of compiling.
        compilation = Compilation(resolve_target(target or "llvm"), on_stage=progress.on_stage, cache=False)
        started = time.perf_counter()
        executable = compilation.run(graph)
        compiled = time.perf_counter() - started
        progress.show("running")
        scores = executable.run({"picture": image})["scores"]
        runs: list[float] = []
        ends = time.perf_counter() + SECONDS
        while len(runs) < LEAST_RUNS or time.perf_counter() < ends:
            started = time.perf_counter()
            executable.run({"picture": image})
            runs.append(time.perf_counter() - started)
        progress.show("checking against numpy")
        (expected,) = evaluate(graph, {"picture": image})
    error = float(np.max(np.abs(scores - expected)) / np.max(np.abs(expected)))

    groups = [n for n in compilation.graphs["fuse"].nodes if isinstance(n.op, Group) and not n.op.view]
    spent = Counter(compilation.seconds)
    passes = sum(spent[name] for name in pass_names(compilation.target.graph_passes()))
    rows = [
        ("model", f"ResNet-18, {len(graph.nodes)} operators, {multiply_adds(graph) / 1e9:.2f} billion multiply-adds"),
        ("target", brief(executable.manifest.target)),
        ("compiled", f"{len(groups)} groups, {len(compilation.kernels)} distinct kernels"),
        ("graph passes", shown(passes)),
        ("lowering", shown(spent["lower_group"])),
        ("scheduling", shown(spent["schedule"])),
        ("loop passes", shown(spent["lower_program"])),
        ("waiting for machine code", shown(spent["codegen"])),
        ("planning and linking", shown(spent["plan_memory"] + spent["assemble"] + spent["link"])),
        ("compiled in", shown(compiled)),
        (
            "latency",
            (
                f"{shown(statistics.median(runs))} (median of {len(runs)} runs, {max(1, executable.threads)}"
                f" thread{'s' * (executable.threads > 1)})"
            ),
        ),
        ("arena", bytes_shown(arena_bytes(executable.manifest.arena, executable.threads))),
        ("weights", bytes_shown(sum(math.prod(c.shape) * _itemsize(c.dtype) for c in executable.manifest.constants))),
        ("largest error", f"{error:.1e} of the largest score (limit {LARGEST_ERROR:.0e})"),
    ]
    print_table("weft demo", ["", ""], rows)
    if not error <= LARGEST_ERROR:  # not-a-number fails too
        say("failed: the compiled model does not compute what the operators mean", err=True)
        raise typer.Exit(1)
    say("success: the compiled model computes what the operators mean")


def arena_bytes(formula: str, threads: int) -> int:
    """The size of an arena whose formula depends on nothing but the threads of the call."""
    from weft.codegen.base import THREADS
    from weft.expr.nodes import Const, substitute
    from weft.expr.parser import parse_expr

    value = substitute(parse_expr(formula, {THREADS.name: THREADS}), {THREADS.name: max(1, threads)})
    assert isinstance(value, Const)
    return int(value.value)


def _itemsize(name: str) -> int:
    from weft.dtypes import dtype

    return int(dtype(name).numpy.itemsize)


def multiply_adds(graph: Graph) -> int:
    """Multiplications of the convolutions and products of a graph of constant shapes."""
    from weft_ops.contraction import Conv, MatMul

    total = 0
    for node in graph.nodes:
        if isinstance(node.op, (Conv, MatMul)):
            x, w = node.inputs[0], node.inputs[1]
            assert x is not None and w is not None
            length = w.shape[1:] if isinstance(node.op, Conv) else x.shape[-1:]
            sizes = [d for d in (*node.output.shape, *length) if isinstance(d, int)]
            total += math.prod(sizes)
    return total
