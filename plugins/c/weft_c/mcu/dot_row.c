/* c[i][j] = sum over 4 * quads elements of a[i] and b[j], of rows of a `stride` elements apart. In every four elements of
   b the second and third are exchanged. */
WEFT_CALLED
static void weft_dot_row(const int16_t *a, int32_t stride, const int8_t *b, int32_t *c, int32_t rows, int32_t columns,
                         int32_t quads) {
  for (int32_t row = 0; row < rows; ++row) {
    const int8_t *u = b;
    for (int32_t column = 0; column < columns; ++column) {
      const int16_t *x = &a[row * stride];
      int32_t total = 0;
      for (int32_t quad = 0; quad < quads; ++quad) {
        total += ((int32_t)x[0] * u[0]) + ((int32_t)x[1] * u[2]) + ((int32_t)x[2] * u[1]) + ((int32_t)x[3] * u[3]);
        x = &x[4];
        u = &u[4];
      }
      c[(row * columns) + column] = total;
    }
  }
}
