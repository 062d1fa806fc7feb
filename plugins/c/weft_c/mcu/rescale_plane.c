/* y[i * down + j * across] = zero + (x[i][j] + term) * multiplier / 2^(31 + right), from low to high. */
WEFT_CALLED
static void weft_rescale_plane(const int32_t *x, int32_t term, int32_t multiplier, int32_t right, int32_t zero,
                               int32_t low, int32_t high, int8_t *y, int32_t down, int32_t across, int32_t rows,
                               int32_t columns) {
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < columns; ++column) {
      int32_t value = weft_rescaled(x[(row * columns) + column] + term, multiplier, right) + zero;
      value = (value < low) ? low : value;
      value = (value > high) ? high : value;
      y[(row * down) + (column * across)] = (int8_t)value;
    }
  }
}
