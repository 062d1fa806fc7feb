"""The profile of a run: what a kernel has to do, when it ran, and what is drawn of it. No test asserts a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.codegen.profile import PROFILE, profiled
from weft.codegen.segment import AllocateOutput, BindSymbol, KernelCall, Output, SegmentSpec, Stamp, Tensor
from weft.expr.nodes import const
from weft.loop.parser import parse_program
from weft.loop.work import count_work
from weft_testing.bench.limits import Limits, sizes
from weft_testing.bench.profile import Call, Profile
from weft_testing.bench.roofline import roofline
from weft_testing.bench.roofline_page import plot
from weft_testing.bench.trace import as_trace

Weft = Callable[..., Any]

DENSE = """
program dense(x: float32[n, 32], w: float32[32, 16]) -> (y: float32[n, 16]) dims(n) {
  allocate c: float32[n, 16]
  for i in n { for j in 16 { for k in 32 {
    block C(bi: n = i, bj: 16 = j, rk: reduce 32 = k) {
      init { c[bi, bj] = 0.0f32 }
      c[bi, bj] = c[bi, bj] + x[bi, rk]*w[rk, bj]
    }
  } } }
  for i1 in n { for j1 in 16 {
    block R(ri: n = i1, rj: 16 = j1) { y[ri, rj] = max(c[ri, rj], 0.0f32) }
  } }
}
"""
LOOK_UP = """
program look_up(table: float32[1000, 8], rows: int64[3]) -> (y: float32[3, 8]) {
  for i in 3 { for j in 8 {
    block G(bi: 3 = i, bj: 8 = j) { y[bi, bj] = table[rows[bi], bj] }
  } }
}
"""


def test_work_of_a_product() -> None:
    work = count_work(parse_program(DENSE), frozenset(), {"n": 5})
    assert work is not None
    assert work.flop == 2 * 5 * 16 * 32 + 5 * 16
    assert work.bytes == (5 * 32 * 4, 32 * 16 * 4, 5 * 16 * 4)


def test_work_is_not_known_where_a_size_is_not() -> None:
    assert count_work(parse_program(DENSE), frozenset(), {}) is None


def test_only_the_rows_that_are_looked_up_count() -> None:
    work = count_work(parse_program(LOOK_UP), frozenset(), {})
    assert work is not None
    # A row index may vary with every access as far as anybody knows, so at most one element an access is read.
    assert (work.flop, work.bytes) == (0, (3 * 8 * 4, 3 * 8, 3 * 8 * 4))


def test_a_function_counts_as_what_it_expands_to() -> None:
    program = parse_program(
        "program f(x: float32[8]) -> (y: float32[8]) { for i in 8 { block F(b: 8 = i) { y[b] = exp(x[b]) } } }"
    )
    native, expanded = (count_work(program, functions, {}) for functions in (frozenset({"exp"}), frozenset()))
    assert native is not None and expanded is not None
    assert native.flop == 8
    assert expanded.flop > 8 * 8


def test_taps_in_the_padding_do_not_count() -> None:
    text = """
program window(x: float32[6]) -> (y: float32[6]) {
  for i in 6 { for k in 3 {
    block W(b: 6 = i, r: reduce 3 = k) {
      init { y[b] = 0.0f32 }
      if 1 <= b + r and b + r < 7 { y[b] = y[b] + x[b + r - 1] }
    }
  } }
}
"""
    work = count_work(parse_program(text), frozenset(), {})
    assert work is not None
    assert work.flop == pytest.approx(6 * 3 - 2)


def test_a_profiled_segment_stamps_around_every_kernel() -> None:
    kernels = [KernelCall("a", (0,)), KernelCall("b", (0,))]
    bind = BindSymbol("n", const(3))
    spec = SegmentSpec(
        "s",
        (),
        (Tensor("y", dt.float32, ()),),
        0,
        (),
        (Output(0),),
        (AllocateOutput(0, ()), kernels[0], bind, kernels[1]),
    )
    new = profiled(spec)
    assert new.outputs == (*spec.outputs, Tensor(PROFILE, dt.int64, (const(2), const(2))))
    assert new.buffers == (Output(0), Output(1))
    allocate = AllocateOutput(1, (const(2), const(2)))
    assert new.items == (
        allocate,
        AllocateOutput(0, ()),
        Stamp(1, 0),
        kernels[0],
        Stamp(1, 1),
        bind,
        Stamp(1, 2),
        kernels[1],
        Stamp(1, 3),
    )


LIMITS = Limits(2, 100.0, ((10, 1000.0), (1000, 10.0)))


def test_bandwidth_lies_between_the_measured_ones() -> None:
    assert [LIMITS.bandwidth(s) for s in (0, 10, 1000, 5000)] == [1000.0, 1000.0, 10.0, 10.0]
    assert LIMITS.bandwidth(100) == pytest.approx(505.0)
    assert LIMITS.memory == 10.0


def test_the_limit_is_arithmetic_or_memory() -> None:
    assert LIMITS.seconds(500.0, 0.0, 10.0, 0.0) == 5.0
    assert LIMITS.seconds(5.0, 20.0, 10.0, 1000.0) == pytest.approx(
        20 / 10 + 10 / 1000
    )  # constants come from where all constants are


def test_sets_lie_in_every_cache_and_beyond() -> None:
    assert sizes((32 << 10, 512 << 10, 8 << 20)) == [16 << 10, 256 << 10, 4 << 20, 32 << 20]
    assert sizes((64, 64, 64)) == [32, 256]


def profile() -> Profile:
    calls = (
        Call("a", "contraction", ("conv1",), 1000.0, 0.0, 10.0, (0.0, 0.0, 0.0), (12.0, 11.0, 40.0)),
        Call("b", "elementwise", ("relu",), None, 0.0, 0.0, (13.0, 12.0, 41.0), (14.0, 13.0, 43.0)),
        Call("a", "contraction", ("conv2",), 1000.0, 0.0, 10.0, (15.0, 14.0, 44.0), (25.0, 26.0, 54.0)),
        Call("c", "elementwise", ("add",), 10.0, 0.0, 10.0, (26.0, 26.0, 54.0), (30.0, 30.0, 58.0)),
    )
    return Profile("m.onnx", "llvm", 2, 3, calls, 0.0)


def test_rows_are_kernels_by_what_can_be_won() -> None:
    c, a, b = roofline(profile(), LIMITS)
    assert (a.kernel, a.calls, a.seconds, a.flop, a.nodes) == ("a", 2, 12.0 + 10.0, 2000.0, ("conv1", "conv2"))
    assert (a.limit, a.won, a.intensity, a.flops) == (20.0, 2.0, 100.0, 2000.0 / 22.0)
    assert a.share == pytest.approx(20 / 22)
    assert a.share_of_model == pytest.approx(22 / 30)
    assert (c.kernel, c.limit, c.won) == ("c", 0.1, 3.9)
    assert (b.kernel, b.limit, b.share, b.won, b.intensity) == ("b", None, None, None, None)


def check_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Holds a trace against the trace-event format (JSON object form); the complete events."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices = []
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert event["ph"] == "X" and isinstance(event["cat"], str)
        assert event["ts"] >= 0 and event["dur"] >= 0
        slices.append(event)
    # Slices of one thread nest or follow each other: a viewer draws no other.
    open_until: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-6
        open_until.append(event["ts"] + event["dur"])
    return slices


def test_the_trace_is_the_run_of_median_length() -> None:
    slices = check_trace(json.loads(json.dumps(as_trace(profile()))))
    assert [(s["name"], s["ts"], s["dur"]) for s in slices[:3]] == [
        ("m.onnx", 0.0, 30e6),
        ("a", 0.0, 11e6),
        ("b", 12e6, 1e6),
    ]
    facts = {"number": 0, "rule": "contraction", "nodes": ["conv1"], "flop": 1000.0, "bytes": 10.0}
    assert slices[1]["args"] == {**facts, "GFLOP/s": 1000 / 11 / 1e9, "GB/s": 10 / 11 / 1e9}
    assert slices[2]["args"]["flop"] is None


def test_bench_roofline_and_trace(weft: Weft, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_testing.bench.limits.SECONDS", 0.0)
    files = ["--json", tmp_path / "r.json", "--html", tmp_path / "r.html", "--trace", tmp_path / "t.json"]
    result = weft("bench", recipe, "--roofline", "--rounds", 3, "--threads", 1, "--input-shape", "x=4,64", *files)
    assert result.code == 0, result.err
    assert (
        "model.recipe, 1 thread(s)" in result.out
        and "measured limits: " in result.out
        and "3 runs, median " in result.out
    )
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["runs"], report["threads"]) == (3, 1)
    assert (
        sum(k["calls"] for k in report["kernels"])
        == len(check_trace(json.loads((tmp_path / "t.json").read_text()))) - 1
    )
    for k in report["kernels"]:
        assert k["seconds"] > 0 and k["limit"] > 0 and k["share_of_limit"] == k["limit"] / k["seconds"]
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page  # nothing is fetched
    for k in report["kernels"]:
        assert k["kernel"] in page


def test_a_profiled_run_answers_the_same(recipe: Path) -> None:
    from weft.pipeline import compile
    from weft.resolve import resolve_target
    from weft_testing.bench.profile import compile_profiled

    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    plain = compile(str(recipe), "llvm -threads=1")
    clocked = compile_profiled(str(recipe), resolve_target("llvm -threads=1"), 1).executable
    answer = clocked.run({"x": x})
    stamps = answer.pop(PROFILE)
    assert {n: a.tobytes() for n, a in answer.items()} == {n: a.tobytes() for n, a in plain.run({"x": x}).items()}
    flat = stamps.reshape(-1)
    assert (np.diff(flat) >= 0).all() and flat[0] > 0


def test_what_roofline_does_not_take(weft: Weft, recipe: Path, archive: Path) -> None:
    result = weft("bench", archive, "--roofline")
    message = (
        f"InputError: {archive} is compiled already, without clocks around its kernels\n  hint: give the model that it"
        " was compiled from\n"
    )
    assert (result.code, result.err) == (1, message)
    result = weft("bench", recipe, "--roofline", "-t", "llvm", "-t", "llvm -opt=1")
    assert (result.code, result.err) == (1, "InputError: --roofline, --profile and --trace take one --target, got 2\n")


MEASURED = st.floats(1e-3, 1e4)


@settings(max_examples=60, deadline=None)
@example([(1.0, 1e6, 1.0)], 90945530792988.0, [1e9])  # the largest dot, at the lower edge
@given(
    st.lists(st.tuples(MEASURED, st.floats(1e6, 1e13), st.floats(0.001, 1.0)), min_size=1, max_size=8),
    st.floats(1e9, 1e14), st.lists(st.floats(1e9, 1e13), min_size=1, max_size=5),
)  # fmt: skip
def test_nothing_in_the_plot_covers_a_label(
    dots: list[tuple[float, float, float]], peak: float, rates: list[float]
) -> None:
    kernels = [
        {
            "kernel": "k",
            "rule": "r",
            "calls": 1,
            "seconds": 1.0,
            "nodes": ["n"],
            "won": 0.0,
            "intensity": i,
            "flops": f,
            "share_of_model": s,
            "share_of_limit": s,
        }
        for i, f, s in dots
    ]
    bandwidths = [(32768 * 8**k, rate) for k, rate in enumerate(sorted(rates, reverse=True))]
    drawn = plot({"kernels": kernels, "limits": {"flops": peak, "bandwidths": bandwidths}})
    boxes = []
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", drawn):
        if "rotate" in attributes:
            continue
        at = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        width, x, y = 7.0 * len(text), float(at["x"]), float(at["y"])
        left = x - {"end": width, "middle": width / 2}.get(at.get("text-anchor", ""), 0.0)
        boxes.append((left, y - 11, left + width, y + 3, text))
    for k, a in enumerate(boxes):
        for b in boxes[:k]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    for cx, cy, r in re.findall(r'<circle cx="([\d.-]+)" cy="([\d.-]+)" r="([\d.]+)"', drawn):
        for left, top, right, bottom, text in boxes:
            x, y = min(max(float(cx), left), right), min(max(float(cy), top), bottom)
            assert math.hypot(float(cx) - x, float(cy) - y) >= float(r) - 1.2, (
                text
            )  # coordinates and radii have one decimal
