#if WEFT_DSP
/* As weft_planes_bytes, of one plane of three by three taps. Of three weights of a row u has the first two, v the last two: so
   windows that are neighbours (`near`, a constant) have a pair of elements in common. */
WEFT_INLINE
static inline void weft_three(const int16_t *a, int32_t down, int32_t across, int32_t near, int32_t apart,
                              const int8_t *b, int32_t term, int32_t multiplier, int32_t right, int32_t zero, int8_t *y,
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
        int32_t second;
        if (near == 1) {
          const int32_t p0 = weft_pair(&x[2]);
          const int32_t p1 = weft_pair(&x1[2]);
          const int32_t p2 = weft_pair(&x2[2]);
          first = __smlabt(p2, v2, __smlabt(p1, v1, __smlabt(p0, v0, first)));
          second = __smlad(p0, v0, __smlatb(weft_pair(x), u0, term));
          second = __smlad(p1, v1, __smlatb(weft_pair(x1), u1, second));
          second = __smlad(p2, v2, __smlatb(weft_pair(x2), u2, second));
        } else {
          first = __smlabt(x2[2], v2, __smlabt(x1[2], v1, __smlabt(x[2], v0, first)));
          second = __smlabt(x[across + 2], v0, __smlad(weft_pair(&x[across]), u0, term));
          second = __smlabt(x1[across + 2], v1, __smlad(weft_pair(&x1[across]), u1, second));
          second = __smlabt(x2[across + 2], v2, __smlad(weft_pair(&x2[across]), u2, second));
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
  const int32_t one = 1;
  const int32_t four = 4;
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
    if ((high == 3) && (wide == 3) && (beside == 1)) {
      if (across == 1) {
        weft_three(x, down, 1, 1, apart, w, t, m, r, zero, to, y_down, y_across, rows, columns);
      } else {
        weft_three(x, down, across, 0, apart, w, t, m, r, zero, to, y_down, y_across, rows, columns);
      }
      done = rows;
    }
#endif
    WEFT_ONCE
    for (int32_t row = done; row < rows; ++row) {
      /* Four windows at once, the last four of which may be among those before; one, if there are fewer. */
      int32_t column = 0;
      WEFT_ONCE
      while (column < columns) {
        const int32_t many = (columns < 4) ? one : four;
        const int32_t k = (column < (columns - many)) ? column : (columns - many);
        int8_t *const place = &to[(row * y_down) + (k * y_across)];
        int32_t sums[4];
        weft_taps(&x[(row * down) + (k * across)], (many == 4) ? across : 0, apart, beside, w, high, wide, sums);
        WEFT_ONCE
        for (int32_t n = 0; n < many; ++n) {
          place[n * y_across] = weft_byte(t + sums[n], m, r, zero);
        }
        column += many;
      }
    }
  }
}
