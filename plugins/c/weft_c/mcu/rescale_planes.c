/* y[p * y_size + i * y_down + j * y_across] = zero + (x[p * size + i * down + j * across] + term[p]) * multiplier[p] /
   2^(31 + right[p]), from low to high. */
WEFT_CALLED
static void weft_rescale_planes(const int32_t *x, int32_t size, int32_t down, int32_t across, const int32_t *term,
                                const int32_t *multiplier, const int32_t *right, int32_t zero, int32_t low,
                                int32_t high, int8_t *y, int32_t y_size, int32_t y_down, int32_t y_across,
                                int32_t planes, int32_t rows, int32_t columns) {
  for (int32_t plane = 0; plane < planes; ++plane) {
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t column = 0; column < columns; ++column) {
        const int32_t sum = x[(plane * size) + (row * down) + (column * across)] + term[plane];
        int32_t value = weft_rescaled(sum, multiplier[plane], right[plane]) + zero;
        value = (value < low) ? low : value;
        value = (value > high) ? high : value;
        y[(plane * y_size) + (row * y_down) + (column * y_across)] = (int8_t)value;
      }
    }
  }
}
