/* y[k] = x[k] - zero for k < count. */
WEFT_INLINE
static inline void weft_widen_short(const int8_t *x, int32_t zero, int16_t *y, int32_t count) {
  int32_t k = 0;
#if WEFT_DSP
  const uint32_t low = (uint32_t)(-zero) & 0xFFFFU;
  const uint32_t both = (low << 16) | low;
  const int32_t less = (int32_t)both;
  for (; k < (count - 3); k += 4) {
    int32_t word;
    (void)__builtin_memcpy(&word, &x[k], 4U);
    const uint32_t even = (uint32_t)__sxtab16(less, word);
    const uint32_t odd = (uint32_t)__sxtab16(less, weft_turned(word));
    const uint32_t first = (even & 0xFFFFU) | (odd << 16);
    const uint32_t second = (even >> 16) | (odd & 0xFFFF0000U);
    (void)__builtin_memcpy(&y[k], &first, 4U);
    (void)__builtin_memcpy(&y[k + 2], &second, 4U);
  }
#endif
  for (; k < count; ++k) {
    y[k] = (int16_t)(x[k] - zero);
  }
}
WEFT_CALLED
static void weft_widen(const int8_t *x, int32_t zero, int16_t *y, int32_t count) {
  weft_widen_short(x, zero, y, count);
}
