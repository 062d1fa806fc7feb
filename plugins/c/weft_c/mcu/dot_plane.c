/* c[i][j] = the sum over the taps [r][t] of a[i * down + j * across + r * apart + t * beside] * b[r][t]. */
WEFT_CALLED
static void weft_dot_plane(const int16_t *a, int32_t down, int32_t across, int32_t apart, int32_t beside,
                           const int8_t *b, int32_t *c, int32_t rows, int32_t columns, int32_t high, int32_t wide) {
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < columns; ++column) {
      c[(row * columns) + column] =
          weft_taps(&a[(row * down) + (column * across)], apart, beside, b, high, wide);
    }
  }
}
