"""libweft and exported libraries give what the Python runtime gives, to the bit, and refuse what is wrong."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bindings.test_javascript import FLOATS, INTEGERS, LOOP, SCAN, drawn, onnx_model
from tests.libweft import hostile
from tests.libweft.native import Array, Error, Options, Program, Refused, Tensor, digest, library, loaded

import weft
from weft import dtypes as dt
from weft.errors import InputError, TargetError, UnsupportedError
from weft_runtime.cpu_features import machine
from weft_testing.models import lstm, mlp, resnet18, transformer

pytestmark = pytest.mark.needs("ziglang")
Opening = Callable[[weft.Executable], Program]


@pytest.fixture(params=["archive", "memory", "elf"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    """From an executable to a program that holds it."""
    opened: list[Program] = []

    def open_it(executable: weft.Executable) -> Program:
        file = tmp_path / f"model{len(opened)}"
        if request.param == "elf":
            weft.export(executable, file.with_suffix(".so"))
            opened.append(Program(None, file.with_suffix(".so")))
        else:
            executable.save(file)
            opened.append(Program(file.read_bytes() if request.param == "memory" else file))
        return opened[-1]

    yield open_it
    for program in opened:
        program.close()


def agree(executable: weft.Executable, program: Program, calls: Sequence[dict[str, Array]]) -> None:
    assert program.info.name.decode() == executable.manifest.name
    assert program.info.target.decode() == executable.manifest.target
    assert [name for name, _, _ in program.inputs] == [i.name for i in executable.inputs]
    for given in calls:
        wanted, got = executable.run(given), program.run(given)
        assert wanted.keys() == got.keys()
        for name in wanted:
            assert got[name].dtype == wanted[name].dtype
            np.testing.assert_array_equal(got[name], wanted[name])


@pytest.mark.parametrize("model", [mlp, lstm, transformer, resnet18])
def test_models(model: Any, opening: Opening) -> None:
    exe = weft.compile(resnet18(size=32, width=8, classes=10) if model is resnet18 else model(), "llvm")
    agree(exe, opening(exe), [drawn(exe, n) for n in (1, 3, 2)])


def test_branches_loops_and_sizes_that_data_decide(opening: Opening) -> None:
    exe, draw = weft.compile(onnx_model(LOOP), "llvm"), np.random.default_rng(0)
    assert {s.kind for s in exe.manifest.steps} >= {"loop", "if", "native"}
    calls = []
    for n, trips, condition in ((2, 3, True), (1, 9, True), (4, 2, False), (3, 0, True), (0, 2, True)):
        x = draw.standard_normal((n, 3)).astype(np.float32) * (draw.random((n, 3)) < 0.6)
        calls.append({"x": x.astype(np.float32), "m": np.array(trips), "c": np.array(condition)})
    agree(exe, opening(exe), calls)


def test_scans_along_other_axes_and_backwards(opening: Opening) -> None:
    exe, draw = weft.compile(onnx_model(SCAN), "llvm"), np.random.default_rng(0)
    calls = [{"s": np.ones(2, np.float32), "x": draw.standard_normal((2, t)).astype(np.float32)} for t in (1, 4, 7, 0)]
    agree(exe, opening(exe), calls)


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *FLOATS, "complex64"])
def test_every_dtype(name: str, tmp_path: Path) -> None:
    import weft_ops as ops
    from weft.graph.nodes import GraphBuilder, TensorType

    of = dt.dtype(name)
    b = GraphBuilder("turned")
    b.output(b.add(ops.Transpose((1, 0)), b.input("x", TensorType(of, (3, 4)))), "y")
    exe = weft.compile(b.build(), "llvm")
    exe.save(tmp_path / "m.weft")
    agree(exe, Program(tmp_path / "m.weft"), [{"x": np.arange(12).reshape(3, 4).astype(of.numpy)}])


def test_storage_of_the_caller(opening: Opening) -> None:
    for exe, given in (
        (weft.compile(mlp(), "llvm"), {"x": np.ones((3, 64), np.float32)}),
        (weft.compile(onnx_model(SCAN), "llvm"), {"s": np.ones(2, np.float32), "x": np.ones((2, 5), np.float32)}),
    ):
        program, wanted = opening(exe), exe.run(given)
        out = {name: np.full(a.shape, np.nan, a.dtype) for name, a in wanted.items()}
        program.run(given, out)
        for name, array in wanted.items():
            np.testing.assert_array_equal(out[name], array)
        name, right = next(iter(wanted.items()))
        small = np.zeros((right.shape[0] + 1, *right.shape[1:]), right.dtype)
        with pytest.raises(Refused, match="output") as refused:
            program.run(given, {name: small})
        assert refused.value.code == 3
        np.testing.assert_array_equal(program.run(given)[name], right)


def test_wrong_inputs(opening: Opening) -> None:
    program, x = opening(weft.compile(mlp(), "llvm")), np.zeros((3, 64), np.float32)
    for wrong, code, what in (
        (x[:, :63], 2, "input 'x' of 'mlp' has size 63 on axis 1, expected 64"),
        (x.astype(np.float64), 2, r"input 'x' of 'mlp' has DLPack's type \(2, 64, 1\), expected float32 \(2, 32, 1\)"),
        (x[0], 2, "input 'x' of 'mlp' has rank 1, expected 2"),
    ):
        with pytest.raises(Refused, match=what) as refused:
            program.run({"x": wrong})
        assert refused.value.code == code
    for field, value, what in (
        ("device_type", 2, "input 'x' is in the memory of device type 2"),
        ("data", None, "the data of an input is a null pointer"),
        ("data", x.ctypes.data + 1, "the data of input 'x' are at no multiple of 4 bytes"),
        ("shape", None, "the shape of input 'x' is a null pointer"),
        ("lanes", 4, "has DLPack's type"),
    ):
        tensor = Tensor(x)
        setattr(tensor.raw, field, value)
        assert program.call([tensor], [Tensor(None, 2)]) in (1, 2)
        assert what in program.error.message.decode()
    strided = Tensor(x)
    strides = (ctypes.c_int64 * 2)(1, 3)
    strided.raw.strides = ctypes.addressof(strides)
    assert program.call([strided], [Tensor(None, 2)]) == 2
    assert "input 'x' is not row-major: axis 1 has the stride 3" in program.error.message.decode()
    huge = Tensor(x)
    huge.shape[0] = 1 << 45
    assert (
        program.call([huge], [Tensor(None, 2)]) == 2 and "more than memory can hold" in program.error.message.decode()
    )
    assert program.run({"x": x})["y"].shape == (3, 32), "the next call is right"


def test_sizes_of_one_name_are_equal(opening: Opening) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float[n] y, bool c) => (float[n] z) {
      z = If (c) <then_branch = t () => (float[n] p) { p = Add (x, y) },
                  else_branch = e () => (float[n] q) { q = Sub (x, y) }>
    }"""
    program = opening(weft.compile(onnx_model(text), "llvm"))
    with pytest.raises(Refused, match=r"has size \d on axis 0, expected \d") as refused:
        program.run({"x": np.ones(3, np.float32), "y": np.ones(4, np.float32), "c": np.array(True)})
    assert refused.value.code == 2


def test_a_condition_on_data_is_an_error_of_the_run(opening: Opening) -> None:
    text = (
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64[2] i) => (float[2] y) { y = Gather (x, i) }"""
    )
    exe = weft.compile(onnx_model(text), "llvm")
    program, x = opening(exe), np.arange(4, dtype=np.float32)
    with pytest.raises(Refused) as refused:
        program.run({"x": x, "i": np.array([0, 9])})
    with pytest.raises(weft.WeftError) as here:
        exe.run({"x": x, "i": np.array([0, 9])})
    assert refused.value.code == 10 and refused.value.message.splitlines()[0] == here.value.what
    agree(exe, program, [{"x": x, "i": np.array([0, -1])}])


def test_storage_must_not_overlap(opening: Opening) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] a, float[2] b) => (float[2] p, float[2] q)
    { p = Neg (b)
      q = Neg (a) }"""
    program = opening(weft.compile(onnx_model(text), "llvm"))
    a, b, both = np.ones(2, np.float32), np.full(2, 2, np.float32), np.zeros(3, np.float32)
    for out in ([a, np.zeros_like(a)], [np.zeros_like(a), b], [both[:2], both[1:]]):
        assert program.call([Tensor(a), Tensor(b)], [Tensor(o) for o in out]) == 3
        assert "overlaps an input or the storage of another output" in program.error.message.decode()
    good = [np.zeros_like(a), np.zeros_like(a)]
    assert program.call([Tensor(a), Tensor(b)], [Tensor(o) for o in good]) == 0
    assert good[0].tolist() == [-2, -2] and good[1].tolist() == [-1, -1]
    assert program.error.code == 0 and program.error.message == b"", "of the last call"


def test_sizes_are_those_that_the_plan_says(tmp_path: Path) -> None:
    """A manifest that says other ones, with the signature that belongs to it."""
    from weft_runtime import archive

    text = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] zz) {
      zz = If (c) <then_branch = t () => (float[2] p) { p = Neg (x) },
                   else_branch = e () => (float[2] q) { q = Abs (x) }>
    }"""
    exe = weft.compile(onnx_model(text), "llvm")
    exe.save(tmp_path / "m.weft")
    good = (tmp_path / "m.weft").read_bytes()
    given = {"c": np.array(False), "x": np.ones(2, np.float32)}
    agree(exe, Program(good), [given])
    other = exe.manifest.with_(outputs=(replace(exe.outputs[0], shape=(3,)),))
    archive.save(tmp_path / "other.weft", other, exe.stored().code, {})
    program = Program(tmp_path / "other.weft")
    assert program.outputs == [("zz", "float32", [3])]
    with pytest.raises(Refused, match="'zz' of 'g' has size 2 on axis 0, expected 3") as refused:
        program.run(given)
    assert refused.value.code == 10


def test_calls_from_several_threads(opening: Opening) -> None:
    exe = weft.compile(transformer(), "llvm")
    program, given = opening(exe), [drawn(exe, n) for n in (1, 2, 3, 4)]
    wanted, wrong = [exe.run(g) for g in given], []

    def work(k: int) -> None:
        other = Program.__new__(Program)
        other.__dict__.update(program.__dict__, error=Error(size=ctypes.sizeof(Error)))
        for _ in range(20):
            got = other.run(given[k])
            wrong.extend(n for n in got if not np.array_equal(got[n], wanted[k][n]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_null_pointers_and_sizes_of_structures(tmp_path: Path) -> None:
    weft.compile(mlp(), "llvm").save(tmp_path / "m.weft")
    lib, error = loaded(library()), Error(size=ctypes.sizeof(Error))
    program = Program(tmp_path / "m.weft")
    end = ctypes.byref(error)
    assert lib.weft_api_version() == 1
    assert lib.weft_open(None, None, ctypes.byref(ctypes.c_void_p()), end) == 1 and b"no model inside" in error.message
    assert lib.weft_open(b"x", None, None, end) == 1 and b"program is a null pointer" in error.message
    short = Options(4, 0, None)
    assert lib.weft_open(b"x", ctypes.byref(short), ctypes.byref(ctypes.c_void_p()), end) == 1
    assert error.message == b"options does not say its size\nhint: set size to sizeof"
    for function in (lib.weft_describe, lib.weft_run):
        assert function(None, None, None, end) == 1 or function is lib.weft_describe
    assert lib.weft_input(program.handle, 1, None, end) == 1 and b"info is a null pointer" in error.message
    assert lib.weft_run(program.handle, None, None, end) == 1 and b"inputs is a null pointer" in error.message
    assert lib.weft_run(program.handle, None, None, None) == 1, "without a place for the error"
    with pytest.raises(Refused, match=r"'mlp' has no input 1\nwhy: it has 1"):
        program.value(lib.weft_input, 1)
    lib.weft_close(None)
    lib.weft_release(None)
    program.close()


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), "llvm")
    exe.save(tmp_path / "m.weft")
    good = (tmp_path / "m.weft").read_bytes()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "cut").write_bytes(good[: len(good) // 2])
    (tmp_path / "short").write_bytes(good[:400])
    (tmp_path / "other").write_bytes(good[:64] + bytes(200))
    for name, code, what in (
        ("none", 5, "cannot be opened"), ("", 5, "cannot be read"), ("empty", 6, "it is empty"),
        ("text", 6, "it does not begin as a zip"), ("cut", 6, "the archive is damaged"),
        ("short", 6, "its plan is malformed"), ("other", 6, "it has no plan"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=what) as refused:
            Program(tmp_path / name)
        assert refused.value.code == code
    with pytest.raises(Refused, match="the archive is not the expected one") as refused:
        Program(tmp_path / "m.weft", sha256="0" * 64)
    assert refused.value.code == 6
    Program(tmp_path / "m.weft", sha256=digest(tmp_path / "m.weft").upper()).close()


def test_code_does_not_run_with_another_plan(tmp_path: Path) -> None:
    weft.compile(mlp(), "llvm").save(tmp_path / "m.weft")
    good = (tmp_path / "m.weft").read_bytes()

    def refused(data: bytes | bytearray, what: str, code: int = 6) -> None:
        with pytest.raises(Refused, match=what) as found:
            Program(bytes(data))
        assert found.value.code == code

    (size,) = struct.unpack_from("<I", good, hostile.PLAN + 8)
    end = hostile.PLAN + size
    refused(good.replace(b"\0mlp\0", b"\0mpl\0", 1), r"the archive is damaged\nwhere: plan")
    other = bytearray(good)
    other[hostile.PLAN + hostile.SIGNATURE] ^= 1
    other[end : end + 32] = hashlib.sha256(other[hostile.PLAN : end]).digest()
    refused(other, r"the archive is damaged\nwhere: main")
    older = bytearray(good)
    struct.pack_into("<i", older, hostile.PLAN + 4, 6)
    refused(older, "the archive has format 6, this library reads 7", 7)
    refused(good[:30] + b"manifest.json" + good[43:], "the archive has a format before 7, which this library reads", 7)
    at = good.index(b"weights.safetensors") + 4000
    refused(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], r"the archive is damaged\nwhere: weights\.safetensors")


def _with_word(good: bytes, at: int, form: str, word: int) -> bytes:
    data = bytearray(good)
    struct.pack_into(form, data, at, word)
    return hostile.repaired(data)


def test_words_of_a_plan_are_those_that_they_may_be(tmp_path: Path) -> None:
    """Each kind of word, out of its bounds."""
    weft.compile(mlp(), "llvm").save(tmp_path / "m.weft")
    good = (tmp_path / "m.weft").read_bytes()
    (size,) = struct.unpack_from("<I", good, hostile.PLAN + 8)
    own = hostile.rows(good, hostile.PLANS, 40)[-1]
    info = hostile.rows(good, own - hostile.PLAN, 28)[0]
    step = hostile.rows(good, own + 16 - hostile.PLAN, 72)[0]
    constant = hostile.rows(good, hostile.CONSTANTS, 24)[0]
    lists = [hostile.PLAN + k for k in range(128, hostile.HEAD, 8)] + [own, own + 16, own + 24, info + 12, info + 20]
    lists += [step + k for k in range(16, 72, 8)]
    changes = [(at + 4, "<i", n) for at in lists for n in (-1, 1 << 20, (1 << 31) - 1)]
    changes += [(at, "<i", n) for at in lists for n in (-8, 0, 4, size + 8)]
    changes += [(at, "<i", n) for at in (hostile.PLAN + 12, info, info + 4) for n in (-1, size)]  # texts
    changes += [(info + 9, "<B", bits) for bits in (0, 3, 24, 255)]
    changes += [(own + 8, "<i", n) for n in (-1, 3, 1 << 30)] + [(own + 32, "<i", n) for n in (-1, 65)]  # inputs, depth
    changes += [(step, "<i", n) for n in (-1, 3, 4, 5)] + [(step + 4, "<i", n) for n in (-1, 9)]  # kinds, sections
    changes += [(step + 8, "<i", n) for n in (-1, 1 << 30)] + [(step + 12, "<i", 1)]  # entries, natives
    changes += [
        (hostile.PLAN + struct.unpack_from("<I", good, step + k)[0], "<i", n) for k in (16, 24) for n in (-3, -1, 2)
    ]
    changes += [(constant + 8, "<Q", at) for at in (1, 1 << 20, 1 << 40, (1 << 64) - 64)]
    changes += [(constant, "<i", bytes_) for bytes_ in (-(1 << 31), -1, 0, 3, 32)]
    changes += [(hostile.PLAN + 40, "<i", n) for n in (-1, size // 8 + 1, (1 << 31) - 1)]  # symbols
    (weights,) = struct.unpack_from("<Q", good, hostile.PLAN + hostile.WEIGHTS)
    changes += [(hostile.PLAN + hostile.WEIGHTS, "<Q", weights + n) for n in (1, 4, 32)]  # not at multiples of 64
    for at, form, word in changes:
        with pytest.raises(Refused, match=r"its plan is malformed|the archive is damaged") as refused:
            Program(_with_word(good, at, form, word)).close()
            pytest.fail(f"{word} at {at - hostile.PLAN}")
        assert refused.value.code == 6


def test_why_a_size_is_expected(opening: Opening) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float[n] y) => (float[n] z) { z = Add (x, y) }"""
    program = opening(weft.compile(onnx_model(text), "llvm"))
    with pytest.raises(Refused) as refused:
        program.run({"x": np.ones(3, np.float32), "y": np.ones(4, np.float32)})
    assert refused.value.code == 2
    expected = "input 'y' of 'g' has size 4 on axis 0, expected 3\nwhy: axis 0 of input 'x' has it"
    assert str(refused.value).endswith(expected)


def test_a_mapped_file_that_changes(tmp_path: Path) -> None:
    """The plan of an archive of more than 64 MiB, whose weights are used where they lie, is a copy."""
    from weft_runtime import archive
    from weft_runtime.plan import ConstantInfo, HostCall, Manifest, TensorInfo

    numbers = np.arange(9 << 20, dtype=np.int64)
    x, y = TensorInfo("x", "int64", ("n",)), TensorInfo("y", "int64", ("n",))
    sizes = TensorInfo("s", "int64", (1,))
    steps = (HostCall("WithSizes", ("x",), ("y",)), HostCall("Sizes", ("c",), ("s",)))
    constant = ConstantInfo("c", "int64", numbers.shape)
    manifest = Manifest("large", "host", "any", (), (x,), (y, sizes), steps, constants=(constant,))
    path = tmp_path / "m.weft"
    archive.save(path, manifest, {}, {"c": numbers})
    assert path.stat().st_size > 64 << 20
    program = Program(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    got = program.run({"x": np.arange(3)})
    assert list(got["y"]) == [0, 1, 2] and list(got["s"]) == [9 << 20]
    program.close()


def test_archives_of_other_machines(tmp_path: Path) -> None:
    other = "aarch64" if machine() == "x86_64" else "x86_64"
    weft.compile(mlp(), f"llvm -mtriple={other}-unknown-linux-gnu").save(tmp_path / "m.weft")
    with pytest.raises(Refused, match=f"'mlp' was compiled for {other}, this machine is {machine()}") as refused:
        Program(tmp_path / "m.weft")
    assert refused.value.code == 8


@pytest.mark.skipif(machine() != "x86_64", reason="the extension is of x86-64")
def test_archives_of_processors_with_more(tmp_path: Path) -> None:
    from weft_runtime.cpu_features import host_features

    assert "xop" not in host_features() or "avx512fp16" not in host_features()
    lacking = "xop" if "xop" not in host_features() else "avx512fp16"
    weft.compile(mlp(), f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64 -mattr=+{lacking}").save(tmp_path / "m")
    with pytest.raises(
        Refused, match=r"'mlp' was compiled for a processor with \w+, which this machine lacks"
    ) as refused:
        Program(tmp_path / "m")
    assert refused.value.code == 8


def test_steps_that_run_where_python_is(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]> g (string[n] x) => (string[n] y) { y = StringConcat (x, x) }"""
    exe = weft.compile(onnx_model(text), "llvm")
    exe.save(tmp_path / "m.weft")
    with pytest.raises(Refused, match="which only runs where Python is\nhint: run it with") as refused:
        Program(tmp_path / "m.weft")
    assert refused.value.code == 9


def test_damaged_archives_are_refused_or_read(tmp_path: Path) -> None:
    """A few hundred; `python -m tests.libweft.hostile` tries more, with an address sanitizer."""
    command = [sys.executable, "-m", "tests.libweft.hostile", "--copies", "400", "--library", str(library())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 copies" in done.stdout


# -- exports ----------------------------------------------------------------------------------------------------------


def test_an_export_needs_no_tool(tmp_path: Path) -> None:
    code = f"import weft; from weft_testing.models import mlp; weft.export(mlp(), {str(tmp_path / 'm.so')!r})"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PATH": ""}, check=True, timeout=300)
    program = Program(None, tmp_path / "m.so")
    agree(weft.compile(mlp(), "llvm"), program, [{"x": np.ones((2, 64), np.float32)}])
    error = Error(size=ctypes.sizeof(Error))
    lib, handle = loaded(tmp_path / "m.so"), ctypes.c_void_p()
    assert lib.weft_open(b"m.weft", None, ctypes.byref(handle), ctypes.byref(error)) == 1
    assert b"has its model inside and opens no file" in error.message
    assert lib.weft_open_memory(b"", 0, None, ctypes.byref(handle), ctypes.byref(error)) == 9


def test_two_models_and_two_versions_in_one_process(tmp_path: Path) -> None:
    first, second = weft.compile(mlp(), "llvm"), weft.compile(lstm(), "llvm")
    weft.export(first, tmp_path / "a.so")
    weft.export(second, tmp_path / "b.so")
    second.save(tmp_path / "b.weft")
    programs = [Program(None, tmp_path / "a.so"), Program(None, tmp_path / "b.so"), Program(tmp_path / "b.weft")]
    for _ in range(3):
        for exe, program in zip((first, second, second), programs):
            agree(exe, program, [drawn(exe, 2)])


def test_prefixes(tmp_path: Path) -> None:
    weft.export(mlp(), tmp_path / "m.so", options={"prefix": "two"})
    assert loaded(tmp_path / "m.so").two_weft_api_version() == 1
    with pytest.raises(AttributeError):
        loaded(tmp_path / "m.so").weft_api_version  # noqa: B018
    with pytest.raises(InputError, match="'a-b' is no prefix of names in C"):
        weft.export(mlp(), tmp_path / "n.so", options={"prefix": "a-b"})


PROGRAM = r"""
#include <stdio.h>
#include "weft.h"
int main(void) {
  weft_error error = {sizeof error, 0, ""};
  weft_program *program = NULL;
  if (weft_open(NULL, NULL, &program, &error) != 0) return puts(error.message), 1;
  float x[64];
  int64_t shape[2] = {1, 64}, sizes[2];
  for (int k = 0; k < 64; ++k) x[k] = (float)(k % 7 - 3);
  weft_tensor in = {x, 1, 0, 2, WEFT_FLOAT, 32, 1, shape, NULL, 0}, out = {NULL, 0, 0, 0, 0, 0, 0, sizes, NULL, 0};
  const weft_tensor *const ins[] = {&in};
  weft_tensor *const outs[] = {&out};
  if (weft_run(program, ins, outs, &error) != 0) return puts(error.message), 1;
  for (int k = 0; k < 32; ++k) printf("%.9g\n", (double)((float *)out.data)[k]);
  weft_release(&out);
  weft_close(program);
  return 0;
}
"""


def _expected() -> Array:
    x = (np.arange(64) % 7 - 3).astype(np.float32)[None]
    return weft.compile(mlp(), "llvm").run({"x": x})["y"][0]


@pytest.mark.parametrize("form", ["elf", "obj", "prefixed obj", pytest.param("static obj", marks=pytest.mark.full)])
def test_c_programs_link_exports(form: str, tmp_path: Path) -> None:
    from libweft import build

    (tmp_path / "main.c").write_text(("#define WEFT_PREFIX my\n" if "prefix" in form else "") + PROGRAM)
    place = tmp_path / ("libm.so" if form == "elf" else "m.o")
    weft.export(mlp(), place, form.split()[-1], options={"prefix": "my"} if "prefix" in form else {})
    target = [f"{machine()}-linux-musl", "-static"] if "static" in form else [build.shared_target(machine())]
    build.compiler("-target", *target, f"-I{build.INCLUDES[0]}", tmp_path / "main.c", place, "-o", tmp_path / "main")
    done = subprocess.run(
        [tmp_path / "main"], env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_array_equal(np.array(done.stdout.split(), np.float32), _expected())


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    from libweft import build

    text = (build.HERE.parent / "docs" / "deploy.md").read_text(encoding="utf-8")
    example = re.search(r"^```c\n(.*?)^```$", text, re.M | re.S)
    assert example is not None
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "weft.h"\nstatic float data[512];\nint main(void) {\n  data[0] = 1;\n'
        + example[1].replace(
            "weft_release(&y);", 'printf("%.9g\\n", (double)((float *)y.data)[0]);\n weft_release(&y);'
        )
        + "  return 0;\n}\n"
    )
    exe = weft.compile(mlp(), "llvm")
    exe.save(tmp_path / "model.weft")
    command = [f"-I{build.INCLUDES[0]}", tmp_path / "main.c", library(), "-o", tmp_path / "main"]
    build.compiler("-target", build.shared_target(machine()), *command)
    (tmp_path / "libweft.so.1").symlink_to(library())
    done = subprocess.run(
        [tmp_path / "main"], cwd=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    x = np.zeros((8, 64), np.float32)
    x[0, 0] = 1
    assert np.float32(done.stdout) == exe.run({"x": x})["y"][0, 0]


def test_exports_refuse_other_machines_and_steps(tmp_path: Path) -> None:
    exe = weft.compile(mlp(), "llvm")
    with pytest.raises(TargetError, match="a DLL holds code for 64-bit Windows") as refused:
        weft.export(exe, tmp_path / "m.dll")
    assert refused.value.hint == 'compile it with -t "llvm -mtriple=x86_64-pc-windows-gnu"'
    with pytest.raises(TargetError, match="use -f obj"):
        weft.export(exe, tmp_path / "m.o", "macho-obj")
    with pytest.raises(TargetError, match="compiled for another target than the machine code"):
        weft.export(weft.compile(mlp(), "llvm -mtriple=wasm32"), tmp_path / "m.so")
    text = """<ir_version: 8, opset_import: ["" : 20]> g (string[n] x) => (string[n] y) { y = StringConcat (x, x) }"""
    with pytest.raises(UnsupportedError, match="1 of its steps run where Python is"):
        weft.export(onnx_model(text), tmp_path / "m.so")
    with pytest.raises(InputError, match="names no format"):
        weft.export(exe, tmp_path / "m.o")
    assert list(tmp_path.iterdir()) == []


def test_a_dll_is_well_formed(tmp_path: Path) -> None:
    """What the Microsoft format says of headers, sections, imports and exports; wine runs it with --full."""
    target = "llvm -mtriple=x86_64-pc-windows-gnu -mcpu=x86-64-v3"
    weft.export(mlp(), tmp_path / "m.dll", target=target)
    data = (tmp_path / "m.dll").read_bytes()
    (at,) = struct.unpack_from("<I", data, 60)
    assert data[at : at + 4] == b"PE\0\0" and struct.unpack_from("<HH", data, at + 4) == (0x8664, 3)
    (characteristics,) = struct.unpack_from("<H", data, at + 22)
    assert characteristics & 0x2000
    sections = []
    for k in range(3):
        name, size, address, stored, place = struct.unpack_from("<8sIIII", data, at + 24 + 240 + 40 * k)
        flags = struct.unpack_from("<I", data, at + 24 + 240 + 40 * k + 36)[0]
        assert place % 512 == 0 and place + stored <= len(data) and address % 4096 == 0 and stored >= size
        assert not (flags & 0x20000000 and flags & 0x80000000), "nothing is written and executed"
        sections.append((name.rstrip(b"\0"), address, size, place))
    assert [s[0] for s in sections] == [b".data", b".text", b".rdata"]

    def at_rva(rva: int) -> int:
        return next(place + rva - address for _, address, size, place in sections if address <= rva < address + size)

    exports, _, imports, _ = struct.unpack_from("<4I", data, at + 24 + 112)
    count, names = (
        struct.unpack_from("<I", data, at_rva(exports) + 24)[0],
        struct.unpack_from("<I", data, at_rva(exports) + 32)[0],
    )
    found = []
    for k in range(count):
        (name,) = struct.unpack_from("<I", data, at_rva(names) + 4 * k)
        begin = at_rva(name)
        found.append(data[begin : data.index(b"\0", begin)].decode())
    assert found == sorted(found) and {"weft_open", "weft_run", "weft_close"} <= set(found) and len(found) == 9
    (library_name,) = struct.unpack_from("<I", data, at_rva(imports) + 12)
    assert data[at_rva(library_name) :].startswith(b"msvcrt.dll\0")


# -- what is shipped --------------------------------------------------------------------------------------------------


def test_the_runtime_of_exports_is_that_of_the_sources(tmp_path: Path) -> None:
    from libweft import build

    build.write_bitcode(tmp_path)
    for bits in build.BITCODE:
        name = f"runtime{bits}.bc"
        assert (tmp_path / name).read_bytes() == (build.EXPORTS / name).read_bytes(), "python -m libweft.build bitcode"


def test_the_header_is_one_of_cplusplus_too(tmp_path: Path) -> None:
    from libweft import build

    (tmp_path / "a.cpp").write_text('#include "weft.h"\nint main() { return weft_api_version() - WEFT_API_VERSION; }\n')
    flags = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", f"-I{build.INCLUDES[0]}"]
    build.compiler(*flags, tmp_path / "a.cpp", "-o", tmp_path / "a.o")
