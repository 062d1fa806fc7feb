/* c[i][2p + r] = sum over 4 * quads elements of a[i] and b[p][.][r], for one row or two of a, `stride` elements apart. In
   every four elements of b the second and third are exchanged. */
WEFT_CALLED
static void weft_dot_rows(const int16_t *a, int32_t stride, const int8_t *b, int32_t *c, int32_t rows, int32_t pairs,
                          int32_t quads) {
#if WEFT_DSP
  const weft_word *w = (const weft_word *)(const void *)b;
  for (int32_t pair = 0; pair < pairs; ++pair) {
    const weft_word *x = (const weft_word *)(const void *)a;
    const weft_word *const end = &w[2 * quads];
    int32_t xu = 0;
    int32_t xv = 0;
    if (rows == 2) {
      const weft_word *y = (const weft_word *)(const void *)&a[stride];
      int32_t yu = 0;
      int32_t yv = 0;
      WEFT_OFTEN
      while (w != end) {
        const int32_t u = w[0];
        const int32_t v = w[1];
        const int32_t x0 = x[0];
        const int32_t x1 = x[1];
        const int32_t y0 = y[0];
        const int32_t y1 = y[1];
        xu = __smlad(x0, weft_even(u), xu);
        yu = __smlad(y0, weft_even(u), yu);
        xu = __smlad(x1, weft_odd(u), xu);
        yu = __smlad(y1, weft_odd(u), yu);
        xv = __smlad(x0, weft_even(v), xv);
        yv = __smlad(y0, weft_even(v), yv);
        xv = __smlad(x1, weft_odd(v), xv);
        yv = __smlad(y1, weft_odd(v), yv);
        w = &w[2];
        x = &x[2];
        y = &y[2];
      }
      c[(2 * pairs) + (2 * pair)] = yu;
      c[(2 * pairs) + (2 * pair) + 1] = yv;
    } else {
      WEFT_OFTEN
      while (w != end) {
        const int32_t u = w[0];
        const int32_t v = w[1];
        xu = __smlad(x[1], weft_odd(u), __smlad(x[0], weft_even(u), xu));
        xv = __smlad(x[1], weft_odd(v), __smlad(x[0], weft_even(v), xv));
        w = &w[2];
        x = &x[2];
      }
    }
    c[2 * pair] = xu;
    c[(2 * pair) + 1] = xv;
  }
#else
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < (2 * pairs); ++column) {
      const int16_t *x = &a[row * stride];
      const int8_t *u = &b[((column / 2) * quads * 8) + ((column % 2) * 4)];
      int32_t total = 0;
      for (int32_t quad = 0; quad < quads; ++quad) {
        total += ((int32_t)x[0] * u[0]) + ((int32_t)x[1] * u[2]) + ((int32_t)x[2] * u[1]) + ((int32_t)x[3] * u[3]);
        x = &x[4];
        u = &u[8];
      }
      c[(row * 2 * pairs) + column] = total;
    }
  }
#endif
}
