/* c[i][j] = sum over 4 * quads elements of a[i] and b[j], for one row or two of a, `stride` elements apart. In every
   four elements of b the second and third are exchanged. */
static void weft_dot_rows(const int16_t *a, int32_t stride, const int8_t *b, int32_t *c, int32_t rows, int32_t columns,
                          int32_t quads) {
  int32_t first = 0;
#if WEFT_DSP
  if (rows == 2) {
    for (; first < (columns - 1); first += 2) {
      const int16_t *x = a;
      const int16_t *y = &a[stride];
      const int8_t *u = &b[first * quads * 4];
      const int8_t *v = &u[quads * 4];
      int32_t xu = 0;
      int32_t xv = 0;
      int32_t yu = 0;
      int32_t yv = 0;
      for (int32_t quad = 0; quad < quads; ++quad) {
        const int16x2_t x0 = weft_pair(x);
        const int16x2_t x1 = weft_pair(&x[2]);
        const int16x2_t y0 = weft_pair(y);
        const int16x2_t y1 = weft_pair(&y[2]);
        const int8x4_t us = weft_bytes(u);
        const int8x4_t vs = weft_bytes(v);
        const int16x2_t u0 = weft_even(us);
        const int16x2_t u1 = weft_odd(us);
        const int16x2_t v0 = weft_even(vs);
        const int16x2_t v1 = weft_odd(vs);
        xu = __smlad(x1, u1, __smlad(x0, u0, xu));
        yu = __smlad(y1, u1, __smlad(y0, u0, yu));
        xv = __smlad(x1, v1, __smlad(x0, v0, xv));
        yv = __smlad(y1, v1, __smlad(y0, v0, yv));
        x = &x[4];
        y = &y[4];
        u = &u[4];
        v = &v[4];
      }
      c[first] = xu;
      c[first + 1] = xv;
      c[columns + first] = yu;
      c[columns + first + 1] = yv;
    }
  }
#endif
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = first; column < columns; ++column) {
      const int16_t *x = &a[row * stride];
      const int8_t *u = &b[column * quads * 4];
      int32_t total = 0;
      for (int32_t quad = 0; quad < quads; ++quad) {
#if WEFT_DSP
        const int8x4_t us = weft_bytes(u);
        total = __smlad(weft_pair(x), weft_even(us), total);
        total = __smlad(weft_pair(&x[2]), weft_odd(us), total);
#else
        total += ((int32_t)x[0] * u[0]) + ((int32_t)x[1] * u[2]) + ((int32_t)x[2] * u[1]) + ((int32_t)x[3] * u[3]);
#endif
        x = &x[4];
        u = &u[4];
      }
      c[(row * columns) + column] = total;
    }
  }
}
