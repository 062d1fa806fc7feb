"""Code for WebAssembly: linked to modules, and run by wasmtime as native code is run by the process."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
import weft_ops as ops
import weft_runtime
from weft import dtypes as dt
from weft.compilation import Compilation
from weft.errors import CodegenError, ExecutionError, InputError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, TensorType
from weft.resolve import resolve_target
from weft_llvm import wide
from weft_llvm.link_wasm import link
from weft_llvm.memory import emit_memory, emit_wasm_memory
from weft_llvm.toolchain import Cpu, compile_assembly, compile_object
from weft_llvm.wasm_bytes import Reader, signed, unsigned
from weft_llvm.workers import default_workers
from weft_runtime import wasm
from weft_testing.models import lstm, mlp, resnet18, transformer

pytestmark = pytest.mark.needs("wasmtime")
TARGET = "llvm -mtriple=wasm32-unknown-unknown"
CPU = Cpu("wasm32-unknown-unknown", "generic", "+simd128", 2)
HEAD = 'target datalayout = "e-m:e-p:32:32-p10:8:8-p20:8:8-i64:64-i128:128-n32:64-S128-ni:1:10:20"\n'
HEAD += 'target triple = "wasm32-unknown-unknown"\n'


def obj(ir: str) -> bytes:
    return compile_object(HEAD + ir, CPU)


def instance(module: bytes, name: str = "test") -> tuple[wasm.Host, wasm.Module]:
    host = wasm.Host()
    return host, host.load(module, name)


# -- the linker -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_as_short_as_they_can_be(positive: int, any_sign: int) -> None:
    assert Reader(unsigned(positive)).number() == positive
    assert len(unsigned(positive)) == max(1, -(-positive.bit_length() // 7))
    data = signed(any_sign)
    assert Reader(data).signed() == any_sign and len(data) <= 10


def test_constants_calls_and_functions_as_values_find_their_places() -> None:
    a = obj(
        """
@table = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 16
declare hidden i32 @other(i32)
define internal i32 @twice(i32 %x) noinline { %y = shl i32 %x, 1
 ret i32 %y }
define i32 @f(i32 %k) { %p = getelementptr [4 x i32], ptr @table, i32 0, i32 %k
 %v = load i32, ptr %p
 %w = call i32 @other(i32 %v)
 ret i32 %w }
define i32 @g(i32 %k, ptr %slot) { store ptr @twice, ptr %slot
 %f = load volatile ptr, ptr %slot
 %w = call i32 %f(i32 %k)
 ret i32 %w }
define i32 @unused() { ret i32 77 }
"""
    )
    b = obj(
        """
@one = internal constant i32 7, align 4
define hidden i32 @other(i32 %x) { %v = load volatile i32, ptr @one
 %y = add i32 %x, %v
 ret i32 %y }
"""
    )
    image = link({"a": a, "b": b}, ["f", "g"])
    host, first = instance(image.bytes)
    second = host.load(image.bytes, "again")
    slot = host.need(4)
    for module in (first, second):
        assert [host.call(module.exports["f"], k) for k in range(4)] == [17, 27, 37, 47]
        assert host.call(module.exports["g"], 21, slot) == 42
    assert len(link({"a": a, "b": b}, ["f"]).bytes) < len(image.bytes), "what no export reaches is left out"


GONE = "declare hidden i32 @gone()\ndefine i32 @f() { %x = call i32 @gone()\n ret i32 %x }"
GLOBAL = """@state = global i32 1
define i32 @f() { %x = load i32, ptr @state
 ret i32 %x }"""
STATE = """@state = internal global i32 1
define i32 @f() { store volatile i32 2, ptr @state
 %x = load volatile i32, ptr @state
 ret i32 %x }"""
ADDRESSES = """@a = internal constant [2 x ptr] [ptr @f, ptr @f]
define i32 @f() { %x = load volatile ptr, ptr @a
 %y = ptrtoint ptr %x to i32
 ret i32 %y }"""


@pytest.mark.parametrize(
    ("ir", "said"),
    [
        (GONE, "nothing defines: gone"),
        (GLOBAL, "writable data in segment"),
        (STATE, "writable data in segment"),
        (ADDRESSES, "writable data in segment"),
    ],
)
def test_what_a_module_cannot_have(ir: str, said: str) -> None:
    with pytest.raises(CodegenError, match=said):
        link({"a": obj(ir)}, ["f"])


def test_two_definitions_and_a_missing_export() -> None:
    a = obj("define i32 @f() { ret i32 1 }")
    with pytest.raises(CodegenError, match="symbol 'f' is defined twice") as error:
        link({"a": a, "b": a}, ["f"])
    assert error.value.where == "a\nb"
    with pytest.raises(CodegenError, match="no object defines what is exported: g"):
        link({"a": a}, ["g"])


CALLS = """@table = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 16
define i32 @f(i32 %k) { %p = getelementptr [4 x i32], ptr @table, i32 0, i32 %k
 %v = load i32, ptr %p
 %w = call i32 @g(i32 %v, ptr @f)
 ret i32 %w }
define i32 @g(i32 %k, ptr %f) noinline { %w = call i32 %f(i32 %k)
 ret i32 %w }"""


@pytest.mark.parametrize(("ir", "name"), [(wide.SOURCE, wide.MULTIPLY), (CALLS, "f")], ids=["wide", "calls"])
def test_damaged_objects_are_refused(ir: str, name: str) -> None:
    """Or linked to something else, as a changed instruction is; never another exception."""
    good, draw, refused = obj(ir), random.Random(5), 0
    for _ in range(800):
        bad = bytearray(good)
        for _ in range(draw.choice([1, 1, 3])):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            link({"a": bytes(bad[: draw.choice([len(bad), draw.randrange(len(bad))])])}, [name])
        except CodegenError:
            refused += 1
    assert refused > 400


def test_a_symbol_that_names_no_function_is_refused() -> None:
    """The symbol of the called function, with an index that the object has not."""
    good = obj(CALLS)
    at = good.index(b"\0\0\1\1g", good.index(b"linking"))  # a function, its flags, its index, its name
    with pytest.raises(CodegenError, match="an object refers to what it does not have"):
        link({"a": good[: at + 2] + b"\7" + good[at + 3 :]}, ["f"])


@given(*[st.integers(0, 2**64 - 1)] * 4)
def test_products_of_128_bits(al: int, ah: int, bl: int, bh: int) -> None:
    host, module = _wide()
    place = host.need(16)
    module.exports[wide.MULTIPLY](host._store, place, *(v - (v >> 63 << 64) for v in (al, ah, bl, bh)))
    got = int.from_bytes(host.get(place, 16), "little")
    host.release(place)
    assert got == ((ah << 64 | al) * (bh << 64 | bl)) % (1 << 128)


_WIDE: list[tuple[wasm.Host, wasm.Module]] = []


def _wide() -> tuple[wasm.Host, wasm.Module]:
    if not _WIDE:
        _WIDE.append(instance(link({"wide": obj(wide.SOURCE)}, [wide.MULTIPLY]).bytes))
    return _WIDE[0]


def test_memory_is_asked_of_the_host_or_of_the_process() -> None:
    assert "weft_reserve" in emit_wasm_memory() and "weft_reserve" not in emit_memory()


# -- the target -------------------------------------------------------------------------------------------------------


def test_what_the_target_says() -> None:
    isa: Any = resolve_target(TARGET).kind.isa(resolve_target(TARGET).target)  # type: ignore[attr-defined]
    assert (isa.pointer, isa.objects, isa.arch) == (4, "wasm", "wasm32")
    assert "simd128" in isa.needs and "fma" not in isa.has and "bf16" not in isa.has
    relaxed = resolve_target(TARGET + " -mattr=+relaxed-simd")
    assert relaxed.machine.fma and not resolve_target(TARGET).machine.fma
    assert (
        resolve_target(TARGET + " -mattr=-simd128")
        .kind.isa(  # type: ignore[attr-defined]
            resolve_target(TARGET + " -mattr=-simd128").target
        )
        .needs
        == frozenset()
    )


@pytest.mark.parametrize("attributes", ["", " -mattr=+relaxed-simd", " -mattr=-simd128"])
def test_models_give_what_native_code_gives(attributes: str) -> None:
    draw = np.random.default_rng(3)
    for model in (mlp(), lstm(), transformer()) if attributes else (mlp(), lstm(), transformer(), resnet18()):
        native, module = weft.compile(model, "llvm"), weft.compile(model, TARGET + attributes)
        assert module.manifest.machine == "wasm32"
        for size in (1, 3):
            inputs = {}
            for i in native.inputs:
                shape = tuple(d if isinstance(d, int) else size for d in i.shape)
                of = dt.dtype(i.dtype)
                inputs[i.name] = (draw.integers(0, 9, shape) if of.is_integer else draw.standard_normal(shape)).astype(
                    of.numpy
                )
            wanted, got = native.run(inputs), module.run(inputs)
            for name in wanted:
                np.testing.assert_allclose(got[name], wanted[name], rtol=2e-4, atol=2e-5)


def places() -> bytes:
    """Where a product is not 0: a size that the data alone say. An ONNX model."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("NonZero", ["p"], ["y"])]
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.eye(4, dtype=np.float32).ravel())
    ends = [[info("x", TensorProto.FLOAT, ["n", 4])], [info("y", TensorProto.INT64, [2, "m"])]]
    graph = helper.make_graph(nodes, "places", *ends, initializer=[w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def test_sizes_that_data_decide() -> None:
    """The module asks its host for the storage of a result whose size it alone knows."""
    exe, draw = weft.compile(places(), TARGET), np.random.default_rng(1)
    for rows in (3, 1, 0, 2000, 5):
        x = (draw.random((rows, 4)) < 0.4).astype(np.float32)
        np.testing.assert_array_equal(exe.run({"x": x})["y"], np.stack(np.nonzero(x)))


def test_a_saved_model_runs_again(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), TARGET)
    exe.save(tmp_path / "m.weft")
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    again = weft_runtime.load(tmp_path / "m.weft")
    np.testing.assert_array_equal(again.run({"x": x})["y"], exe.run({"x": x})["y"])
    out = np.empty((3, 32), np.float32)
    assert again.run({"x": x}, out={"y": out})["y"] is out
    np.testing.assert_array_equal(out, exe.run({"x": x})["y"])


def test_without_wasmtime_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = weft.compile(mlp(), TARGET)
    exe.save(tmp_path / "m.weft")
    monkeypatch.setattr(wasm, "available", lambda: False)
    with pytest.raises(weft.errors.ArchiveError, match="needs the package wasmtime here") as error:
        weft_runtime.load(tmp_path / "m.weft")
    assert error.value.hint == "install it: pip install 'weft-runtime[wasm]'"
    here = weft.compile(mlp(), TARGET, cache=False)
    with pytest.raises(ExecutionError, match="compiled for WebAssembly, which needs the package wasmtime here"):
        here.run({"x": np.zeros((1, 64), np.float32)})


def test_wrong_inputs_are_named() -> None:
    exe = weft.compile(mlp(), TARGET)
    with pytest.raises(InputError, match="input 'x' has size 63 on axis 1, expected 64"):
        exe.run({"x": np.zeros((3, 63), np.float32)})
    with pytest.raises(InputError, match="input 'x' has dtype float64, expected float32"):
        exe.run({"x": np.zeros((3, 64))})
    with pytest.raises(InputError, match="storage for output 'y' has size 2 on axis 0, the result has 3"):
        exe.run({"x": np.zeros((3, 64), np.float32)}, out={"y": np.empty((2, 32), np.float32)})
    with pytest.raises(InputError, match="has no output 'z'"):
        exe.run({"x": np.zeros((3, 64), np.float32)}, out={"z": np.empty((2, 32), np.float32)})
    assert exe.run({"x": np.ones((3, 64), np.float32)})["y"].shape == (3, 32), "the next call is right"


def test_a_memory_of_32_bits_is_full() -> None:
    """An output of 8 GiB, of an input of 64 KiB."""
    b = GraphBuilder("large")
    x = b.input("x", TensorType(dt.float32, (Var("n"), 1)))
    y = b.input("y", TensorType(dt.float32, (1, Var("n"))))
    b.output(b.add(ops.Add(), x, y), "z")
    exe = weft.compile(b.build(), TARGET)
    ones = np.ones(46_000, np.float32)
    with pytest.raises(ExecutionError, match="no memory for a call of 'large'") as error:
        exe.run({"x": ones[:, None], "y": ones[None]})
    assert error.value.hint == "run smaller inputs"
    assert exe.run({"x": ones[:2, None], "y": ones[None, :2]})["z"].tolist() == [[2, 2], [2, 2]]


def test_memory_is_used_again() -> None:
    """A thousand calls of alternating sizes take no more memory than the first ones."""
    exe = weft.compile(mlp(), TARGET)
    xs = [np.zeros((n, 64), np.float32) for n in (1, 50, 7, 300, 2)]
    for x in xs:
        exe.run({"x": x})
    host = exe._host
    assert host is not None
    before = host._top
    for _ in range(200):
        for x in xs:
            exe.run({"x": x})
    assert host._top == before


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 511, 512, 513, 1000, 4097, 10**6, 2**31 + 5])
def test_what_is_reserved_is_little_more_than_asked(size: int) -> None:
    got = wasm.room(size)
    assert got >= size and got % 64 == 0 and got - size <= max(64, size // 8)


def test_a_stack_that_is_too_long_ends_the_call_and_no_more() -> None:
    module = link(
        {
            "a": obj(
                """
define i32 @deep(i32 %n) noinline { %room = alloca [1024 x i8]
 call void @fill(ptr %room)
 %m = add i32 %n, 1
 %r = call i32 @deep(i32 %m)
 %v = load volatile i8, ptr %room
 %w = zext i8 %v to i32
 %s = add i32 %r, %w
 ret i32 %s }
define internal void @fill(ptr %p) noinline { store volatile i8 1, ptr %p
 ret void }
define i32 @fine() { ret i32 5 }
"""
            )
        },
        ["deep", "fine"],
    )
    host, code = instance(module.bytes)
    with pytest.raises(ExecutionError, match="compiled code ended by itself"):
        host.call(code.exports["deep"], 0)
    assert host.call(code.exports["fine"]) == 5


def test_a_module_that_wants_other_things_is_refused() -> None:
    with pytest.raises(weft.errors.ArchiveError, match="is no WebAssembly that runs here") as error:
        instance(b"\0asm\1\0\0\0")
    assert error.value.why == "it does not begin with the section dylink.0"
    good = link({"a": obj("declare void @log(i32)\ndefine void @f() { call void @log(i32 1)\n ret void }")}, ["f"],
                {"log": b"\x60\x01\x7f\x00"}).bytes  # fmt: skip
    with pytest.raises(weft.errors.ArchiveError) as error:
        instance(good)
    assert error.value.why == "it imports env.log"


# -- speed ------------------------------------------------------------------------------------------------------------


def text_of(graph: Graph, kernel: str, target: str = TARGET) -> tuple[str, str]:
    """LLVM IR and assembly of the first kernel whose name begins so."""
    texts: list[tuple[str, Cpu, str]] = []
    pool = default_workers()
    submit = pool.submit
    try:
        pool.submit = lambda ir, cpu, name: texts.append((ir, cpu, name)) or submit(ir, cpu, name)  # type: ignore
        weft.compile(graph, str(resolve_target(target).target), cache=False)
    finally:
        pool.submit = submit  # type: ignore[method-assign]
    ir, cpu = next((ir, cpu) for ir, cpu, name in texts if name.startswith(kernel))
    return ir, compile_assembly(ir, cpu)


def product_text() -> tuple[str, str]:
    """LLVM IR and assembly of a product of matrices whose rows are 512 bytes apart."""
    b = GraphBuilder("product")
    x = b.input("x", TensorType(dt.float32, (16, 128)))
    b.output(b.add(ops.MatMul(), x, b.constant(np.ones((128, 64), np.float32), "w")))
    return text_of(b.build(), "matmul")


def test_loads_of_a_tile_hold_their_offsets_and_come_in_order() -> None:
    ir, assembly = product_text()
    assert "llvm.prefetch" not in ir
    splats = re.findall(r"v128\.load32_splat\t(\d+)", assembly)
    assert {int(k) for k in splats} >= {0, 512, 1024, 1536}, "rows of the tile from one address"
    body = max(re.findall(r"loop    \t(.*?)end_loop", assembly, re.S), key=lambda t: t.count("f32x4.mul"))
    # Sums are taken out of their locals, added to once and put back, one after another.
    assert body.count("f32x4.mul") == body.count("f32x4.add") == body.count("#APP") > 4


@pytest.mark.parametrize(("depth", "steps"), [(512, 4), (514, 2), (63, 1), (129, 1)])
def test_steps_of_one_row_are_unrolled(depth: int, steps: int) -> None:
    """Engines compute addresses in every iteration; native code does not."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, depth), (depth, 64)))
    b = GraphBuilder("row")
    b.output(b.add(ops.MatMul(), b.input("x", TensorType(dt.float32, x.shape)), b.constant(w, "w")), "y")
    for target, wanted in ((TARGET, steps), ("llvm", 1)):
        compilation = Compilation(resolve_target(target), cache=False)
        got = compilation.run(b.build()).run({"x": x})["y"]
        np.testing.assert_allclose(got, x @ w, rtol=0, atol=1e-4)
        (kernel,) = compilation.kernels.values()
        assert {c.name: c.value for c in kernel.choices}.get("unrolled", 1) == wanted


@pytest.mark.parametrize("attributes", ["", " -mattr=+relaxed-simd"])
@pytest.mark.parametrize("form", ["left", "right", "both"])
@pytest.mark.parametrize("op", [ops.Maximum(), ops.Minimum()])
def test_a_bound_that_is_never_nan_takes_one_instruction(
    op: ops.Maximum | ops.Minimum, form: str, attributes: str
) -> None:
    """Not the relaxed one, which may give the bound where the other operand is NaN."""
    target = TARGET + attributes
    x = np.array([np.nan, -np.inf, -2, -0.0, 0, 0.5, 2, np.inf] * 2, np.float32)
    y = np.array([0.5] * 8 + [np.nan, np.nan, 1, 0, 0, np.nan, 3, -1], np.float32)
    b, half = GraphBuilder("bounds"), np.full(1, 0.5, np.float32)
    a = b.input("x", TensorType(dt.float32, x.shape))
    other = b.input("y", TensorType(dt.float32, y.shape)) if form == "both" else b.constant(half, "half")
    b.output(b.add(op, *((other, a) if form == "left" else (a, other))), "z")
    graph = b.build()
    name, function = ("max", np.maximum) if isinstance(op, ops.Maximum) else ("min", np.minimum)
    _, assembly = text_of(graph, "m", target)
    once = [len(re.findall(rf"f32x4\.{n}\b", assembly)) for n in (f"p{name}", name)]
    assert once == ([0, 1] if form == "both" else [1, 0]) and "relaxed_m" not in assembly
    fed = {"x": x, "y": y} if form == "both" else {"x": x}
    np.testing.assert_array_equal(
        weft.compile(graph, target, cache=False).run(fed)["z"], function(x, y if form == "both" else half)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("greater", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_selection_by_a_comparison_says_which_of_two_it_gives(dtype: str, greater: bool, swapped: bool) -> None:
    """Where one is NaN; relaxed instructions may give either."""
    for n in (3, 16, 37):
        x = np.resize(np.array([np.nan, -1, 1, np.inf, 0.5], dtype), n)
        b, half = GraphBuilder("g"), np.array([0.5], dtype)
        a, c = b.input("x", TensorType(dt.dtype(dtype), x.shape)), b.constant(half, "half")
        asked = b.add(ops.Less(), *((c, a) if greater else (a, c)))
        b.output(b.add(ops.Where(), asked, *((c, a) if swapped else (a, c))), "y")
        got = weft.compile(b.build(), TARGET + " -mattr=+relaxed-simd", cache=False).run({"x": x})["y"]
        holds = half < x if greater else x < half
        np.testing.assert_array_equal(got, np.where(holds, half, x) if swapped else np.where(holds, x, half))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float4_e2m1fn", "complex64"])
def test_selections_of_numbers_that_no_instruction_computes_with(dtype: str) -> None:
    of = dt.dtype(dtype)
    x, y = (np.linspace(lo, hi, 37).astype(of.numpy) for lo, hi in ((-2, 2), (3, -3)))
    chosen = np.arange(37) % 3 == 0
    b = GraphBuilder("g")
    given = [b.input(n, TensorType(d, (37,))) for n, d in (("m", dt.bool_), ("x", of), ("y", of))]
    b.output(b.add(ops.Where(), *given), "z")
    target = TARGET + " -mattr=+relaxed-simd"
    got = weft.compile(b.build(), target, cache=False).run({"m": chosen, "x": x, "y": y})["z"]
    np.testing.assert_array_equal(got.view(np.uint8), np.where(chosen, x, y).view(np.uint8))


def test_settings_of_webassembly_are_not_those_of_other_targets() -> None:
    ir = """define float @f(ptr %p, i64 %n) {
entry:
 br label %l
l:
 %i = phi i64 [ 0, %entry ], [ %j, %l ]
 %s = phi float [ 0.0, %entry ], [ %t, %l ]
 %k = mul i64 %i, 3
 %a = getelementptr float, ptr %p, i64 %k
 %x = load float, ptr %a
 %t = fadd float %s, %x
 %j = add i64 %i, 1
 %c = icmp ult i64 %j, %n
 br i1 %c, label %l, label %m
m:
 ret float %t }"""
    cpu = Cpu("x86_64-unknown-linux-gnu", "x86-64", "", 2)
    before = compile_assembly(ir, cpu)
    compile_assembly(HEAD + ir, CPU)
    assert compile_assembly(ir, cpu) == before
