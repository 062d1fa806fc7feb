"""Targets of the kind llvm and the machines they describe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft import dtypes as dt
from weft.errors import TargetError
from weft.machine import Machine
from weft.target import Target, parse_target
from weft_llvm.machine import host_caches
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
    ],
)
def test_what_an_instruction_set_gives(options: str, bits: int, registers: int, fma: bool, masked: bool, flops: int) -> None:
    m = machine("llvm " + options)
    assert (m.vector_bits, m.vector_registers, m.fma, m.masked, m.flops(dt.float32)) == (bits, registers, fma, masked, flops)


def test_conversions_and_fp16_arithmetic_are_asked_for() -> None:
    assert "f16c" not in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64").features
    assert "f16c" in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell").features
    assert "half" in machine("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids").features
    assert machine("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n2").flops(dt.float16) == 32


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
    assert (cross.options.mcpu, cross.options.mattr, cross.options.threads) == ("generic", (), 1)
    assert not KIND.resolve(parse("llvm -mcpu=x86-64-v2 -mtriple=x86_64-unknown-linux-gnu")).options.mattr
    assert machine("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72").caches == (32 << 10, 1 << 20, 1 << 20)


def test_fingerprint_tells_code_apart() -> None:
    def fingerprint(text: str) -> str:
        return KIND.fingerprint(parse(text))

    # Schedules differ with the threads, so kernels do.
    texts = ("llvm -threads=1", "llvm -threads=7", "llvm -threads=1 -opt=1", "llvm -threads=1 -mcpu=x86-64", "llvm -threads=1 -mcpu=x86-64 -mattr=+avx")
    assert len({fingerprint(t) for t in texts}) == len(texts)
    assert fingerprint("llvm -threads=1") == fingerprint("llvm -threads=1 -precision=fp32")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("llvm -mcpu=znver33 -mtriple=x86_64-unknown-linux-gnu", ["'znver33' is no processor of x86_64", "did you mean 'znver3'?"]),
        ("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu -mattr=+avx9", ["'avx9' is no feature of x86_64", "did you mean 'avx"]),
        ("llvm -mtriple=nonsense-foo", ["LLVM cannot compile for 'nonsense-foo'", "No available targets"]),
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
    for k, (level, type_, size) in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]):
        entry = tmp_path / f"index{k}"
        entry.mkdir()
        for name, value in (("level", level), ("type", type_), ("size", size)):
            (entry / name).write_text(value + "\n")
    assert host_caches(str(tmp_path)) == (48 << 10, 2 << 20, 2 << 20)
    assert host_caches(str(tmp_path / "absent")) is None


def test_threads_follow_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity here")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
