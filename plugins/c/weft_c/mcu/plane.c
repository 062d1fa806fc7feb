/* y[r][k] = x[at + r * apart + k * across] - zero for r < rows and k < count, where 0 <= down + r * step < height and
   0 <= left + k < width, and 0 elsewhere. */
WEFT_CALLED
static void weft_plane(const int8_t *x, int32_t at, int32_t apart, int32_t across, int32_t zero, int16_t *y,
                       int32_t rows, int32_t count, int32_t down, int32_t step, int32_t height, int32_t left,
                       int32_t width) {
  const int32_t first = (left < 0) ? -left : 0;
  const int32_t rest = width - left;
  const int32_t last = (rest < count) ? rest : count;
  WEFT_ONCE
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t place = down + (row * step);
    int16_t *const to = &y[row * count];
    int32_t k = 0;
    if ((place >= 0) && (place < height) && (first < last)) {
      const int8_t *from = &x[at + (row * apart) + (first * across)];
      WEFT_ONCE
      for (; k < first; ++k) {
        to[k] = 0;
      }
      WEFT_OFTEN
      for (; k < last; ++k) {
        to[k] = (int16_t)(from[0] - zero);
        from = &from[across];
      }
    }
    WEFT_ONCE
    for (; k < count; ++k) {
      to[k] = 0;
    }
  }
}
