"""What an archive asks of a machine follows from what LLVM emits for its target."""

from __future__ import annotations

import pytest

from weft.runtime.cpu_features import host_features, known_features
from weft.target import parse_target
from weft_llvm.features import ARM, X86
from weft_llvm.native import required_features
from weft_llvm.target import LlvmTarget

V2 = {"ssse3", "sse4.1", "sse4.2", "popcnt"}
V3 = V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def features(target: str) -> set[str]:
    kind = LlvmTarget()
    return set(required_features(kind.isa(parse_target(target, [kind]))))


@pytest.mark.parametrize(
    ("cpu", "expected"), [("x86-64", set()), ("x86-64-v2", V2), ("x86-64-v3", V3), ("x86-64-v4", V4), ("haswell", V3), ("skylake-avx512", V4)]
)
def test_levels_of_x86(cpu: str, expected: set[str]) -> None:
    assert features(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}") == expected


def test_a_name_implies_what_came_with_its_generation() -> None:
    new = features("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids") - V4
    assert {"avx512vnni", "avx512bf16", "avx512fp16", "avx512vbmi", "avx512vbmi2", "gfni"} <= new


def test_arm() -> None:
    assert features("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72") == {"neon"}
    assert features("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1") == {"neon", "lse", "fullfp16", "dotprod"}
    assert {"sve", "bf16", "i8mm"} <= features("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1")


def test_an_extension_that_is_named_is_asked_for() -> None:
    assert features("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64 -mattr=+avx2") >= {"avx", "avx2"}
    assert "fma" not in features("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3 -mattr=-fma")


def test_this_machine_has_what_its_code_asks_for() -> None:
    assert features("llvm") <= host_features()


def test_every_probe_is_of_a_feature_that_the_runtime_can_ask_for() -> None:
    assert {p.feature for p in X86} <= known_features("x86_64")
    assert {p.feature for p in ARM} <= known_features("aarch64")
