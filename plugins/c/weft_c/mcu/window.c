/* y[r][k] = x[at + r * apart + k] - zero for r < rows and k < count, where 0 <= down + r * step < height and
   0 <= across + k < width, and 0 elsewhere. */
WEFT_CALLED
static void weft_window_edge(const int8_t *x, int32_t at, int32_t apart, int32_t zero, int16_t *y, int32_t rows,
                             int32_t count, int32_t down, int32_t step, int32_t height, int32_t across,
                             int32_t width) {
  const int32_t first = (across < 0) ? -across : 0;
  const int32_t rest = width - across;
  const int32_t last = (rest < count) ? rest : count;
  WEFT_ONCE
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t place = down + (row * step);
    int16_t *const to = &y[row * count];
    int32_t k = 0;
    if ((place >= 0) && (place < height) && (first < last)) {
      WEFT_ONCE
      for (; k < first; ++k) {
        to[k] = 0;
      }
      if (count > 12) {
        weft_widen(&x[at + (row * apart) + first], zero, &to[first], last - first);
        k = last;
      }
      WEFT_ONCE
      for (; k < last; ++k) {
        to[k] = (int16_t)(x[at + (row * apart) + k] - zero);
      }
    }
    WEFT_ONCE
    for (; k < count; ++k) {
      to[k] = 0;
    }
  }
}

/* The same; most windows are inside. Counts are constants where it is called: so small windows need no loop. */
WEFT_INLINE
static inline void weft_window(const int8_t *x, int32_t at, int32_t apart, int32_t zero, int16_t *y, int32_t rows,
                               int32_t count, int32_t down, int32_t step, int32_t height, int32_t across,
                               int32_t width) {
  if ((down < 0) || ((down + ((rows - 1) * step)) >= height) || (across < 0) || ((across + count) > width)) {
    weft_window_edge(x, at, apart, zero, y, rows, count, down, step, height, across, width);
  } else if ((rows * count) <= 32) {
    const int8_t *const from = &x[at];
    WEFT_ALL
    for (int32_t row = 0; row < rows; ++row) {
      weft_widen_short(&from[row * apart], zero, &y[row * count], count);
    }
  } else {
    WEFT_ONCE
    for (int32_t row = 0; row < rows; ++row) {
      const int8_t *const from = &x[at + (row * apart)];
      int16_t *const to = &y[row * count];
      if (count <= 24) {
        weft_widen_short(from, zero, to, count);
      } else {
        weft_widen(from, zero, to, count);
      }
    }
  }
}
