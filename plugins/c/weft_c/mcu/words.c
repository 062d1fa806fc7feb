/* In front of a loop: Clang writes out some iterations, or one. GCC has too few registers for two. */
#if defined(__clang__)
#if defined(__OPTIMIZE_SIZE__)
#define WEFT_OFTEN _Pragma("clang loop unroll_count(2)")
#else
#define WEFT_OFTEN _Pragma("clang loop unroll_count(4)")
#endif
#define WEFT_ONCE _Pragma("clang loop unroll(disable)")
#define WEFT_ALL _Pragma("clang loop unroll(full)")
#else
#define WEFT_OFTEN
#define WEFT_ONCE
#define WEFT_ALL
#endif

#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
#define WEFT_DSP 1
#include <arm_acle.h>

/* Four elements of 8 bits or two of 16, wherever they are declared. */
typedef int32_t weft_word __attribute__((may_alias));

/* The first and third byte of a word, and the second and fourth, as elements of 16 bits. */
static inline int32_t weft_turned(int32_t word) {
  const uint32_t bits = (uint32_t)word;
  const uint32_t turned = (bits >> 8) | (bits << 24);
  return (int32_t)turned;
}
static inline int32_t weft_even(int32_t word) { return __sxtb16(word); }
static inline int32_t weft_odd(int32_t word) { return __sxtb16(weft_turned(word)); }
#else
#define WEFT_DSP 0
#endif
