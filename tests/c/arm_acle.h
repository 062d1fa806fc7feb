/* Instructions of Arm's DSP extension in plain C, so that functions which use them run on any machine. */
#include <stdint.h>

static inline int32_t low_half(int32_t x) { return (int16_t)((uint32_t)x & 0xFFFFU); }
static inline int32_t high_half(int32_t x) { return (int16_t)((uint32_t)x >> 16); }
static inline int32_t halves(int32_t low, int32_t high) {
  return (int32_t)(((uint32_t)low & 0xFFFFU) | ((uint32_t)high << 16));
}
static inline int32_t __sxtb16(int32_t x) {
  return halves((int8_t)((uint32_t)x & 0xFFU), (int8_t)(((uint32_t)x >> 16) & 0xFFU));
}
static inline int32_t __sxtab16(int32_t a, int32_t x) {
  const int32_t wide = __sxtb16(x);
  return halves(low_half(a) + low_half(wide), high_half(a) + high_half(wide));
}
static inline int32_t __smlabb(int32_t a, int32_t b, int32_t c) { return c + (low_half(a) * low_half(b)); }
static inline int32_t __smlabt(int32_t a, int32_t b, int32_t c) { return c + (low_half(a) * high_half(b)); }
static inline int32_t __smlatb(int32_t a, int32_t b, int32_t c) { return c + (high_half(a) * low_half(b)); }
static inline int32_t __smlad(int32_t a, int32_t b, int32_t c) {
  return c + (low_half(a) * low_half(b)) + (high_half(a) * high_half(b));
}
static inline int32_t __ssat(int32_t x, int bits) {
  const int32_t most = (1 << (bits - 1)) - 1;
  return (x > most) ? most : ((x < (-most - 1)) ? (-most - 1) : x);
}
