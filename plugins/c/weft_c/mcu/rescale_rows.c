/* x * multiplier / 2^(31 + right), for |x| < 2^30 and right > 0. The quotient by 2^31 is rounded halves up, that by
   2^right halves away from zero. */
static inline int32_t weft_rescaled(int32_t x, int32_t multiplier, int32_t right) {
  const int32_t twice = 2 * x;
  const int64_t product = ((int64_t)twice * multiplier) + 0x80000000LL;
  const uint64_t word = (uint64_t)product;
  const uint32_t high = (uint32_t)(word >> 32);
  const int32_t part = (int32_t)high;
  return weft_asr_i32(weft_asr_i32(part + weft_asr_i32(part, 31), right - 1) + 1, 1);
}

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
