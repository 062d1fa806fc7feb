"""Dot products of CPUs: code against meaning, the instruction that LLVM selects, and matrix products made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.needs import require
from tests.qemu import runner

from weft.kernel import KernelSchedule, link_kernel
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling import Schedule, meanings
from weft_interpreter.interpret import interpret
from weft_llvm.intrinsics import DOTS, EMITTERS, Dot, dot, emitters
from weft_testing.intrinsics import cases, check_intrinsic

SAPPHIRE, COOPER, SKYLAKE, SIERRA, HASWELL, NEHALEM = (
    f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu} -threads=1"
    for cpu in ("sapphirerapids", "cooperlake", "skylake-avx512", "sierraforest", "haswell", "nehalem")
)
WASM = "llvm -mtriple=wasm32-unknown-unknown"
NEOVERSE = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1 -threads=1"
ARM_32 = "llvm -mtriple=armv8-linux-gnueabihf -mcpu=neoverse-n1 -mattr=+i8mm -threads=1"
OF = {
    "vpdpbusd512": SAPPHIRE, "vpmaddwd512": SKYLAKE, "vdpbf16ps512": COOPER, "vpdpbusd256": SIERRA,
    "vpmaddwd256": HASWELL, "pmaddwd128": NEHALEM, "wasmdot": WASM,
    "vudot": ARM_32, "vsdot": ARM_32, "vusdot": ARM_32,
}  # fmt: skip
SELECTED = {
    "vpdpbusd512": r"\bvpdpbusd\s.*%zmm", "vpdpbusd256": r"\{vex\}\s+vpdpbusd\s.*%ymm",
    "vdpbf16ps512": r"\bvdpbf16ps\s.*%zmm",
    "vpmaddwd512": r"\bvpmaddwd\s.*%zmm", "vpmaddwd256": r"\bvpmaddwd\s.*%ymm", "pmaddwd128": r"\bpmaddwd\s.*%xmm",
    "wasmdot": r"\bi32x4\.dot_i16x8_s",
    "udot": r"\budot\s+v\d+\.4s, v\d+\.16b", "sdot": r"\bsdot\s+v\d+\.4s, v\d+\.16b",
    "usdot": r"\busdot\s+v\d+\.4s, v\d+\.16b",
    "vudot": r"\bvudot\.u8\s+q\d+, q\d+, q\d+", "vsdot": r"\bvsdot\.s8\s+q\d+, q\d+, q\d+",
    "vusdot": r"\bvusdot\.s8\s+q\d+, q\d+, q\d+",
    "bfdot": r"\bbfdot\s+v\d+\.4s, v\d+\.8h",
}  # fmt: skip


def target_of(d: Dot) -> ResolvedTarget:
    return resolve_target(OF.get(d.name, NEOVERSE))


def assembly(program: Program, target: ResolvedTarget) -> str:
    codegen: Any = target.kind.codegen(target.target)
    lowered = lower_program(program, codegen.functions)
    assert codegen.check(lowered) == []
    text: str = codegen.assembly(lowered)
    return text


@pytest.mark.parametrize("d", DOTS, ids=lambda d: d.name)
def test_code_means_what_it_says(d: Dot) -> None:
    assert check_intrinsic(dot(d)) == 12


@pytest.mark.parametrize("d", DOTS, ids=lambda d: d.name)
def test_the_instruction_is_selected(d: Dot) -> None:
    whole, _, update = cases(dot(d))
    for program in (whole, update):
        assert len(re.findall(SELECTED[d.name], assembly(program, target_of(d)))) == 1, assembly(program, target_of(d))


@pytest.mark.parametrize("d", DOTS, ids=lambda d: d.name)
def test_where_the_machine_has_it_it_computes_the_meaning(d: Dot) -> None:
    here = resolve_target("llvm")
    if here.machine.features.issuperset(d.requires):
        assert check_intrinsic(dot(d), here) == 24
    elif d.name in OF and OF[d.name] != ARM_32:
        pytest.skip(f"this processor has no {d.name}")
    else:
        require("qemu")
        assert check_intrinsic(dot(d), run=under_qemu(target_of(d))) == 24


def under_qemu(target: ResolvedTarget) -> Callable[[Program], Callable[[Mapping[str, Any]], Any]]:
    def make(program: Program) -> Callable[[Mapping[str, Any]], Any]:
        _, sections = link_kernel(KernelSchedule(program, target))
        code, out = sections["main"], program.outputs[0]

        def run(arrays: Mapping[str, Any]) -> Any:
            result = np.zeros([int(str(n)) for n in out.shape], out.dtype.numpy)
            answer = runner.run(
                code.architecture,
                code.image,
                code.entries["run"],
                [],
                [arrays[b.name] for b in program.inputs],
                [result],
                1 << 12,
                "max",
            )
            assert (answer.code, answer.error) == (0, 0), answer.error_args
            return answer.outputs[0]

        return run

    return make


def test_who_has_what() -> None:
    """A target declares what its schedules use: dot products on whole registers of its machine."""

    def has(target: str) -> set[str]:
        return set(resolve_target(target).intrinsics)

    assert has(SAPPHIRE) == {"vpdpbusd512", "vpmaddwd512"}  # its vdpbf16ps is slower than float32
    assert has(COOPER) == {"vpdpbusd512", "vdpbf16ps512", "vpmaddwd512"}
    assert has(SIERRA) == {"vpdpbusd256", "vpmaddwd256"}
    assert has(NEOVERSE) == {"udot", "sdot", "usdot", "bfdot"}
    assert has("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1") == {"udot", "sdot"}
    assert has("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72") == set()
    assert has(ARM_32) == {"vudot", "vsdot", "vusdot"}
    assert has(SKYLAKE) == {"vpmaddwd512"} and has(HASWELL) == {"vpmaddwd256"} and has(NEHALEM) == {"pmaddwd128"}
    assert has(WASM) == {"wasmdot"} and has(WASM + " -mattr=-simd128") == set()
    assert emitters(frozenset({"aarch64", "dotprod"})).keys() == {"udot", "sdot"} and EMITTERS.keys() == SELECTED.keys()


def test_an_instruction_that_the_processor_lacks_is_named_before_code_is_made() -> None:
    from weft.errors import CodegenError

    target = resolve_target(HASWELL)
    codegen: Any = target.kind.codegen(target.target)
    lowered = lower_program(next(cases(dot(DOTS[0]))), codegen.functions)
    assert codegen.check(lowered) == ["intrinsic vpdpbusd512"]
    with pytest.raises(CodegenError, match="intrinsic vpdpbusd512"):
        codegen.emit(lowered)


# -- a matrix product -------------------------------------------------------------------------------------------------


def matmul(left: str, right: str, result: str, m: Any = "m*6", n: Any = "n*16", k: Any = "k*4") -> Program:
    zero, dims = "0i32" if result == "int32" else "0.0f32", " dims(m, n, k)" if isinstance(m, str) else ""
    return parse_program(
        f"""program matmul(x: {left}[{m}, {k}], w: {right}[{n}, {k}]) -> (y: {result}[{m}, {n}]){dims} {{
      for i in {m} {{ for j in {n} {{ for r in {k} {{ block C(vi: {m} = i, vj: {n} = j, vk: reduce {k} = r) @ op="MatMul" {{
        init {{ y[vi, vj] = {zero} }} y[vi, vj] = y[vi, vj] + {result}(x[vi, vk])*{result}(w[vj, vk])
      }} }} }} }} }}"""  # noqa: E501
    )


def scheduled(d: Dot, program: Program, target: ResolvedTarget, rows: int = 6) -> Schedule:
    """Six rows and one register of columns at a time, the panel packed; accumulators in registers."""
    s = Schedule(program, target.machine, checked=True, intrinsics=target.intrinsics)
    copy = s.cache_write("C", "register")
    panel = s.cache_read("C", "w", "local")
    i, j, r = s.loops("C")
    i_0, i_1 = s.split(i, [None, rows])
    j_0, j_1 = s.split(j, [None, d.lanes])
    r_0, r_1 = s.split(r, [None, d.depth])
    s.reorder(j_0, i_0, r_0, i_1, j_1, r_1)
    init = s.decompose_reduction("C", r_0)
    s.reverse_compute_at(copy, i_0)
    s.compute_at(panel, r_0)
    for buffer in (*s.buffers("C"), *s.buffers(panel)):
        s.compact_buffer(buffer)
    s.tensorize(j_1, d.name)
    s.tensorize(s.loops(init)[-1], d.name)
    for loop in (i_1, s.loops(init)[-1]):
        s.unroll(loop)
    *_, row, column = s.loops(copy)
    s.unroll(row)
    s.vectorize(column)
    return s


@pytest.mark.parametrize(
    "name", ["vpdpbusd512", "vpmaddwd512", "vdpbf16ps512", "vpdpbusd256", "vpmaddwd256", "usdot", "udot", "bfdot"]
)
def test_matrix_products(name: str) -> None:
    d = next(d for d in DOTS if d.name == name)
    program, target = matmul(d.left.name, d.right.name, d.result.name), target_of(d)
    s = scheduled(d, program, target)
    rng = np.random.default_rng(0)
    dims = {"m": 2, "n": 1, "k": 3}
    low = 0 if d.left.kind == "uint" else -8
    x, w = (
        rng.integers(low, 8, (12, 12)).astype(d.left.numpy),
        rng.integers(0 if d.right.kind == "uint" else -8, 8, (16, 12)).astype(d.right.numpy),
    )
    wanted = x.astype(d.result.numpy) @ w.astype(d.result.numpy).T
    functions = meanings(target.intrinsics.values())
    np.testing.assert_array_equal(interpret(s.program, [x, w], dims, intrinsics=functions)["y"], wanted)
    text = assembly(s.program, target)
    assert len(re.findall(SELECTED[name], text)) == 6, text
    if d.name not in OF or OF[d.name] == ARM_32:
        require("qemu")
        fixed = matmul(d.left.name, d.right.name, d.result.name, 12, 16, 12)
        run = under_qemu(target)(scheduled(d, fixed, target).program)
        np.testing.assert_array_equal(run({"x": x, "w": w}), wanted)


def packed(d: Dot) -> Program:
    """As a layout split(0, 4) split(1, 16) stores constant weights: the panels of an instruction lie one after
    another."""
    at = f"w[vj//{d.lanes}, vk//{d.depth}, vj%{d.lanes}, vk%{d.depth}]"
    k, n = f"k*{d.depth}", f"n*{d.lanes}"
    return parse_program(
        f"""program matmul(x: {d.left}[m, {k}], w: {d.right}[n, k, {d.lanes}, {d.depth}]) -> (y: {d.result}[m, {n}]) dims(m, n, k) {{
      for i in m {{ for j in {n} {{ for r in {k} {{ block C(vi: m = i, vj: {n} = j, vk: reduce {k} = r) @ op="MatMul" {{
        init {{ y[vi, vj] = 0{"i32" if d.result.is_integer else ".0f32"} }} y[vi, vj] = y[vi, vj] + {d.result}(x[vi, vk])*{d.result}({at})
      }} }} }} }} }}"""  # noqa: E501
    )


@pytest.mark.parametrize("name", ["vpdpbusd512", "vpdpbusd256", "vpmaddwd256", "vdpbf16ps512", "sdot"])
def test_weights_that_lie_in_panels_need_no_copy(name: str) -> None:
    """Any number of rows: the condition on the last tile is outside of the instruction. The inner loop is the products
    and what they load."""
    d = next(d for d in DOTS if d.name == name)
    target, program = target_of(d), packed(d)
    s = Schedule(program, target.machine, checked=True, intrinsics=target.intrinsics)
    copy = s.cache_write("C", "register")
    i, j, r = (s.split(loop, [None, size]) for loop, size in zip(s.loops("C"), (6, d.lanes, d.depth)))
    s.reorder(j[0], i[0], r[0], i[1], j[1], r[1])
    init = s.decompose_reduction("C", r[0])
    s.reverse_compute_at(copy, i[0])
    s.compact_buffer(*s.buffers("C"))
    s.tensorize(j[1], name)
    s.tensorize(s.loops(init)[-1], name)
    for loop in (i[1], s.loops(init)[-1], s.loops(copy)[-2]):
        s.unroll(loop)
    s.vectorize(s.loops(copy)[-1])
    rng = np.random.default_rng(1)
    x = rng.integers(0, 8, (8, 3 * d.depth)).astype(d.left.numpy)
    w = rng.integers(-8, 8, (2, 3, d.lanes, d.depth)).astype(d.right.numpy)
    plain = w.transpose(0, 2, 1, 3).reshape(2 * d.lanes, -1).astype(d.result.numpy)
    got = interpret(s.program, [x, w], {"m": 8, "n": 2, "k": 3}, intrinsics=meanings(target.intrinsics.values()))
    np.testing.assert_array_equal(got["y"], x.astype(d.result.numpy) @ plain.T)
    text = assembly(s.program, target)
    bodies = re.split(r"(?m)^\.L\w+:", text)
    hot = [b for b in bodies if len(re.findall(SELECTED[name], b)) == 6]
    assert hot, text
    stores = r"\bvmovdqu?\S*\s+%[xyz]mm\d+, .*\(" if name != "sdot" else r"\bst[rp]\s+q"
    assert not any(re.search(stores, b) for b in hot), f"accumulators leave their registers\n{hot[0]}"
