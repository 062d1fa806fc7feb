"""Loops on the units of a level of the machine, such as several matrix arrays of one chip; what a program wants of
memories and levels, all at once."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from weft.errors import CodegenError, LoopError, ScheduleError
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.loop.verify import verify
from weft.machine import Level, Machine, Scope
from weft.scheduling.schedule import Schedule
from weft.scheduling.scopes import exceeds, overflow
from weft_c.dialect import C
from weft_c_family import Emitter
from weft_interpreter.interpret import interpret

ARRAYS = Machine(
    "chip", 128, 8,
    scopes={"chip.tiles": Scope("chip.tiles", 1024, 64, "array"), "chip.common": Scope("chip.common", 2048, 64, "all")},
    levels={"array": Level("array", 4)},
)  # fmt: skip

PRODUCT = """
program product(a: float32[64, 8], b: float32[8, 16]) -> (c: float32[64, 16]) {
  for i in 64 { for j in 16 { for k in 8 {
    block C(vi: 64 = i, vj: 16 = j, vk: reduce 8 = k) {
      init { c[vi, vj] = 0.0f32 }
      c[vi, vj] = c[vi, vj] + a[vi, vk]*b[vk, vj]
    }
  } } }
}
"""


def shared_out(arrays: int, scope: str = "chip.tiles") -> Schedule:
    """The product, rows shared out over arrays, each with its part of `a` in its own memory."""
    s = Schedule(parse_program(PRODUCT), ARRAYS, checked=True)
    unit, _ = s.split("i", [arrays, None])
    tile = s.cache_read("C", "a", scope)
    s.compute_at(tile, unit)
    s.compact_buffer(s.buffers(tile)[0])
    s.bind(unit, "unit.array")
    return s


def run(program: Program) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((64, 8), (8, 16)))
    for seed in range(3):
        given = [x.reshape(-1) if len(p.shape) == 1 else x for x, p in zip((a, b), program.inputs)]
        np.testing.assert_array_equal(interpret(program, given, shuffle_seed=seed)["c"].reshape(64, 16), a @ b)


def test_iterations_on_units_mean_what_they_mean_in_any_order() -> None:
    s = shared_out(4)
    text = str(s.program)
    assert "for i_0 in 4 unit.array {" in text
    assert parse_program(text) == s.program
    run(s.program)
    lowered = lower_program(s.program, frozenset())
    assert "in 4 unit.array {" in str(lowered)
    run(lowered)


def test_each_unit_has_a_memory_of_its_own_and_all_share_the_others() -> None:
    # 16 rows of 8 floats are 512 bytes: for each array's memory; or four times, if there is one for all.
    assert exceeds(shared_out(4).program, ARRAYS) is None
    assert exceeds(shared_out(4, "chip.common").program, ARRAYS) is None
    assert exceeds(shared_out(2).program, ARRAYS) is None
    assert overflow(shared_out(1).program, ARRAYS) == "needs 2048 bytes of scope 'chip.tiles', there are 1024"
    small = {**ARRAYS.scopes, "chip.common": Scope("chip.common", 2047, 64, "all")}
    machine = Machine("chip", 128, 8, scopes=small, levels=ARRAYS.levels)
    assert (
        overflow(shared_out(4, "chip.common").program, machine)
        == "needs 2048 bytes of scope 'chip.common', there are 2047"
    )


def test_what_levels_do_not_have_is_said_all_at_once() -> None:
    program = parse_program("""
    program p(x: float32[64]) -> (y: float32[64]) {
      allocate t: float32[64] in `chip.tiles`
      for i in 8 unit.array { for j in 8 { t[i*8 + j] = x[i*8 + j] } }
      for i in 8 unit.aray { for j in 8 { y[i*8 + j] = t[i*8 + j] } }
    }
    """)
    assert (
        exceeds(program, ARRAYS)
        == "needs 8 units of 'array' for loop 'i', there are 4; needs buffer 't' on every unit of 'array', each of"
        " which has its own scope 'chip.tiles': allocate it in the loop; needs level 'aray' for loop 'i', the"
        " machine has array"
    )


def test_iterations_that_depend_on_each_other_are_not_for_units() -> None:
    s = Schedule(parse_program(PRODUCT), ARRAYS)
    with pytest.raises(
        ScheduleError,
        match=r"the iterations of 'k' are not independent: it carries the reduce iterator 'vk' of block 'C'",
    ):
        s.bind("k", "unit.array")
    with pytest.raises(ScheduleError, match=r"there is no axis 'array'(?s:.*)threadIdx.z, unit.NAME"):
        s.bind("i", "array")
    s.bind("i", "unit.array")
    with pytest.raises(ScheduleError, match=r"unit.array is taken by loop 'i' of the same nest"):
        s.bind("j", "unit.array")
    several = Schedule(
        parse_program(
            "program p(x: float32[n]) -> (y: float32[n]) dims(n) { for i in n { block b(v: n = i) { y[v] = x[v] } } }"
        )
    )
    with pytest.raises(ScheduleError, match=r"the extent n of loop 'i' is not a constant"):
        several.bind("i", "unit.array")
    with pytest.raises(LoopError, match="do not depend on 'i'"):
        verify(parse_program("program p(x: float32[4]) -> (y: float32[1]) { for i in 4 unit.array { y[0] = x[i] } }"))


def test_code_of_units() -> None:
    lowered = lower_program(shared_out(4).program, frozenset())
    assert Emitter(C).check(lowered) == ["unit.array loop i_0", "scope chip.tiles of buffer a_chip.tiles"]
    tiles = {**C.scopes, "chip.tiles": "TILES {type} {name}[{size}];"}
    chip = replace(C, serial=False, scopes=tiles, units={"unit.array": "ON_EVERY_ARRAY({type}, {name}, {extent})"})
    text = Emitter(chip).emit(lowered).source
    assert (
        text.index("ON_EVERY_ARRAY(int64_t, i_0, 4) {")
        < text.index("TILES float a_chip_tiles[128];")
        < text.index("for (")
    )


def test_units_do_not_share_scratch() -> None:
    with pytest.raises(CodegenError) as caught:
        Emitter(replace(C, units={"unit.array": "ON({type}, {name}, {extent})"})).emit(
            lower_program(shared_out(4, "global").program, frozenset())
        )
    assert str(caught.value).startswith("buffer 'a_global' of kernel 'product' is scratch, of which units share one")
    assert "why: each iteration of loop 'i_0' has its own" in str(caught.value)


def test_a_machine_keeps_its_levels() -> None:
    again = pickle.loads(pickle.dumps(ARRAYS))
    assert again == ARRAYS
    assert again.units == 4
    with pytest.raises(ValueError, match="1 unit or more, got 'array' with 0"):
        Level("array", 0)


def test_every_memory_that_is_too_small_is_named() -> None:
    program = parse_program("""
    program p(x: float32[512]) -> (y: float32[512]) {
      allocate a: float32[512] in `chip.tiles`
      allocate b: float32[1024] in `chip.common`
      for i in 512 { a[i] = x[i] }
      for i in 512 { b[i] = a[i] }
      for i in 512 { y[i] = b[i] }
    }
    """)
    assert (
        exceeds(program, ARRAYS)
        == "needs 4096 bytes of scope 'chip.common', there are 2048 and 2048 bytes of scope 'chip.tiles', there are"
        " 1024"
    )


def test_a_memory_that_the_machine_has_not_is_refused_with_all_that_it_has() -> None:
    known = "its scopes are chip.common, chip.tiles, global, local, register (did you mean 'chip.tiles'?)"
    s = Schedule(parse_program(PRODUCT), ARRAYS)
    for act in (
        lambda: s.cache_read("C", "a", "chip.tile"),
        lambda: s.cache_write("C", scope="chip.tile"),
        lambda: s.set_scope("C", "chip.tile"),
    ):
        with pytest.raises(ScheduleError) as caught:
            act()
        assert f"it needs scope 'chip.tile', which the machine does not have; {known}" in str(caught.value)
    program = parse_program(
        "program p(x: float32[1]) -> (y: float32[1]) { allocate t: float32[1] in `chip.tile` t[0] = x[0] y[0] = t[0] }"
    )
    assert exceeds(program, ARRAYS) == f"needs scope 'chip.tile', which the machine does not have; {known}"
    assert exceeds(program, Machine("any", 128, 8)) is None
