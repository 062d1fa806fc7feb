/* y[i][j] = zero + (x[i][j] + term[j]) * multiplier[j] / 2^(31 + right[j]), from low to high. */
WEFT_CALLED
static void weft_rescale_rows(const int32_t *x, const int32_t *term, const int32_t *multiplier, const int32_t *right,
                              int32_t zero, int32_t low, int32_t high, int8_t *y, int32_t rows, int32_t columns) {
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < columns; ++column) {
      const int32_t sum = x[(row * columns) + column] + term[column];
      int32_t value = weft_rescaled(sum, multiplier[column], right[column]) + zero;
      value = (value < low) ? low : value;
      value = (value > high) ? high : value;
      y[(row * columns) + column] = (int8_t)value;
    }
  }
}
