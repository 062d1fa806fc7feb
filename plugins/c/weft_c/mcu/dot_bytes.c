/* y[i][2p + r] = the byte of term[2p + r] + the sum over 4 * quads elements of a[i] and b[p][.][r], for one row or two of a,
   `stride` elements apart. In every four elements of b the second and third are exchanged. */
WEFT_CALLED
static void weft_dot_bytes(const int16_t *a, int32_t stride, const int8_t *b, const int32_t *term,
                           const int32_t *multiplier, const int32_t *right, int32_t zero, int8_t *y, int32_t rows,
                           int32_t pairs, int32_t quads) {
#if WEFT_DSP
  const weft_word *w = (const weft_word *)(const void *)b;
  int8_t *to = y;
  const int32_t *t = term;
  const int32_t *m = multiplier;
  const int32_t *r = right;
  WEFT_ONCE
  for (int32_t pair = 0; pair < pairs; ++pair) {
    const weft_word *x = (const weft_word *)(const void *)a;
    const weft_word *const end = &x[2 * quads];
    int32_t xu = t[0];
    int32_t xv = t[1];
    if (rows > 1) {
      const weft_word *z = (const weft_word *)(const void *)&a[stride];
      int32_t zu = xu;
      int32_t zv = xv;
      WEFT_OFTEN
      while (x != end) {
        const int32_t u = w[0];
        const int32_t v = w[1];
        const int32_t x0 = x[0];
        const int32_t x1 = x[1];
        const int32_t z0 = z[0];
        const int32_t z1 = z[1];
        xu = __smlad(x0, weft_even(u), xu);
        zu = __smlad(z0, weft_even(u), zu);
        xu = __smlad(x1, weft_odd(u), xu);
        zu = __smlad(z1, weft_odd(u), zu);
        xv = __smlad(x0, weft_even(v), xv);
        zv = __smlad(z0, weft_even(v), zv);
        xv = __smlad(x1, weft_odd(v), xv);
        zv = __smlad(z1, weft_odd(v), zv);
        w = &w[2];
        x = &x[2];
        z = &z[2];
      }
      const int32_t mu = m[0];
      const int32_t mv = m[1];
      const int32_t ru = r[0];
      const int32_t rv = r[1];
      to[0] = weft_byte(xu, mu, ru, zero);
      to[1] = weft_byte(xv, mv, rv, zero);
      to[2 * pairs] = weft_byte(zu, mu, ru, zero);
      to[(2 * pairs) + 1] = weft_byte(zv, mv, rv, zero);
    } else {
      WEFT_OFTEN
      while (x != end) {
        const int32_t u = w[0];
        const int32_t v = w[1];
        xu = __smlad(x[1], weft_odd(u), __smlad(x[0], weft_even(u), xu));
        xv = __smlad(x[1], weft_odd(v), __smlad(x[0], weft_even(v), xv));
        w = &w[2];
        x = &x[2];
      }
      const int32_t mu = m[0];
      const int32_t mv = m[1];
      const int32_t ru = r[0];
      const int32_t rv = r[1];
      to[0] = weft_byte(xu, mu, ru, zero);
      to[1] = weft_byte(xv, mv, rv, zero);
    }
    to = &to[2];
    t = &t[2];
    m = &m[2];
    r = &r[2];
  }
#else
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < (2 * pairs); ++column) {
      const int16_t *x = &a[row * stride];
      const int8_t *u = &b[((column / 2) * quads * 8) + ((column % 2) * 4)];
      int32_t total = term[column];
      for (int32_t quad = 0; quad < quads; ++quad) {
        total += ((int32_t)x[0] * u[0]) + ((int32_t)x[1] * u[2]) + ((int32_t)x[2] * u[1]) + ((int32_t)x[3] * u[3]);
        x = &x[4];
        u = &u[8];
      }
      y[(row * 2 * pairs) + column] = weft_byte(total, multiplier[column], right[column], zero);
    }
  }
#endif
}
