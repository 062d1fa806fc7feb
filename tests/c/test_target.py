"""The target: its options, its compiler, its image, and what goes wrong with them."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import weft
from weft.codegen.segment import SegmentSpec
from weft.errors import CodegenError, TargetError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.resolve import resolve_target
from weft_c import image, toolchain
from weft_c.segment import emit_segment
from weft_c.toolchain import Compiler, compiler, default_command
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import MatMul
from weft_runtime.abi import STRUCTURES
from weft_runtime.executable import Executable
from weft_testing.imports import imports_beyond
from weft_testing.models import mlp

VECTORS: list[Any] = [
    0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    3.7,
    -3.7,
    1e-310,
    4503599627370497.5,
    1e300,
    math.inf,
    math.nan,
    2.0**52,
    1 + 2.0**-52,
    5e-324,
    0.1,
    7.25,
]


def dense() -> Graph:
    g = GraphBuilder("dense")
    x, w, b = (
        g.input("x", tensor_type("float32", (Var("n"), 5))),
        g.input("w", tensor_type("float32", (5, 3))),
        g.input("b", tensor_type("float32", (3,))),
    )
    g.output(g.add(Relu(), g.add(Add(), g.add(MatMul(), x, w), b)), "y")
    return g.build()


def test_only_public_names_are_imported() -> None:
    assert imports_beyond("weft_c") == []


def test_a_symbolic_model_and_its_errors() -> None:
    """Sizes are bound at run time and checked; the next call works."""
    executable = weft.compile(dense(), target="c", cache=False)
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    for n in (0, 1, 7):
        x = rng.standard_normal((n, 5)).astype(np.float32)
        np.testing.assert_allclose(
            executable.run({"x": x, "w": w, "b": b})["y"], np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(weft.WeftError, match="input 'w' has size 4 on axis 1, expected 3"):
        executable.run({"x": x, "w": np.zeros((5, 4), np.float32), "b": b})
    with pytest.raises(weft.WeftError, match="storage for output 'y' has size 2 on axis 0, the result has 7"):
        executable.run({"x": x, "w": w, "b": b}, out={"y": np.zeros((2, 3), np.float32)})
    assert executable.run({"x": x, "w": w, "b": b})["y"].shape == (7, 3)


def test_an_archive_runs_without_the_compiler(tmp_path: Path) -> None:
    graph = mlp()
    executable = weft.compile(graph, target="c", cache=False)
    executable.save(tmp_path / "mlp.weft")
    assert Executable.inspect(tmp_path / "mlp.weft").sections["main"].plugin == "weft-c"
    code = (
        "import sys, numpy as np\nfrom weft_runtime import Executable\n"
        f"e = Executable.load({str(tmp_path / 'mlp.weft')!r})\n"
        "e.run({i.name: np.ones([3 if isinstance(d, str) else d for d in i.shape], i.dtype) for i in e.inputs})\n"
        "assert not any(m.startswith(('weft_c', 'weft.codegen')) for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PATH": ""})


def test_the_functions_of_math_h_are_c_s_own(tmp_path: Path) -> None:
    """`library.c` against the machine's C library, bit for bit, on numbers that are hard to round."""
    text = Path(image.__file__).with_name("library.c").read_text()
    names = {"floor": 1, "ceil": 1, "trunc": 1, "rint": 1, "sqrt": 1, "fabs": 1, "copysign": 2, "fmod": 2, "fma": 3}
    words = [*names, *(n + "f" for n in names), "memcpy", "memmove", "memset", "memcmp"]
    defines = [f"-D{n}=own_{n}" for n in words]
    options = ["-std=c99", "-O1", "-ffp-contract=off", "-ffreestanding", "-fno-builtin"]
    (tmp_path / "library.c").write_text(text)
    command = compiler(default_command(), "c99", "2", None).command
    subprocess.run(
        [*command, *options, *defines, "-shared", "-fPIC", "library.c", "-o", "library.so"], cwd=tmp_path, check=True
    )
    own, libm = (
        ctypes.CDLL(str(tmp_path / "library.so")),
        ctypes.CDLL(None if sys.platform == "darwin" else "libm.so.6"),
    )
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        values = [
            *VECTORS,
            *(-v for v in VECTORS),
            *(rng.standard_normal(200) * 10.0 ** rng.uniform(-300, 300, 200)).tolist(),
            *rng.uniform(-9, 9, 200).tolist(),
        ]
    for name, arity in names.items():
        for suffix, kind, pack in (("", ctypes.c_double, "<d"), ("f", ctypes.c_float, "<f")):
            f, g = getattr(own, f"own_{name}{suffix}"), getattr(libm, name + suffix)
            for h in (f, g):
                h.restype, h.argtypes = kind, [kind] * arity
            for k, v in enumerate(values):
                if kind is ctypes.c_float:
                    with np.errstate(all="ignore"):
                        v = float(np.float32(v))
                second, third = values[(7 * k + 3) % len(values)], values[(5 * k + 1) % len(values)]
                if name == "fmod":  # quotients that are not astronomical
                    second = (
                        math.ldexp(1.7, max(-1000, min(1000, math.frexp(v)[1] - k % 40)))
                        if math.isfinite(v)
                        else second
                    )
                args = (v, second, third)[:arity]
                if name == "fma" and not all(1e-60 < abs(a) < 1e60 for a in args):
                    continue  # where a product leaves the range of exact halves the sum of two roundings is taken
                a, b = f(*args), g(*args)
                assert struct.pack(pack, a) == struct.pack(pack, b) or (math.isnan(a) and math.isnan(b)), (
                    f"{name}{suffix}{args}: {a}, not {b}"
                )


@pytest.mark.parametrize("cc", ["", pytest.param(" -cc=zig", marks=pytest.mark.needs("ziglang"))])
def test_march_says_what_it_needs(cc: str) -> None:
    """Extensions that the code may use stand in the manifest; without -march none but the architecture's own do."""
    plain = weft.compile(mlp(), target=f"c{cc}", cache=False).manifest
    assert not {"avx", "avx2", "fma", "sve"} & set(plain.features)
    if plain.machine == "x86_64":
        assert {"avx2", "fma"} <= set(
            weft.compile(mlp(), target=f"c{cc} -march=x86-64-v3", cache=False).manifest.features
        )


def test_structures_are_those_of_the_binary_interface() -> None:
    """The system's compiler lays out what segments declare as the runtime does."""
    asserts = [(s.name, field, at) for s in STRUCTURES for field, at in s.offsets().items()]
    lines = [
        f"typedef char {kind}_{field}[offsetof(struct {kind}, {field}) == {at} ? 1 : -1];"
        for kind, field, at in asserts
    ]
    text = emit_segment(SegmentSpec("s", (), (), 0, (), (), ()))
    compiler(default_command(), "c99", "2", None).object(text + "\n".join(lines) + "\n", "offsets")


def test_options() -> None:
    assert str(resolve_target("c").target) == f"c -cc={default_command()}"
    with pytest.raises(TargetError) as error:
        resolve_target("c -std=c90")
    assert str(error.value).startswith("option '-std' is one of c99, c11, c17, got 'c90'")
    assert resolve_target("c").fingerprint != resolve_target("c -opt=3").fingerprint


def test_there_is_no_compiler() -> None:
    with pytest.raises(weft.WeftError) as error:
        weft.compile(mlp(), target="c -cc=/no/such/cc", cache=False)
    assert "there is no C compiler '/no/such/cc'" in str(error.value)
    assert "hint: install one (gcc, clang), or `pip install ziglang` and take -cc=zig" in str(error.value)


def test_a_command_that_is_no_compiler() -> None:
    with pytest.raises(TargetError, match="'false' does not say what it is"):
        compiler("false", "c99", "2", None)


def test_the_default_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: "/bin/clang" if name == "clang" else None)
    assert default_command() == "clang"
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert default_command() == ("zig" if importlib.util.find_spec("ziglang") else "cc")


def test_what_the_compiler_says_is_shown() -> None:
    with pytest.raises(CodegenError) as error:
        compiler(default_command(), "c99", "2", None).object("int f(void) { return nothing; }\n", "f")
    text = str(error.value)
    assert text.startswith("the C compiler does not take 'f'\n") and "return nothing;" in text
    assert "hint: -cc=… names another compiler; weft inspect --stage source shows the text" in text


def test_there_is_no_folder_for_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cc = compiler(default_command(), "c99", "2", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(CodegenError) as error:
        cc.object("int f(void) { return 0; }\n", "f")
    assert re.fullmatch(
        rf"the C compiler could not be asked for 'f'\n  {tmp_path}/none/weft-c-\w+\n  why: No such file or directory\n"
        "  hint: it needs a folder for its files, which TMPDIR names, and a process",
        str(error.value),
    )
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=OSError(11, "Resource temporarily unavailable")))
    with pytest.raises(TargetError) as refused:
        compiler.__wrapped__(default_command(), "c99", "2", None)
    assert str(refused.value).startswith(
        f"'{default_command()}' does not run\n  c -cc={default_command()}\n  why: Resource temporarily unavailable\n"
    )


def test_images() -> None:
    """Only what can be mapped anywhere is taken."""
    with pytest.raises(CodegenError, match="the C compiler makes no ELF files of 64 bits"):
        image.flatten(b"\xcf\xfa\xed\xfe" + bytes(60))
    cc = compiler(default_command(), "c99", "2", None)
    text = '__attribute__((visibility("default"))) const char *name = "a pointer in data needs a relocation";\n'
    with pytest.raises(CodegenError, match="the linked code is not position-independent"):
        image.flatten(cc.shared(text, {}, "f"))
    with pytest.raises(CodegenError, match=r"undefined (reference|symbol)"):
        cc.shared(
            'extern int there(void);\n__attribute__((visibility("default"))) int f(void) { return there(); }\n', {}, "f"
        )


@pytest.mark.needs("ziglang")
def test_zig_compiles_it_too() -> None:
    executable = weft.compile(mlp(), target="c -cc=zig", cache=False)
    assert executable.manifest.sections["main"].plugin == "weft-c"


CROSS = f"{sys.executable} -m ziglang cc -target {{}}-linux-gnu"


@pytest.mark.needs("ziglang")
def test_code_for_aarch64_leaves_the_register_alone_that_systems_reserve(tmp_path: Path) -> None:
    """Whoever holds so many numbers takes every register that there is."""
    names = [f"a{k}" for k in range(40)]
    text = (
        "long f(const long *p, long n) {\n"
        + "".join(f"  long {a} = p[{k}];\n" for k, a in enumerate(names))
        + "  while (n--) {\n"
    )
    text += (
        "".join(f"    {a} += {b} ^ n;\n" for a, b in zip(names, names[1:] + names[:1]))
        + "  }\n  return "
        + " ^ ".join(names)
        + ";\n}\n"
    )
    cross = compiler(CROSS.format("aarch64"), "c99", "2", None)
    (tmp_path / "f.c").write_text(text)

    def assembly(options: tuple[str, ...]) -> str:
        subprocess.run(
            [*cross.command, *options, *toolchain.CODE, "-g0", "-S", "f.c", "-o", "f.s"], cwd=tmp_path, check=True
        )
        return (tmp_path / "f.s").read_text()

    assert re.search(r"\bx18\b", assembly(cross.options[:2]))
    assert not re.search(r"\b[wx]18\b", assembly(cross.options))


@pytest.mark.needs("ziglang")
def test_code_that_nothing_runs_is_not_made() -> None:
    command = CROSS.format("riscv64")
    with pytest.raises(TargetError) as error:
        compiler(command, "c99", "2", None)
    assert (
        str(error.value)
        == f"no code is made for riscv64, which '{command}' compiles for\n  c -cc='{command}'\n  why: what is run is"
        " code for aarch64 and x86_64: memory for results is native code that Weft brings, and it has it for"
        " these\n  hint: name a compiler for one of them: -cc=…"
    )


@pytest.mark.needs("ziglang")
@pytest.mark.parametrize("home", ["/dev/null", "", None])
def test_zig_works_where_the_home_is_read_only_or_none(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZIG_GLOBAL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)  # /dev/null: not to be written by root either
    toolchain._zig_environment.cache_clear()
    try:
        toolchain.compiler.cache_clear()
        assert "clang" in compiler("zig", "c99", "2", None).version
        folder = Path(toolchain.zig_environment()["ZIG_GLOBAL_CACHE_DIR"])
        assert folder.is_dir()
    finally:
        toolchain._zig_environment.cache_clear()
        toolchain.compiler.cache_clear()


def test_the_compiler_is_asked_once() -> None:
    assert compiler(default_command(), "c99", "2", None) is compiler(default_command(), "c99", "2", None)
    assert isinstance(compiler(default_command(), "c99", "2", None), Compiler)
