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
  return (int32_t)(first | second);
}

/* As weft_planes_bytes, of one plane of three by three taps; `across` is 1 or 2, a constant. Of three weights of a row u has the first
   two, v the last two: so each serves for the sums of two windows. */
WEFT_INLINE
static inline void weft_three(const int16_t *a, int32_t down, int32_t across, int32_t apart, const int8_t *b,
                                    int32_t term, int32_t multiplier, int32_t right, int32_t zero, int8_t *y,
                                    int32_t y_down, int32_t y_across, int32_t rows, int32_t columns) {
  const int32_t u0 = weft_widened(b[0], b[1]);
  const int32_t v0 = weft_widened(b[1], b[2]);
  const int32_t u1 = weft_widened(b[3], b[4]);
  const int32_t v1 = weft_widened(b[4], b[5]);
  const int32_t u2 = weft_widened(b[6], b[7]);
  const int32_t v2 = weft_widened(b[7], b[8]);
  WEFT_ONCE
  for (int32_t row = 0; row < rows; ++row) {
    const int16_t *x = &a[row * down];
    int8_t *to = &y[row * y_down];
    WEFT_ONCE
    for (int32_t column = 0; column < columns; column += 2) {
      const int16_t *const x1 = &x[apart];
      const int16_t *const x2 = &x1[apart];
      int32_t first = __smlad(weft_pair(x), u0, term);
      first = __smlad(weft_pair(x1), u1, first);
      first = __smlad(weft_pair(x2), u2, first);
      if ((column + 1) == columns) {
        first = __smlabt(x[2], v0, first);
        first = __smlabt(x1[2], v1, first);
        first = __smlabt(x2[2], v2, first);
        to[0] = weft_byte(first, multiplier, right, zero);
      } else {
        const int32_t p0 = weft_pair(&x[2]);
        const int32_t p1 = weft_pair(&x1[2]);
        const int32_t p2 = weft_pair(&x2[2]);
        int32_t second;
        first = __smlabt(p0, v0, first);
        first = __smlabt(p1, v1, first);
        first = __smlabt(p2, v2, first);
        if (across == 1) {
          second = __smlad(p0, v0, __smlatb(weft_pair(x), u0, term));
          second = __smlad(p1, v1, __smlatb(weft_pair(x1), u1, second));
          second = __smlad(p2, v2, __smlatb(weft_pair(x2), u2, second));
        } else {
          second = __smlabt(x[4], v0, __smlad(p0, u0, term));
          second = __smlabt(x1[4], v1, __smlad(p1, u1, second));
          second = __smlabt(x2[4], v2, __smlad(p2, u2, second));
        }
        to[0] = weft_byte(first, multiplier, right, zero);
        to[y_across] = weft_byte(second, multiplier, right, zero);
        to = &to[2 * y_across];
        x = &x[2 * across];
      }
    }
  }
}
#endif

/* y[p * y_size + i * y_down + j * y_across] = the byte of term[p] + the sum over the taps [r][t] of
   a[p * size + i * down + j * across + r * apart + t * beside] * b[p][r][t]. */
WEFT_CALLED
static void weft_planes_bytes(const int16_t *a, int32_t size, int32_t down, int32_t across, int32_t apart,
                              int32_t beside, const int8_t *b, const int32_t *term, const int32_t *multiplier,
                              const int32_t *right, int32_t zero, int8_t *y, int32_t y_size, int32_t y_down,
                              int32_t y_across, int32_t planes, int32_t rows, int32_t columns, int32_t high, int32_t wide) {
  WEFT_ONCE
  for (int32_t plane = 0; plane < planes; ++plane) {
    const int16_t *const x = &a[plane * size];
    const int8_t *const w = &b[plane * high * wide];
    const int32_t t = term[plane];
    const int32_t m = multiplier[plane];
    const int32_t r = right[plane];
    int8_t *const to = &y[plane * y_size];
    int32_t done = 0;
#if WEFT_DSP
    if ((high == 3) && (wide == 3) && (beside == 1) && (across <= 2)) {
      if (across == 1) {
        weft_three(x, down, 1, apart, w, t, m, r, zero, to, y_down, y_across, rows, columns);
      } else {
        weft_three(x, down, 2, apart, w, t, m, r, zero, to, y_down, y_across, rows, columns);
      }
      done = rows;
    }
#endif
    WEFT_ONCE
    for (int32_t row = done; row < rows; ++row) {
      WEFT_ONCE
      for (int32_t column = 0; column < columns; ++column) {
        const int32_t sum = weft_taps(&x[(row * down) + (column * across)], apart, beside, w, high, wide);
        to[(row * y_down) + (column * y_across)] = weft_byte(t + sum, m, r, zero);
      }
    }
  }
}
