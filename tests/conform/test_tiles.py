"""Level 10: what a target declares has to be at work, and the report says what did the work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conform.broken import OPS
from tests.conform.test_report import Page

from weft import dtypes as dt
from weft.cli.main import main
from weft.compilation import Kernel
from weft.errors import InputError
from weft.expr.nodes import le, not_
from weft.loop.parser import parse_program
from weft.machine import Scope
from weft.scheduling import Call, Intrinsic, Operand
from weft.tensor import language as tl
from weft_testing.conform import run
from weft_testing.conform.kit import Kit
from weft_testing.conform.made import Tile, capacities, family, grown, meanings_of, prime_above, products, tile_of
from weft_testing.conform.page import page
from weft_testing.conform.report import Report
from weft_testing.conform.usage import Ledger, Usage, count

TARGET = f"board -ops={OPS}"


def matrices(
    rows: int, columns: int, terms: int, left: str = "float32", right: str = "float32", result: str = "float32"
) -> Intrinsic:
    k = tl.reduce_axis(terms, "k")
    a, b = tl.placeholder((rows, terms), left, "A"), tl.placeholder((terms, columns), right, "B")

    def cell(i: object, j: object) -> object:
        return tl.sum(a[i, k].astype(result) * b[k, j].astype(result), axis=k)

    name = f"mma{rows}x{columns}x{terms}"
    return Intrinsic(name, tl.compute((rows, columns), cell, name="C"), tuple(map(Operand, "ABC")), Call(name))


def test_a_board_with_a_matrix_instruction_shows_what_it_did(install: Callable[..., str]) -> None:
    install("tiled")
    report = run(TARGET, levels=(10,), quick=True)
    assert report.passed, report.summary()
    tiled, plain = report.usage.rules["tiled"], report.usage.rules["anything"]
    used = report.usage.intrinsics["product4"]
    # The product whole (4 × 4 × 4) and several (12 × 8 × 8) is the instruction's; one more (5 × 5 × 5), and what knows
    # of no operator, is not.
    assert (used.launches, used.multiply_adds) == (2, 4**3 + 12 * 8 * 8)
    assert used.cases == {"whole": [1, 2], "several": [1, 2], "ragged": [0, 2]}
    assert (tiled.kernels, tiled.launches, tiled.multiply_adds, tiled.by_intrinsics) == (
        2,
        2,
        used.multiply_adds,
        used.multiply_adds,
    )
    assert plain.by_intrinsics == 0 < plain.multiply_adds
    assert (report.usage.products[10].by_intrinsics, report.usage.products[10].launches) == (2, 2 + 1)
    assert f"launches with products, level 10 tiles: 2 of 3 by intrinsics ({2 / 3:.1%})" in report.summary()
    assert re.search(
        r"none in 1 × \w+\(.*float32\[5, 5\].*\) -> \(.*float32\[5, 5\]\), rule 'anything'", report.summary()
    )


def test_an_intrinsic_that_never_ran_is_a_failure(install: Callable[..., str]) -> None:
    install("idle_intrinsic")
    report = run(TARGET, levels=(10,), quick=True)
    (failure,) = report.failed
    assert failure.name == "intrinsic_runs[product4]"
    assert "the intrinsic 'product4' is declared and stood in no kernel that was launched" in failure.message
    assert "6 case(s) were made for it, among them" in failure.message
    assert "MatMul float32 4x4x4 whole: taken by anything" in failure.message
    assert "let hook 'intrinsics' give those that rules use on this machine" in failure.message
    assert '<td class="failed">product4</td>' in page(report)


def test_a_rule_that_never_ran_is_a_failure(install: Callable[..., str]) -> None:
    install("idle_rule")
    report = run("board -ops=MatMul", levels=(10,), quick=True)
    (failure,) = report.failed
    assert failure.name == "rule_runs[asleep]"
    assert "the rule 'asleep' is declared and took no kernel of any case, graph or sample" in failure.message
    assert "× asleep: it is night" in failure.message


def test_a_filtered_run_does_not_claim_that_something_never_ran(install: Callable[..., str]) -> None:
    install("idle_intrinsic")
    report = run(TARGET, levels=(10,), quick=True, keyword="runs")
    assert report.passed
    assert {r.outcome for r in report.results} == {"skipped"}
    assert all("checks were chosen by -k" in r.message for r in report.results)


def test_the_scalar_fallback_does_not_count_as_instructions(install: Callable[..., str]) -> None:
    """A model is on the target as a whole, and only what the instruction multiplies is the instruction's."""
    install("tiled")
    report = run("board -ops=MatMul,Add,Gelu,Relu", levels=(6,), keyword="mlp and not any")
    (share,) = report.shares
    assert share.share == 1 and share.by_intrinsics is not None and share.by_intrinsics < 1
    assert share.text == f"100.0% ({share.by_intrinsics:.1%} of these by intrinsics)"
    everything = report.usage
    assert everything.share == pytest.approx(share.by_intrinsics)


def test_console_json_and_page_agree_on_rules_and_intrinsics(
    install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("tiled")
    files = tmp_path / "report.json", tmp_path / "report.html"
    with pytest.raises(SystemExit):
        main(
            [
                "conform",
                "-t",
                TARGET,
                "--quick",
                "--level",
                "10",
                "--budget",
                "4096",
                "--json",
                str(files[0]),
                "--html",
                str(files[1]),
            ]
        )
    console, data, shown = capsys.readouterr().out, json.loads(files[0].read_text()), Page(files[1].read_text())
    rules = {row[0]: row[1:] for row in shown.tables["rules"][1:]}
    assert {name: r["launches"] for name, r in data["rules"].items()} == {
        name: int(row[1]) for name, row in rules.items()
    }
    assert {name: f"{r['multiply_adds']:,.0f}" for name, r in data["rules"].items()} == {
        name: row[2] for name, row in rules.items()
    }
    (intrinsic,) = shown.tables["intrinsics"][1:]
    cases = data["intrinsics"]["product4"]["cases"]
    assert intrinsic[-3:] == [
        f"{cases[kind]['used']} of {cases[kind]['made']}" for kind in ("whole", "ragged", "several")
    ]
    for row in (shown.tables["rules"][1], intrinsic):
        assert any(line.split() == " ".join(row).split() for line in console.splitlines()), row
    assert [row[2:4] for row in shown.tables["products"][1:]] == [
        [str(p["launches"]), str(p["by_intrinsics"])] for p in data["products"].values()
    ]


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="a case has a budget of 0 multiply-adds"):
        run("llvm", levels=(10,), budget=0)


# -- cases ------------------------------------------------------------------------------------------------------------


def test_cases_are_whole_ragged_and_several_tiles() -> None:
    found = {name: (kind, sizes) for kind, name, sizes in grown((16, 8, 4), 1 << 20)}
    assert found["whole"] == ("whole", (16, 8, 4))
    assert found["several"] == ("several", (48, 16, 8))
    assert found["one more"] == ("ragged", (17, 9, 5)) and found["one less"] == ("ragged", (15, 7, 3))
    assert found["primes"][0] == "ragged" and all(prime_above(n - 1) == n for n in found["primes"][1])
    assert found["many"] == ("several", (128, 64, 32))
    assert {sizes for kind, sizes in found.values() if kind == "ragged"} >= {(17, 8, 4), (16, 9, 4), (16, 8, 5)}


def test_a_budget_leaves_one_tile_and_takes_tiles_from_the_others() -> None:
    found = {name: sizes for _, name, sizes in grown((64, 64, 64), 1 << 19)}
    assert found["whole"] == (64, 64, 64) and sorted(found["several"]) == [64, 64, 128]
    assert {name: sizes for _, name, sizes in grown((256, 256, 64), 1)}["whole"] == (256, 256, 64)


def test_tiles_are_told_by_what_the_axes_index() -> None:
    assert tile_of(matrices(16, 8, 4)) == Tile(16, 8, 4, dt.float32, dt.float32, dt.float32)
    assert tile_of(matrices(1, 8, 4, "uint8", "int8", "int32")) == Tile(1, 8, 4, dt.uint8, dt.int8, dt.int32)
    a, b = tl.placeholder((8,), name="A"), tl.placeholder((8,), name="B")
    k = tl.reduce_axis(1, "k")
    step = tl.compute((8,), lambda i: tl.reduce("sum", a[i] * b[i], k), name="C")
    assert tile_of(Intrinsic("mac", step, tuple(map(Operand, "ABC")), Call("mac"))) is None


def test_open_lengths_make_a_large_tile_within_the_limits() -> None:
    m, k = tl.var("m"), tl.reduce_axis(8, "k")
    a, b = tl.placeholder((m, 8), name="A"), tl.placeholder((8, 8), name="B")
    c = tl.compute((m, 8), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), name="C")
    panel = Intrinsic("panel", c, tuple(map(Operand, "ABC")), Call("panel"), limits=(le(m, 20),))
    assert tile_of(panel) == Tile(16, 8, 8, dt.float32, dt.float32, dt.float32)


def test_each_dtype_that_an_intrinsic_takes_has_cases() -> None:
    names = list(products([matrices(4, 4, 4, "uint8", "int8", "int32"), matrices(8, 8, 8, "bfloat16", "bfloat16")]))
    assert "MatMul uint8 x int8 4x4x4 whole" in names and "MatMul bfloat16 8x8x8 whole" in names
    for operator in (
        "MatMul",
        "batched MatMul",
        "Conv 1x1",
        "Conv 3x3",
        "Conv 3x3 strided",
        "QLinearMatMul",
        "QLinearConv",
        "QDQ",
    ):
        assert any(n.startswith(f"{operator} uint8 x int8") for n in names), operator
    for operator in ("MatMul", "Gemm", "MatMul with epilogue", "MatMul of two inputs", "MatMul to float32"):
        assert any(n.startswith(f"{operator} bfloat16") for n in names), operator
    assert "MatMul float32 16x16x16 whole" in names  # where nothing multiplies float32


def test_of_many_sizes_of_one_instruction_the_ends_have_all_cases() -> None:
    each = [matrices(4, n, 4) for n in range(4, 20)]
    assert len({family(i) for i in each}) == 1
    found = products(each)
    counts = {i.name: sum(i.name in m.intrinsics for m in found.values()) for i in each}
    assert counts["mma4x4x4"] > 15 and counts["mma4x19x4"] > 15
    assert {counts[f"mma4x{n}x4"] for n in range(5, 19)} == {3}


def test_every_made_graph_can_be_built_and_has_inputs() -> None:
    for made in products(
        [matrices(4, 4, 4), matrices(1, 8, 4, "uint8", "int8", "int32"), matrices(1, 8, 2, "int16", "int16", "int32")]
    ).values():
        built = made.build()
        for inputs in made.inputs():
            assert inputs.keys() == {v.name for v in built.inputs}


def test_meanings_of_truths_stand_between_floats_as_well() -> None:
    a = tl.placeholder((8,), "bool", "A")
    flip = Intrinsic("flip", tl.compute((8,), lambda i: not_(a[i]), name="C"), tuple(map(Operand, "AC")), Call("flip"))
    found = meanings_of([flip])
    assert [str(m.tensor.dtype) for m in found.values() if "between" in m.name] == ["float32"] * 5
    assert {str(t.dtype) for m in found.values() if "between" in m.name for t in m.inputs} == {"float32"}


def test_memories_are_filled_and_overflowed() -> None:
    scopes = {"a": Scope("a", 4096), "b": Scope("b", 4096), "open": Scope("open")}
    found = capacities(scopes, {})
    counts, shapes = {"fits": 1024, "exceeds": 1025, "rounds": 3079}, ("elements", "rows", "matrix")
    assert set(found) == {f"a {kind}: {what}, {n} float32" for kind, n in counts.items() for what in shapes}
    assert any(n.startswith("b ") for n in capacities(scopes, {"b": dt.int8}))


def test_cases_beyond_the_budget_are_skipped_by_name(
    install: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("good")
    monkeypatch.setattr(Kit, "dtypes_in_scopes", lambda kit: {})
    machine = Kit.open(TARGET, True).target.machine
    object.__setattr__(machine, "scopes", {"a": Scope("a", 1 << 24)})
    monkeypatch.setattr("tests.mixed.board.Board.machine", lambda self, target: machine)
    report = run(TARGET, levels=(10,), keyword="capacity and elements", quick=True)
    assert {r.outcome for r in report.results} == {"skipped"}
    assert all(r.message == "more than the budget of 1048576 multiply-adds: --budget" for r in report.results)


# -- counting ---------------------------------------------------------------------------------------------------------

PARTED = """
program parted(A: float32[n, 10], B: float32[10, 8]) -> (C: float32[n, 8]) dims(n) {
  for i in n { for j in 2 {
    for k in 2 { block whole(vi: n = i, vj: 2 = j, vk: reduce 2 = k) reads(A[vi for 1, vk*4 for 4]) writes(C[vi for 1, vj*4 for 4]) @ tensorize="mma1x4x4" {
      init { @fill(C[vi, vj*4]) } @mma1x4x4(A[vi, vk*4], B[vk*4, vj*4], C[vi, vj*4])
    } }
    for c in 4 { for r in 2 { block rest(vi: n = i, vj: 8 = j*4 + c, vk: reduce 2 = r) { C[vi, vj] = C[vi, vj] + A[vi, vk + 8]*B[vk + 8, vj] } } }
  } }
}
"""  # noqa: E501


def test_what_intrinsics_and_what_loops_multiply_is_counted_apart() -> None:
    found = count(parse_program(PARTED), {"mma1x4x4": matrices(1, 4, 4)}, {"n": 3})
    assert found.intrinsics == {"mma1x4x4": 3 * 2 * 2 * 16} and found.plain == 3 * 8 * 2
    assert found.total == 3 * 8 * 10 and found.share == pytest.approx(0.8)


def test_where_a_size_is_not_known_an_intrinsic_counts_as_used() -> None:
    found = count(parse_program(PARTED), {"mma1x4x4": matrices(1, 4, 4)}, {})
    assert found.intrinsics == {"mma1x4x4": 0} and found.total == 0
    assert found.multiplies and found.inside and not found.known
    plain = count(parse_program(PARTED.replace('@ tensorize="mma1x4x4" ', "")), {}, {})
    assert plain.multiplies and not plain.inside and not plain.known


SIDE_BY_SIDE = """
program both(A: float32[n, 4], B: float32[4, 4]) -> (C: float32[n, 4], D: float32[n, 4]) dims(n) {
  for i in n { for j in 4 { for k in 4 { block first(vi: n = i, vj: 4 = j, vk: reduce 4 = k) { C[vi, vj] = C[vi, vj] + A[vi, vk]*B[vk, vj] } } } }
  for a in n { for b in 4 { for c in 4 { block second(vi: n = a, vj: 4 = b, vk: reduce 4 = c) { D[vi, vj] = D[vi, vj] + C[vi, vk]*B[vk, vj] } } } }
}
"""  # noqa: E501
LIBRARY = """
program both(A: float32[n, 4], B: float32[4, 4]) -> (C: float32[n, 4], D: float32[n, 4]) dims(n) {
  for i in n { @mma1x4x4(A[i, 0], B[0, 0], C[i, 0]) }
  for a in n { for b in 4 { for c in 4 { D[a, b] = D[a, b] + C[a, c]*B[c, b] } } }
}
"""


def test_what_a_loop_pass_leaves_to_loops_is_no_instruction() -> None:
    """Of two products one is made a call: the other is plain loops', beside it."""
    known = {"mma1x4x4": matrices(1, 4, 4)}
    found = count(parse_program(SIDE_BY_SIDE), known, {"n": 3}, parse_program(LIBRARY))
    assert found.intrinsics == {"mma1x4x4": 3 * 16} and found.plain == 3 * 16 and found.inside and found.known
    all_of_it = LIBRARY.replace("D[a, b] = D[a, b] + C[a, c]*B[c, b]", "D[a, b] = C[a, c]")
    assert count(parse_program(SIDE_BY_SIDE), known, {"n": 3}, parse_program(all_of_it)).plain == 0
    unknown = count(parse_program(SIDE_BY_SIDE), known, {}, parse_program(LIBRARY))
    assert unknown.total == 0 and unknown.inside and not unknown.known


def test_a_report_names_products_without_an_instruction() -> None:
    a, b = (parse_program(text.replace('@ tensorize="mma1x4x4" ', "")) for text in (PARTED, SIDE_BY_SIDE))
    usage = Usage.of([], [matrices(1, 4, 4)])
    ledger = Ledger([], {"mma1x4x4": matrices(1, 4, 4)}, usage, level=10)
    ledger.add(Kernel("parted", a, "loops", scheduled=a), 2, {"n": 3})
    ledger.add(Kernel("both", b, "loops", scheduled=b), 5, {})
    report = Report("board", usage=usage)
    lines = [line.strip() for line in report.work()]
    assert "and 5 launches whose multiply-adds depend on data, which are not counted" in lines
    assert lines[-3:] == [
        "launches with products, level 10 tiles: 0 of 7 by intrinsics (0.0%)",
        "none in 5 × both(A: float32[n, 4], B: float32[4, 4]) -> (C: float32[n, 4], D: float32[n, 4]), rule 'loops'",
        "none in 2 × parted(A: float32[3, 10], B: float32[10, 8]) -> (C: float32[3, 8]), rule 'loops'",
    ]
    shown = Page(page(report))
    assert [row[1] for row in shown.tables["without"][1:]] == [line.split(" × ")[1] for line in lines[-2:]]
    for k in range(10):
        ledger.add(Kernel(f"one{k}", a, "loops", scheduled=a), 1, {"n": 3})
    assert report.work()[-1].strip() == "none in 4 of 4 other kinds"
