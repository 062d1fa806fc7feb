"""What an archive asks of a machine follows from what LLVM says of its target; LLVM, which ends the process on what it
cannot do, ends nobody's."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import ArchiveError, ExecutionError, TargetError, WeftError
from weft.target import parse_target
from weft_llvm import features as module
from weft_llvm.features import describe
from weft_llvm.processes import command, environment
from weft_llvm.target import Isa, LlvmTarget, isa
from weft_llvm.toolchain import Cpu, host_cpu, host_triple
from weft_runtime import cpu_features
from weft_runtime.cpu_features import host_features, known_features
from weft_testing.models import mlp

V2 = {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"}
V3 = V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"


def described(target: str) -> Isa:
    kind = LlvmTarget()
    return kind.isa(parse_target(target, [kind]))


def features(target: str) -> set[str]:
    return set(described(target).needs)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("x86-64", set()),
        ("x86-64-v2", V2),
        ("x86-64-v3", V3),
        ("x86-64-v4", V4),
        ("haswell", V3),
        ("skylake-avx512", V4),
    ],
)
def test_levels_of_x86(cpu: str, expected: set[str]) -> None:
    assert features(f"llvm -mtriple={X86} -mcpu={cpu}") == expected


def test_a_name_implies_what_came_with_its_generation() -> None:
    new = features(f"llvm -mtriple={X86} -mcpu=sapphirerapids") - V4
    assert {"avx512vnni", "avx512bf16", "avx512fp16", "avx512vbmi", "avx512vbmi2", "gfni"} <= new
    old = features(f"llvm -mtriple={X86} -mcpu=bdver4")
    assert {"fma4", "xop", "tbm", "sse4a", "avx2"} <= old and "avx512f" not in old


def test_arm() -> None:
    base = {"neon", "fp-armv8"}
    assert features(f"llvm -mtriple={ARM} -mcpu=cortex-a72") == base
    assert features(f"llvm -mtriple={ARM} -mcpu=neoverse-n1") == base | {"lse", "rdm", "rcpc", "fullfp16", "dotprod"}
    assert {"sve", "bf16", "i8mm"} <= features(f"llvm -mtriple={ARM} -mcpu=neoverse-v1")
    assert {"sha3", "lse2", "flagm", "altnzcv"} <= features(f"llvm -mtriple={ARM} -mcpu=apple-m1")


def test_an_extension_that_is_named_is_asked_for() -> None:
    assert features(f"llvm -mtriple={X86} -mcpu=x86-64 -mattr=+avx2") >= {"avx", "avx2"}
    assert features(f"llvm -mtriple={X86} -mcpu=x86-64 -mattr=+xop") >= {"xop", "fma4", "avx"}
    assert "fma" not in features(f"llvm -mtriple={X86} -mcpu=x86-64-v3 -mattr=-fma")


def test_this_machine_has_what_its_code_asks_for() -> None:
    assert features("llvm") <= host_features()


def test_what_the_runtime_does_not_find_here_is_not_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that hides an extension, or an older one that does not tell of it."""
    seen = host_features()
    hidden = next((f for f in ("bmi2", "lse") if f in seen), None)
    if hidden is None:
        pytest.skip("this machine has none of them")
    monkeypatch.setattr("weft_llvm.target.host_features", lambda: seen - {hidden})
    assert hidden not in features("llvm")


def test_what_no_machine_can_be_asked_for_is_not_used() -> None:
    """Named, it is refused; taken for granted with a processor, it is turned off."""
    with pytest.raises(TargetError) as error:
        described(f"llvm -mtriple={X86} -mcpu=x86-64 -mattr=+egpr")
    assert (
        str(error.value)
        == "no machine can be asked whether it has 'egpr'\n  -mattr=+egpr\n  why: code that needs it would end a"
        " process on a machine that lacks it\n  hint: leave it out"
    )
    found = described(f"llvm -mtriple={X86} -mcpu=diamondrapids")
    assert "-egpr" in found.features.split(",") and "avx512f" in found.needs


def listed(triple: str) -> list[str]:
    """The processors that LLVM lists."""
    script = f"import json; from weft_llvm.features import _listed; print(json.dumps(_listed({triple!r})[0]))"
    words = [*command("x")[:1], "-c", script]
    names: list[str] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, env=environment(), check=True).stdout)
    return names


def test_a_processor_whose_model_of_scheduling_is_incomplete_is_compiled_for_by_its_extensions() -> None:
    """LLVM ends the process on its name, whatever the code."""
    found = isa(ARM, "oryon-1", "-sha3")
    assert found.cpu == "generic" and {"+dotprod", "+i8mm", "-sha3"} <= set(found.features.split(","))
    assert (
        {"dotprod", "i8mm", "fma", "half"} <= found.has
        and {"dotprod", "i8mm"} <= found.needs
        and "sha3" not in found.needs
    )
    manifest = weft.compile(mlp(), f"llvm -mtriple={ARM} -mcpu=oryon-1", cache=False).manifest
    assert "-mcpu=oryon-1" in manifest.target and "dotprod" in manifest.features


@pytest.mark.parametrize("triple", [X86, ARM])
def test_every_processor_is_described_or_refused(triple: str, request: pytest.FixtureRequest) -> None:
    """Every extension of every processor that LLVM lists can be asked of a machine, is turned off, or is one that code
    does not contain."""
    names = listed(triple)
    assert (len(names) > 80 and {"bdver4", "i386"} & set(names)) or triple == ARM
    if not request.config.getoption("--full"):
        names = [n for k, n in enumerate(names) if k % 40 == 0] + (
            ["i386", "bdver4", "pentium4"] if triple == X86 else []
        )
    refused = []
    for name in names:
        try:
            found = isa(triple, name, "")
        except TargetError as error:
            assert error.what == f"LLVM cannot compile for '{triple}' with -mcpu={name}" and error.why
            refused.append(name)
        else:
            assert found.needs <= known_features(found.arch) and found.objects == "elf"
    assert {"i386", "pentium4"} <= set(refused) if triple == X86 else not refused
    assert len(refused) < len(names)


ODD = [
    "-mtriple=wasm32-unknown-unknown",
    "-mtriple=wasm64-unknown-unknown",
    "-mtriple=i386-linux-gnu",
    "-mtriple=armv7-linux-gnueabihf",
    "-mtriple=aarch64_be-linux-gnu",
    "-mtriple=x86_64-pc-windows-msvc",
    "-mtriple=x86_64-apple-darwin",
    "-mtriple=powerpc64-linux-gnu",
    "-mtriple=s390x-linux-gnu",
    "-mtriple=mips-linux-gnu",
    "-mtriple=nvptx64-nvidia-cuda",
    "-mtriple=amdgcn-amd-amdhsa",
    "-mtriple=bpf",
    "-mtriple=avr",
    "-mtriple=spirv64",
    "-mtriple=x",
    "-mtriple=-",
    "-mtriple=\N{SNOWMAN}-linux",
    "-mtriple=x86_64",
    f"-mtriple={X86} -mcpu=i386",
    f"-mtriple={X86} -mcpu=help",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=-sse2",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=-64bit",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=+32bit-mode",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=+soft-float",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=+retpoline",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=+help",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=+avx512f,-avx",
    f"-mtriple={X86} -mcpu=x86-64 -mattr=\\'",
    f"-mtriple={ARM} -mattr=-neon",
    f"-mtriple={ARM} -mattr=-fp-armv8",
    f"-mtriple={ARM} -mattr=+sme",
    f"-mtriple={ARM} -mattr=+strict-align,+reserve-x18",
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", ODD)
def test_odd_targets_end_nobodys_process(options: str) -> None:
    """What LLVM has no code for is an error of ours, and what it has code for is an executable; the test itself is what
    would be ended."""
    try:
        executable = weft.compile(mlp(), f"llvm {options} -threads=1", cache=False)
    except WeftError as error:
        assert "report it" not in str(error) and error.what
    else:
        assert executable.manifest.machine.removesuffix("-windows") in options.replace("armv7", "arm")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "-mtriple=x86_64-linux-gnu -mcpu=i386",
            (
                "LLVM cannot compile for 'x86_64-linux-gnu' with -mcpu=i386\n  why: 64-bit code requested on a"
                " subtarget that doesn't support it!"
            ),
        ),
        (
            "-mtriple=arm-linux-gnueabihf",
            (
                "no code is made for 'arm-linux-gnueabihf'\n  llvm -mcpu=generic -mtriple=arm-linux-gnueabihf"
                " -threads=1\n  why: 'generic' has no instructions for numbers of 64 bits in floating point\n  hint:"
                " name a processor that has them with -mcpu, or the extension with -mattr"
            ),
        ),
        (
            "-mtriple=mips-linux-gnu",
            (
                "no code is made for 'mips-linux-gnu'\n  llvm -mcpu=generic -mtriple=mips-linux-gnu -threads=1\n  why:"
                " what is linked is code for aarch64, arm, i386, riscv32, riscv64, s390x, wasm32, x86_64\n  hint: give"
                " a triple such as x86_64-linux-gnu or aarch64-linux-gnu"
            ),
        ),
        (
            "-mtriple=aarch65-linux-gnu",
            (
                "'aarch65-linux-gnu' is no machine that LLVM makes code for\n  -mtriple=aarch65-linux-gnu\n  why: No"
                " available targets are compatible with triple \"aarch65-linux-gnu\"\n  hint: did you mean 'aarch64'?"
            ),
        ),
        (
            "-mtriple=nonsense",
            (
                "'nonsense' is no machine that LLVM makes code for\n  -mtriple=nonsense\n  why: No available"
                ' targets are compatible with triple "nonsense"\n  hint: code is made for x86_64, aarch64,'
                " armv7, i686, riscv32, riscv64, s390x, wasm32"
            ),
        ),
        (
            "-mtriple=aarch64-linx-gmu",
            (
                "'aarch64-linx-gmu' names no system\n  -mtriple=aarch64-linx-gmu\n  why: none of 'linx', 'gmu' is"
                " one\n  hint: did you mean 'linux'?"
            ),
        ),
        (
            "-mtriple=riscv64-linux-gnu -mcpu=sifive-x281",
            "'sifive-x281' is no processor of riscv64\n  -mcpu=sifive-x281\n  hint: did you mean 'sifive-x280'?",
        ),
    ],
)
def test_what_odd_targets_are_told(options: str, text: str) -> None:
    with pytest.raises(TargetError) as error:
        weft.compile(mlp(), f"llvm {options}")
    assert str(error.value) == text


def test_a_processor_is_described_though_llvm_ends_the_process_on_an_instruction() -> None:
    """For WebAssembly it does on a conversion to bfloat16: each instruction is asked for by itself then."""
    from weft_llvm.features import _asked

    cpu = Cpu("wasm32-unknown-unknown", "generic", "+simd128")
    with pytest.raises(TargetError, match="LLVM cannot compile for 'wasm32-unknown-unknown' with -mcpu=generic"):
        _asked(cpu, probes=("bf16",))
    found = describe.__wrapped__(cpu)
    assert found.has == {"rounding"} and found.objects == "wasm" and found.needs == {"simd128"}


def test_code_of_other_processors_is_refused_not_run(tmp_path: Path) -> None:
    """SIGILL would end the process. A machine that has all of it runs it."""
    if cpu_features.machine() != "x86_64":
        pytest.skip("code of x86-64")
    x = np.ones((2, 64), np.float32)
    for name in ("bdver4", "sapphirerapids", "znver4", "barcelona", "diamondrapids"):
        executable = weft.compile(mlp(), f"llvm -mtriple={X86} -mcpu={name} -threads=1")
        lacking = described(f"llvm -mtriple={X86} -mcpu={name}").needs - host_features()
        executable.save(tmp_path / name)
        if not lacking:
            executable(x)
            weft.Executable.load(tmp_path / name)(x)
            continue
        with pytest.raises(ExecutionError) as error:
            executable(x)
        assert f"was compiled for a processor with {', '.join(sorted(lacking))}, which this machine lacks" in str(
            error.value
        )
        with pytest.raises(ArchiveError, match="needs CPU features that this machine lacks"):
            weft.Executable.load(tmp_path / name)


def test_descriptions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    cpu = Cpu(X86, "btver2")
    first = describe.__wrapped__(cpu)

    def none(cpu: Cpu) -> bytes:
        raise AssertionError("asked again")

    monkeypatch.setattr(module, "_asked", none)
    assert describe.__wrapped__(cpu) == first and first.needs >= {"avx", "sse4a"}
    with pytest.raises(AssertionError, match="asked again"):
        describe.__wrapped__(Cpu(X86, "btver2", "-avx"))


def test_a_process_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Cpu(host_triple(), host_cpu())
    monkeypatch.setattr(module, "command", lambda name: ["/nonexistent/python"])
    with pytest.raises(TargetError, match="no process could be started to query it: No such file"):
        module._asked(cpu)
    monkeypatch.setattr(module, "command", lambda name: ["sleep", "60"])
    monkeypatch.setattr(module, "_SECONDS", 0.1)
    with pytest.raises(TargetError, match="did not answer within 0 s"):
        module._asked(cpu)
    assert asdict(cpu)
