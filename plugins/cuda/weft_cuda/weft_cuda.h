// What kernels of weft-cuda use beyond CUDA C++ itself: instructions of PTX as functions, so that no toolkit's headers are needed.
// Sources: NVIDIA, "Parallel Thread Execution ISA"; "CUDA C++ Programming Guide".
#pragma once

// -- floats of 16 bits, carried as words ------------------------------------------------------------------------------

static __device__ __forceinline__ float weft_f16_widen(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

static __device__ __forceinline__ unsigned short weft_f16_narrow(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

static __device__ __forceinline__ unsigned short weft_bf16_narrow(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  const unsigned int bits = __float_as_uint(x);
  return x != x ? 0x7fff : (unsigned short)((bits + (bits >> 16 & 1U) + 0x7fffU) >> 16);
#endif
}

// -- atomic minimum and maximum of floats: NaN if either is -----------------------------------------------------------

template <bool GREATER> static __device__ __forceinline__ void weft_atomic_extreme(float *at, float value) {
  unsigned int *const word = reinterpret_cast<unsigned int *>(at);
  unsigned int seen = *word;
  for (;;) {
    const float held = __uint_as_float(seen);
    if (held != held || (GREATER ? value <= held : value >= held)) return;
    const unsigned int before = atomicCAS(word, seen, __float_as_uint(value));
    if (before == seen) return;
    seen = before;
  }
}

static __device__ __forceinline__ void weft_atomic_min(float *at, float value) { weft_atomic_extreme<false>(at, value); }
static __device__ __forceinline__ void weft_atomic_max(float *at, float value) { weft_atomic_extreme<true>(at, value); }
