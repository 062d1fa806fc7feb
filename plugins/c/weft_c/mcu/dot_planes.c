/* c[p * c_size + i * c_down + j * c_across] = the sum over the taps [r][t] of
   a[p * size + i * down + j * across + r * apart + t * beside] * b[p][r][t]. */
WEFT_CALLED
static void weft_dot_planes(const int16_t *a, int32_t size, int32_t down, int32_t across, int32_t apart,
                            int32_t beside, const int8_t *b, int32_t *c, int32_t c_size, int32_t c_down,
                            int32_t c_across, int32_t planes, int32_t rows, int32_t columns, int32_t high,
                            int32_t wide) {
  const int32_t one = 1;
  const int32_t four = 4;
  for (int32_t plane = 0; plane < planes; ++plane) {
    for (int32_t row = 0; row < rows; ++row) {
      /* Four windows at once, the last four of which may be among those before; one, if there are fewer. */
      int32_t column = 0;
      WEFT_ONCE
      while (column < columns) {
        const int32_t many = (columns < 4) ? one : four;
        const int32_t k = (column < (columns - many)) ? column : (columns - many);
        int32_t sums[4];
        weft_taps(&a[(plane * size) + (row * down) + (k * across)], (many == 4) ? across : 0, apart, beside,
                  &b[plane * high * wide], high, wide, sums);
        WEFT_ONCE
        for (int32_t n = 0; n < many; ++n) {
          c[(plane * c_size) + (row * c_down) + ((k + n) * c_across)] = sums[n];
        }
        column += many;
      }
    }
  }
}
