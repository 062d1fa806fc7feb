/* Constants begin at whole words, so that loads of words read them at once; functions that kernels share are there once,
   however many call them. */
#if defined(__GNUC__)
#define WEFT_WORDS __attribute__((aligned(4)))
#define WEFT_CALLED __attribute__((noinline))
#define WEFT_INLINE __attribute__((always_inline))
#else
#define WEFT_WORDS
#define WEFT_CALLED
#define WEFT_INLINE
#endif
