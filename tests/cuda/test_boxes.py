"""Products whose operands come by boxes of tensors: scheduled, interpreted, run as texts on this machine, and by the
played driver."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.cuda.fake import FakeApi
from tests.cuda.test_products import convolution, data, product
from tests.gpu.shim import shims

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph
from weft.loop.nodes import Evaluate, For, Program, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling.intrinsic import meanings
from weft.scheduling.schedule import Schedule
from weft.scheduling.trace import replay
from weft_cuda.dialect import CUDA
from weft_cuda.intrinsics import intrinsics as every_intrinsic
from weft_gpu.bulk_copies import BulkCopy
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.schedules import bulk_copies
from weft_gpu.schedules.contraction import ContractionRule
from weft_interpreter.interpret import interpret
from weft_testing.plugin import resolve_target

SHAPES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "whole": (64, 128, 48, ()), "rows end": (50, 128, 48, ()), "columns end": (32, 128, 56, ()), "batches": (40, 128,
        32, (3,)), "terms end": (32, 136, 32, ()),
}  # fmt: skip
TILES = ("2x1 of 1x1 by 1", "2x2 of 1x1 by 2", "1x2 of 2x1 by 1 ahead", "2x2 of 1x1 by 2 ahead")
FUNCTIONS = GpuCodegen(CUDA).functions


@pytest.fixture(autouse=True)
def _of_short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments' tiles have rows of 32 bytes, in core matrices of 16."""
    monkeypatch.setattr(bulk_copies, "LEAST_ROW", 16)


def lowered(graph: Graph, tile: str, target: str = "cuda -arch=sm_90", **choices: str) -> Program:
    found = resolve_target(target)
    program = lower_group(graph, "kernel")
    s = Schedule(
        program, found.machine, overrides={"warp_tile": tile, **choices}, checked=True, intrinsics=found.intrinsics
    )
    ContractionRule().apply(s)
    assert str(replay(program, s.trace, intrinsics=s.intrinsics)) == str(s.program)
    assert "tensorize" in str(s.program), "another tile is wanted"
    return lower_program(s.program, FUNCTIONS, extra=found.loop_passes())


def inputs_of(graph: Graph) -> list[Any]:
    return list(data(graph, "float16").values())


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape: str, tile: str) -> None:
    """Sums of small integers, which are exact: the interpreter's, and the text's, are the reference's."""
    rows, terms, columns, batch = SHAPES[shape]
    graph = product("float16", rows, terms, columns, batch)
    program = lowered(graph, tile)
    # Where several fragments stand side by side, what ends within one is no box: the next elements are the next row's.
    boxes = (
        1 + ("2x1 of 1x1" in tile) if shape == "columns end" else 2 * ("by 1" in tile) if shape == "terms end" else 2
    )
    assert (
        len(
            {
                t
                for s in walk_stmts(program.body)
                if isinstance(s, Evaluate) and s.call.name == "copy_box"
                for t in [BulkCopy.of(s.call).tensor]
            }
        )
        == boxes
    )
    agrees(graph, program)


def agrees(graph: Graph, program: Program) -> None:
    """The interpreter's result, and the text's, with boxes, are the reference's."""
    inputs = inputs_of(graph)
    (want,) = evaluate(graph, inputs)
    flat = [x.reshape(-1) for x in inputs]
    intrinsics = meanings(every_intrinsic())
    (got,) = interpret(program, flat, intrinsics=intrinsics, shuffle_seed=3).values()
    np.testing.assert_array_equal(got, np.asarray(want).reshape(-1))
    code = GpuCodegen(CUDA).compile(program)
    kernel = Kernel.from_bytes(code.object, "kernel")
    assert all((len(x.tensors) > 0) == (b"weft_copy_box" in x.code) for x in kernel.launches)
    for seed in range(2):
        arrays = [shims.guarded(x) for x in (*flat, np.zeros(np.asarray(want).size, np.float16))]
        shims.run(kernel, "cuda", arrays, (), seed=seed)
        np.testing.assert_array_equal(arrays[-1], np.asarray(want).reshape(-1))


@pytest.mark.parametrize("size", [(128, 192, 128), (130, 200, 128)], ids=str)
@pytest.mark.parametrize("tile", ["2x1 of 1x2 by 1 ahead", "1x2 of 2x1 by 1"])
def test_warp_groups_get_core_matrices_by_boxes(size: tuple[int, int, int], tile: str) -> None:
    """8 elements side by side, then rows, then the next pieces of rows: a box has more dims than the matrix. Tails are
    zeros."""
    graph = product("float16", *size)
    choices = {"fragments": "wgmma_f16_64_along_across", "rows.copies": "boxes", "columns.copies": "boxes"}
    program = lowered(graph, tile, "cuda -arch=sm_90a", **choices)
    found = [
        BulkCopy.of(s.call).tensor
        for s in walk_stmts(program.body)
        if isinstance(s, Evaluate) and s.call.name == "copy_box"
    ]
    assert found and all(t.sizes[0] == 8 for t in found)
    agrees(graph, program)


def test_wide_rows_are_boxes_and_narrow_ones_are_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product("float16", 64, 128, 48)
    for least, count in ((32, 2), (64, 0)):
        monkeypatch.setattr(bulk_copies, "LEAST_ROW", least)
        assert ("@copy_box(" in str(lowered(graph, "2x2 of 1x1 by 2"))) == bool(count)


def test_each_wait_is_needed() -> None:
    graph = product("float16", 64, 128, 48)
    text, inputs = str(lowered(graph, "2x2 of 1x1 by 2 ahead")), [x.reshape(-1) for x in inputs_of(graph)]
    (want,) = evaluate(graph, inputs_of(graph))
    pieces, seen = text.split("@await_copies()"), 0
    intrinsics = meanings(resolve_target("cuda -arch=sm_90").intrinsics.values())
    for k in range(len(pieces) - 1):
        broken = parse_program(
            "".join(["@await_copies()".join(pieces[: k + 1]), "@await_copies()".join(pieces[k + 1 :])])
        )
        (got,) = interpret(broken, inputs, intrinsics=intrinsics, shuffle_seed=3).values()
        seen += not np.array_equal(got, np.asarray(want).reshape(-1))
    assert seen == len(pieces) - 1


def test_one_barrier_a_step_is_left() -> None:
    low = lowered(product("float16", 64, 128, 48), "2x2 of 1x1 by 2 ahead")
    steps = [
        str(s) for s in walk_stmts(low.body) if isinstance(s, For) and s.kind == "serial" and "@copy_box" in str(s)
    ]
    assert [x.count("@barrier()") for x in steps] == [1] and "@copy_async" not in str(low)


def test_why_an_operand_is_no_box() -> None:
    found = resolve_target("cuda -arch=sm_90")
    s = Schedule(
        lower_group(product("float16", 64, 72, 48), "kernel"),
        found.machine,
        overrides={"warp_tile": TILES[1]},
        intrinsics=found.intrinsics,
    )
    ContractionRule().apply(s)
    notes = re.findall(r'box_declined="([^"]*)"', str(s.program))
    assert notes == [f"it may begin, or 'in{k}' end, within a piece of 16 elements" for k in range(2)]


def test_a_record_may_have_threads_copy() -> None:
    low = str(
        lowered(
            product("float16", 64, 128, 48),
            "2x2 of 1x1 by 2 ahead",
            **dict.fromkeys(["rows.copies", "columns.copies"], "threads"),
        )
    )
    assert "@copy_async" in low and "@copy_box" not in low


def test_older_machines_have_none() -> None:
    graph = product("float16", 64, 64, 48)
    for arch in ("sm_80", "sm_89"):
        found = resolve_target(f"cuda -arch={arch}")
        s = Schedule(lower_group(graph, "kernel"), found.machine, intrinsics=found.intrinsics)
        ContractionRule().apply(s)
        low = lower_program(s.program, FUNCTIONS, extra=found.loop_passes())
        text = GpuCodegen(CUDA).source(low)
        assert (
            "box" not in str(s.program)
            and not any("copies" in name for name in s.trace.choices)
            and "box" not in text
            and "weft_arrivals" not in text
        )
        assert all(x.tensors == () for x in Kernel.from_bytes(GpuCodegen(CUDA).compile(low).object, "kernel").launches)


@pytest.mark.parametrize("name", ["whole", "rows end", "layer", "batches", "convolution"])
def test_whole(api: FakeApi, name: str) -> None:
    """Compiled, launched on the played driver, also as a graph; what is no box comes by threads."""
    made = {
        "whole": lambda: product("float16", 64, 64, 64), "rows end": lambda: product("float16", 50, 64, 48),
        "layer": lambda: product("float16", 40, 64, 48, layer=True), "batches": lambda: product("float16", 32, 64, 48,
            (3,)),
        "convolution": lambda: convolution("float16"),
    }  # fmt: skip
    graph = made[name]()
    exe, inputs = weft.compile(graph, target="cuda -arch=sm_90", cache=False), data(graph, "float16")
    (want,) = evaluate(graph, list(inputs.values()))
    for _ in range(3):
        np.testing.assert_array_equal(exe.run(inputs)["y"], np.asarray(want))
    assert any("weft_copy_box(" in text for text in api.modules) == (name != "convolution") == bool(api.encoded)


def test_dims_known_at_run_time_come_by_threads(api: FakeApi) -> None:
    graph = product("float16", "n", 64, 48)
    exe, inputs = weft.compile(graph, target="cuda -arch=sm_90", cache=False), data(graph, "float16", 40)
    (want,) = evaluate(graph, list(inputs.values()))
    np.testing.assert_array_equal(exe.run(inputs)["y"], np.asarray(want))
    (text,) = [t for t in api.modules if "weft_mma" in t]
    assert "in1_boxes" in text and "in0_boxes" not in text and "weft_copy_async" in text


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_nvrtc_takes_large_ones(arch: str) -> None:
    for size in (8192, 1024):
        exe = weft.compile(product("float16", size, size, size), target=f"cuda -arch={arch}", cache=False)
        (section,) = exe.manifest.sections
        code = exe._code[section]
        assert (
            b"\x7fELF" in code
            and b"weft_tensor" not in code
            and (b"[[0,2,[8," if arch == "sm_90a" else b"[[0,2,[16,") in code
        )
