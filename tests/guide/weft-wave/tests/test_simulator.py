"""The chip alone: instructions against numpy, what it may not do, and what it counts."""

from __future__ import annotations

import numpy as np
import pytest

from weft_wave.isa import Instruction
from weft_wave.simulator import Chip, Fault

I = Instruction  # noqa: E741
HALT = I("halt")


def run(chip: Chip, *code: Instruction) -> None:
    chip.run(chip.assemble([*code, HALT]), 0)


@pytest.fixture
def chip() -> Chip:
    chip = Chip(1 << 16)
    chip.floats[:64] = np.linspace(-3, 3, 64, dtype=np.float32)
    chip.floats[64:128] = np.linspace(1, 2, 64, dtype=np.float32)
    chip.a[1:5] = [0, 256, 4, 1024]  # two vectors, the stride of neighbours, a place for results
    return chip


LOAD = (I("vld", 0, 1, 3), I("vld", 1, 2, 3))


@pytest.mark.parametrize("length", [0, 1, 37, 64])
@pytest.mark.parametrize(("name", "function"), [("vfadd", np.add), ("vfmul", np.multiply), ("vfdiv", np.divide), ("vfmaximum", np.maximum)])
def test_arithmetic_of_vectors(chip: Chip, name: str, function: np.ufunc, length: int) -> None:
    a, b = chip.floats[:64].copy(), chip.floats[64:128].copy()
    run(chip, I("setvli", imm=length), *LOAD, I(name, 2, 0, 1), I("vst", 2, 4, 3))
    np.testing.assert_array_equal(chip.floats[256 : 256 + length], function(a, b)[:length])
    assert not chip.floats[256 + length : 320].any()


def test_strides_gather_scatter_and_masks(chip: Chip) -> None:
    a = chip.floats[:64].copy()
    chip.a[5] = 8
    run(chip, I("setvli", imm=32), I("vld", 0, 1, 5), I("vst", 0, 4, 3))
    np.testing.assert_array_equal(chip.floats[256:288], a[::2])
    chip.a[6], chip.a[7] = 63, -1
    run(chip, I("setvli", imm=64), I("viota", 1, 6, 7), I("vga", 0, 1, 1), I("vst", 0, 4, 3))
    np.testing.assert_array_equal(chip.floats[256:320], a[::-1])
    run(chip, I("vld", 0, 1, 3), I("vsc", 0, 4, 1))
    np.testing.assert_array_equal(chip.floats[256:320], a[::-1])
    run(chip, I("vset", 2, 1), I("vflt", 3, 0, 2), I("vstm", 2, 4, 3, 3))
    np.testing.assert_array_equal(chip.floats[256:320], np.where(a < 0, 0, a[::-1]))


@pytest.mark.parametrize("length", [0, 1, 7, 64])
def test_reductions(chip: Chip, length: int) -> None:
    a = chip.floats[:length].copy()
    run(chip, I("setvli", imm=length), LOAD[0], I("vfsum", 0, 0), I("vfmax", 1, 0), I("vfmin", 2, 0))
    np.testing.assert_allclose(chip.s[0], a.sum(), rtol=1e-5, atol=1e-5)
    assert chip.s[1:3] == [a.max(initial=-np.inf), a.min(initial=np.inf)]


def test_a_product_is_rounded_before_it_is_added_unless_it_is_fused(chip: Chip) -> None:
    one = np.float32(1 + 2**-12)
    chip.s[0] = float(one)
    chip.vf[1][:] = one
    chip.vf[2][:] = chip.vf[3][:] = -np.float32(one * one)
    chip.vf[4][:] = one
    run(chip, I("setvli", imm=1), I("vmadd", 2, 0, 1), I("vffma", 3, 1, 4, 3))
    assert chip.vf[2][0] == 0
    assert chip.vf[3][0] == 2.0**-24


def test_what_it_may_not_do(chip: Chip) -> None:
    chip.a[9], chip.a[10] = len(chip.memory) - 128, 2
    with pytest.raises(Fault, match="address 65660 is outside the memory of 65536 bytes"):
        run(chip, I("setvli", imm=64), I("vld", 0, 9, 3))
    with pytest.raises(Fault, match="address 2 is no multiple of 4"):
        run(chip, I("fld", 0, 10))
    with pytest.raises(Fault, match="an index leads to"):
        run(chip, I("vset", 1, 9), I("vga", 0, 1, 1))


def test_chaining(chip: Chip) -> None:
    """A product that depends on a load starts when the load's first element is there, not its last."""
    run(chip, I("setvli", imm=64), *LOAD)
    loads = chip.cycles
    other = Chip(1 << 16)
    other.a[1:4] = [0, 256, 4]
    run(other, I("setvli", imm=64), *LOAD, I("vfmul", 2, 0, 1), I("vfadd", 3, 2, 1))
    assert loads == 64 + 12 + 64
    assert other.cycles == loads + 7 + 6
