// Metal Shading Language as C++ on a CPU. Address spaces are clang's own, so that a pointer of one is none of another's; there is no double.
#pragma once
#include "grid.hpp"

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#define SHIM_DECLARED static __attribute__((address_space(3), section(SHIM_SHARED)))
#define thread
#define kernel

typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

#define SHIM_VECTORS(T) \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
SHIM_VECTORS(char)
SHIM_VECTORS(uchar)
SHIM_VECTORS(short)
SHIM_VECTORS(ushort)
SHIM_VECTORS(int)
SHIM_VECTORS(uint)
SHIM_VECTORS(long)
SHIM_VECTORS(half)
SHIM_VECTORS(float)
#undef SHIM_VECTORS
struct alignas(16) ulong2 {
  ulong x, y;
  ulong2(ulong x = 0, ulong y = 0) : x(x), y(y) {}
};

inline constexpr half operator""h(long double x) { return (half)x; }
template <class B, class A> inline B as_type(A x) { return __builtin_bit_cast(B, x); }

namespace metal {

#define SHIM_FUNCTION(name, of) \
  inline float name(float x) { return of(x); } \
  inline half name(half x) { return (half)of((float)x); }
SHIM_FUNCTION(sqrt, sqrtf)
SHIM_FUNCTION(rsqrt, 1 / sqrtf)
SHIM_FUNCTION(floor, floorf)
SHIM_FUNCTION(ceil, ceilf)
SHIM_FUNCTION(trunc, truncf)
SHIM_FUNCTION(rint, rintf)
SHIM_FUNCTION(fabs, fabsf)
SHIM_FUNCTION(exp, expf)
SHIM_FUNCTION(exp2, exp2f)
SHIM_FUNCTION(log, logf)
SHIM_FUNCTION(log2, log2f)
SHIM_FUNCTION(sin, sinf)
SHIM_FUNCTION(cos, cosf)
SHIM_FUNCTION(tan, tanf)
SHIM_FUNCTION(asin, asinf)
SHIM_FUNCTION(acos, acosf)
SHIM_FUNCTION(atan, atanf)
SHIM_FUNCTION(sinh, sinhf)
SHIM_FUNCTION(cosh, coshf)
SHIM_FUNCTION(tanh, tanhf)
SHIM_FUNCTION(asinh, asinhf)
SHIM_FUNCTION(acosh, acoshf)
SHIM_FUNCTION(atanh, atanhf)
#undef SHIM_FUNCTION
#define SHIM_FUNCTION(name, of) \
  inline float name(float x, float y) { return of(x, y); } \
  inline half name(half x, half y) { return (half)of((float)x, (float)y); }
SHIM_FUNCTION(pow, powf)
SHIM_FUNCTION(fmod, fmodf)
SHIM_FUNCTION(copysign, copysignf)
#undef SHIM_FUNCTION
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline half fma(half x, half y, half z) { return (half)((double)x * (double)y + (double)z); }
namespace precise {
using namespace metal;
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline mem_flags operator|(mem_flags a, mem_flags) { return a; }
#define threadgroup_barrier(flags) (void)(metal::flags), shim::barrier(__LINE__)
#define simdgroup_barrier(flags) shim::warp_barrier(__LINE__)

enum memory_order { memory_order_relaxed };
template <class T> struct shim_atomic {
  T value;
};
typedef shim_atomic<int> atomic_int;
typedef shim_atomic<uint> atomic_uint;
typedef shim_atomic<ulong> atomic_ulong;
typedef shim_atomic<float> atomic_float;
template <class P, class T> inline void atomic_fetch_add_explicit(P at, T value, memory_order) { __builtin_add_overflow(at->value, value, &at->value); }
inline void atomic_fetch_add_explicit(device atomic_float *at, float value, memory_order) { at->value += value; }
template <class P, class T> inline void atomic_fetch_min_explicit(P at, T value, memory_order) { at->value = at->value < value ? at->value : value; }
template <class P, class T> inline void atomic_fetch_max_explicit(P at, T value, memory_order) { at->value = at->value > value ? at->value : value; }
template <class P> inline auto atomic_load_explicit(P at, memory_order) { return at->value; }
template <class P, class T> inline bool atomic_compare_exchange_weak_explicit(P at, T *seen, T value, memory_order, memory_order) {
  static unsigned calls;
  if (++calls % 3 == 0) return false;  // it may fail for no reason
  if (at->value != *seen) return *seen = at->value, false;
  return at->value = value, true;
}

// -- what lanes of a SIMD group tell each other

#define simd_shuffle(value, from) (shim::show(value, __LINE__)[from])
#define simd_broadcast(value, from) (shim::show(value, __LINE__)[from])
#define simd_shuffle_xor(value, by) (shim::show(value, __LINE__)[shim::lane() ^ (by)])
#define simd_shuffle_down(value, by) (shim::show(value, __LINE__)[shim::lane() + (by)])
#define simd_shuffle_up(value, by) (shim::show(value, __LINE__)[shim::lane() - (by)])
#define simd_sum(value) (metal::shim_fold(shim::show(value, __LINE__), [](auto a, auto b) { return a + b; }))
#define simd_max(value) (metal::shim_fold(shim::show(value, __LINE__), [](auto a, auto b) { return a > b ? a : b; }))
#define simd_min(value) (metal::shim_fold(shim::show(value, __LINE__), [](auto a, auto b) { return a < b ? a : b; }))
template <class S, class F> inline auto shim_fold(S shown, F f) {
  auto result = shown[0];
  for (unsigned k = 1; k < shim::warp; ++k) result = f(result, shown[k]);
  return result;
}

// A matrix of 8 × 8, two neighbouring elements of a row in each lane. Which lane has which is not documented; any way will do for what does not ask.
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "matrices are 8 by 8");
  T two[2];
  simdgroup_matrix() { memset(two, 0xff, sizeof two); }
  explicit simdgroup_matrix(T x) : two{x, x} {}
};
template <class T> inline simdgroup_matrix<T, 8, 8> make_filled_simdgroup_matrix(T x) { return simdgroup_matrix<T, 8, 8>(x); }
template <class T, int R, int C> inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) { return simdgroup_matrix<T, R, C>(x); }
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

inline unsigned shim_row() { return shim::lane() / 4; }
inline unsigned shim_column() { return shim::lane() % 4 * 2; }
template <class T, class P> inline void shim_load(int line, simdgroup_matrix<T, 8, 8> &m, P at, ulong stride = 8, ulong2 from = {}, bool transposed = false) {
  shim::warp_barrier(line);
  for (unsigned k = 0; k < 2; ++k) {
    ulong r = shim_row(), c = shim_column() + k;
    m.two[k] = transposed ? at[(from.y + c) * stride + from.x + r] : at[(from.y + r) * stride + from.x + c];
  }
}
template <class T, class P> inline void shim_store(int line, const simdgroup_matrix<T, 8, 8> &m, P at, ulong stride = 8, ulong2 from = {}, bool transposed = false) {
  shim::warp_barrier(line);
  for (unsigned k = 0; k < 2; ++k) {
    ulong r = shim_row(), c = shim_column() + k;
    (transposed ? at[(from.y + c) * stride + from.x + r] : at[(from.y + r) * stride + from.x + c]) = m.two[k];
  }
}
template <class D, class A, class B, class C>
inline void shim_multiply(int line, simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b,
                          const simdgroup_matrix<C, 8, 8> *c) {
  struct Operands {
    A a[2];
    B b[2];
  };
  auto shown = shim::show(Operands{{a.two[0], a.two[1]}, {b.two[0], b.two[1]}}, line);
  for (unsigned k = 0; k < 2; ++k) {
    float sum = c ? (float)c->two[k] : 0;
    for (unsigned t = 0; t < 8; ++t)
      sum += (float)shown[shim_row() * 4 + t / 2].a[t % 2] * (float)shown[t * 4 + (shim_column() + k) / 2].b[(shim_column() + k) % 2];
    d.two[k] = (D)sum;
  }
}
#define simdgroup_load(...) metal::shim_load(__LINE__, __VA_ARGS__)
#define simdgroup_store(...) metal::shim_store(__LINE__, __VA_ARGS__)
#define simdgroup_multiply(d, a, b) metal::shim_multiply(__LINE__, d, a, b, (decltype(&(d)))nullptr)
#define simdgroup_multiply_accumulate(d, a, b, c) metal::shim_multiply(__LINE__, d, a, b, &(c))

}  // namespace metal
#define double shim_metal_has_no_double
