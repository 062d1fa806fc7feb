"""Target strings parse, print back, and fail with the nearest word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from weft import dtypes as dt
from weft.errors import CodegenError, TargetError
from weft.machine import Machine
from weft.target import Target, TargetKind, parse_target, parse_targets, print_targets


@dataclass(frozen=True)
class NpuOptions:
    cores: int = 4
    fast_math: bool = False
    mode: Literal["speed", "size"] = "speed"
    units: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1, 2)
    path: str | None = None
    strict: bool = True


class Npu(TargetKind):
    name: ClassVar[str] = "npu"
    options: ClassVar[type] = NpuOptions

    def machine(self, target: Target) -> Machine:
        return Machine("npu", 128, 8)

    def codegen(self, target: Target) -> Any:
        raise NotImplementedError

    def device(self, target: Target) -> str:
        return "npu"

    def fingerprint(self, target: Target) -> str:
        return "npu1"


@dataclass(frozen=True)
class NeedyOptions:
    chip: str


class Llvm(Npu):
    name: ClassVar[str] = "llvm"


class Needy(Npu):
    name: ClassVar[str] = "needy"
    options: ClassVar[type] = NeedyOptions


KINDS = [Npu(), Llvm(), Needy()]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("npu", "npu"),
        ("npu -cores=4", "npu"),
        ("npu  -fast-math -cores=8", "npu -cores=8 -fast-math"),
        ("npu -fast_math=true -strict=false", "npu -fast-math -strict=false"),
        ("npu -mode=size -units=+a,-b", "npu -mode=size -units=+a,-b"),
        ("npu -sizes=3,4,5", "npu -sizes=3,4,5"),
        ("npu -path='a b'", "npu -path='a b'"),
        ("npu -path=none", "npu -path=none"),
    ],
)
def test_round_trip(text: str, printed: str) -> None:
    target = parse_target(text, KINDS)
    assert str(target) == printed
    assert parse_target(str(target), KINDS) == target


def test_several_in_order_of_preference() -> None:
    for text in ("npu -units=a,b, llvm", "npu -units=a,b,llvm", "npu -units=a,b,  llvm,"):
        targets = parse_targets(text, KINDS)
        assert print_targets(targets) == "npu -units=a,b, llvm"
        assert targets[0].options.units == ("a", "b")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("nup", ["unknown target 'nup'", "hint: did you mean 'npu'?"]),
        ("zzzzzz", ["unknown target 'zzzzzz'", "hint: available: llvm, needy, npu"]),
        ("npu -corse=3", ["target 'npu' has no option '-corse'", "hint: did you mean '-cores'?"]),
        ("npu -qqqqq", ["target 'npu' has no option '-qqqqq'", "hint: 'npu' has -cores, -fast-math"]),
        (
            "npu cores=3",
            ["expected an option, got 'cores=3'", "hint: options are written -name=value; 'npu' has -cores"],
        ),
        ("npu -cores=many", ["option '-cores' takes an integer, got 'many'"]),
        ("npu -cores", ["option '-cores' needs a value", "hint: write -cores=value"]),
        ("npu -fast-math=maybe", ["option '-fast-math' takes true or false, got 'maybe'"]),
        ("npu -mode=sped", ["option '-mode' is one of speed, size, got 'sped'", "hint: did you mean 'speed'?"]),
        ("npu -cores=1 -cores=2", ["option '-cores' is given twice"]),
        ("npu -path='a", ["the target string does not parse", "why: No closing quotation"]),
        ("npu, npu -cores=2", ["target 'npu' is named twice", "hint: give each kind once"]),
        ("", ["no target given", "hint: available: llvm, needy, npu"]),
        ("needy", ["target 'needy' lacks an option", "chip"]),
    ],
)
def test_errors(text: str, lines: list[str]) -> None:
    with pytest.raises(TargetError) as error:
        parse_targets(text, KINDS)
    for line in lines:
        assert line in str(error.value)


def test_one_where_one_is_wanted() -> None:
    with pytest.raises(TargetError, match="expected one target, got 2"):
        parse_target("npu, llvm", KINDS)


def test_machine_is_data() -> None:
    import pickle

    m = Machine("cpu", 256, 16, flops_per_cycle={"float32": 32}, features=frozenset({"fma"}))
    assert (m.lanes(dt.float32), m.lanes(dt.float64), m.lanes(dt.bool_), m.lanes(dt.float16.with_lanes(4))) == (
        8,
        4,
        32,
        16,
    )
    assert m.flops(dt.float32) == 32 and m.flops(dt.int8) == 32
    assert pickle.loads(pickle.dumps(m)) == m and hash(m) == hash(pickle.loads(pickle.dumps(m)))
    with pytest.raises(TypeError):
        m.flops_per_cycle["float32"] = 1  # type: ignore[index]


def test_requirements_are_listed() -> None:
    from weft.codegen.base import require
    from weft.loop.nodes import Program, Seq

    class Lacking:
        functions: frozenset[str] = frozenset()

        def check(self, program: Program) -> list[str]:
            return ["function exp", "scope shared of buffer s"]

    program = Program("k", (), (), (), Seq(()))
    with pytest.raises(CodegenError) as error:
        require(Lacking(), program, "npu")  # type: ignore[arg-type]
    text = str(error.value)
    assert "target 'npu' cannot compile kernel 'k'" in text and "  function exp\n  scope shared of buffer s" in text
