/* Kernels share these functions: each is there once, however many call it. */
#if defined(__GNUC__)
#define WEFT_CALLED __attribute__((noinline))
#else
#define WEFT_CALLED
#endif

#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
#include <arm_acle.h>
#define WEFT_DSP 1

/* Four elements of 8 bits or two of 16, wherever they are declared. */
typedef int32_t weft_word __attribute__((may_alias));

/* The first and third byte of a word, and the second and fourth, as elements of 16 bits. */
static inline int32_t weft_even(int32_t word) { return __sxtb16(word); }
static inline int32_t weft_turned(int32_t word) { return (int32_t)(((uint32_t)word >> 8) | ((uint32_t)word << 24)); }
static inline int32_t weft_odd(int32_t word) { return __sxtb16(weft_turned(word)); }
#else
#define WEFT_DSP 0
#endif
