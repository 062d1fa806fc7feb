"""Executables run right, say what is wrong, and may be called from anywhere."""

from __future__ import annotations

import os
import threading

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.models import affine, fixed, make, positives

from weft import dtypes as dt
from weft.codegen.segment import (
    AllocateOutput,
    Data,
    Input,
    InputDim,
    KernelCall,
    Output,
    ReserveArena,
    SegmentSpec,
    Symbol,
    Tensor,
)
from weft.errors import ExecutionError, InputError
from weft.expr import nodes as ex
from weft_runtime import Executable, TensorInfo
from weft_runtime.arrays import aligned_empty


@pytest.fixture(scope="module")
def exe() -> Executable:
    return affine()


def expected(x: np.ndarray) -> np.ndarray:
    return (x + np.arange(4, dtype=np.float32)) * 2


def test_any_size_by_name_and_position(exe: Executable) -> None:
    for n in (1, 3, 1000, 0, 2):
        x = np.random.default_rng(n).standard_normal((n, 4), np.float32)
        np.testing.assert_array_equal(exe.run({"x": x})["y"], expected(x))
        np.testing.assert_array_equal(exe(x), expected(x))


def test_results_own_their_memory(exe: Executable) -> None:
    x = np.ones((600, 4), np.float32)
    first = exe(x)
    kept = first.copy()
    exe(x * 5)
    np.testing.assert_array_equal(first, kept)
    assert first.__array_interface__["data"][0] % 64 == 0
    assert first.flags.writeable and not np.may_share_memory(first, x)


def test_inputs_that_are_not_contiguous_or_read_only(exe: Executable) -> None:
    base = np.arange(80, dtype=np.float32).reshape(4, 20).T
    np.testing.assert_array_equal(exe(base), expected(base))
    np.testing.assert_array_equal(exe(base[::-2]), expected(base[::-2]))
    frozen = np.ones((2, 4), np.float32)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(exe(frozen), expected(frozen))
    misaligned = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32).reshape(2, 4)
    np.testing.assert_array_equal(exe(misaligned), expected(misaligned))


class Lender:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class Convertible:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.ones((2, 4), np.float32)


def test_other_libraries(exe: Executable) -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    for given in (Lender(x), Lender(x[::2]), Lender(np.empty((0, 4), np.float32))):
        np.testing.assert_array_equal(exe(given), expected(given.array))
    np.testing.assert_array_equal(exe(Convertible()), expected(np.ones((2, 4), np.float32)))
    with pytest.raises(InputError, match=r"input 'x' lies on a CUDA device\n  why: this executable runs on the CPU"):
        exe(Lender(x, 2))
    with pytest.raises(InputError, match=r"input 'x' is no tensor, got list\n  hint: give a numpy array"):
        exe([1.0])


def test_wrong_inputs(exe: Executable) -> None:
    good = np.ones((2, 4), np.float32)
    with pytest.raises(
        InputError,
        match=r"input 'x' has dtype float64, expected float32\n  x: float32\[n, 4\]\n  hint: convert it yourself",
    ):
        exe(np.ones((2, 4)))
    with pytest.raises(InputError, match="has dtype >f4, expected float32"):
        exe(good.astype(">f4"))
    with pytest.raises(
        InputError, match=r"input 'x' has 1 dimensions, expected 2\n  x: float32\[n, 4\]\n  why: its shape is \[4\]"
    ):
        exe(good[0])
    with pytest.raises(
        InputError,
        match=r"input 'x' has size 5 on axis 1, expected 4\n  x: float32\[n, 4\]\n  why: its shape is \[2, 5\]",
    ):
        exe(np.ones((2, 5), np.float32))
    with pytest.raises(
        InputError,
        match=(
            r"inputs of 'affine' do not match: missing 'x'; unknown 'xx'\n  x: float32\[n, 4\]\n  hint: did you mean"
            r" 'x'\?"
        ),
    ):
        exe.run({"xx": good})
    with pytest.raises(InputError, match="unknown 'z'"):
        exe.run({"x": good, "z": good})
    for value in (good, [good], None):
        with pytest.raises(
            InputError,
            match=rf"`run` takes inputs by name, got {type(value).__name__}\n  x: float32\[n, 4\]\n  hint: give a dict",
        ):
            exe.run(value)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"`out` takes storage by output name, got list\n  hint: give a dict such as \{'y': array\}"
    ):
        exe.run({"x": good}, out=[good])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'affine' takes 1 inputs, got 2"):
        exe(good, good)
    np.testing.assert_array_equal(exe(good), expected(good))  # errors leave nothing behind


def test_out(exe: Executable) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    y = np.empty((5, 4), np.float32)
    assert exe.run({"x": x}, out={"y": y})["y"] is y
    np.testing.assert_array_equal(y, expected(x))
    both = x.copy()
    assert exe.run({"x": both}, out={"y": both})["y"] is both  # overlapping: through a temporary
    np.testing.assert_array_equal(both, expected(x))
    with pytest.raises(
        InputError, match=r"storage for output 'y' has size 4 on axis 0, the result has 5\n  y: float32\[n, 4\]"
    ):
        exe.run({"x": x}, out={"y": np.empty((4, 4), np.float32)})
    with pytest.raises(
        InputError, match=r"storage for output 'y' does not fit\n  y: float32\[n, 4\]\n  why: it is float64\[5, 4\]"
    ):
        exe.run({"x": x}, out={"y": np.empty((5, 4))})
    with pytest.raises(InputError, match="storage for output 'y' must be contiguous, aligned and writable"):
        exe.run({"x": x}, out={"y": np.empty((4, 5), np.float32).T})
    with pytest.raises(InputError, match="'affine' has no output 'Y'"):
        exe.run({"x": x}, out={"Y": y})
    static = fixed()
    given, into = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    static.run({"x": given}, out={"y": into})
    assert (into == 2).all()
    with pytest.raises(InputError, match="the result has 2"):
        static.run({"x": given}, out={"y": np.zeros((3, 3), np.float32)})


def test_data_dependent_output_and_checks() -> None:
    exe = positives()
    x = np.array([1, -2, 3, 0, 5], np.float32)
    np.testing.assert_array_equal(exe(x), x[x > 0])
    with pytest.raises(
        ExecutionError, match=r"none of the 2 elements is positive\n  positives\n  hint: give 0 \+ 1 of them"
    ):
        exe(-np.ones(2, np.float32))
    with pytest.raises(ExecutionError, match="x must not be empty"):
        exe(np.empty(0, np.float32))
    with pytest.raises(ExecutionError, match=r"kernel 'count' of 'positives' failed\n  why: it returned 9"):
        exe(np.array([np.nan], np.float32))
    np.testing.assert_array_equal(exe(x), x[x > 0])


COPY16 = """
define i32 @copy16(ptr %ctx, ptr %b, ptr %d) {
  %x = load ptr, ptr %b
  %yp = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %yp
  %n = load i64, ptr %d
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %body, label %leave
body:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %xi = getelementptr i16, ptr %x, i64 %i
  %v = load i16, ptr %xi
  %yi = getelementptr i16, ptr %y, i64 %i
  store volatile i16 %v, ptr %yi
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %leave
leave:
  ret i32 0
}
"""


def symbolic(**options: object) -> Executable:
    """x: bfloat16[n], s: int64[1] that says n, z: bfloat16[n, 2*n] unread → y: bfloat16[n]; dims of z wait for nothing,
    s.0 must be n."""
    n = ex.Var("n")
    s = ex.Var("s.0")
    spec = SegmentSpec(
        "symbolic",
        (Tensor("x", dt.bfloat16, (s,)), Tensor("s", dt.int64, (ex.Var("k"),)), Tensor("z", dt.bfloat16, (n, n * 2))),
        (Tensor("y", dt.bfloat16, (n,)),),
        0,
        (Symbol("n", InputDim(2, 0)), Symbol("k", InputDim(1, 0)), Symbol("s.0", Data(1, dt.int64, 0))),
        (Input(0), Input(1), Output(0)),
        (AllocateOutput(0, (n,)), KernelCall("copy16", (0, 2), (n,))),
    )
    inputs = [
        TensorInfo("x", "bfloat16", ("s.0",)),
        TensorInfo("s", "int64", ("k",)),
        TensorInfo("z", "bfloat16", ("n", "n*2")),
    ]
    return make(spec, COPY16, inputs, [TensorInfo("y", "bfloat16", ("n",))], **options)


def test_symbols_from_data_and_repeated() -> None:
    exe = symbolic()
    x = np.array([1, 2, 3], ml_dtypes.bfloat16)
    z = np.zeros((3, 6), ml_dtypes.bfloat16)
    y = exe(x, np.array([3]), z)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [1, 2, 3])
    with pytest.raises(InputError, match=r"input 'x' has size 3 on axis 0, expected 4 \(s.0\)"):
        exe(x, np.array([4]), z)
    with pytest.raises(InputError, match=r"input 'z' has size 7 on axis 1, expected 6 \(n\*2\)"):
        exe(x, np.array([3]), np.zeros((3, 7), ml_dtypes.bfloat16))
    with pytest.raises(InputError, match="input 's' has 0 elements, element 0 is needed"):
        exe(x, np.empty(0, np.int64), z)


def test_arena_grows_and_keeps_what_it_holds() -> None:
    n = ex.Var("n")
    six = n * 2
    from weft.codegen.segment import Arena

    spec = SegmentSpec(
        "growing",
        (Tensor("x", dt.bfloat16, (n,)),),
        (Tensor("y", dt.bfloat16, (n,)),),
        0,
        (Symbol("n", InputDim(0, 0)),),
        (Input(0), Arena(ex.const(0), six), Arena(ex.const(1 << 20), six), Output(0)),
        (
            KernelCall("copy16", (0, 1), (n,)),
            ReserveArena(six + (1 << 20)),
            KernelCall("copy16", (1, 2), (n,)),
            AllocateOutput(0, (n,)),
            KernelCall("copy16", (2, 3), (n,)),
        ),
        six,
    )
    exe = make(spec, COPY16, [TensorInfo("x", "bfloat16", ("n",))], [TensorInfo("y", "bfloat16", ("n",))])
    for size in (5, 50_000, 7):
        x = np.arange(size).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(exe(x), x)


def test_no_memory() -> None:
    n = ex.Var("n")
    from weft.codegen.segment import Arena

    def build(arena: ex.Expr, out: ex.Expr) -> Executable:
        spec = SegmentSpec(
            "huge",
            (Tensor("x", dt.bfloat16, (n,)),),
            (Tensor("y", dt.bfloat16, (out,)),),
            0,
            (Symbol("n", InputDim(0, 0)),),
            (Arena(ex.const(0), n),),
            (AllocateOutput(0, (out,)),),
            arena,
        )
        return make(spec, COPY16, [TensorInfo("x", "bfloat16", ("n",))], [TensorInfo("y", "bfloat16", ("n*k",))])

    x = np.zeros(3, ml_dtypes.bfloat16)
    with pytest.raises(ExecutionError, match=r"'huge' cannot get \d+ bytes of memory for intermediate results"):
        build(n * (1 << 58), n)(x)
    with pytest.raises(ExecutionError, match=r"no memory for output 'y' of 'huge'\n  y: bfloat16\[n\*k\]\n  why: "):
        build(n, n * (1 << 56))(x)


def test_threads_at_once(exe: Executable) -> None:
    wrong = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x = rng.standard_normal((int(rng.integers(1, 400)), 4), np.float32)
            if not np.array_equal(exe(x), expected(x)):
                wrong.append(seed)

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong
    assert len(exe._segments[0]._free) <= exe._segments[0]._most_free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork(exe: Executable) -> None:
    x = np.ones((100, 4), np.float32)
    exe(x)
    child = os.fork()
    if child == 0:
        good = all(np.array_equal(exe(x + i), expected(x + i)) for i in range(50))
        os._exit(0 if good else 1)
    np.testing.assert_array_equal(exe(x), expected(x))
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(exe(x), expected(x))


def test_plan_and_repr(exe: Executable) -> None:
    assert (
        exe.plan == "affine(x: float32[n, 4]) -> (y: float32[n, 4])\n"
        "target 'llvm', 1 constants, arena n*16 + 64 bytes\n"
        "step 0: native cpu:run(x) -> (y)\n     0 add\n     1 AllocateOutput\n     2 twice"
    )
    assert repr(exe) == "Executable(affine(x: float32[n, 4]) -> (y: float32[n, 4]), target='llvm')"


def test_unknown_error_code(exe: Executable) -> None:
    from weft_runtime.native import _Call

    segment = exe._segments[0]
    call = _Call(segment)
    call.context.error_code = 999
    assert str(segment._said(call, 999, [], ())).startswith("'affine' failed with code 999\n  why: arguments [0, 0")
    call.context.error_code = 1
    assert str(segment._said(call, 1, [], ())).startswith(
        "input 'x' has another rank or dtype\n  x: float32[n, 4]\n  why: rank 0"
    )


def test_large_results_are_aligned() -> None:
    for shape in ((1,), (1024,), (33, 77)):
        assert aligned_empty(shape, np.dtype(np.float32)).shape == shape
    assert aligned_empty((5000,), np.dtype(np.float32)).ctypes.data % 64 == 0


def test_a_result_that_no_memory_holds() -> None:
    import weft
    from weft.errors import ExecutionError
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops.movement import BroadcastTo

    g = GraphBuilder("huge")
    g.output(g.add(BroadcastTo((1 << 20, 1 << 40)), g.input("x", tensor_type("float32", (1,)))), "y")
    executable = weft.compile(g.build(), "llvm -threads=1", cache=False)
    with pytest.raises(
        ExecutionError, match=r"no memory for output 'y' of 'huge'\n  y: float32\[1048576, 1099511627776\]\n  why: "
    ):
        executable(np.ones(1, np.float32))
