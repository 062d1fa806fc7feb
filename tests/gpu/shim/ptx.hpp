// Instructions of PTX that a warp executes together, by the layouts that NVIDIA documents for them ("Parallel Thread Execution ISA": ldmatrix, mma).
// Written from that text alone, not from what uses it.
#pragma once
#include "grid.hpp"

template <class T> inline const T *shim_row(const void *row) {
  if ((uintptr_t)row % 16) shim::fail("ldmatrix: a row does not begin at a multiple of 16 bytes, thread %u", shim::current->number);
  return (const T *)row;
}
inline void weft_ldmatrix(unsigned (&r)[4], const void *row) {
  auto rows = shim::show(row, 0);
  for (unsigned m = 0; m < 4; ++m) r[m] = shim_row<unsigned>(rows[8 * m + shim::lane() / 4])[shim::lane() % 4];
}
inline void weft_ldmatrix_trans(unsigned (&r)[4], const void *row) {
  auto rows = shim::show(row, 0);
  const unsigned g = shim::lane() / 4, t = shim::lane() % 4;
  for (unsigned m = 0; m < 4; ++m)
    r[m] = shim_row<uint16_t>(rows[8 * m + 2 * t])[g] | (unsigned)shim_row<uint16_t>(rows[8 * m + 2 * t + 1])[g] << 16;
}

struct ShimWords {
  unsigned a[4], b[2];
};
// EACH elements of a word. Row i of A and column j of B are eight words: word w lies with thread w % 4 of the row's (or column's) group of four.
template <unsigned EACH, class R, class Element> inline void shim_mma(R *c, const unsigned *a, const unsigned *b, Element element) {
  auto shown = shim::show(ShimWords{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, 0);
  for (unsigned k = 0; k < 4; ++k) {
    const unsigned row = shim::lane() / 4 + k / 2 * 8, column = shim::lane() % 4 * 2 + k % 2;
    R sum = c[k];
    for (unsigned w = 0; w < 8; ++w) {
      const unsigned x = shown[row % 8 * 4 + w % 4].a[row / 8 + w / 4 * 2], y = shown[column * 4 + w % 4].b[w / 4];
      for (unsigned e = 0; e < EACH; ++e) sum = (R)(sum + element(x, e) * element(y, e));
    }
    c[k] = sum;
  }
}
inline void weft_ptx_mma_f16(float *c, const unsigned *a, const unsigned *b) {
  shim_mma<2>(c, a, b, [](unsigned x, unsigned e) { return (float)__builtin_bit_cast(_Float16, (uint16_t)(x >> 16 * e)); });
}
inline void weft_ptx_mma_bf16(float *c, const unsigned *a, const unsigned *b) {
  shim_mma<2>(c, a, b, [](unsigned x, unsigned e) { return __builtin_bit_cast(float, x >> 16 * e << 16); });
}
inline void weft_ptx_mma_tf32(float *c, const unsigned *a, const unsigned *b) {
  shim_mma<1>(c, a, b, [](unsigned x, unsigned) { return __builtin_bit_cast(float, x & 0xffffe000u); });
}
inline void weft_ptx_mma_s8(int *c, const unsigned *a, const unsigned *b) {
  shim_mma<4>(c, a, b, [](unsigned x, unsigned e) { return (int)(int8_t)(x >> 8 * e); });
}
inline void weft_ptx_mma_u8(int *c, const unsigned *a, const unsigned *b) {
  shim_mma<4>(c, a, b, [](unsigned x, unsigned e) { return (int)(uint8_t)(x >> 8 * e); });
}
inline unsigned weft_tf32(float x) { return (__builtin_bit_cast(unsigned, x) + 0x1000u) & 0xffffe000u; }  // to nearest, ties away from zero

// wgmma: warp w of a group of four has rows 16w to 16w + 15; of each 8 columns thread 4g + t of it has those of mma. Factors lie in core matrices in shared memory.
struct weft_core_matrices {
  const void *at;
  unsigned terms, side;
};
// Element k of line x of a factor: of the rows of A, of the columns of B.
template <int ACROSS, class T> inline T shim_core_matrix(const weft_core_matrices &m, unsigned x, unsigned k) {
  constexpr unsigned each = 16 / sizeof(T);
  const char *at = (const char *)m.at;
  if ((uintptr_t)at % 16) shim::fail("wgmma: a matrix does not begin at a multiple of 16 bytes, thread %u", shim::current->number);
  return *(const T *)(ACROSS ? at + x / 8 * m.side + k / 8 * m.terms + k % 8 * 16 + x % 8 * sizeof(T)
                             : at + x / 8 * m.side + k / each * m.terms + x % 8 * 16 + k % each * sizeof(T));
}
template <class R, int HELD> inline void weft_ptx_wgmma_begin(R (&)[HELD]) { shim::warp_barrier(0); }
template <class R, int HELD> inline void weft_ptx_wgmma_end(R (&)[HELD]) { shim::warp_barrier(0); }
template <class T, int A, int B, class R, int HELD, class Element>
inline void shim_wgmma(R (&d)[HELD], const weft_core_matrices &a, const weft_core_matrices &b, Element element) {
  static_assert(sizeof(T) == 2 || (A == 0 && B == 0), "only elements of 16 bits go across the sum");
  const unsigned warp = shim::current->number / 32 % 4;
  for (unsigned r = 0; r < HELD; ++r) {
    const unsigned row = 16 * warp + shim::lane() / 4 + r % 4 / 2 * 8, column = r / 4 * 8 + shim::lane() % 4 * 2 + r % 2;
    for (unsigned k = 0; k < 32 / sizeof(T); ++k) d[r] = (R)(d[r] + element(shim_core_matrix<A, T>(a, row, k)) * element(shim_core_matrix<B, T>(b, column, k)));
  }
}
#define SHIM_WGMMA(NAME, T, R, ELEMENT)                                                                                     \
  template <int A, int B, int HELD> inline void weft_ptx_wgmma_##NAME(R (&d)[HELD], const weft_core_matrices &a, const weft_core_matrices &b) { \
    shim_wgmma<T, A, B>(d, a, b, [](T x) { return ELEMENT; });                                                              \
  }
SHIM_WGMMA(f16, uint16_t, float, (float)__builtin_bit_cast(_Float16, x))
SHIM_WGMMA(bf16, uint16_t, float, __builtin_bit_cast(float, (unsigned)x << 16))
SHIM_WGMMA(tf32, unsigned, float, __builtin_bit_cast(float, x & 0xffffe000u))
SHIM_WGMMA(s8, int8_t, int, (int)x)
SHIM_WGMMA(u8, uint8_t, int, (int)x)
#undef SHIM_WGMMA
