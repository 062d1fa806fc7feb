"""Targets of the kind llvm and the machines they describe."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from weft import dtypes as dt
from weft.dtypes import float32
from weft.errors import TargetError
from weft.machine import Machine
from weft.target import Target, parse_target
from weft_llvm.machine import host_caches, host_ways
from weft_llvm.schedules.tiles import (
    TYPICAL_ROWS,
    Tile,
    Window,
    choose_dot_tile,
    choose_tile,
    conflict_cycles,
    fits,
    tiles_per_row,
)
from weft_llvm.target import LlvmTarget, available_threads

KIND = LlvmTarget()


def parse(text: str) -> Target:
    return parse_target(text, [KIND])


def machine(text: str) -> Machine:
    return KIND.machine(parse(text))


@pytest.mark.parametrize(
    ("options", "bits", "registers", "fma", "masked", "flops"),
    [
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64", 128, 16, False, False, 8),
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", 256, 16, True, False, 32),
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512", 512, 32, True, True, 64),
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=znver4", 512, 32, True, True, 32),
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=znver5", 512, 32, True, True, 64),
        ("-mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -mattr=-fma", 256, 16, False, False, 32),
        ("-mtriple=aarch64-linux-gnu -mcpu=cortex-a72", 128, 32, True, False, 8),
        ("-mtriple=aarch64-linux-gnu -mcpu=neoverse-n2", 128, 32, True, False, 16),
        ("-mtriple=armv7-linux-gnueabihf", 128, 16, False, False, 4),
        ("-mtriple=armv7-linux-gnueabihf -mcpu=cortex-a15", 128, 16, True, False, 8),
        ("-mtriple=armv7-linux-gnueabihf -mcpu=cortex-a7", 128, 16, True, False, 4),
        ("-mtriple=armv7-linux-gnueabihf -mattr=-neon", 128, 8, False, False, 1),
        ("-mtriple=riscv64-linux-gnu", 128, 8, True, False, 2),
        ("-mtriple=riscv64-linux-gnu -mattr=+v", 128, 32, True, False, 8),
        ("-mtriple=i686-linux-gnu", 128, 8, False, False, 4),
        ("-mtriple=s390x-linux-gnu", 128, 4, True, False, 2),
        ("-mtriple=s390x-linux-gnu -mcpu=z13", 128, 4, True, False, 4),
        ("-mtriple=s390x-linux-gnu -mcpu=z14", 128, 32, True, False, 16),
    ],
)
def test_what_an_instruction_set_gives(
    options: str, bits: int, registers: int, fma: bool, masked: bool, flops: int
) -> None:
    m = machine("llvm " + options)
    assert (m.vector_bits, m.vector_registers, m.fma, m.masked, m.flops(dt.float32)) == (
        bits,
        registers,
        fma,
        masked,
        flops,
    )


def test_conversions_and_fp16_arithmetic_are_asked_for() -> None:
    assert "f16c" not in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64").features
    assert "f16c" in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell").features
    assert "half" in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids").features
    assert machine("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n2").flops(dt.float16) == 32
    assert machine("llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a15").flops(dt.float64) == 2, "one at a time"


def test_this_machine_is_the_default() -> None:
    resolved = KIND.resolve(parse("llvm"))
    o = resolved.options
    assert o.mcpu and o.mtriple and o.mattr and o.threads == available_threads()
    assert KIND.resolve(resolved) == resolved and parse(str(resolved)) == resolved
    assert KIND.resolve(parse("llvm -mcpu=native")) == resolved
    assert machine("llvm").cores == available_threads()
    assert KIND.device(parse("llvm")) == "cpu"


def test_a_cross_target_takes_nothing_from_the_host() -> None:
    cross = KIND.resolve(parse("llvm -mtriple=aarch64-linux-gnu"))
    assert (cross.options.mcpu, cross.options.mattr, cross.options.threads) == ("generic", ("+reserve-x18",), 1)
    assert not KIND.resolve(parse("llvm -mcpu=x86-64-v2 -mtriple=x86_64-unknown-linux-gnu")).options.mattr
    assert machine("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72").caches == (32 << 10, 1 << 20, 1 << 20)


def test_fingerprint_tells_code_apart() -> None:
    def fingerprint(text: str) -> str:
        return KIND.fingerprint(parse(text))

    # Schedules differ with the threads, so kernels do.
    texts = (
        "llvm -threads=1",
        "llvm -threads=7",
        "llvm -threads=1 -opt=1",
        "llvm -threads=1 -mcpu=x86-64",
        "llvm -threads=1 -mcpu=x86-64 -mattr=+avx",
    )
    assert len({fingerprint(t) for t in texts}) == len(texts)
    assert fingerprint("llvm -threads=1") == fingerprint("llvm -threads=1 -precision=fp32")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "llvm -mcpu=znver33 -mtriple=x86_64-unknown-linux-gnu",
            ["'znver33' is no processor of x86_64", "did you mean 'znver3'?"],
        ),
        (
            "llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu -mattr=+avx9",
            ["'avx9' is no feature of x86_64", "did you mean 'avx"],
        ),
        (
            "llvm -mtriple=nonsense-foo",
            ["'nonsense-foo' is no machine that LLVM makes code for", "No available targets"],
        ),
        ("llvm -opt=7", ["option '-opt' is 0, 1, 2 or 3, got 7"]),
        ("llvm -threads=0", ["option '-threads' is at least 1, got 0"]),
        ("llvm -mpcu=x", ["target 'llvm' has no option '-mpcu'", "did you mean '-mcpu'?"]),
    ],
)
def test_errors(text: str, lines: list[str]) -> None:
    with pytest.raises(TargetError) as error:
        KIND.isa(parse(text))
    for line in lines:
        assert line in str(error.value)


def test_caches_from_the_kernel(tmp_path: Path) -> None:
    for k, (level, type_, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    ):
        entry = tmp_path / f"index{k}"
        entry.mkdir()
        for name, value in (("level", level), ("type", type_), ("size", size)):
            (entry / name).write_text(value + "\n")
    assert host_caches(str(tmp_path)) == (48 << 10, 2 << 20, 2 << 20)
    assert host_caches(str(tmp_path / "absent")) is None
    assert host_ways(str(tmp_path)) is None
    for k, ways in enumerate((12, 8, 16)):
        (tmp_path / f"index{k}" / "ways_of_associativity").write_text(f"{ways}\n")
    assert host_ways(str(tmp_path)) == 12
    assert host_ways(str(tmp_path / "absent")) is None
    (tmp_path / "index0" / "ways_of_associativity").write_text("8K\n")
    (tmp_path / "index0" / "size").write_text("0K\n")
    assert host_ways(str(tmp_path)) is None and host_caches(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", 8),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids", 12),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n2", 4),
        ("llvm -mtriple=arm64-apple-macosx -mcpu=apple-m1", 8),
    ],
)
def test_ways_of_other_machines(text: str, ways: int) -> None:
    if parse(text).options.mcpu == LlvmTarget().isa(parse("llvm")).cpu:
        pytest.skip("the kernel was asked")
    assert machine(text).ways == ways


def test_rows_that_share_cache_sets_get_low_tiles() -> None:
    """Rows a multiple of a way's bytes apart all want the same set: a tile of fourteen would have its scalars from the
    second cache at every step."""
    avx512 = machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    args = (128, [2, 4, 6], 48, avx512, float32)
    assert choose_tile(*args, apart=768 * 4 + 64)[1].rows > avx512.ways
    for apart in (4096, 8192, 12288):
        assert choose_tile(*args, apart=apart)[1].rows < avx512.ways
    assert conflict_cycles(7, 4096, avx512) == 0 < conflict_cycles(8, 4096, avx512) < conflict_cycles(14, 4096, avx512)
    assert conflict_cycles(14, 2048, avx512) == 0  # seven in each of two sets
    assert conflict_cycles(14, 8, avx512) == conflict_cycles(14, None, avx512) == 0


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_open_rows_get_the_smallest_of_nearly_equal_tiles(cpu: str) -> None:
    """The last tile of open rows asks for each of them whether it is there: a small tile has less of that, and is half
    the code."""
    m = machine(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    columns, vectors = [1, 2, 3, 4, 6], 12
    cycles, tile = choose_tile(None, columns, vectors, m, float32)
    rows = 27720  # a multiple of all heights
    whole, tallest = choose_tile(rows, columns, vectors, m, float32)
    assert cycles * rows <= whole * 1.06
    assert tile.rows * tile.columns < tallest.rows * tallest.columns


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_open_rows_of_one_channel_get_tiles_that_pictures_have_several_of(cpu: str) -> None:
    """Every row of a picture has a last tile, which asks for each pixel: of a tile as high as a picture is wide nothing
    else would be computed."""
    m = machine(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    _, tile = choose_tile(None, [1], 1, m, float32, window=Window(1, 5, True))
    assert 1 < tile.rows <= TYPICAL_ROWS // 2
    assert tiles_per_row(TYPICAL_ROWS) < tiles_per_row(4) < tiles_per_row(1)


def test_odd_machines_get_tiles() -> None:
    """One way, caches smaller than a line or than their ways, as many registers as a tile of one row needs or fewer."""
    plain = machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
    for odd in (
        replace(plain, ways=1),
        replace(plain, ways=12),
        replace(plain, caches=(0, 1 << 20, 1 << 22)),
        replace(plain, ways=0),
    ):
        for apart in (4, 3136, 4096, None):
            assert choose_tile(128, [2, 4], 48, odd, float32, apart=apart)[1].rows > 1
    few = replace(plain, vector_registers=8)
    assert choose_tile(56, [3, 6], 6, few, float32, window=Window(1, 7, True))[1] == Tile(1, 3)
    _, tile = choose_dot_tile(128, 96, 768, few, float32)
    assert tile.rows * tile.columns < 8


def test_a_register_is_left_for_the_epilogue() -> None:
    avx512 = machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4")
    assert (
        not fits(Tile(15, 2), avx512)
        and not fits(Tile(7, 4), avx512)
        and fits(Tile(14, 2), avx512)
        and fits(Tile(6, 4), avx512)
    )


def test_threads_follow_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity here")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
