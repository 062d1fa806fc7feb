// CUDA C++ as C++ on a CPU: the words of the language, and the meanings of what `weft_cuda.h` writes as instructions of PTX.
#pragma once
#include "grid.hpp"

#define SHIM_VECTORS(T, name) \
  typedef T name##2 __attribute__((ext_vector_type(2))); \
  typedef T name##4 __attribute__((ext_vector_type(4)));
SHIM_VECTORS(unsigned, uint)
SHIM_VECTORS(int, int)
SHIM_VECTORS(float, float)
SHIM_VECTORS(unsigned long long, ulonglong)
SHIM_VECTORS(double, double)
#undef SHIM_VECTORS

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section(SHIM_SHARED)))
#define __constant__ static const
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL
#define blockIdx (shim::group)
#define threadIdx (shim::current->index)
#define gridDim (shim::groups)
#define blockDim (shim::extent)
#define warpSize 32

#define __syncthreads() shim::barrier(__LINE__)
#define __syncwarp(...) shim::warp_barrier(__LINE__)
#define __shfl_sync(mask, value, from) (shim::show(value, __LINE__)[(from) % 32])
#define __shfl_xor_sync(mask, value, by) (shim::show(value, __LINE__)[shim::lane() ^ (by)])
#define __shfl_down_sync(mask, value, by) (shim::show(value, __LINE__)[shim::lane() + (by) < 32 ? shim::lane() + (by) : shim::lane()])
#define __shfl_up_sync(mask, value, by) (shim::show(value, __LINE__)[shim::lane() >= (by) ? shim::lane() - (by) : shim::lane()])

template <class T> inline T shim_exchange(T *at, T value) {
  T before = *at;
  *at = value;
  return before;
}
#define SHIM_ATOMICS(T) \
  inline T atomicAdd(T *at, T value) { return shim_exchange(at, (T)(*at + value)); } \
  inline T atomicMin(T *at, T value) { return shim_exchange(at, *at < value ? *at : value); } \
  inline T atomicMax(T *at, T value) { return shim_exchange(at, *at > value ? *at : value); } \
  inline T atomicCAS(T *at, T seen, T value) { return shim_exchange(at, *at == seen ? value : *at); }
SHIM_ATOMICS(unsigned)
SHIM_ATOMICS(unsigned long long)
SHIM_ATOMICS(float)
SHIM_ATOMICS(double)
#undef SHIM_ATOMICS
inline int atomicAdd(int *at, int value) { return shim_exchange(at, (int)((unsigned)*at + (unsigned)value)); }  // wraps
inline int atomicMin(int *at, int value) { return shim_exchange(at, *at < value ? *at : value); }
inline int atomicMax(int *at, int value) { return shim_exchange(at, *at > value ? *at : value); }
inline long long atomicMin(long long *at, long long value) { return shim_exchange(at, *at < value ? *at : value); }
inline long long atomicMax(long long *at, long long value) { return shim_exchange(at, *at > value ? *at : value); }

inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

// -- weft_cuda.h

inline float weft_f16_widen(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
inline unsigned short weft_f16_narrow(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
inline float weft_bf16_widen(unsigned short x) { return __builtin_bit_cast(float, (unsigned)x << 16); }
inline unsigned short weft_bf16_narrow(float x) { return __builtin_bit_cast(unsigned short, __truncsfbf2(x)); }
inline void weft_atomic_min(float *at, float value) { if (!(*at != *at || value >= *at)) *at = value; }
inline void weft_atomic_max(float *at, float value) { if (!(*at != *at || value <= *at)) *at = value; }

template <int SIZE> inline void weft_copy_async(void *to, const void *from) { shim::begin_copy(to, from, SIZE); }
inline void weft_await_copies() { shim::await_copies(); }

#define __grid_constant__
#include "boxes.hpp"
#include "weft_boxes.h"
#include "ptx.hpp"
#include "weft_tiles.h"

// -- a kernel, called with a table of buffers, tensors behind them, and one of dims

template <class T> struct ShimArgument {
  static T take(void *const *&, const int64_t *&dims) { return (T)*dims++; }
};
template <> struct ShimArgument<weft_tensor> {
  static weft_tensor take(void *const *&buffers, const int64_t *&) {
    weft_tensor tensor;
    memcpy(&tensor, *buffers++, sizeof tensor);
    return tensor;
  }
};
template <class T> struct ShimArgument<T *> {
  static T *take(void *const *&buffers, const int64_t *&) { return (T *)*buffers++; }
};
template <class... A> inline void shim_call(void (*kernel)(A...), void *const *buffers, const int64_t *dims) {
  struct Call {  // braces evaluate in order
    Call(void (*kernel)(A...), A... a) { kernel(a...); }
  };
  Call{kernel, ShimArgument<A>::take(buffers, dims)...};
}
