"""Rates that a compilation is given, by a probe or in a file: they change choices and keys of caches; else nothing
changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.compilation import Compilation
from weft.dtypes import float32
from weft.errors import TargetError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.resolve import resolve_target
from weft_llvm import measured
from weft_llvm.schedules.tiles import choose_tile
from weft_ops import Conv
from weft_ops.arithmetic import Add

CPU = "llvm -mcpu=x86-64-v3 -mtriple=x86_64-linux-gnu -threads=1"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def rates(tmp_path: Path) -> Callable[..., str]:
    """A file of rates, as an option."""

    def write(**values: float) -> str:
        path = tmp_path / f"{abs(hash(tuple(values.items())))}.json"
        path.write_text(json.dumps({name.replace("__", "."): value for name, value in values.items()}))
        return f"-machine={path}"

    return write


def convolution() -> Graph:
    g = GraphBuilder("picture")
    x, w = g.input("x", tensor_type("float32", (1, 64, 28, 28))), np.ones((64, 64, 3, 3), np.float32)
    g.output(g.add(Conv(pads=(1, 1, 1, 1)), x, g.constant(w, "w")), "y")
    return g.build()


def addition() -> Graph:
    g = GraphBuilder("sum")
    x = g.input("x", tensor_type("float32", (512, 512)))
    g.output(g.add(Add(), x, x), "y")
    return g.build()


def kernels(graph: Graph, target: str) -> list[tuple[str, str]]:
    """Rule and schedule of each kernel."""
    compilation = Compilation(resolve_target(target), cache=False)
    compilation.compile_kernels(compilation.optimize(graph))
    return [(k.rule, str(k.scheduled)) for k in compilation.kernels.values()]


def test_slow_memory_changes_the_algorithm(rates: Callable[..., str]) -> None:
    """Transformed weights are 16/9 or 4 times as large as taps: from slow memory they take longer than they save."""
    slow = rates(memory__core_bytes_per_second=1e8, memory__cores_bytes_per_second=1e8)
    assert "winograd" in {rule for rule, _ in kernels(convolution(), CPU)}
    assert "winograd" not in {rule for rule, _ in kernels(convolution(), f"{CPU} {slow}")}


def test_dear_forks_leave_a_loop_to_one_core(rates: Callable[..., str]) -> None:
    assert all(" parallel " in text for _, text in kernels(addition(), CPU))
    assert not any(" parallel " in text for _, text in kernels(addition(), f"{CPU} {rates(fork_seconds=1.0)}"))


def test_a_slow_cache_changes_a_tile(rates: Callable[..., str]) -> None:
    def tile(more: str = "") -> Any:
        return choose_tile(64, [1, 2, 3, 4], 64, resolve_target(f"{CPU} {more}").machine, float32, depth=512)[1]

    assert tile(rates(third_cache__core_bytes_per_second=1e9, second_cache__core_bytes_per_second=1e9)) != tile()


def test_throughput_and_clock_reach_the_machine(rates: Callable[..., str]) -> None:
    table = resolve_target(CPU).machine
    given = resolve_target(f"{CPU} {rates(multiply_adds_per_cycle=1.0, clock_hz=2e9)}").machine
    assert table.flops(float32) == 32 and given.flops(float32) == 16
    assert table.rates.clock_hz == 3e9 and given.rates.clock_hz == 2e9
    assert given.bytes_per_flop(float32) == table.bytes_per_flop(float32) == 1 / 8


def test_rates_are_part_of_keys(rates: Callable[..., str]) -> None:
    options = ("", "-machine=table", rates(clock_hz=2e9), rates(clock_hz=4e9))
    found = [resolve_target(f"{CPU} {more}").fingerprint for more in options]
    assert found[0] == found[1] and len(set(found)) == 3
    assert resolve_target(f"{CPU} {rates(clock_hz=2e9)}").fingerprint == found[2]


def test_a_measurement_is_of_this_machine_alone() -> None:
    before = resolve_target("llvm")
    assert measured.stored() is None and before.target.options.machine is None
    assert measured.store({"clock_hz": 1.25e9})
    assert measured.stored() == {"clock_hz": 1.25e9}
    after = resolve_target("llvm")
    assert after.machine.rates.clock_hz == 1.25e9 and after.fingerprint != before.fingerprint
    assert resolve_target("llvm -mcpu=native").machine.rates.clock_hz == 1.25e9
    for text in ("llvm -machine=table", f"llvm -mcpu={before.target.options.mcpu}", CPU):
        assert resolve_target(text).machine.rates.clock_hz == 3e9, text
    measured.forget()
    assert resolve_target("llvm").fingerprint == before.fingerprint


def test_a_measurement_of_another_version_is_none() -> None:
    assert measured.store({"no_such_rate": 1.0}) and measured.stored() is None
    assert resolve_target("llvm").target.options.machine is None


def test_files_that_give_no_rates(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="nothing was measured on ") as caught:
        resolve_target("llvm -machine=measured")
    assert caught.value.hint == "run weft probe, or leave -machine out"
    with pytest.raises(TargetError, match="the file of rates cannot be read") as caught:
        resolve_target(f"llvm -machine={tmp_path / 'none.json'}")
    assert caught.value.why == "No such file or directory" and "weft probe --output FILE" in str(caught.value.hint)
    (tmp_path / "odd.json").write_text('{"clock_hz": -1}')
    with pytest.raises(TargetError, match="rate 'clock_hz' is -1"):
        resolve_target(f"llvm -machine={tmp_path / 'odd.json'}")


def test_a_probe_measures_and_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With arrays and chains so short that the numbers mean nothing: what is compiled, kept and printed."""
    from weft.cli.main import main
    from weft_llvm import probe

    small = {"RUNS": 1, "STEPS": 1 << 10, "TRAFFIC": 1 << 16, "MOST_BYTES": 1 << 20, "TASK_STEPS": 1 << 8}
    for name, value in small.items():
        monkeypatch.setattr(probe, name, value)
    with pytest.raises(SystemExit) as ended:
        main(["probe", "--output", str(tmp_path / "rates.json")])
    assert ended.value.code in (0, None)
    text = capsys.readouterr().out
    assert "measured" in text and "clock_hz" in text and "memory.core_bytes_per_second" in text and "kept for " in text
    found = measured.stored()
    assert found is not None and set(found) <= set(json.loads((tmp_path / "rates.json").read_text()))
    assert resolve_target(f"{CPU} -machine={tmp_path / 'rates.json'}").machine.rates.clock_hz > 0
    with pytest.raises(SystemExit):
        main(["probe", "--forget"])
    assert measured.stored() is None


def test_what_is_implausible_is_left_out() -> None:
    from weft_llvm.probe import Found, Rate

    table = {"clock_hz": 3e9, "loads_per_cycle": 2.0, "uneven": 0.05}
    found = Found((Rate("clock_hz", None, 3e9), Rate("loads_per_cycle", 1.0, 2.0)), table)
    assert found.values() == {"loads_per_cycle": 1.0}
    assert found.all_numbers() == {"clock_hz": 3e9, "loads_per_cycle": 1.0, "uneven": 0.05}
