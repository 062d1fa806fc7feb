"""Code for other machines than the host: every operator's samples compile, carry nothing of the host, and give the
right answers under qemu-user. What only aarch64 has is in test_aarch64."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llvm import test_emitter
from tests.ops.test_samples import assert_close, types_of
from tests.qemu import kernels
from tests.qemu.cross import compile_cross, resolved
from tests.qemu.runner import run
from tests.qemu.systems import SYSTEMS

import weft
import weft_runtime
from weft import dtypes as dt
from weft.errors import ArchiveError, CodegenError, TargetError
from weft.expr import nodes as ex
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Sample
from weft.loop import nodes as lp
from weft.loop.nodes import Buffer, Program
from weft_llvm import library_calls
from weft_llvm.link import link
from weft_llvm.toolchain import Cpu, compile_object
from weft_ops import ALL_OPERATORS, Add
from weft_ops.contraction import MatMul
from weft_runtime.arrays import in_order
from weft_runtime.executable import Executable
from weft_runtime.plan import Manifest
from weft_testing.models import lstm, mlp, resnet18


@dataclass(frozen=True)
class Case:
    """A target and the processor that qemu is to be."""

    machine: str
    options: str
    cpu: str

    @property
    def target(self) -> str:
        return f"llvm -mtriple={SYSTEMS[self.machine].triple} {self.options}".strip()


CASES = {
    "aarch64": Case("aarch64", "-mcpu=cortex-a72", "cortex-a72"),
    "armv7": Case("arm", "", "cortex-a9"),
    "riscv64": Case("riscv64", "", "rv64"),
    "s390x": Case("s390x", "-mcpu=z14", "max"),
    "armv7-vfp4": Case("arm", "-mcpu=cortex-a7", "cortex-a7"),
    "riscv64-v": Case("riscv64", "-mattr=+v", "rv64,v=true,vext_spec=v1.0"),
    "riscv32": Case("riscv32", "", "rv32"),
    "s390x-z10": Case("s390x", "", "max"),
    "i686": Case("i386", "", "max"),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
QUICK = ("aarch64", "armv7", "riscv64", "s390x")
"""Those whose samples run in CI."""


def is_numeric(sample: Sample) -> bool:
    """Strings and sequences never reach compiled code."""
    arrays = [x for x in sample.inputs if x is not None]
    return all(
        isinstance(x, np.ndarray | np.generic) and dt.dtype(x.dtype).kind in ("bool", "int", "uint", "float")
        for x in arrays
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One sample of each operator in CI, for one of the machines after the other; all for each with --full."""
    if "sample" not in metafunc.fixturenames:
        return
    full, found = metafunc.config.getoption("--full", default=False), []
    for number, op in enumerate(ALL_OPERATORS):
        usable = [(k, s) for k, s in enumerate(op.samples()) if is_numeric(s)]
        for machine in CASES if full else (QUICK[number % len(QUICK)],):
            for k, s in usable if full else usable[:1]:
                found.append(pytest.param(CASES[machine], s, id=f"{machine}-{op.__name__}-{s.name or k}"))
    metafunc.parametrize(("case", "sample"), found)


def graph_of(sample: Sample) -> tuple[Graph, list[Any]]:
    builder = GraphBuilder(type(sample.op).__name__)
    types = types_of(sample)
    inputs = [None if t is None else builder.input(f"x{k}", t) for k, t in enumerate(types)]
    outputs = builder.add_all(sample.op, *inputs)
    for o in outputs if isinstance(outputs, tuple) else (outputs,):
        builder.output(o)
    return builder.build(), [x for x in sample.inputs if x is not None]


@pytest.mark.needs("qemu")
def test_samples(case: Case, sample: Sample) -> None:
    graph, inputs = graph_of(sample)
    want = [np.asarray(a) for a in evaluate(graph, inputs)]
    linked, _ = compile_cross(graph, case.target)
    try:
        answer = linked.run(inputs, want, case.cpu)
    except RuntimeError as error:
        if "decode_save_opc: Assertion" in str(error) and converts_to_half_the_bits(linked.sections["main"].image):
            pytest.skip("qemu 7.2 fails an assertion of its own at any vfncvt.rtz")
        raise
    assert (answer.code, answer.error) == (0, 0), answer.error_args
    for got, expected in zip(answer.outputs, want, strict=True):
        assert_close(sample.op, sample, got, expected)


def converts_to_half_the_bits(image: bytes) -> bool:
    """Whether code of RISC-V has vfncvt.rtz.x.f.w or vfncvt.rtz.xu.f.w (RISC-V "V" 1.0, 13.19): OPFVV, funct6 010010,
    vs1 10111 or 10110."""
    halves = np.frombuffer(image[: len(image) // 2 * 2], "<u2").astype(np.uint32)
    words = halves[:-1] | halves[1:] << 16  # instructions of 16 bits stand between
    return bool(((words & 0xFC0F707F | 0x8000) == 0x480B9057).any())


# -- every formula of every dtype -------------------------------------------------------------------------------------

_SOFT = [d.name for d in dt.all_dtypes() if d.is_float and d.bits < 32]
_SUBNORMAL = ("float32", "bfloat16", "float8_e8m0fnu")


@pytest.mark.needs("qemu")
@pytest.mark.one_in(60)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(
    "what, d",
    [
        *((what, d) for what in ("every_node", "every_cast") for d in test_emitter.NUMBERS),
        *(("every_function", d) for d in test_emitter.REALS),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["armv7", "armv7-vfp4", "riscv32", "s390x", "i686"])
def test_formulas(name: str, what: str, d: dt.DType, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the host, to the bit."""
    case, data = CASES[name], test_emitter.data
    if name == "s390x" and what == "every_function" and d.name in _SOFT and lanes == 1:
        pytest.skip("qemu 7.2 takes 64 bits of an operand of 32 in MDEBR, which multiplies for fma")

    def without_subnormals(of: dt.DType, seed: int) -> Any:
        """Vectors of 32-bit Arm take them for zero."""
        found = data(of, seed)
        if of.name not in _SUBNORMAL:
            return found
        least = np.abs(found.astype(np.float32)) < np.finfo(np.float32).tiny
        return np.where(least, np.array(1 if of.name == "float8_e8m0fnu" else 0, of.numpy), found)

    def compiled(program: Program, options: str = "") -> Any:
        return kernels.compiled(program, case.target, case.cpu)

    if case.machine == "arm":
        monkeypatch.setattr(test_emitter, "data", without_subnormals)
    monkeypatch.setattr(test_emitter, "OPTIONS", ("",))
    monkeypatch.setattr(test_emitter, "compiled", compiled)
    getattr(test_emitter, f"test_{what}")(d, lanes)


@pytest.mark.needs("qemu")
@pytest.mark.parametrize("d", [dt.float16, dt.float8_e4m3fn, dt.float4_e2m1fn], ids=str)
def test_vectors_of_arm_keep_subnormals_of_narrow_floats(d: dt.DType) -> None:
    values = np.arange(64 if d.bits > 4 else 16).astype(f"u{(d.bits + 7) // 8}").view(d.numpy)
    size = len(values)
    x, y, i = Buffer("x", (lp.int64(size),), d), Buffer("y", (lp.int64(size),), dt.float32), ex.Var("i")
    at = ex.Ramp(i * 8, lp.int64(1), 8)
    wide = lp.Store(y, (at,), ex.Cast(lp.Load(x, (at,)), dt.float32.with_lanes(8)))
    program = Program("p", (x,), (y,), (), lp.For(i, lp.int64(size // 8), wide))
    case = CASES["armv7"]
    got = kernels.compiled(program, case.target, case.cpu)([values])["y"]
    np.testing.assert_array_equal(got, values.astype(np.float32))


def test_riscv32_has_no_atomic_updates_of_64_bits() -> None:
    d = dt.int64
    x, y, i = Buffer("x", (lp.int64(9),), d), Buffer("y", (lp.int64(1),), d), ex.Var("i")
    body = lp.For(i, lp.int64(9), lp.AtomicUpdate(y, (lp.int64(0),), "add", x[i]), "parallel")
    target = resolved(CASES["riscv32"].target)
    codegen: Any = target.kind.codegen(target.target)
    with pytest.raises(CodegenError) as error:
        codegen.emit(Program("p", (x,), (y,), (), body))
    assert str(error.value) == (
        "kernel 'p' updates numbers of 64 bits atomically\n  why: riscv32 has no instruction for it\n"
        "  hint: let one thread run the loop: -threads=1"
    )


# -- whole models, with constants -------------------------------------------------------------------------------------


def run_model(case: Case, graph: Graph, x: np.ndarray[Any, Any]) -> None:
    want = evaluate(graph, [x])
    linked, _ = compile_cross(graph, case.target)
    answer = linked.run([x], want, case.cpu)
    assert (answer.code, answer.error) == (0, 0), answer.error_args
    for got, expected in zip(answer.outputs, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.needs("qemu")
@pytest.mark.one_in(3)
@EVERY
def test_a_recurrent_model(case: Case) -> None:
    graph = lstm()
    shape = [d if isinstance(d, int) else 3 for d in graph.inputs[0].shape]  # type: ignore[union-attr]
    run_model(case, graph, np.random.default_rng(0).standard_normal(shape).astype(np.float32))


@pytest.mark.full
@pytest.mark.needs("qemu")
@EVERY
def test_a_convolutional_model(case: Case) -> None:
    graph = resnet18(size=32, width=16)
    run_model(case, graph, np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))


@pytest.mark.needs("qemu")
@pytest.mark.parametrize("name", ["armv7", "s390x"])
@pytest.mark.parametrize(
    "of", [np.float16, np.int8, np.float64, np.complex64, ml_dtypes.bfloat16], ids=lambda t: t.__name__
)
def test_constants_come_in_the_order_of_the_machine(name: str, of: Any) -> None:
    b = GraphBuilder("sum")
    x = b.input("x", tensor_type(np.dtype(of).name, (4,)))
    weight = np.array([1, -2, 3, 100]).astype(of) + (np.array(1j).astype(of) if of is np.complex64 else of(0))
    b.output(b.add(Add(), x, b.constant(weight, "w")))
    case, values = CASES[name], np.array([3, 5, -7, 11]).astype(of)
    linked, _ = compile_cross(b.build(), case.target)
    answer = linked.run([values], [values], case.cpu)
    assert (answer.code, answer.error) == (0, 0)
    np.testing.assert_array_equal(answer.outputs[0], values + weight)


@pytest.mark.needs("qemu")
@pytest.mark.one_in(3)
@EVERY
def test_a_wrong_input_is_told_as_everywhere(case: Case) -> None:
    b = GraphBuilder("product")
    b.output(
        b.add(MatMul(), b.input("x", tensor_type("float32", (4, 5))), b.input("y", tensor_type("float32", (5, 3))))
    )
    linked, _ = compile_cross(b.build(), case.target)
    out = np.zeros((4, 3), np.float32)
    good, wrong = np.ones((4, 5), np.float32), np.ones((5, 3), np.float64)
    answer = linked.run([good, wrong], [out], case.cpu)
    assert (answer.code, answer.error) == (1, 1)
    assert answer.error_args[:3] == (1, 2, 2 | 64 << 8 | 1 << 16), "input 1, of rank 2: floats of 64 bits, one lane"
    answer = linked.run([good, np.ones((6, 3), np.float32)], [out], case.cpu)
    assert (answer.error, answer.error_args[:4]) == (2, (1, 0, 5, 6))


# -- functions that LLVM expects --------------------------------------------------------------------------------------

_TAKES = {
    "di3": ("i64", np.int64), "si3": ("i32", np.int32), "sfdi": ("float", np.float32), "dfdi": ("double", np.float64),
    "didf": ("i64", np.int64), "disf": ("i64", np.int64),
}  # fmt: skip
_INTEGERS = [0, 1, -1, 2, 3, 7, -7, 10, 1000, -1000, 2**24 + 1, 2**31 - 1, -(2**31)]
_LONG = [*_INTEGERS, 2**31, 2**32 - 1, 2**32, 2**40 + 12345, -(2**40) - 1, 2**53 + 1, 2**62 + 2**38 + 1, 2**63 - 1,
         -(2**63), 2**63 - 513, -(2**60) - 2**36 - 1]  # fmt: skip
_REALS = [0.0, -0.0, 0.5, -0.99, 1.0, 1.5, -2.75, 8388609.0, 1e9, -3e9, 4.5e15, 2.0**52 + 1, -(2.0**53), 9.2e18, 1e-40]


def _function(kind: str, result: str, takes: str, name: str, pairs: list[tuple[Any, ...]], words: str) -> str:
    """A segment that calls a function with each tuple of an input and stores what it gives."""
    arguments = len(pairs[0])
    types, size = ", ".join([takes] * arguments), {"i32": 4, "i64": 8, "float": 4, "double": 8}
    given = "\n".join(
        f"  %p{k} = getelementptr i8, ptr %data, i32 %at{k}\n  %v{k} = load {takes}, ptr %p{k}"
        for k in range(arguments)
    )
    places = "\n".join(
        f"  %base{k} = mul i32 %i, {arguments * size[takes]}\n  %at{k} = add i32 %base{k}, {k * size[takes]}"
        for k in range(arguments)
    )
    return f"""
declare hidden {result} @{name}({types})
define i32 @run(ptr %ctx, ptr %in, ptr %out) nounwind {{
entry:
  %tensor = load ptr, ptr %in
  %data = load ptr, ptr %tensor
  %result = load ptr, ptr %out
  %to = load ptr, ptr %result
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
{places}
{given}
  %r = call {result} @{name}({", ".join(f"{takes} %v{k}" for k in range(arguments))})
  %place = getelementptr {result}, ptr %to, i32 %i
  store {result} %r, ptr %place
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, {len(pairs)}
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""


def _wanted(name: str, values: tuple[Any, ...]) -> Any:
    """What a function gives, in Python's own numbers."""
    if "div" in name or "mod" in name:
        bits = 64 if "di3" in name else 32
        a, b = (v % (1 << bits) for v in values) if name.startswith("__u") else values
        quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        found = quotient if "div" in name else a - quotient * b
        return (found + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    if "fix" in name:
        return int(values[0])
    number = values[0] % (1 << 64) if "un" in name else values[0]
    return np.float64(number) if name.endswith("df") else np.float32(_rounded(number))


def _rounded(number: int) -> float:
    """An integer to the nearest float of 24 digits, ties to even."""
    size, shift = abs(number), max(0, abs(number).bit_length() - 24)
    low = size & ((1 << shift) - 1)
    whole = size >> shift
    half = 1 << (shift - 1) if shift else 0
    whole += bool(shift) and (low > half or (low == half and whole & 1 == 1))
    return float(whole << shift) * (-1 if number < 0 else 1)


STANDARD = [name for name in library_calls.SOURCES if not name.startswith("__aeabi")]


@pytest.mark.needs("qemu")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize("machine", ["arm", "i386", "s390x"])
def test_functions_that_llvm_expects(machine: str, name: str) -> None:
    system = SYSTEMS[machine]
    takes, of = next(v for k, v in _TAKES.items() if name.endswith(k))
    integers = _LONG if takes == "i64" else _INTEGERS
    if name.endswith("i3"):
        cases = [(a, b) for a in integers for b in integers if b]
        cases += [(5, 0)] if "div" in name else []
    elif takes == "i64":
        cases = [(a,) for a in integers]
    else:
        kept = [v for v in map(float, _REALS) if "fixuns" not in name or v > -1]
        cases = [(float(of(v)),) for v in kept]
        cases += [(float(2**63),), (float(of(1.8e19)),)] if "fixuns" in name else [(-float(2**63),)]
    result = takes if name.endswith("i3") else {"di": "i64", "df": "double", "sf": "float"}[name[-2:]]
    gives = {"i32": np.int32, "i64": np.int64, "float": np.float32, "double": np.float64}[result]
    cpu = Cpu(system.triple, system.cpu, system.features, 2)
    text = _function("", result, takes, name, cases, "")
    image = link({"run": compile_object(_headed(text, system.triple), cpu),
                  "helper": compile_object(_headed(library_calls.SOURCES[name], system.triple), cpu)})  # fmt: skip
    given = np.array([v for values in cases for v in values], of)
    answer = run(machine, image.bytes, image.entries["run"], [], [given], [np.zeros(len(cases), gives)], 64, "max")
    wanted = [_wanted(name, values) for values in cases]
    if "fixuns" in name:
        wanted = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in wanted]
    assert answer.outputs[0].tolist() == [gives(v).item() for v in wanted]


def _headed(ir: str, triple: str) -> str:
    return f'target triple = "{triple}"\n{ir}'


def test_arm_names_the_same_functions_in_two_ways() -> None:
    """The run-time ABI's divisions give both results; its conversions take floats in registers of integers."""
    cpu = Cpu("armv7-none-eabihf", "generic", "+neon", 2)
    for name, source in library_calls.SOURCES.items():
        image = link({name: compile_object(_headed(source, cpu.triple), cpu)})
        assert set(image.entries) == {name}


# -- archives ---------------------------------------------------------------------------------------------------------


@EVERY
def test_an_archive_says_what_it_is_for(case: Case, tmp_path: Path) -> None:
    exe = weft.compile(mlp(), case.target)
    exe.save(tmp_path / "m.weft")
    manifest = Executable.inspect(tmp_path / "m.weft")
    assert manifest.machine == case.machine and manifest.byte_order == SYSTEMS[case.machine].order
    assert f"-mtriple={SYSTEMS[case.machine].triple}" in manifest.target
    if weft_runtime.cpu_features.machine() != case.machine:
        with pytest.raises(ArchiveError, match=f"holds code for {case.machine}"):
            weft_runtime.load(tmp_path / "m.weft")


def test_weights_are_little_endian_in_every_archive(tmp_path: Path) -> None:
    for name in ("riscv64", "s390x"):
        weft.compile(mlp(), CASES[name].target).save(tmp_path / name)
    little, big = (weft.Executable.open(tmp_path / name) for name in ("riscv64", "s390x"))
    assert little._constants.keys() == big._constants.keys() and little._constants
    same = [np.array_equal(little._constants[k].ravel(), big._constants[k].ravel()) for k in little._constants]
    assert all(same) or {c.shape for c in little._constants.values()} != {c.shape for c in big._constants.values()}


def test_an_archive_whose_order_is_wrong_is_refused() -> None:
    text = weft.compile(mlp(), CASES["s390x"].target).manifest.to_json()
    assert b'"byte_order": "big"' in text
    for wrong in (
        text.replace(b'"byte_order": "big"', b'"byte_order": "little"'),
        text.replace(b's390x"', b'riscv64"'),
    ):
        with pytest.raises(ArchiveError, match=r"says of .* what is not so\n  why: its byte order is (big|little)"):
            Manifest.from_json(wrong, "m.weft")
    assert b"byte_order" not in weft.compile(mlp(), CASES["riscv64"].target).manifest.to_json()


def test_arrays_in_an_order() -> None:
    assert in_order(np.array([1, 2], np.int16), "big").tobytes() == b"\0\1\0\2"
    assert in_order(np.array([1, 2], ">i2"), "little").tobytes() == b"\1\0\2\0"
    assert in_order(np.array([1 + 2j], np.complex64), "big").tobytes() == b"\x3f\x80\0\0\x40\0\0\0"
    assert in_order(np.array([[1]], ml_dtypes.bfloat16), "big").tobytes() == b"\x3f\x80"
    assert in_order(np.zeros((0, 3)), "big").tobytes() == b"" and in_order(np.array(True), "big").tobytes() == b"\1"


# -- other systems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("triple", "machine", "features"),
    [
        ("x86_64-pc-windows-gnu-elf", "x86_64-windows", ()),
        ("x86_64-pc-windows-msvc", "x86_64-windows", ()),
        ("i686-pc-windows-gnu", "i386-windows", ("sse", "sse2")),
        ("aarch64-pc-windows-msvc", "aarch64", ("fp-armv8", "neon")),
        ("aarch64-linux-android", "aarch64", ("fp-armv8", "neon")),
        ("aarch64-linux-android30", "aarch64", ("fp-armv8", "neon")),
        ("armv7-linux-androideabi", "arm", ("d32", "neon", "vfp3d16")),
        ("armv7a-linux-androideabi24", "arm", ("d32", "neon", "vfp3d16")),
        ("i686-linux-android", "i386", ("sse", "sse2")),
        ("x86_64-linux-android", "x86_64", ()),
        ("riscv64-linux-android", "riscv64", ("a", "c", "d", "f", "m")),
        ("aarch64-apple-darwin", "aarch64", ("fp-armv8", "neon")),
        ("arm64-apple-ios16.0", "aarch64", ("fp-armv8", "neon")),
        ("x86_64-apple-macosx13.0", "x86_64", ()),
        ("aarch64-unknown-none", "aarch64", ("fp-armv8", "neon")),
    ],
)
def test_other_systems(triple: str, machine: str, features: tuple[str, ...]) -> None:
    """Images are flat on every system: their objects are ELF."""
    manifest = weft.compile(mlp(), f"llvm -mtriple={triple}").manifest
    assert manifest.machine == machine and f"-mtriple={triple}" in manifest.target
    assert set(features) <= set(manifest.features)


def test_code_for_windows_is_for_windows_alone(tmp_path: Path) -> None:
    """Its functions get their arguments in other registers."""
    weft.compile(mlp(), "llvm -mtriple=x86_64-pc-windows-gnu-elf -mcpu=x86-64").save(tmp_path / "m.weft")
    with pytest.raises(ArchiveError, match="holds code for x86_64-windows"):
        weft_runtime.load(tmp_path / "m.weft")


def test_large_frames_call_nothing_on_windows() -> None:
    """Their pages are not touched in order: what calls segments has a stack that is there."""
    b = GraphBuilder("many")
    x = b.input("x", tensor_type("float32", (8,)))
    for k in range(600):
        b.output(b.add(Add(), x, b.constant(np.full(8, k, np.float32), f"w{k}")), f"y{k}")
    assert weft.compile(b.build(), "llvm -mtriple=x86_64-pc-windows-gnu-elf").manifest.machine == "x86_64-windows"


def test_lengths_of_vectors_that_no_machine_can_be_asked_for_are_not_used() -> None:
    isa: Any = resolved("llvm -mtriple=riscv64-linux-gnu -mcpu=sifive-x280").kind
    found = isa.isa(resolved("llvm -mtriple=riscv64-linux-gnu -mcpu=sifive-x280").target)
    assert "v" in found.needs and {"-zvl256b", "-zvl512b"} <= set(found.features.split(","))
    with pytest.raises(TargetError, match="no machine can be asked whether it has 'zvl256b'"):
        weft.compile(mlp(), "llvm -mtriple=riscv64-linux-gnu -mattr=+v,+zvl256b")


def test_code_without_vectors_of_arm_asks_for_none() -> None:
    manifest = weft.compile(mlp(), "llvm -mtriple=armv7-linux-gnueabihf -mattr=-neon,-d32").manifest
    assert manifest.features == ("vfp3d16",)


def test_inner_loops_of_arm_are_vectors() -> None:
    b = GraphBuilder("product")
    w = np.ones((64, 64), np.float32)
    b.output(b.add(MatMul(), b.input("x", tensor_type("float32", (64, 64))), b.constant(w, "w")))
    target = "llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a15"
    _, compilation = compile_cross(b.build(), target)
    codegen: Any = resolved(target).kind.codegen(resolved(target).target)
    text = "".join(codegen.assembly(k.lowered) for k in compilation.kernels.values())
    assert len(re.findall(r"\b(?:vfma|vmla)\.f32\s+q\d+", text)) >= 8
