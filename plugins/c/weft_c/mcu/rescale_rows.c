/* y[i][j] = zero + (x[i][j] + term[j]) * multiplier[j] / 2^(31 + right[j]), from low to high. The quotient by 2^31 is
   rounded halves up, that by 2^right halves away from zero. */
WEFT_CALLED
static void weft_rescale_rows(const int32_t *x, const int32_t *term, const int32_t *multiplier, const int32_t *right,
                              int32_t zero, int32_t low, int32_t high, int8_t *y, int32_t rows, int32_t columns) {
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < columns; ++column) {
      const int64_t product = (int64_t)(x[(row * columns) + column] + term[column]) * multiplier[column];
      const int32_t part = (int32_t)((product + ((int64_t)1 << 30)) >> 31);
      const int32_t places = right[column];
      int32_t value = ((part + (int32_t)(1UL << (uint32_t)(places - 1)) + (part >> 31)) >> places) + zero;
      value = (value < low) ? low : value;
      value = (value > high) ? high : value;
      y[(row * columns) + column] = (int8_t)value;
    }
  }
}
