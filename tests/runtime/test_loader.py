"""Code is mapped and called; the ABI is where it says it is; threads are counted as the system grants them."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from weft_runtime import dlpack, dtypes, threads
from weft_runtime.abi import IMPORTS, OFFSETS, TENSOR_OFFSETS, Context, DLTensor, dlpack_type, type_word
from weft_runtime.dlpack import from_dlpack
from weft_runtime.errors import ExecutionError, InputError
from weft_runtime.loader import Code, imports_table


def test_layout() -> None:
    assert ctypes.sizeof(Context) == 160 and ctypes.sizeof(DLTensor) == 48
    assert [
        OFFSETS[n]
        for n in (
            "version",
            "arena",
            "constants",
            "parallel_for",
            "pool",
            "threads",
            "error_code",
            "error_args",
            "host",
        )
    ] == [
        0,
        8,
        24,
        32,
        64,
        72,
        80,
        88,
        152,
    ]
    assert TENSOR_OFFSETS["ndim"] == 16 and TENSOR_OFFSETS["shape"] == 24 and TENSOR_OFFSETS["byte_offset"] == 40
    tensor = DLTensor(ndim=3, code=2, bits=32, lanes=1)
    assert ctypes.c_int64.from_address(ctypes.addressof(tensor) + 16).value == type_word("float32", 3)
    assert dlpack_type("bool") == (6, 8) and dlpack_type("bfloat16") == (4, 16) and dlpack_type("int4") == (0, 4)


def test_code(monkeypatch: pytest.MonkeyPatch) -> None:
    if __import__("platform").machine() not in ("x86_64", "AMD64"):
        pytest.skip("bytes of an x86-64 function")
    code = Code(b"\x90" * 16 + b"\xb8\x2a\x00\x00\x00\xc3", {"answer": 16, "beyond": 1 << 30})
    assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address("answer"))() == 42
    for name in ("missing", "beyond"):
        with pytest.raises(ExecutionError, match=f"the code has no entry '{name}'\n  hint: entries: answer, beyond"):
            code.address(name)


def test_code_that_may_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_runtime import loader

    class Refusing:
        @staticmethod
        def mprotect(*args: object) -> int:
            ctypes.set_errno(13)
            return -1

    monkeypatch.setattr(loader, "_libc", Refusing)
    with pytest.raises(
        ExecutionError,
        match="compiled code cannot be made executable\n  why: Permission denied\n  hint: the system forbids",
    ):
        Code(b"\xc3", {})


def test_imports() -> None:
    table = imports_table()
    assert len(table) == len(IMPORTS) and table[IMPORTS.index("pthread_create")]
    assert imports_table() is table


def test_default_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WEFT_THREADS", raising=False)
    assert 1 <= threads.default_threads() <= 4096
    monkeypatch.setenv("WEFT_THREADS", "7")
    assert threads.default_threads() == 7
    groups = tmp_path / "groups"
    (tmp_path / "fs" / "a" / "b").mkdir(parents=True)
    groups.write_text("0::/a/b\n")
    assert threads._cgroup_quota(str(tmp_path / "fs"), str(groups)) is None
    (tmp_path / "fs" / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert threads._cgroup_quota(str(tmp_path / "fs"), str(groups)) is None
    (tmp_path / "fs" / "a" / "cpu.max").write_text("250000 100000\n")
    assert threads._cgroup_quota(str(tmp_path / "fs"), str(groups)) == 3  # the strictest above us, rounded up
    (tmp_path / "fs" / "cpu" / "a").mkdir(parents=True)
    (tmp_path / "fs" / "cpu" / "a" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "fs" / "cpu" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    groups.write_text("4:memory:/a\n3:cpu,cpuacct:/a\n")
    assert threads._cgroup_quota(str(tmp_path / "fs"), str(groups)) == 2
    assert threads._cgroup_quota(str(tmp_path / "fs"), str(tmp_path / "none")) is None


def test_dlpack_messages() -> None:
    class Broken:
        def __dlpack__(self) -> object:
            raise BufferError("it requires grad")

    class Foreign:
        def __dlpack__(self) -> object:
            return object()

    class Odd:
        """A tensor of packed int4."""

        def __init__(self) -> None:
            self.tensor = DLTensor(ndim=0, code=0, bits=4, lanes=1)
            ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
            ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

        def __dlpack__(self) -> object:
            return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(self.tensor), b"dltensor", None)

    with pytest.raises(InputError, match="input 'x' cannot be read through DLPack\n  why: it requires grad"):
        from_dlpack(Broken(), "x")
    with pytest.raises(InputError, match="input 'x' gave no DLPack tensor\n  why: its capsule is neither"):
        from_dlpack(Foreign(), "x")
    with pytest.raises(
        InputError,
        match="input 'x' has an element type that cannot be read\n  why: DLPack type code 0, 4 bits, 1 lanes",
    ):
        from_dlpack(Odd(), "x")


def test_tensors_of_dlpack_need_ml_dtypes_for_its_types_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that has numpy and nothing else."""

    class Tensor:
        def __init__(self, code: int, bits: int) -> None:
            self.data = (ctypes.c_uint16 * 2)(1, 2)
            self.shape = (ctypes.c_int64 * 1)(2)
            self.tensor = DLTensor(
                data=ctypes.addressof(self.data), device_type=1, ndim=1, code=code, bits=bits, lanes=1,
                shape=ctypes.addressof(self.shape),
            )  # fmt: skip
            ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
            ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

        def __dlpack__(self) -> object:
            return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(self.tensor), b"dltensor", None)

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes._of_ml_dtypes.cache_clear()
    dlpack._by_code.cache_clear()
    try:
        assert from_dlpack(Tensor(1, 16), "x").tolist() == [1, 2]
        said = r"input 'x' cannot be read: numpy has no element type 'bfloat16'\n.*\n  hint: pip install ml_dtypes"
        with pytest.raises(InputError, match=said):
            from_dlpack(Tensor(4, 16), "x")
    finally:
        dtypes._of_ml_dtypes.cache_clear()
