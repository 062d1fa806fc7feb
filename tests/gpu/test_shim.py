"""The shims say what a kernel may not do, and run what it may: texts written for that, in both languages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.shim.shims import Library, ShimError, guarded, run

from weft_gpu.image import Kernel, Launch

REVERSED = {
    "cuda": (
        """extern "C" __global__ void __launch_bounds__(64) turn(const float *__restrict__ x, float *__restrict__ y, long long n) {
  __shared__ __align__(64) float tile[64];
  const long long t = threadIdx.x, b = blockIdx.x;
  tile[t] = x[b * 64 + t];
  __syncthreads();
  const float other = tile[63 - t];
  y[b * 64 + t] = other + __shfl_xor_sync(0xffffffffu, other, 1);
}
"""  # noqa: E501
    ),
    "metal": (
        """#include <metal_stdlib>
using namespace metal;
kernel void turn(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], constant long *dims [[buffer(30)]],
                 uint3 group [[threadgroup_position_in_grid]], uint3 index [[thread_position_in_threadgroup]]) {
  alignas(64) threadgroup float tile[64];
  const long t = index.x, b = group.x;
  tile[t] = x[b * 64 + t];
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  const float other = tile[63 - t];
  y[b * 64 + t] = other + simd_shuffle_xor(other, 1);
}
"""
    ),
}
BARRIER = {
    "cuda": "__syncthreads();",
    "metal": "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
}


def launched(language: str, text: str, seed: int = 0, groups: int = 2) -> np.ndarray[Any, Any]:
    x, y = guarded(np.arange(128, dtype=np.float32)), guarded(np.zeros(128, np.float32))
    Library(language, [("turn", text)]).launch(
        0, [x.ctypes.data, y.ctypes.data], [128], (groups, 1, 1), (64, 1, 1), seed
    )
    return y.reshape(2, 64).copy()


def expected() -> np.ndarray[Any, Any]:
    other = np.arange(128, dtype=np.float32).reshape(2, 64)[:, ::-1]
    return other + other.reshape(2, 32, 2)[:, :, ::-1].reshape(2, 64)


@pytest.mark.parametrize("language", REVERSED)
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_threads_wait_for_each_other(language: str, seed: int) -> None:
    np.testing.assert_array_equal(launched(language, REVERSED[language], seed), expected())


@pytest.mark.parametrize("language", REVERSED)
def test_a_barrier_too_few_shows(language: str) -> None:
    """A thread finds what another has not written: NaN."""
    text = REVERSED[language].replace(BARRIER[language], "")
    for seed in (0, 1, 5):
        assert np.isnan(launched(language, text, seed)).any()


@pytest.mark.parametrize("language", REVERSED)
@pytest.mark.parametrize(
    "old, new, says",
    [
        ("BARRIER", "if (t < 9) BARRIER", "a function of the warp is called by"),
        ("BARRIER", "if (t < 40) return;\n  BARRIER", "the barrier is reached by 24 of 64 threads"),
        ("BARRIER", "if (t >= 32) BARRIER\n  if (t < 32) return;", "the barrier is reached by 32 of 64 threads"),
        ("BARRIER", "if (t < 32) BARRIER else\n BARRIER", "threads of one group wait at different barriers"),
        ("tile[63 - t]", "tile[64 - t]", "an index is beyond its array, thread 0 of group (0, 0, 0)"),
        ("y[b * 64 + t] =", "y[b * 64 + t + 3] =", "is not there"),
        ("= x[b * 64 + t]", "= x[b * 64 + t + 100]", "is not there"),
    ],
)
def test_what_a_kernel_may_not_do_is_said(language: str, old: str, new: str, says: str) -> None:
    text = REVERSED[language]
    wrong = text.replace(old.replace("BARRIER", BARRIER[language]), new.replace("BARRIER", BARRIER[language]))
    assert wrong != text
    with pytest.raises(ShimError) as error:
        launched(language, wrong)
    assert says in str(error.value) and str(error.value).startswith("turn: ")
    np.testing.assert_array_equal(launched(language, text), expected())  # and the next one runs


def test_a_misaligned_vector_is_said() -> None:
    text = REVERSED["cuda"].replace(
        "tile[t] = x[b * 64 + t];", "const float4 v = *reinterpret_cast<const float4 *>(&x[b + 1]);\n  tile[t] = v.x;"
    )
    with pytest.raises(
        ShimError, match=r"an address is misaligned or null, thread 0 of group \(0, 0, 0\)\n  const float4 v"
    ):
        launched("cuda", text)


@pytest.mark.parametrize(
    "old, new, says",
    [
        (
            "const float other = tile[63 - t];",
            "threadgroup const float *p = x;\n  const float other = p[0];",
            "cannot initialize a variable of type",
        ),
        ("const float other = tile[63 - t];", "const double other = tile[63 - t];", "double"),
        ("const float other = tile[63 - t];", "const float other = tile[63 - t] + x.y;", "member reference"),
        ("[[buffer(30)]]", "[[buffer]]", "Metal does not know"),
        ("[[threadgroup_position_in_grid]]", "[[group_of_threads]]", "Metal does not know"),
    ],
)
def test_what_is_no_metal_does_not_compile(old: str, new: str, says: str) -> None:
    with pytest.raises(ShimError, match=says):
        launched("metal", REVERSED["metal"].replace(old, new))


MULTIPLIED = """#include <metal_stdlib>
using namespace metal;
kernel void product(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]], device float *c [[buffer(2)]]) {
  simdgroup_half8x8 left, right;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int k = 0; k < 16; k += 8) {
    simdgroup_load(left, a + k, 16);
    simdgroup_load(right, b + k, 16, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, c, 8);
}
"""  # noqa: E501


def test_matrices_of_simd_groups() -> None:
    """Products of 8 × 8 tiles as the language means them, one of them read transposed."""
    rng = np.random.default_rng(0)
    a, b = (guarded(rng.integers(-4, 5, (8, 16)).astype(np.float16)) for _ in range(2))
    c = guarded(np.zeros((8, 8), np.float32))
    Library("metal", [("product", MULTIPLIED)]).launch(
        0, [x.ctypes.data for x in (a, b, c)], [], (1, 1, 1), (32, 1, 1), 3
    )
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_launches_of_a_kernel_hand_each_other_scratch() -> None:
    first = (
        'extern "C" __global__ void first(const float *x, float *kept, long long n) { if (threadIdx.x < n)'
        " kept[threadIdx.x] = x[threadIdx.x] * 2; }"
    )
    second = 'extern "C" __global__ void second(const float *kept, float *y) { y[blockIdx.x] = kept[blockIdx.x] + 1; }'
    kernel = Kernel(
        "both",
        (
            Launch("first", first.encode(), ("1", "1", "1"), (32, 1, 1), (0, 2), (0,)),
            Launch("second", second.encode(), ("d0", "1", "1"), (1, 1, 1), (2, 1), ()),
        ),
    )
    x, y = guarded(np.arange(5, dtype=np.float32)), guarded(np.zeros(5, np.float32))
    run(kernel, "cuda", [x, y], [5], [20])
    np.testing.assert_array_equal(y, x * 2 + 1)
