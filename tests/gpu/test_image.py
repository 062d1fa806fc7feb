"""Code sections of launches: what is packed comes back, and whatever else they hold is an error that names the
kernel."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import ExecutionError
from weft.machine import Grid
from weft_gpu.image import Kernel, Launch, Tensor, pack, unpack
from weft_gpu.launch import grid_of

numbers = st.lists(st.integers(0, 40), max_size=5).map(tuple)
formulas = st.sampled_from(["1", "d0", "(d0 + 7)//8", "select(d1 == 0, 0, d0*d1)", "max(d0, d1)"])


@st.composite
def launch_of(draw: st.DrawFn) -> Launch:
    buffers, threads = draw(numbers), st.integers(1, 9)
    tensors = []
    for _ in range(draw(st.integers(0, 2)) if buffers else 0):
        n, each = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4, 8]))
        some = lambda low, high, n=n: tuple(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))
        strides = tuple(16 * k for k in some(1, 1 << 20, n - 1))
        tensors.append(
            Tensor(draw(st.integers(0, len(buffers) - 1)), each, some(1, 1 << 20), strides, (16, *some(1, 4, n - 1)))
        )
    symbol, grid = draw(st.sampled_from(["k", "k_1", "addition"])), draw(st.tuples(formulas, formulas, formulas))
    return Launch(
        symbol,
        draw(st.binary(max_size=40)),
        grid,
        draw(st.tuples(threads, threads, threads)),
        buffers,
        draw(numbers),
        tuple(tensors),
    )


kernels_of = st.dictionaries(st.text(max_size=6), st.lists(launch_of(), max_size=3).map(tuple), max_size=3)


@given(kernels_of)
@settings(max_examples=60, deadline=None)
def test_what_is_packed_comes_back(given_: dict[str, tuple[Launch, ...]]) -> None:
    kernels = {name: Kernel(name, launches) for name, launches in given_.items()}
    image, entries = pack({name: k.to_bytes() for name, k in kernels.items()})
    assert unpack(image, entries, tensors=True) == kernels


@given(kernels_of, st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_an_error_and_nothing_else(given_: dict[str, tuple[Launch, ...]], data: Any) -> None:
    """Bytes changed, cut off or put in: either it is a section all the same, or an ExecutionError."""
    image, entries = pack({name: Kernel(name, launches).to_bytes() for name, launches in given_.items()})
    at = data.draw(st.integers(0, len(image)))
    piece = data.draw(st.binary(max_size=6))
    image = image[:at] + piece + image[at + data.draw(st.integers(0, 6)) :]
    entries = {name: data.draw(st.sampled_from([at, at + 1, -1, 1 << 70])) for name, at in entries.items()}
    try:
        for kernel in unpack(image, entries, tensors=True).values():
            assert Kernel.from_bytes(kernel.to_bytes(), kernel.name) == kernel
    except ExecutionError as error:
        assert "kernel" in error.what


def table(text: str, code: bytes = b"") -> bytes:
    return struct.pack("<4sII", b"WGRD", 1, len(text)) + text.encode() + code


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it begins with b''"),
        (b"PK\3\4" + bytes(20), "it begins with"),
        (struct.pack("<4sII", b"WGRD", 1, 99), "its table has 99 bytes, 0 are left"),
        (table("{"), "its table cannot be read"),
        (table("[" * 100000), "its table cannot be read"),
        (table("{}"), "its table is {}"),
        (table("[1]"), "a launch is 1"),
        (table('[["k",["1","1","1"],[1,1,1],[],[]]]'), "a launch is"),
        (table('[["k;",["1","1","1"],[1,1,1],[],[],0]]'), "a launch is called 'k;'"),
        (table('[["k",["1","1","1"],[1,0,1],[],[],0]]'), "a group of 'k' is [1, 0, 1]"),
        (table('[["k",["1","1","1"],[1,true,1],[],[],0]]'), "a group of 'k' is"),
        (table('[["k",["1","1","1"],[1,1,1],[-1],[],0]]'), "the buffers of 'k' are [-1]"),
        (table('[["k",["1","1","1"],[1,1,1],[],[99999999],0]]'), "the dims of 'k' are"),
        (table('[["k",["1","1","__import__(1)"],[1,1,1],[],[],0]]'), "the grid of 'k': "),
        (table('[["k",["1","1","1"],[1,1,1],[],[],5]]', b"abc"), "the code of 'k' has 5 bytes, 3 are left"),
        (table('[["k",["1","1","1"],[1,1,1],[],[],1]]', b"abc"), "2 bytes follow the last launch"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[],[]]]'), "a launch is"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[]]]'), "'k' has an empty list of tensors"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,7]]'), "the tensors of 'k' is 7"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[7]]]'), "a tensor of 'k' is 7"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[],[],[]]]]]'), "a tensor of 'k' is"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[1,2,[8],[],[8]]]]]'), "a tensor of 'k' is"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,3,[8],[],[8]]]]]'), "a tensor of 'k' is"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8],[],[true]]]]]'), "a tensor of 'k' is"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8,8],[],[8,8]]]]]'), "a tensor of 'k' is"),
        (
            table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8,8],[8],[8,8]]]]]'),
            "no device copies boxes of the tensor",
        ),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8],[],[4]]]]]'), "no device copies boxes of the tensor"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8],[],[264]]]]]'), "no device copies boxes of the tensor"),
        (table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[0],[],[8]]]]]'), "no device copies boxes of the tensor"),
        (
            table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,2,[8,8],[1099511627776],[8,8]]]]]'),
            "no device copies boxes of the tensor",
        ),
        (
            table('[["k",["1","1","1"],[1,1,1],[0],[],0,[[0,8,[8,8,8],[16,16],[256,256,2]]]]]'),
            "no device copies boxes of the tensor",
        ),
    ],
)
def test_each_field_is_checked(data: bytes, why: str) -> None:
    with pytest.raises(ExecutionError, match="the code of kernel 'loom' is damaged") as caught:
        Kernel.from_bytes(data, "loom")
    assert str(caught.value.why).startswith(why)


def test_without_tensors_bytes_are_what_they_were() -> None:
    (row,) = json.loads(Kernel("k", (Launch("k", b"ab", ("1", "1", "1"), (8, 1, 1), (0,), ()),)).to_bytes()[12:-2])
    assert row == ["k", ["1", "1", "1"], [8, 1, 1], [0], [], 2]


def test_another_version_is_said() -> None:
    with pytest.raises(ExecutionError, match="the code of kernel 'loom' is of version 7"):
        Kernel.from_bytes(struct.pack("<4sII", b"WGRD", 7, 0), "loom")


def launch(*grid: str, group: tuple[int, int, int] = (8, 1, 1)) -> Launch:
    x, y, z = grid
    return Launch("k", b"", (x, y, z), group, (), ())


def test_grids_are_formulas_of_the_dims() -> None:
    assert grid_of(launch("(d0 + 7)//8", "d1", "1"), [21, 4], Grid(), "k") == (3, 4, 1)
    assert grid_of(launch("(d0 + 7)//8", "d1", "1"), [0, 4], Grid(), "k") is None
    assert grid_of(launch("d0 - 5", "1", "1"), [3], Grid(), "k") is None


@pytest.mark.parametrize(
    ("wanted", "dims", "why"),
    [
        (launch("1", "1", "1", group=(64, 2, 1)), [], "128 threads are wanted in a group, 64 are allowed"),
        (launch("1", "1", "1", group=(1, 1, 9)), [], "9 threads are wanted along z, 8 are allowed"),
        (launch("1", "d0*d0", "1"), [300], "90000 groups are wanted along y, 65535 are allowed"),
        (launch("1", "d1", "1"), [300], "it uses 'd1', the kernel has 1 dim(s)"),
        (launch("1", "1//d0", "1"), [0], "a formula divides by 0"),
    ],
)
def test_limits_are_checked(wanted: Launch, dims: list[int], why: str) -> None:
    with pytest.raises(ExecutionError, match="kernel 'loom'") as caught:
        grid_of(wanted, dims, Grid(threads=64, threads_per_axis=(64, 64, 8)), "loom")
    assert caught.value.why == why
