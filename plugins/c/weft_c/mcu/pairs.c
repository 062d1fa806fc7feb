#if defined(__ARM_FEATURE_DSP) && !defined(__ARM_BIG_ENDIAN)
#include <arm_acle.h>
#define WEFT_DSP 1
#if defined(__GNUC__)
#define WEFT_COPY(to, from) (void)__builtin_memcpy((to), (from), 4U) /* one load, also with -ffreestanding */
#else
#define WEFT_COPY(to, from) (void)memcpy((to), (from), 4U)
#endif

/* Two neighbouring elements of 16 bits. */
static inline int16x2_t weft_pair(const int16_t *at) {
  int16x2_t pair;
  WEFT_COPY(&pair, at);
  return pair;
}

/* Four neighbouring elements of 8 bits. */
static inline int8x4_t weft_bytes(const int8_t *at) {
  int8x4_t bytes;
  WEFT_COPY(&bytes, at);
  return bytes;
}

/* The first and third of four bytes, and the second and fourth, as elements of 16 bits. */
static inline int16x2_t weft_even(int8x4_t bytes) { return __sxtb16(bytes); }
static inline int16x2_t weft_odd(int8x4_t bytes) { return __sxtb16((int8x4_t)__ror((uint32_t)bytes, 8U)); }
#else
#define WEFT_DSP 0
#endif
