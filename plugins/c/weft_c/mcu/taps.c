#if WEFT_DSP
/* Two elements that follow each other, wherever they are, and two of 8 bits. */
static inline int32_t weft_pair(const int16_t *x) {
  int32_t word;
  (void)__builtin_memcpy(&word, x, 4U);
  return word;
}
static inline int32_t weft_widened(int32_t low, int32_t high) {
  const uint32_t first = (uint32_t)low & 0xFFFFU;
  const uint32_t second = (uint32_t)high << 16;
  const uint32_t both = first | second;
  return (int32_t)both;
}
#endif

/* c[k] = the sum over the taps [r][t] of a[k * across + r * apart + t * beside] * b[r][t], for k < 4. */
WEFT_CALLED
static void weft_taps(const int16_t *a, int32_t across, int32_t apart, int32_t beside, const int8_t *b, int32_t high,
                      int32_t wide, int32_t *c) {
  const int8_t *w = b;
  int32_t c0 = 0;
  int32_t c1 = 0;
  int32_t c2 = 0;
  int32_t c3 = 0;
  WEFT_ONCE
  for (int32_t row = 0; row < high; ++row) {
    const int16_t *x = &a[row * apart];
    const int8_t *const end = &w[wide];
#if WEFT_DSP
    const int8_t *const pairs = (beside == 1) ? &w[wide - (wide % 2)] : w;
    WEFT_ONCE
    for (; w != pairs; w = &w[2]) {
      const int32_t both = weft_widened(w[0], w[1]);
      c0 = __smlad(weft_pair(x), both, c0);
      c1 = __smlad(weft_pair(&x[across]), both, c1);
      c2 = __smlad(weft_pair(&x[2 * across]), both, c2);
      c3 = __smlad(weft_pair(&x[3 * across]), both, c3);
      x = &x[2];
    }
#endif
    WEFT_ONCE
    for (; w != end; w = &w[1]) {
      c0 += (int32_t)x[0] * w[0];
      c1 += (int32_t)x[across] * w[0];
      c2 += (int32_t)x[2 * across] * w[0];
      c3 += (int32_t)x[3 * across] * w[0];
      x = &x[beside];
    }
  }
  c[0] = c0;
  c[1] = c1;
  c[2] = c2;
  c[3] = c3;
}
