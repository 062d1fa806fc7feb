/* The sum over the taps [i][j] of a[i * apart + j * beside] * b[i][j]. */
static inline int32_t weft_taps(const int16_t *a, int32_t apart, int32_t beside, const int8_t *b, int32_t high,
                                int32_t wide) {
  int32_t total = 0;
  WEFT_ONCE
  for (int32_t row = 0; row < high; ++row) {
    WEFT_ONCE
    for (int32_t column = 0; column < wide; ++column) {
      total += (int32_t)a[(row * apart) + (column * beside)] * b[(row * wide) + column];
    }
  }
  return total;
}
